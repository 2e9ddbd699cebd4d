"""Rewrites Connection.Start and StartOk, and negotiates the limits for both sides.

The entries of the property tables are not re-encoded. Our own entries are appended, and a peer's entries with the same
names are removed, so that no client can impersonate a proxy or another peer.

The producer is offered one channel fewer than the broker permits, since the channel with the highest number on the
upstream connection is reserved for the sidecar. If the producer insists on smaller frames than the broker accepts, the
two sides have different limits.

Source: AMQP 0-9-1 spec, 1.4.2.1, 1.4.2.2, 1.4.2.5 and 1.4.2.6, 4.9 "Limitations"; RabbitMQ's error messages; RabbitMQ
"Authentication, Authorisation"; SASL PLAIN (RFC 4616).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, cast

from oxproxy.amqp.methods import CONNECTION_START, CONNECTION_START_OK, CONNECTION_TUNE, arguments, method_frame
from oxproxy.amqp.tables import decode_value, encode_table, pick, without
from oxproxy.errors import ProtocolError
from oxproxy.values import Table, Value

#: Smallest frame-max that a peer must accept, in bytes (spec, 1.2 "frame-min-size").
FRAME_MIN_BYTES = 4096

#: Smallest frame-max, in bytes, that RabbitMQ accepts in version 4.1 and later.
FRAME_MIN_BYTES_4_1 = 8192

#: Limit that applies if channel-max is 0 ("no limit"), since channel numbers have 16 bits.
_TOP_CHANNEL = 65535

#: Our entry in the server properties and in the client properties: the version of the sidecar.
OXPROXY = b"oxproxy"
#: Our entry in the client properties: the producer's address.
OXPROXY_PEER = b"oxproxy_peer"
#: The mechanism for a login with the connection's certificate. The broker would see our certificate and log every
#: producer in as the user of that certificate, so this mechanism is neither offered nor relayed.
EXTERNAL = b"EXTERNAL"
_NOT_EXTERNAL = (
    "SASL EXTERNAL can't be used with a proxy: the broker would see its certificate, not yours; "
    "log in with PLAIN or AMQPLAIN, over TLS"
)
#: Length to which user and connection names are truncated in logs.
NAME_CHARACTERS = 255
_CAPABILITIES = (
    b"publisher_confirms",
    b"exchange_exchange_bindings",
    b"basic.nack",
    b"consumer_cancel_notify",
    b"connection.blocked",
    b"authentication_failure_close",
)


class TuningLimits(NamedTuple):
    """Arguments of ``Connection.Tune`` and ``Connection.TuneOk``; 0 means no limit or no heartbeat."""

    channel_max: int
    frame_max_bytes: int
    heartbeat_seconds: int


@dataclass(frozen=True, slots=True)
class Tuning:
    """Negotiated limits. They are never 0, except for heartbeat intervals."""

    #: highest channel number on the producer's side
    channel_max_producer: int
    #: highest channel number on the broker's side: one more than the producer's, for our own channel. If the broker
    #: permits only one channel, both numbers are 1, and there is no channel for us.
    channel_max_upstream: int
    #: largest whole frame on the producer's side, in bytes
    frame_max_producer: int
    #: largest whole frame on the broker's side, in bytes
    frame_max_upstream: int
    #: heartbeat interval towards the producer in seconds; 0 if disabled
    heartbeat_producer: int
    #: heartbeat interval towards the broker in seconds; 0 if disabled
    heartbeat_upstream: int


def offer(broker: TuningLimits, frame_max_bytes: int, most_channels: int = _TOP_CHANNEL) -> TuningLimits:
    """Return the limits offered to the producer."""
    channels = broker.channel_max or _TOP_CHANNEL
    # 0 would mean "no limit". If the broker permits only one channel, the producer gets it, and there is none for us.
    channel_max = min(max(channels - 1, 1), most_channels)
    frame_max = min(broker.frame_max_bytes or frame_max_bytes, frame_max_bytes)
    return TuningLimits(channel_max, frame_max, broker.heartbeat_seconds)


def agree(
    broker: TuningLimits, offered: TuningLimits, answer: TuningLimits, frame_min_bytes: int = FRAME_MIN_BYTES
) -> Tuning:
    """Combine the producer's reply with the broker's offer.

    Raises:
        ProtocolError: a value is outside the offered range; 530 with the ids of Tune, as on RabbitMQ.
    """
    _check("channel_max", answer.channel_max, 1, offered.channel_max)
    _check("frame_max", answer.frame_max_bytes, FRAME_MIN_BYTES, offered.frame_max_bytes)
    channel_max = answer.channel_max or offered.channel_max
    frame_max = answer.frame_max_bytes or offered.frame_max_bytes
    frame_max_upstream = max(frame_max, frame_min_bytes)
    return Tuning(
        channel_max_producer=channel_max,
        channel_max_upstream=min(channel_max + 1, broker.channel_max or _TOP_CHANNEL),
        frame_max_producer=frame_max,
        frame_max_upstream=min(frame_max_upstream, broker.frame_max_bytes or frame_max_upstream),
        heartbeat_producer=answer.heartbeat_seconds,
        heartbeat_upstream=answer.heartbeat_seconds or broker.heartbeat_seconds,
    )


def _check(name: str, value: int, lowest: int, highest: int) -> None:
    if value == 0 or lowest <= value <= highest:
        return
    side, bound = ("lower than the minimum", lowest) if value < lowest else ("higher than the maximum", highest)
    text = f"negotiated {name} = {value} is {side} allowed value ({bound})"
    raise ProtocolError(530, text).about(CONNECTION_TUNE)


class Client(NamedTuple):
    """Data from a producer's StartOk, without its password."""

    #: StartOk as sent to the broker
    frame: bytes
    #: user name; empty if the login does not contain it
    user: str
    #: ``connection_name`` from the client properties; empty if it is missing
    name: str
    capabilities: frozenset[bytes]

    def __repr__(self) -> str:
        """Omit the frame, which contains a secret."""
        return f"Client(user={self.user!r}, name={self.name!r})"


