"""exchange.declare and exchange.delete of exchanges that are, or are to be, evaluated here.

An ``x-open`` exchange becomes a marked direct exchange on the broker, declared on the client's own channel. The broker
compares type, flags and alternate exchange of an existing one; the filters of an open exchange are compared here, by
value: integers of any width are equal. Reply texts are RabbitMQ's. What a rules file owns is not the client's to
change.

Source: delivery notes, "The store"; the open-exchange specification, 10 and 11; RabbitMQ guide "Exchanges"; texts as
RabbitMQ 3.10 writes them ("inequivalent arg").
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from proxy.amqp import methods
from proxy.amqp.method_frames import (
    ExchangeDeclare,
    ExchangeDelete,
    empty_ok,
    exchange_declare,
    exchange_delete,
    read_method,
)
from proxy.amqp.tables import MAX_NESTING, decode_table, too_deep
from proxy.errors import ProtocolError, Scope
from proxy.relay.channel import Channel, ExpectedReply
from proxy.relay.connection_state import ConnectionState, LookUpExchange
from proxy.relay.declare.injected_methods import (
    hold_channel,
    inject,
    inject_and_reply,
    is_held,
    reply_and_resume,
)
from proxy.relay.declare.storage import DELIVERY, exchange_arguments, refuse_own_arguments
from proxy.relay.declare.token_bindings import withdraw
from proxy.relay.vhost import DeclaredExchange, Delivery, OwnedExchange
from proxy.routing.error_texts import TYPE_NAMES
from proxy.routing.exchange import Exchange
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
_BY_FILE = DeclaredExchange(durable=True, auto_delete=False, internal=False, entries=b"", sequence=0)
OPEN = b"x-open"
_DECLARE, _DELETE = (40, 10), (40, 20)
_ALTERNATE = b"alternate-exchange"


def refuse_nested(entries: bytes, target: str, name: bytes, vhost: str, ids: tuple[int, int]) -> None:
    """Refuse arguments of a declare or bind that nest deeper than a table is decoded.

    The broker takes and keeps any depth, and its management API then lists what no client decodes: a queue declared so
    would hide every queue of the virtual host from every sidecar.

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
    return (
        f"inequivalent arg 'type' for exchange '{_utf8(exchange)}' in vhost '{vhost}': "
        f"received '{_utf8(received)}' but current is '{current}'"
    )


def inequivalence(owned: OwnedExchange, table: Table, request: ExchangeDeclare, vhost: str) -> str:
    """Find the first argument that differs.

    Returns:
        The reply text, "" where all are equal.
    """
    where = f"for exchange '{_utf8(owned.name)}' in vhost '{vhost}'"
    declared = owned.declared or _BY_FILE
    for name in ("durable", "auto_delete", "internal"):  # in the broker's order, and before the arguments
        received, current = getattr(request, name), getattr(declared, name)
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


class _NewExchange(NamedTuple):
    """An exchange on its way to be declared."""

    channel: Channel
    request: ExchangeDeclare
    owned: OwnedExchange
    exchange: Exchange


