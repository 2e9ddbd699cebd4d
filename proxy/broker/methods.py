"""The AMQP methods that the control plane sends, and what a refusal of each means.

The methods are encoded here byte for byte: aiormq would send them, but pamqp refuses names that RabbitMQ allows
(``orders~2``, ``Käse``) and changes the integer types of arguments. Sources: AMQP 0-9-1 spec, 1.6 (exchange class) and
1.7 (queue class); RabbitMQ's access control guide (permissions).
"""

from __future__ import annotations

import struct
from typing import TypeAlias

from aiormq import spec

from proxy.amqp.tables import encode_table
from proxy.relay.tokens import token
from proxy.relay.vhost import Destination, OwnedExchange
from proxy.values import Table, Value

_PASSIVE, _DURABLE = 1, 2
#: AMQP 0-9-1 spec, 4.2.5.3: a short string has at most 255 octets.
_LONGEST_NAME_BYTES = 255
#: RabbitMQ quotes names in a reply text, which it cuts at 255 bytes, perhaps within a character; pamqp gives up
#: the connection on that. Behind this many bytes of names nothing can be cut but our own ASCII.
_QUOTABLE_BYTES = 140

#: The argument that says an exchange is ours.
MARK = b"x-open-exchange"

EXCLUSIVE = "exclusive queue of another connection"
ABSENT = "does not exist"
INTERNAL = "is internal: nobody can publish to it"


class _Written:
    """A method whose bytes behind class and method id are given."""

    payload = b""

    def marshal(self) -> bytes:
        return self.payload


class _QueueDeclare(_Written, spec.Queue.Declare):
    """queue.declare."""


class _QueueBind(_Written, spec.Queue.Bind):
    """queue.bind."""


class _QueueUnbind(_Written, spec.Queue.Unbind):
    """queue.unbind."""


class _ExchangeDeclare(_Written, spec.Exchange.Declare):
    """exchange.declare."""


class _ExchangeBind(_Written, spec.Exchange.Bind):
    """exchange.bind."""


class _ExchangeUnbind(_Written, spec.Exchange.Unbind):
    """exchange.unbind."""


Method: TypeAlias = _QueueDeclare | _QueueBind | _QueueUnbind | _ExchangeDeclare | _ExchangeBind | _ExchangeUnbind


def declare_queue(name: bytes, arguments: Table = ()) -> Method:
    """Declare a durable queue."""
    method = _QueueDeclare()
    method.payload = _names(name) + bytes([_DURABLE]) + _table(arguments)
    return method


def find(destination: Destination) -> Method:
    """Ask whether a queue or an exchange exists, without making it (a passive declare)."""
    kind, name = destination
    method: Method
    if kind == "queue":
        method = _QueueDeclare()
        method.payload = _names(name) + bytes([_PASSIVE]) + _table(())
    else:
        method = _ExchangeDeclare()
        # A passive declare does not compare the type, but it must be one that the broker knows.
        method.payload = _names(name, b"direct") + bytes([_PASSIVE]) + _table(())
    return method


def declare_carrier(exchange: OwnedExchange) -> Method:
    """Declare the durable direct exchange that carries an exchange's messages."""
    arguments: Table = ((MARK, Value("t", True)),)
    if exchange.alternate is not None:
        arguments = ((b"alternate-exchange", Value("S", exchange.alternate)), *arguments)
    method = _ExchangeDeclare()
    method.payload = _names(exchange.carrier, b"direct") + bytes([_DURABLE]) + _table(arguments)
    return method


def declare_marker(name: bytes) -> Method:
    """Declare a durable exchange that says something by being there."""
    method = _ExchangeDeclare()
    method.payload = _names(name, b"fanout") + bytes([_DURABLE]) + _table(())
    return method


def bind_token(carrier: bytes, destination: Destination, key: bytes | None = None, entries: bytes = b"") -> Method:
    """Bind a destination to a carrier under a token; doing it twice is doing it once.

    Args:
        carrier: the carrier.
        destination: what is bound.
        key: the token, or another key; None: the unkeyed token.
        entries: raw entries of the argument table.
    """
    kind, name = destination
    method: Method = _QueueBind() if kind == "queue" else _ExchangeBind()
    under = token(kind, name) if key is None else key
    method.payload = _names(name, carrier, under) + b"\0" + struct.pack(">I", len(entries)) + entries
    return method


def unbind_token(carrier: bytes, destination: Destination, key: bytes | None = None) -> Method:
    """Take a destination's token away, None: the unkeyed one; no error where there is none."""
    kind, name = destination
    under = token(kind, name) if key is None else key
    method: Method
    if kind == "queue":
        method = _QueueUnbind()  # has no no-wait bit
        method.payload = _names(name, carrier, under) + _table(())
    else:
        method = _ExchangeUnbind()
        method.payload = _names(name, carrier, under) + b"\0" + _table(())
    return method


def unnameable(name: bytes) -> str | None:
    """Say why a name can't be used in a declaration, None where it can."""
    if not name:
        return "the name is empty"
    if len(name) > _LONGEST_NAME_BYTES:
        return "the name is longer than 255 bytes"
    try:
        name.decode()
    except UnicodeDecodeError:
        return "the name is not UTF-8"  # RabbitMQ closes the connection on such a short string
    if len(name) > _QUOTABLE_BYTES and not name.isascii():
        return f"the name is not ASCII and longer than {_QUOTABLE_BYTES} bytes"
    return None


def reason(code: int, text: str, kind: str) -> str:
    """Say in an operator's words why a destination could not be bound or found."""
    if code == 404:
        return f"no carrier exchange: {text}" if kind == "queue" and "no exchange" in text else ABSENT
    if code == 405:
        return EXCLUSIVE
    if code == 403:
        return (
            f"refused: the control user needs write permission on this {kind} "
            f"and read permission on the carrier exchange ({text})"
        )
    return f"refused: {code} {text}"


def _names(*names: bytes) -> bytes:
    # The first two octets are a reserved short integer (once the access ticket).
    return b"\0\0" + b"".join(bytes([len(name)]) + name for name in names)


def _table(arguments: Table) -> bytes:
    entries = encode_table(arguments)
    return struct.pack(">I", len(entries)) + entries
