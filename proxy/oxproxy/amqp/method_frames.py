"""Reads the methods that the sidecar inspects, and builds the methods that it sends itself.

Strings and tables are bytes. A table is given as its entries, without the table's length. Names and keys passed to the
builders must not exceed 255 bytes. ``methods.method_frame`` builds all other methods.

Source: AMQP 0-9-1 spec, 1.2 "Constants" (reply codes), 1.3 to 1.8; RabbitMQ's reply texts; RabbitMQ "Exchange to
exchange bindings".
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar, cast

from pamqp import exceptions

from oxproxy.amqp import methods
from oxproxy.amqp.methods import arguments, method_frame
from oxproxy.values import QUEUE, Destination


class Close(NamedTuple):
    """``Connection.Close`` or ``Channel.Close``."""

    reply_code: int
    reply_text: bytes
    class_id: int
    method_id: int


class ExchangeDeclare(NamedTuple):
    """``Exchange.Declare``."""

    exchange: bytes
    exchange_type: bytes
    passive: bool
    durable: bool
    auto_delete: bool
    internal: bool
    nowait: bool
    arguments: bytes


class ExchangeDelete(NamedTuple):
    """``Exchange.Delete``."""

    exchange: bytes
    if_unused: bool
    nowait: bool


class ExchangeBind(NamedTuple):
    """``Exchange.Bind`` or ``Exchange.Unbind``."""

    destination: bytes
    source: bytes
    routing_key: bytes
    nowait: bool
    arguments: bytes


class QueueDeclare(NamedTuple):
    """``Queue.Declare``."""

    queue: bytes
    passive: bool
    durable: bool
    exclusive: bool
    auto_delete: bool
    nowait: bool
    arguments: bytes


class QueueDeclareOk(NamedTuple):
    """``Queue.DeclareOk``."""

    queue: bytes
    message_count: int
    consumer_count: int


class QueueBind(NamedTuple):
    """``Queue.Bind``."""

    queue: bytes
    exchange: bytes
    routing_key: bytes
    nowait: bool
    arguments: bytes


class QueueUnbind(NamedTuple):
    """``Queue.Unbind``, which has no nowait bit."""

    queue: bytes
    exchange: bytes
    routing_key: bytes
    arguments: bytes


class QueueDelete(NamedTuple):
    """``Queue.Delete``."""

    queue: bytes
    if_unused: bool
    if_empty: bool
    nowait: bool


class Publish(NamedTuple):
    """``Basic.Publish``."""

    exchange: bytes
    routing_key: bytes
    mandatory: bool
    immediate: bool


class Return(NamedTuple):
    """``Basic.Return``."""

    reply_code: int
    reply_text: bytes
    exchange: bytes
    routing_key: bytes


class Deliver(NamedTuple):
    """``Basic.Deliver``."""

    consumer_tag: bytes
    delivery_tag: int
    redelivered: bool
    exchange: bytes
    routing_key: bytes


class GetOk(NamedTuple):
    """``Basic.GetOk``."""

    delivery_tag: int
    redelivered: bool
    exchange: bytes
    routing_key: bytes
    message_count: int


class Ack(NamedTuple):
    """``Basic.Ack``."""

    delivery_tag: int
    multiple: bool


class Nack(NamedTuple):
    """``Basic.Nack``."""

    delivery_tag: int
    multiple: bool
    requeue: bool


Fields = TypeVar("Fields", bound=NamedTuple)


def read_method(method: type[Fields], payload: bytes) -> Fields:
    """Read a method of a known type from the payload of its frame. Reserved arguments are omitted.

    Raises:
        ProtocolError: 502, with class and method ids: the arguments are malformed.
    """
    return method._make(arguments(payload)[-len(method._fields) :])  # reserved arguments come first


_NAMES = frozenset(("exchange", "queue", "source", "destination"))


def read_request(method: type[Fields], payload: bytes) -> Fields:
    """Read a declare, delete, bind or unbind method, and remove line breaks from its names, as the broker does.

    RabbitMQ removes CR and LF from the names of exchanges and queues in these methods, and only in these.

    Raises:
        ProtocolError: see `read_method`.
    """
    request = read_method(method, payload)
    if b"\n" not in payload and b"\r" not in payload:
        return request
    pairs = zip(method._fields, request, strict=True)
    return method._make(value.translate(None, b"\r\n") if field in _NAMES else value for field, value in pairs)


# Any: the base class of pamqp's errors declares no name.
_ERRORS = cast("dict[int, Any]", exceptions.CLASS_MAPPING)
#: Names of the reply codes; pamqp knows those of errors. RabbitMQ's reply texts begin with these names.
REPLY_NAMES = {200: b"REPLY_SUCCESS"} | {code: error.name.replace("-", "_").encode() for code, error in _ERRORS.items()}

#: A reply text is a short string (spec, 4.2.5.3). Longer texts are truncated and end in `_CUT`, as on RabbitMQ.
MAX_REPLY_TEXT_BYTES = 255
_CUT = b"..."

_UTF8_LONGEST = 4


def reply_text(reply_code: int, text: bytes) -> bytes:
    """Return a reply text in RabbitMQ's form: the name of the code, `` - `` and the text, truncated to 255 bytes."""
    name = REPLY_NAMES.get(reply_code)
    whole = name + b" - " + text if name else text
    if len(whole) <= MAX_REPLY_TEXT_BYTES:
        return whole
    cut = MAX_REPLY_TEXT_BYTES - len(_CUT)
    for at in range(cut, cut - _UTF8_LONGEST, -1):
        if whole[at] & 0xC0 != 0x80:  # do not truncate within a character, unless the text is not UTF-8
            cut = at
            break
    return whole[:cut] + _CUT


