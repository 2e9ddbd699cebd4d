"""Method numbers, argument layouts and replies. Reads the arguments of any method, and builds method frames.

Names, layouts and replies are taken from pamqp, but pamqp's codec is not used: it converts strings to ``str``, which
fails on binary names, and tables to ``dict``, which loses types, order and duplicates. Here, both remain bytes. This
module has no state: the handshake and the relay decide which methods are allowed at a given time.

A method is identified by one number, class id << 16 | method id. The payload of a method frame begins with this number,
in four bytes. All lengths are in bytes. Only methods that the sidecar inspects or sends have a constant.

Source: AMQP 0-9-1 spec, 1.3 to 1.8 (classes); RabbitMQ "Protocol extensions".
"""

from __future__ import annotations

import struct
from typing import Final, TypeAlias, cast

from pamqp import base, commands

from oxproxy.amqp.frames import FRAME_HEAD, LEAST_METHOD_FRAME, METHOD, frame
from oxproxy.amqp.tables import pick
from oxproxy.errors import LocalProtocolError, ProtocolError
from oxproxy.values import counted

#: An argument: a number, a bit, a string (short or long), or the entries of a table.
Argument: TypeAlias = int | bool | bytes

CONNECTION_START: Final = 10 << 16 | 10
CONNECTION_START_OK: Final = 10 << 16 | 11
CONNECTION_SECURE: Final = 10 << 16 | 20
CONNECTION_SECURE_OK: Final = 10 << 16 | 21
CONNECTION_TUNE: Final = 10 << 16 | 30
CONNECTION_TUNE_OK: Final = 10 << 16 | 31
CONNECTION_OPEN: Final = 10 << 16 | 40
CONNECTION_OPEN_OK: Final = 10 << 16 | 41
CONNECTION_CLOSE: Final = 10 << 16 | 50
CONNECTION_CLOSE_OK: Final = 10 << 16 | 51
CONNECTION_BLOCKED: Final = 10 << 16 | 60
CONNECTION_UNBLOCKED: Final = 10 << 16 | 61
CHANNEL_OPEN: Final = 20 << 16 | 10
CHANNEL_OPEN_OK: Final = 20 << 16 | 11
CHANNEL_FLOW: Final = 20 << 16 | 20
CHANNEL_FLOW_OK: Final = 20 << 16 | 21
CHANNEL_CLOSE: Final = 20 << 16 | 40
CHANNEL_CLOSE_OK: Final = 20 << 16 | 41
EXCHANGE_DECLARE: Final = 40 << 16 | 10
EXCHANGE_DECLARE_OK: Final = 40 << 16 | 11
EXCHANGE_DELETE: Final = 40 << 16 | 20
EXCHANGE_DELETE_OK: Final = 40 << 16 | 21
EXCHANGE_BIND: Final = 40 << 16 | 30
EXCHANGE_BIND_OK: Final = 40 << 16 | 31
EXCHANGE_UNBIND: Final = 40 << 16 | 40
EXCHANGE_UNBIND_OK: Final = 40 << 16 | 51
QUEUE_DECLARE: Final = 50 << 16 | 10
QUEUE_DECLARE_OK: Final = 50 << 16 | 11
QUEUE_BIND: Final = 50 << 16 | 20
QUEUE_BIND_OK: Final = 50 << 16 | 21
QUEUE_DELETE: Final = 50 << 16 | 40
QUEUE_DELETE_OK: Final = 50 << 16 | 41
QUEUE_UNBIND: Final = 50 << 16 | 50
QUEUE_UNBIND_OK: Final = 50 << 16 | 51
BASIC_QOS: Final = 60 << 16 | 10
BASIC_CANCEL_OK: Final = 60 << 16 | 31
BASIC_PUBLISH: Final = 60 << 16 | 40
BASIC_RETURN: Final = 60 << 16 | 50
BASIC_DELIVER: Final = 60 << 16 | 60
BASIC_GET: Final = 60 << 16 | 70
BASIC_GET_OK: Final = 60 << 16 | 71
BASIC_GET_EMPTY: Final = 60 << 16 | 72
BASIC_ACK: Final = 60 << 16 | 80
BASIC_NACK: Final = 60 << 16 | 120
CONFIRM_SELECT: Final = 85 << 16 | 10
CONFIRM_SELECT_OK: Final = 85 << 16 | 11
TX_SELECT: Final = 90 << 16 | 10
TX_COMMIT: Final = 90 << 16 | 20
TX_COMMIT_OK: Final = 90 << 16 | 21
TX_ROLLBACK: Final = 90 << 16 | 30
TX_ROLLBACK_OK: Final = 90 << 16 | 31

_KINDS: Final = cast("dict[int, type[base.Frame]]", commands.INDEX_MAPPING)

NAMES: Final[dict[int, str]] = {method: kind.name for method, kind in _KINDS.items()}

_BY_NAME: Final = {name: method for method, name in NAMES.items()}

#: The possible replies to each synchronous method. A method whose nowait bit is set gets no reply; a ``Basic.Cancel``
#: from the broker always has this bit set.
REPLIES: Final[dict[int, frozenset[int]]] = {
    method: frozenset(_BY_NAME[name] for name in kind.valid_responses)
    for method, kind in _KINDS.items()
    if kind.synchronous
}