def read_start(payload: bytes, version: str) -> tuple[bytes, int]:
    """Return the broker's Start frame with our version, and the smallest frame-max that the broker accepts."""
    major, minor, properties, mechanisms, locales = arguments(payload)
    entries = cast(bytes, properties)
    texts = _texts(entries, frozenset((b"product", b"version")))
    is_4_1 = texts.get(b"product") == "RabbitMQ" and _release(texts.get(b"version", "")) >= (4, 1)
    extended = _extended(entries, ((OXPROXY, Value("S", version.encode())),))
    offered = b" ".join(name for name in cast(bytes, mechanisms).split(b" ") if name != EXTERNAL)
    frame = method_frame(0, CONNECTION_START, major, minor, extended, offered, locales)
    return frame, FRAME_MIN_BYTES_4_1 if is_4_1 else FRAME_MIN_BYTES


def own_start(version: str) -> bytes:
    """Build our own Start, for a producer that connects while the broker is unreachable (see `machine`)."""
    capabilities = tuple((name, Value("t", True)) for name in _CAPABILITIES)
    properties: Table = (
        (b"capabilities", Value("F", capabilities)),
        (b"product", Value("S", OXPROXY)),
        (b"version", Value("S", version.encode())),
        (OXPROXY, Value("S", version.encode())),
    )
    return method_frame(0, CONNECTION_START, 0, 9, encode_table(properties), b"PLAIN AMQPLAIN", b"en_US")


def read_start_ok(payload: bytes, version: str, peer: str, frame_min_bytes: int) -> Client:
    """Read the producer's StartOk, and add our version and the producer's address.

    Mechanism, response and locale are unchanged. If our entries would make the frame larger than the broker accepts
    before Tune (`frame_min_bytes`), they are omitted, so that any client that can log in directly can also log in
    through the sidecar.

    Raises:
        ProtocolError: the frame is malformed (502), or the mechanism can't be relayed (403).
    """
    properties, mechanism, response, locale = (cast(bytes, argument) for argument in arguments(payload))
    if mechanism == EXTERNAL:
        raise ProtocolError(403, _NOT_EXTERNAL)
    ours: Table = ((OXPROXY, Value("S", version.encode())), (OXPROXY_PEER, Value("S", peer.encode())))
    frame = method_frame(0, CONNECTION_START_OK, _extended(properties, ours), mechanism, response, locale)
    if len(frame) > frame_min_bytes:
        frame = method_frame(0, CONNECTION_START_OK, _extended(properties, ()), mechanism, response, locale)
    return Client(
        frame,
        _user(mechanism, response),
        _texts(properties, frozenset((b"connection_name",))).get(b"connection_name", ""),
        _capabilities(properties),
    )


def login_of(frame: bytes) -> bytes:
    """Return the parts of a StartOk frame that distinguish logins: mechanism, response, locale and capabilities.

    Capabilities are included since the broker's behaviour depends on them. The result contains a secret.
    """
    properties, *texts = (cast(bytes, argument) for argument in arguments(frame[7:-1]))
    parts = [*texts, *sorted(_capabilities(properties))]
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _extended(entries: bytes, ours: Table) -> bytes:
    return without(entries, 0, len(entries), frozenset((OXPROXY, OXPROXY_PEER))) + encode_table(ours)


def _texts(entries: bytes, wanted: frozenset[bytes]) -> dict[bytes, str]:
    """Return the wanted text entries. If several have the same name, return the first, which RabbitMQ also uses."""
    texts: dict[bytes, str] = {}
    for name, raw in pick(entries, 0, len(entries), wanted):
        match decode_value(raw):
            case Value("S", bytes() as text):
                texts.setdefault(name, _shown(text))
    return texts


def _capabilities(entries: bytes) -> frozenset[bytes]:
    announced: set[bytes] = set()
    for _, raw in pick(entries, 0, len(entries), frozenset((b"capabilities",))):
        match decode_value(raw):
            case Value("F", tuple() as capabilities):
                announced.update(name for name, value in capabilities if value == Value("t", True))
    return frozenset(announced)


def _user(mechanism: bytes, response: bytes) -> str:
    """Return the user name; empty if it can't be read. The broker rejects malformed responses."""
    if mechanism == b"PLAIN":
        parts = response.split(b"\0")
        return _shown(parts[1]) if len(parts) == 3 else ""
    if mechanism == b"AMQPLAIN":
        try:
            return _texts(response, frozenset((b"LOGIN",))).get(b"LOGIN", "")
        except ProtocolError:
            return ""
    return ""


def _shown(text: bytes) -> str:
    return text.decode(errors="replace")[:NAME_CHARACTERS]


def _release(text: str) -> tuple[int, ...]:
    """Return the major and minor number of a version such as ``4.1.0-rc.1``; () if the text is not a version."""
    parts = text.split(".")[:2]
    return tuple(int(part) for part in parts) if all(part.isdecimal() and part.isascii() for part in parts) else ()