def connection_close(reply_code: int, text: bytes, class_id: int = 0, method_id: int = 0) -> bytes:
    return method_frame(0, methods.CONNECTION_CLOSE, reply_code, text, class_id, method_id)


def connection_close_ok() -> bytes:
    return method_frame(0, methods.CONNECTION_CLOSE_OK)


def channel_open(channel: int) -> bytes:
    return method_frame(channel, methods.CHANNEL_OPEN, b"")


def channel_close(channel: int, reply_code: int, text: bytes, class_id: int = 0, method_id: int = 0) -> bytes:
    return method_frame(channel, methods.CHANNEL_CLOSE, reply_code, text, class_id, method_id)


def channel_close_ok(channel: int) -> bytes:
    return method_frame(channel, methods.CHANNEL_CLOSE_OK)


def exchange_declare(
    channel: int,
    exchange: bytes,
    exchange_type: bytes,
    entries: bytes = b"",
    *,
    passive: bool = False,
    durable: bool = True,
    auto_delete: bool = False,
    internal: bool = False,
    nowait: bool = False,
) -> bytes:
    bits = (passive, durable, auto_delete, internal, nowait)
    return method_frame(channel, methods.EXCHANGE_DECLARE, 0, exchange, exchange_type, *bits, entries)


def exchange_delete(channel: int, exchange: bytes, *, if_unused: bool = False, nowait: bool = False) -> bytes:
    return method_frame(channel, methods.EXCHANGE_DELETE, 0, exchange, if_unused, nowait)


def queue_declare(
    channel: int, queue: bytes, entries: bytes = b"", *, passive: bool = False, durable: bool = True
) -> bytes:
    return method_frame(channel, methods.QUEUE_DECLARE, 0, queue, passive, durable, False, False, False, entries)


def bind(
    channel: int, destination: Destination, source: bytes, key: bytes, entries: bytes = b"", *, nowait: bool = False
) -> bytes:
    """Build a method that binds a queue or an exchange to an exchange, with the given argument entries."""
    kind, name = destination
    method = methods.QUEUE_BIND if kind == QUEUE else methods.EXCHANGE_BIND
    return method_frame(channel, method, 0, name, source, key, nowait, entries)


def unbind(channel: int, destination: Destination, source: bytes, key: bytes, entries: bytes = b"") -> bytes:
    """Build a method that removes a binding created with `bind`."""
    kind, name = destination
    if kind == QUEUE:
        return method_frame(channel, methods.QUEUE_UNBIND, 0, name, source, key, entries)
    return method_frame(channel, methods.EXCHANGE_UNBIND, 0, name, source, key, False, entries)


def passive_declare(channel: int, destination: Destination) -> bytes:
    """Build a passive declare. The broker refuses it with 404 if the queue or exchange does not exist."""
    kind, name = destination
    if kind == QUEUE:
        return queue_declare(channel, name, passive=True, durable=False)
    # Any type that the broker supports will do: a passive declare does not compare it with the exchange's type.
    return exchange_declare(channel, name, b"direct", passive=True, durable=False)


def basic_publish(channel: int, exchange: bytes, key: bytes, *, mandatory: bool = False) -> bytes:
    return method_frame(channel, methods.BASIC_PUBLISH, 0, exchange, key, mandatory, False)


def basic_return(channel: int, reply_code: int, text: bytes, exchange: bytes, key: bytes) -> bytes:
    """Build ``Basic.Return``, which is sent before the content. RabbitMQ's reply text is only the name ``NO_ROUTE``."""
    return method_frame(channel, methods.BASIC_RETURN, reply_code, text, exchange, key)


def confirm_select(channel: int) -> bytes:
    return method_frame(channel, methods.CONFIRM_SELECT, False)