#: Methods that only a broker may send. If a producer sends such a method, its connection is closed with 503.
ONLY_FROM_BROKER: Final = frozenset(
    {CONNECTION_START, CONNECTION_SECURE, CONNECTION_TUNE, CONNECTION_BLOCKED, CONNECTION_UNBLOCKED}
    | {BASIC_RETURN, BASIC_DELIVER}
    | {
        reply
        for request, replies in REPLIES.items()
        if request not in (CONNECTION_START, CONNECTION_SECURE, CONNECTION_TUNE)
        for reply in replies - {CONNECTION_CLOSE_OK, CHANNEL_CLOSE_OK, CHANNEL_FLOW_OK, BASIC_CANCEL_OK}
    }
)


_METHOD: Final = struct.Struct(">I")
_NUMBERS: Final = {
    "octet": struct.Struct(">B"),
    "short": struct.Struct(">H"),
    "long": struct.Struct(">I"),
    "longlong": struct.Struct(">Q"),
}
_LENGTHS: Final = {"shortstr": _NUMBERS["octet"], "longstr": _NUMBERS["long"], "table": _NUMBERS["long"]}

#: Types of each method's arguments, in wire order.
_LAYOUTS: Final[dict[int, tuple[str, ...]]] = {
    method: tuple(kind.amqp_type(argument) for argument in kind.attributes()) for method, kind in _KINDS.items()
}


def method_of(payload: bytes) -> int:
    """Return the method in the payload of a method frame.

    Raises:
        ProtocolError: 502: the payload is shorter than the class and method ids; 540: the method is unknown. If the
            method is unknown, RabbitMQ drops the connection without a reply.
    """
    if len(payload) < 4:
        raise ProtocolError(502, f"method frame of {counted(len(payload), 'byte')}, expected 4 or more")
    method: int = _METHOD.unpack_from(payload)[0]
    if method not in _LAYOUTS:
        text = f"unknown method {method & 0xFFFF} of class {method >> 16}"
        raise ProtocolError(540, text).about(method)
    return method


def method_in(frame_bytes: bytes) -> int:
    """Return the number of the method in a whole method frame, which may be unknown; 0 if the frame is too short."""
    return int(_METHOD.unpack_from(frame_bytes, FRAME_HEAD.size)[0]) if len(frame_bytes) >= LEAST_METHOD_FRAME else 0


def arguments(payload: bytes) -> tuple[Argument, ...]:
    """Read the arguments of a method.

    Returns:
        All arguments in wire order, including reserved arguments. A table is returned as its entries, which are checked
        but not decoded.

    Raises:
        ProtocolError: 502, with class and method ids: the arguments or a table in them are malformed; 540: see
            `method_of`.
    """
    method = method_of(payload)
    values: list[Argument] = []
    at, bit = 4, 0
    try:
        for kind in _LAYOUTS[method]:
            if kind == "bit":
                values.append(bool(payload[at] >> bit & 1))
                bit += 1
                continue
            at, bit = at + (bit > 0), 0
            value, at = _read(payload, at, kind)
            values.append(value)
    except (IndexError, struct.error, ProtocolError):
        at = -1
    if at + (bit > 0) != len(payload):
        raise ProtocolError(502, f"arguments of {NAMES[method]} are malformed").about(method)
    return tuple(values)


def method_frame(channel: int, method: int, *values: Argument) -> bytes:
    """Build a method frame.

    Raises:
        LocalProtocolError: the values don't match the method's arguments.
    """
    parts = [_METHOD.pack(method)]
    octet = bits = 0
    try:
        for kind, value in zip(_LAYOUTS[method], values, strict=True):
            if kind == "bit":
                octet |= bool(value) << bits
                bits += 1
                continue
            if bits:
                parts.append(bytes((octet,)))
                octet = bits = 0
            parts.append(_written(kind, value))
    except (struct.error, ValueError, TypeError) as error:
        raise LocalProtocolError(f"arguments do not match {NAMES[method]}") from error
    if bits:
        parts.append(bytes((octet,)))
    return frame(METHOD, channel, b"".join(parts))


def reply_of(method: int) -> int:
    """Return the reply to a synchronous method that has only one possible reply."""
    (reply,) = REPLIES[method]
    return reply


def reply_to(frame_bytes: bytes) -> int:
    """Return the number of the method that replies to the synchronous method in a frame of ours."""
    return reply_of(method_of(frame_bytes[FRAME_HEAD.size : -1]))


def _read(payload: bytes, at: int, kind: str) -> tuple[int | bytes, int]:
    number = _NUMBERS.get(kind)
    if number is not None:
        return number.unpack_from(payload, at)[0], at + number.size
    length = _LENGTHS[kind]
    start = at + length.size
    stop = start + length.unpack_from(payload, at)[0]
    if stop > len(payload):
        raise IndexError(stop)
    if kind == "table":
        pick(payload, start, stop, frozenset())
    return payload[start:stop], stop


def _written(kind: str, value: Argument) -> bytes:
    number = _NUMBERS.get(kind)
    if number is not None:
        return number.pack(value)
    if not isinstance(value, bytes):
        raise TypeError(kind)
    return _LENGTHS[kind].pack(len(value)) + value