class ClientExchanges:
    """Takes exchange.declare and exchange.delete of one connection."""

    def __init__(self, connection: ConnectionState) -> None:
        self._connection = connection
        self._state = connection.plans.state

    def declare(self, channel: Channel, frame: bytes) -> bool:
        """Take an exchange.declare; answer whether it goes upstream as it came.

        Raises:
            ProtocolError: 403 and 406 on the channel.
        """
        request = read_method(ExchangeDeclare, frame[7:-1])
        refuse_nested(request.arguments, "exchange", request.exchange, self._state.name, _DECLARE)
        refuse_own_arguments(request.arguments, _DECLARE)
        owned = self._state.exchanges.get(request.exchange)
        if owned is not None and (owned.type.encode() == request.exchange_type or self._is_carrier(owned)):
            if request.passive:
                return self._passive(channel, request, owned)
            return self._again(channel, request, owned)
        if request.exchange_type != OPEN or request.passive:
            self._pass(channel, request.nowait, methods.EXCHANGE_DECLARE_OK)
            return True
        self._new(channel, request)
        return False

    def delete(self, channel: Channel, frame: bytes) -> bool:
        """Take an exchange.delete; answer whether it goes upstream as it came.

        Raises:
            ProtocolError: 403 for what a rules file owns, 406 where it is in use, on the channel.
        """
        request = read_method(ExchangeDelete, frame[7:-1])
        owned = self._state.exchanges.get(request.exchange)
        if owned is None or owned.unmatched_pass:  # the broker's own, with one of ours in addition
            self._pass(channel, request.nowait, methods.EXCHANGE_DELETE_OK)
            return True
        if owned.declared is None:
            text = f"exchange '{_text(owned.name)}' is declared by a rules file of the proxy"
            raise ProtocolError(403, text, Scope.CHANNEL, *_DELETE)
        if request.if_unused and owned.clients:
            text = f"exchange '{_text(owned.name)}' in vhost '{self._state.name}' in use"
            raise ProtocolError(406, text, Scope.CHANNEL, *_DELETE)
        delete: list[bytes] = []
        if owned.delivery is Delivery.CARRIER:
            frame = exchange_delete(channel.number, owned.carrier, if_unused=request.if_unused)
            delete.append(frame)

        def done() -> bytes:
            if self._state.exchanges.get(owned.name) is owned:
                self._gone(owned)
            return b"" if request.nowait else empty_ok(channel.number, methods.EXCHANGE_DELETE_OK)

        def free() -> None:
            if is_held(channel):
                inject_and_reply(self._connection, channel, delete, done)

        if request.if_unused and (owned.bound or owned.grants):  # ours, but they count as use to the broker
            hold_channel(self._connection, channel)
            withdraw(self._connection, owned, sorted(owned.bound), list(owned.grants), free, plain=True)
        else:
            inject_and_reply(self._connection, channel, delete, done)
        return False

    def _gone(self, owned: OwnedExchange) -> None:
        self._state.remove_exchange(owned.name)
        self._connection.inventory.changed(owned.name)

    @staticmethod
    def _is_carrier(owned: OwnedExchange) -> bool:
        """Whether the exchange of that name on the broker, if there is one, is ours."""
        return owned.declared is not None or (owned.delivery is Delivery.CARRIER and owned.carrier == owned.name)

    @staticmethod
    def _pass(channel: Channel, nowait: bool, reply: int) -> None:
        if not nowait:
            channel.replies.append(ExpectedReply(reply))

    def _passive(self, channel: Channel, request: ExchangeDeclare, owned: OwnedExchange) -> bool:
        if owned.delivery is Delivery.CARRIER and owned.carrier == owned.name:
            self._pass(channel, request.nowait, methods.EXCHANGE_DECLARE_OK)
            return True
        inject_and_reply(self._connection, channel, [], partial(_declared, channel, request))
        return False

    def _again(self, channel: Channel, request: ExchangeDeclare, owned: OwnedExchange) -> bool:
        """An exchange that is known here: it must be declared the same."""
        table = decode_table(request.arguments, 0, len(request.arguments))
        if owned.type.encode() != request.exchange_type:
            raise self._inequivalent(inequivalent_type(owned.name, self._state.name, request.exchange_type, owned.type))
        text = inequivalence(owned, table, request, self._state.name)
        if text:
            raise self._inequivalent(text)
        steps: list[bytes] = []
        if owned.delivery is Delivery.CARRIER and owned.carrier == owned.name:
            # The broker compares the flags and the alternate exchange, and asks for the client's permission.
            steps.append(self._carrier_frame(channel, request, 0))
        inject_and_reply(self._connection, channel, steps, partial(_declared, channel, request))
        return False

    @staticmethod
    def _inequivalent(text: str) -> ProtocolError:
        return ProtocolError(406, text, Scope.CHANNEL, *_DECLARE)

    def _carrier_frame(self, channel: Channel, request: ExchangeDeclare, sequence: int) -> bytes:
        return exchange_declare(
            channel.number,
            request.exchange,
            b"direct",
            exchange_arguments(sequence, request.arguments),
            durable=request.durable,
            auto_delete=request.auto_delete,
            internal=request.internal,
        )

    def _new(self, channel: Channel, request: ExchangeDeclare) -> None:
        """An exchange that is not known here: look whether the broker has one of that name."""
        new = _NewExchange(channel, request, *self._make(request))
        if _is_reserved(request.exchange):
            hold_channel(self._connection, channel)
            self._looked_up(new, None)  # the broker refuses it
            return
        look_up = LookUpExchange(channel, request.exchange, partial(self._looked_up, new))
        # After what the client asked before: it may have deleted an exchange of that name.
        inject(self._connection, channel, [], partial(self._connection.pending.requests.append, look_up))

    def _looked_up(self, new: _NewExchange, found: str | None) -> None:
        """Before the declare: is there an exchange of that name that is not ours?"""
        channel, request, owned = new.channel, new.request, new.owned
        if not is_held(channel):
            return
        known = self._state.exchanges.get(owned.name)
        try:
            if known is not None:
                self._again(channel, request, known)
                return
            if found is not None:
                raise self._inequivalent(inequivalent_type(owned.name, self._state.name, OPEN, found))
        except ProtocolError as error:
            self._connection.refuse(channel, error)
            return
        if owned.declared is None or owned.delivery is Delivery.QUEUE:
            self._compared(new, None)
            return
        frame = self._carrier_frame(channel, request, owned.declared.sequence)
        # Two may have declared at once, and the broker does not compare: look again after the declare-ok.
        again = LookUpExchange(channel, request.exchange, partial(self._compared, new))
        made = partial(self._connection.pending.requests.append, again)
        inject(self._connection, channel, [frame], made)

    def _compared(self, new: _NewExchange, _: str | None) -> None:
        """After the declare: is it what was declared first?"""
        channel, owned = new.channel, new.owned
        if not is_held(channel):
            return
        known = self._state.exchanges.get(owned.name)
        if known is None:
            self._state.add_exchange(owned, new.exchange)
        elif text := inequivalence(known, owned.arguments, new.request, self._state.name):
            self._connection.refuse(channel, self._inequivalent(text))
            return
        self._connection.inventory.changed(owned.name)
        reply_and_resume(self._connection, channel, _declared(channel, new.request))

    def _make(self, request: ExchangeDeclare) -> tuple[OwnedExchange, Exchange]:
        """Check the arguments of a new open exchange and make it."""
        rules = self._connection.plans.rules
        table = decode_table(request.arguments, 0, len(request.arguments))
        alternate = _alternate(table)
        try:
            exchange = Exchange(request.exchange, OPEN.decode(), table, rules.local_time, alternate)
        except ProtocolError as error:
            raise ProtocolError(error.reply_code, error.text, Scope.CHANNEL, *_DECLARE) from error
        declared = DeclaredExchange(
            request.durable,
            request.auto_delete,
            request.internal,
            request.arguments,
            self._connection.next_sequence(),
        )
        owned = OwnedExchange(
            request.exchange,
            OPEN.decode(),
            _delivery(table, rules.delivery),
            request.exchange,
            alternate=alternate,
            arguments=table,
            declared=declared,
        )
        return owned, exchange


def _delivery(table: Table, default: Delivery) -> Delivery:
    chosen = dict(table).get(DELIVERY)
    if chosen is None:
        return default
    for delivery in Delivery:
        if chosen.letter == "S" and chosen.value == delivery.value.encode():
            return delivery
    raise ProtocolError(406, "Invalid exchange argument.", Scope.CHANNEL, *_DECLARE)


def _alternate(table: Table) -> bytes | None:
    value = dict(table).get(_ALTERNATE)
    return value.value if value is not None and isinstance(value.value, bytes) else None


def _is_reserved(name: bytes) -> bool:
    return not name or name.startswith(b"amq.")


def _declared(channel: Channel, request: ExchangeDeclare) -> bytes:
    return b"" if request.nowait else empty_ok(channel.number, methods.EXCHANGE_DECLARE_OK)


def _text(name: bytes) -> str:
    return name.decode(errors="replace")
