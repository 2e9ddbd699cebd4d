"""Does a second declare of an exchange say the same as the first, and may its arguments pass? In RabbitMQ's words.

The broker compares type, flags and alternate exchange; the filters of an open exchange are compared here, by value:
integers of any width are equal.

Source: the open-exchange specification, 10.7; texts as RabbitMQ 3.10 writes them ("inequivalent arg").
"""

from __future__ import annotations

from proxy.amqp.method_arguments import ExchangeDeclare
from proxy.amqp.tables import MAX_NESTING, too_deep
from proxy.errors import ProtocolError, Scope
from proxy.relay.declare.stored import DELIVERY
from proxy.relay.vhost import Declared, OwnedExchange
from proxy.routing.erlang_terms import TYPE_NAMES
from proxy.values import Table, Value

_COMPARED = (
    b"alternate-exchange",
    b"max-headers-depth",
    b"max-headers-depth-silent",
    b"max-headers-size",
    b"max-headers-size-silent",
    b"max-payload-size",
    b"max-payload-size-silent",
    b"min-payload-size",
    b"min-payload-size-silent",
    DELIVERY,
)
#: how the control plane declares what a rules file names
_BY_FILE = Declared(durable=True, auto_delete=False, internal=False, entries=b"", sequence=0)


def refuse_nested(entries: bytes, target: str, name: bytes, vhost: str, ids: tuple[int, int]) -> None:
    """Refuse arguments of a declare or bind that nest deeper than a table is decoded.

    The broker takes and keeps any depth, and its management API then lists what no client decodes: a queue declared so
    would hide every queue of the virtual host from every sidecar.

    Args:
        entries: raw entries of the argument table.
        target: ``queue``, ``exchange`` or ``binding to queue`` and so on: what the arguments are of.
        name: its name.
        vhost: for the text.
        ids: class and method.

    Raises:
        ProtocolError: 406 on the channel.
    """
    argument = too_deep(entries) if entries else None
    if argument is not None:
        text = (
            f"invalid arg '{_utf8(argument)}' for {target} '{_utf8(name)}' in vhost '{vhost}': tables and arrays "
            f"nested deeper than {MAX_NESTING} levels"
        )
        raise ProtocolError(406, text, Scope.CHANNEL, *ids)


def inequivalent_type(exchange: bytes, vhost: str, received: bytes, current: str) -> str:
    """Say that an exchange exists with another type."""
    return (
        f"inequivalent arg 'type' for exchange '{_utf8(exchange)}' in vhost '{vhost}': "
        f"received '{_utf8(received)}' but current is '{current}'"
    )


def inequivalence(owned: OwnedExchange, table: Table, asked: ExchangeDeclare, vhost: str) -> str:
    """Find the first argument that differs.

    Args:
        owned: the exchange that is there.
        table: arguments of the new declare.
        asked: the new declare.
        vhost: for the text.

    Returns:
        The reply text, "" where all are equal.
    """
    where = f"for exchange '{_utf8(owned.name)}' in vhost '{vhost}'"
    declared = owned.declared or _BY_FILE
    for name in ("durable", "auto_delete", "internal"):  # in the broker's order, and before the arguments
        received, current = getattr(asked, name), getattr(declared, name)
        if received != current:
            return (
                f"inequivalent arg '{name}' {where}: received '{str(received).lower()}' "
                f"but current is '{str(current).lower()}'"
            )
    before, now = dict(owned.arguments), dict(table)
    for key in _COMPARED:
        one, other = now.get(key), before.get(key)
        if not _equal(one, other):
            return f"inequivalent arg '{_utf8(key)}' {where}: received {_shown(one)} but current is {_shown(other)}"
    return ""


def _equal(one: Value | None, other: Value | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.value == other.value and isinstance(one.value, bool) == isinstance(other.value, bool)


def _shown(value: Value | None) -> str:
    if value is None:
        return "none"
    text = _utf8(value.value) if isinstance(value.value, bytes) else str(value.value)
    return f"the value '{text}' of type '{TYPE_NAMES.get(value.letter, value.letter)}'"


def _utf8(name: bytes) -> str:
    return name.decode(errors="replace")
