"""State machine of the handshake, from the first byte to OpenOk, with a table of transitions for each side.

The broker authenticates the producer, so mechanism, response, virtual host and replies are relayed unchanged. The
sidecar intervenes in three ways: it adds entries to the properties from both sides, changes the limits (`greeting`),
and replies to the producer if the broker is unreachable.

If the broker is unreachable, a producer that has sent its protocol header is not disconnected immediately. The producer
gets our own Start and, after its StartOk, Connection.Close 320. The reason is the behaviour of pika 1.4,
aiormq 7.2, py-amqp 5.4 and amqp-tools 0.11. After a Close instead of Start, aiormq reports "Expected Connection.Start"
and amqp-tools reports "unexpected method received". If the Close follows Start and StartOk, all four report the code
and text of the Close (pika in a ProbableAuthenticationError).

A producer's protocol error is answered with Connection.Close even before Tune, although RabbitMQ only closes the socket
at that stage. The driver owns the sockets and deadlines, and drains `to_producer` and `to_upstream` after every call.

Source: AMQP 0-9-1 spec, 2.2.4 "The connection class" (the order of its methods), 4.2.2, 4.2.3; RabbitMQ "Protocol
extensions" (authentication_failure_close).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from oxproxy.amqp import methods
from oxproxy.amqp.frames import HEARTBEAT, METHOD, PROTOCOL_HEADER, FrameBuffer, RawFrame
from oxproxy.amqp.method_frames import Close, connection_close, connection_close_ok, read_method, reply_text
from oxproxy.amqp.methods import NAMES, arguments, method_frame, method_of
from oxproxy.errors import ProtocolError, UpstreamError
from oxproxy.relay.handshake.greeting import (
    FRAME_MIN_BYTES,
    Tuning,
    TuningLimits,
    agree,
    offer,
    own_start,
    read_start,
    read_start_ok,
)

#: Maximum number of bytes from one side that wait for the other side's reply (506 if exceeded), and maximum size of a
#: frame before OpenOk (501 if exceeded). StartOk can contain a token of several KiB; 128 KiB is RabbitMQ's frame-max.
WAITING_BYTES = 131072


class HandshakeState(Enum):
    """The awaited method; error messages use the value as a description."""

    AWAITING_HEADER = "protocol header"
    AWAITING_START = "Connection.Start"
    AWAITING_START_OK = "Connection.StartOk"
    AWAITING_TUNE = "Connection.Secure or Connection.Tune"
    AWAITING_SECURE_OK = "Connection.SecureOk"
    AWAITING_TUNE_OK = "Connection.TuneOk"
    AWAITING_OPEN = "Connection.Open"
    AWAITING_OPEN_OK = "Connection.OpenOk"
    REFUSING = "Connection.StartOk, to be refused"
    CLOSING = "Connection.CloseOk"
    OPEN = "nothing: open"
    CLOSED = "nothing: closed"


_State = HandshakeState
BROKERS_TURN = frozenset((_State.AWAITING_START, _State.AWAITING_TUNE, _State.AWAITING_OPEN_OK))
PRODUCERS_TURN = frozenset(_State) - BROKERS_TURN - {_State.OPEN, _State.CLOSED}
_ENDED = frozenset((_State.REFUSING, _State.CLOSING, _State.CLOSED))
#: States without an upstream connection, in which bytes from the broker are dropped.
WITHOUT_BROKER = _ENDED | {_State.AWAITING_HEADER}
#: States in which the broker may close the connection, regardless of which side is expected to send.
WITH_BROKER = frozenset(_State) - WITHOUT_BROKER - {_State.OPEN}


class HandshakeSide(Enum):
    """One of the two peers."""

    PRODUCER = "producer"
    UPSTREAM = "upstream"


@dataclass(frozen=True, slots=True)
class Ending:
    """Why the handshake failed, for logs and metrics."""

    #: the side that caused the failure
    side: HandshakeSide
    #: reply code sent to the producer, 0 if none
    reply_code: int
    #: reply text, or a description
    text: str


#: Accepted protocol headers. The second is the header of AMQP 0-9, sent by Perl's Net::AMQP and others, to which
#: RabbitMQ also responds with 0-9-1. Headers of 0-8 are not accepted, since RabbitMQ responds to them with 0-8.
ACCEPTED_HEADERS = frozenset((PROTOCOL_HEADER, b"AMQP\x01\x01\x00\x09"))

_HEADER_BYTES = len(PROTOCOL_HEADER)
_TLS_HANDSHAKE = 0x16
_HTTP_METHODS = (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"CONN", b"PATC", b"TRAC", b"PRI ")


class Handshake:
    """Both sides of one handshake. Most attributes are what a side has offered or agreed to, and end with it.

    Args:
        peer: the producer's address, sent to the broker as ``oxproxy_peer``.
        product_version: our version, sent to both sides as ``oxproxy``.
        frame_max: frame_max offered to producers, in bytes; at least 4096.
        channel_max: channel_max offered to producers.

    Attributes:
        to_producer: bytes to send, drained by the driver.
        to_upstream: bytes to send as soon as there is an upstream connection.
        wants_upstream: whether the protocol header was received, so that the driver has to connect or call
            `upstream_lost`.
        state: when it is OPEN, the relay takes over, starting with the remaining bytes.
        vhost: virtual host from Connection.Open.
        user: user name, if PLAIN or AMQPLAIN is used.
        client_name: ``connection_name`` of the client properties.
        capabilities: capabilities announced by the client.
        tuning: negotiated limits; set by TuneOk.
        ending: why the handshake failed; set as soon as the connection can no longer be opened.
        wrong_header: whether the producer did not begin with an accepted protocol header.
    """

    def __init__(
        self,
        peer: str,
        product_version: str,
        *,
        frame_max: int = 131072,
        channel_max: int = 65535,
        waiting_bytes: int = WAITING_BYTES,
    ) -> None:
        self.to_producer: list[bytes] = []
        self.to_upstream: list[bytes] = []
        self.wants_upstream = False
        self.state = _State.AWAITING_HEADER
        self.vhost = ""
        self.user = ""
        self.client_name = ""
        self.capabilities: frozenset[bytes] = frozenset()
        self.ending: Ending | None = None
        self.wrong_header = False
        self._peer = peer
        self._version = product_version
        self._most = frame_max, channel_max
        self._producer = FrameBuffer(waiting_bytes)
        self._upstream = FrameBuffer(waiting_bytes)
        self._frame_min_bytes = FRAME_MIN_BYTES
        self._proposed = self._offered = TuningLimits(0, 0, 0)
        self.tuning: Tuning
        self._last_word = b""

    @property
    def close_after_flush_producer(self) -> bool:
        """True if the driver has to send `to_producer`, then close the producer's socket."""
        return self.state is _State.CLOSED

    @property
    def close_upstream(self) -> bool:
        """True if the driver has to send `to_upstream`, then close the upstream connection (or stop connecting)."""
        return self.state in _ENDED

    @property
    def leftover_producer(self) -> bytes:
        return self._producer.peek(len(self._producer))

    @property
    def leftover_upstream(self) -> bytes:
        return self._upstream.peek(len(self._upstream))

    @property
    def waiting_for(self) -> HandshakeSide | None:
        """The side that is expected to send. It determines what the driver does at the deadline."""
        if self.state in PRODUCERS_TURN:
            return HandshakeSide.PRODUCER
        return HandshakeSide.UPSTREAM if self.state in BROKERS_TURN else None

    def receive_from_producer(self, data: bytes) -> None:
        if self.state is not _State.CLOSED:
            self._producer.feed(data)
            self._run()

    def receive_from_upstream(self, data: bytes) -> None:
        if self.state not in WITHOUT_BROKER:
            self._upstream.feed(data)
            self._run()

    def producer_lost(self) -> None:
        if self.state not in (_State.CLOSED, _State.CLOSING):
            self._note(HandshakeSide.PRODUCER, 0, f"disconnected while waiting for {self.state.value}")
        self._close()

    def upstream_lost(self, failure: UpstreamError | None) -> None:
        """Handle an upstream connection that was lost, could not be opened, or did not respond."""
        if self.state in WITHOUT_BROKER or self.state is _State.OPEN:
            return
        told_of_refusals = b"authentication_failure_close" in self.capabilities
        if failure is None and self.state is _State.AWAITING_TUNE and not told_of_refusals:
            # RabbitMQ "Authentication failures": if the client does not announce the capability, the broker refuses a
            # login by closing the socket.
            self._note(HandshakeSide.UPSTREAM, 0, "closed the connection after receiving the credentials")
            self._close()
            return
        self._upstream_failed(str(failure) if failure is not None else "connection lost")
        self._run()

    def reject(self, text: str) -> None:
        """Refuse a producer that has sent its protocol header but exceeds a limit; the code is 530, as on RabbitMQ."""
        reply = reply_text(530, text.encode())
        self._note(HandshakeSide.PRODUCER, 530, reply)
        self._end(connection_close(530, reply))
        self._run()

    def _run(self) -> None:
        while self._step_producer() or self._step_upstream():
            pass

    def _step_producer(self) -> bool:
        try:
            if self.state is _State.AWAITING_HEADER:
                return self._protocol_header()
            frame = self._producer.next_frame() if self.state in PRODUCERS_TURN else None
            if frame is None:
                if self.state is not _State.OPEN:
                    self._producer.check_limit()
                return False
        except ProtocolError as error:
            self._producer_failed(error)
            self._close()  # without waiting for CloseOk, which can't be found in the malformed stream
            return False
        try:
            self._take(frame, _FROM_PRODUCER, self.to_upstream)
        except ProtocolError as error:
            self._producer_failed(error)
        return True

    def _step_upstream(self) -> bool:
        if self.state in WITHOUT_BROKER or self.state is _State.OPEN:
            return False
        try:
            frame = self._upstream.next_frame()
            if frame is None:
                return False
            self._take(frame, _FROM_UPSTREAM, self.to_producer)
        except ProtocolError as error:
            is_header = self._upstream.peek(4) == PROTOCOL_HEADER[:4]
            self._upstream_failed("does not speak AMQP 0-9-1" if is_header else f"violated AMQP 0-9-1: {error}")
        return True

    def _take(self, frame: RawFrame, table: Transitions, other_side: list[bytes]) -> None:
        """Look up the frame in a table of transitions; a missing entry is a protocol error."""
        if frame.kind == HEARTBEAT and frame.channel == 0:  # spec, 4.2.7: heartbeats are allowed at any time
            return
        if frame.kind != METHOD:
            raise ProtocolError(505, f"frame of type {frame.kind}, expected {self.state.value}")
        method = method_of(frame.payload)
        transition = table.get((self.state, method))
        try:
            if transition is None or frame.channel != 0:
                code = 503 if frame.channel == 0 else 504
                text = f"{NAMES[method]} on channel {frame.channel}, expected {self.state.value}"
                raise ProtocolError(code, text)
            if isinstance(transition, HandshakeState):
                arguments(frame.payload)
                other_side.append(frame.raw)
                self.state = transition
            else:
                self.state = transition(self, frame)
        except ProtocolError as error:
            error.about(method)  # errors in the arguments do not contain the method yet
            raise

    # -- methods from the producer ---

    def _protocol_header(self) -> bool:
        start = self._producer.peek(_HEADER_BYTES)
        if start in ACCEPTED_HEADERS:
            self._producer.take(_HEADER_BYTES)
            self.state = _State.AWAITING_START
            self.wants_upstream = True
            self.to_upstream.append(PROTOCOL_HEADER)
            return True
        if len(start) == _HEADER_BYTES or not start.startswith(PROTOCOL_HEADER[:4][: len(start)]):
            # Spec, 4.2.2: send the supported header, then close. A TLS peer reports a "wrong version".
            self.to_producer.append(PROTOCOL_HEADER)
            self.wrong_header = True
            self._note(HandshakeSide.PRODUCER, 0, f"{_seen(start)}, expected the protocol header AMQP 0 0 9 1")
            self._close()
        return False

    def _start_ok(self, frame: RawFrame) -> HandshakeState:
        self.to_upstream.append(self._read_client(frame))
        return _State.AWAITING_TUNE

    def _refuse(self, frame: RawFrame) -> HandshakeState:
        self._read_client(frame)
        self.to_producer.append(self._last_word)
        return _State.CLOSING

    def _read_client(self, frame: RawFrame) -> bytes:
        client = read_start_ok(frame.payload, self._version, self._peer, self._frame_min_bytes)
        self.user, self.client_name, self.capabilities = client.user, client.name, client.capabilities
        return client.frame

    def _tune_ok(self, frame: RawFrame) -> HandshakeState:
        answer = TuningLimits._make(arguments(frame.payload))
        self.tuning = tuning = agree(self._proposed, self._offered, answer, self._frame_min_bytes)
        values = (tuning.channel_max_upstream, tuning.frame_max_upstream, tuning.heartbeat_upstream)
        self.to_upstream.append(method_frame(0, methods.CONNECTION_TUNE_OK, *values))
        return _State.AWAITING_OPEN

    def _open(self, frame: RawFrame) -> HandshakeState:
        vhost = arguments(frame.payload)[0]
        assert isinstance(vhost, bytes)  # noqa: S101 -- a short string
        self.vhost = vhost.decode(errors="replace")
        self.to_upstream.append(frame.raw)
        return _State.AWAITING_OPEN_OK

    def _producer_closes(self, frame: RawFrame) -> HandshakeState:
        close = read_method(Close, frame.payload)
        self._note(HandshakeSide.PRODUCER, close.reply_code, close.reply_text)
        self.to_producer.append(connection_close_ok())
        return self._close()

    # -- methods from the broker ---

    def _start(self, frame: RawFrame) -> HandshakeState:
        start, self._frame_min_bytes = read_start(frame.payload, self._version)
        self.to_producer.append(start)
        return _State.AWAITING_START_OK

    def _tune(self, frame: RawFrame) -> HandshakeState:
        self._proposed = TuningLimits._make(arguments(frame.payload))
        self._offered = offer(self._proposed, *self._most)
        self.to_producer.append(method_frame(0, methods.CONNECTION_TUNE, *self._offered))
        return _State.AWAITING_TUNE_OK

    def _upstream_closes(self, frame: RawFrame) -> HandshakeState:
        close = read_method(Close, frame.payload)
        self._note(HandshakeSide.UPSTREAM, close.reply_code, close.reply_text)
        self.to_upstream.append(connection_close_ok())
        self._end(frame.raw)
        return self.state

    # -- closing ---

    def _producer_failed(self, error: ProtocolError) -> None:
        if self.state is _State.CLOSING:  # spec, 1.4.2.9: everything else is discarded after Close
            return
        text = reply_text(error.reply_code, error.text)
        self.to_producer.append(connection_close(error.reply_code, text, error.class_id, error.method_id))
        self._note(HandshakeSide.PRODUCER, error.reply_code, text)
        self.state = _State.CLOSING

    def _upstream_failed(self, why: str) -> None:
        text = reply_text(320, b"upstream " + why.encode())
        self._note(HandshakeSide.UPSTREAM, 320, text)
        self._end(connection_close(320, text))

    def _end(self, close: bytes) -> None:
        """Send Connection.Close to the producer at a time when clients can process it (see the module's docstring)."""
        self._upstream.clear()
        if self.state in (_State.AWAITING_START, _State.AWAITING_START_OK):
            if self.state is _State.AWAITING_START:
                self.to_producer.append(own_start(self._version))
            self._last_word = close
            self.state = _State.REFUSING
        else:
            self.to_producer.append(close)
            self.state = _State.CLOSING

    def _close(self) -> HandshakeState:
        self._producer.clear()
        self._upstream.clear()
        self.state = _State.CLOSED
        return self.state

    def _note(self, side: HandshakeSide, reply_code: int, text: bytes | str) -> None:
        """Record why the handshake failed, unless an earlier reason has been recorded."""
        shown = text if isinstance(text, str) else text.decode(errors="replace")
        self.ending = self.ending or Ending(side, reply_code, shown)


def _seen(start: bytes) -> str:
    """Describe the producer's first bytes; only the version of an AMQP header is shown."""
    if start.startswith(PROTOCOL_HEADER[:4]):
        return "protocol header AMQP " + " ".join(map(str, start[4:]))
    if start[0] == _TLS_HANDSHAKE:
        return "TLS on a port without TLS"
    return "HTTP" if start.startswith(_HTTP_METHODS) else "not AMQP"


Handler: TypeAlias = Callable[[Handshake, RawFrame], HandshakeState]
#: If an entry is a state instead of a handler, the method is relayed unchanged.
Transitions: TypeAlias = dict[tuple[HandshakeState, int], Handler | HandshakeState]

#: Methods from the producer, by state.
_FROM_PRODUCER: Transitions = {
    (_State.AWAITING_START_OK, methods.CONNECTION_START_OK): Handshake._start_ok,
    (_State.AWAITING_SECURE_OK, methods.CONNECTION_SECURE_OK): _State.AWAITING_TUNE,
    (_State.AWAITING_TUNE_OK, methods.CONNECTION_TUNE_OK): Handshake._tune_ok,
    (_State.AWAITING_OPEN, methods.CONNECTION_OPEN): Handshake._open,
    (_State.REFUSING, methods.CONNECTION_START_OK): Handshake._refuse,
    (_State.CLOSING, methods.CONNECTION_CLOSE_OK): lambda handshake, _: handshake._close(),
    **{(state, methods.CONNECTION_CLOSE): Handshake._producer_closes for state in PRODUCERS_TURN},
}

#: Methods from the broker, by state.
_FROM_UPSTREAM: Transitions = {
    (_State.AWAITING_START, methods.CONNECTION_START): Handshake._start,
    (_State.AWAITING_TUNE, methods.CONNECTION_SECURE): _State.AWAITING_SECURE_OK,
    (_State.AWAITING_TUNE, methods.CONNECTION_TUNE): Handshake._tune,
    (_State.AWAITING_OPEN_OK, methods.CONNECTION_OPEN_OK): _State.OPEN,
    **{(state, methods.CONNECTION_CLOSE): Handshake._upstream_closes for state in WITH_BROKER},
}
