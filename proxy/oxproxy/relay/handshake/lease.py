"""Reuses an idle upstream connection for a new producer, instead of opening a new upstream connection.

In the producer's handshake, this module answers in place of the broker, with the methods that the broker sent when the
kept connection was opened. Every producer gets Start. A producer with the same login as the previous producer of a kept
connection also gets Tune. If the limits and the virtual host are the same as well, the producer gets OpenOk. As soon as
something differs, a connection to the broker is opened. The broker then receives everything that the producer has sent
so far. If the producer has already received a reply, the broker's own reply is suppressed. Therefore, only the broker
admits unknown users, and a producer receives the same methods as on a new connection.

Source: AMQP 0-9-1 spec, 2.2.4 "The connection class"; architecture, "One publish in, one publish out".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from hmac import compare_digest

from oxproxy.amqp import methods
from oxproxy.amqp.frames import HEARTBEAT, METHOD, FrameBuffer, RawFrame
from oxproxy.amqp.method_frames import connection_close, reply_text
from oxproxy.amqp.methods import method_in
from oxproxy.errors import ProtocolError
from oxproxy.relay.handshake.greeting import login_of
from oxproxy.relay.handshake.machine import WAITING_BYTES

_CHANGED = b"the broker has changed, connect again"


@dataclass(slots=True, eq=False)
class Lease:
    """The methods exchanged when an upstream connection was opened: whole frames, and a hash of the login."""

    start: bytes = b""
    #: keyed hash of the producer's mechanism, response, locale and capabilities
    login: bytes = b""
    tune: bytes = b""
    #: TuneOk as sent to the broker
    tune_ok: bytes = b""
    open: bytes = b""
    #: empty if other methods were needed to open the connection
    open_ok: bytes = b""


class LeaseNegotiation:
    """Answers the methods of one handshake from leases, or passes them to the broker.

    Args:
        kept: returns the leases of the kept connections, in order of preference.
        key: key for the hashes of logins; a single key is used for all leases.

    Attributes:
        to_upstream: bytes for the broker, drained by the driver.
        wants_upstream: whether a new connection to the broker is needed.
        taken: lease of the kept connection to reuse; None if there is none.
        lease: the lease of the connection, whether the connection is kept or new.
    """

    def __init__(self, kept: Callable[[], Iterable[Lease]], key: bytes) -> None:
        self.to_upstream: list[bytes] = []
        self.wants_upstream = False
        self.taken: Lease | None = None
        self.lease = Lease()
        self._kept = kept
        self._key = key
        #: frames from the producer that have not been sent to the broker
        self._producer_frames: list[bytes] = []
        #: replies that the producer has received and that the broker itself has not sent yet
        self._answers_given: list[bytes] = []
        self._input = FrameBuffer(WAITING_BYTES)
        self._passes_through = False

    def take(self, frames: list[bytes]) -> bytes:
        """Take the handshake's frames for the broker and clear the list; return the broker's reply, if it is known."""
        answer = b""
        for frame in frames:
            self._producer_frames.append(frame)
            known = self._known_answer(method_in(frame), frame)
            if known:
                self._answers_given.append(known)
                answer = known
            elif known is None and not self.wants_upstream:
                self.wants_upstream = True
                # This is the protocol header. The other frames are sent after the broker's replies.
                self.to_upstream.append(self._producer_frames.pop(0))
            if self.wants_upstream and not self._answers_given:
                self._send_producer_frames()
        frames.clear()
        return answer

    def receive_from_upstream(self, data: bytes) -> bytes:
        """Receive bytes from the broker; return the bytes that must be passed to the handshake."""
        if self._passes_through:
            return data
        self._input.feed(data)
        unseen = b""
        try:
            while not self._passes_through and (frame := self._input.next_frame()) is not None:
                unseen += self._answered(frame)
        except ProtocolError:
            self._passes_through = True  # the handshake reports the error
        if self._passes_through:
            unseen += self._input.take(len(self._input))
        return unseen

    def _known_answer(self, method: int, frame: bytes) -> bytes | None:
        """Record a method from the producer. Return the broker's reply: b"" for no reply, None if it is unknown."""
        lease, leases = self.lease, () if self.wants_upstream else self._kept()
        if method == methods.CONNECTION_START_OK:
            lease.login = blake2b(login_of(frame), key=self._key).digest()
            same_login = self._first(leases, methods.CONNECTION_START_OK)
            return same_login.tune if same_login is not None else None
        if method == methods.CONNECTION_TUNE_OK:
            lease.tune_ok = frame
            return b""
        if method == methods.CONNECTION_OPEN:
            lease.open = frame
            self.taken = taken = self._first(leases, methods.CONNECTION_OPEN)
            if taken is None:
                return None
            self.lease = taken
            self._passes_through = True
            return taken.open_ok
        if method:
            return None  # Connection.SecureOk, Connection.CloseOk
        for kept in leases:
            lease.start = kept.start
            return kept.start
        return None

    def _first(self, leases: Iterable[Lease], method: int) -> Lease | None:
        mine = self.lease
        for kept in leases:
            same = compare_digest(kept.login, mine.login) and kept.start == mine.start
            if method == methods.CONNECTION_OPEN:
                same = same and (kept.tune, kept.tune_ok, kept.open) == (mine.tune, mine.tune_ok, mine.open)
            if same:
                mine.tune = kept.tune
                return kept
        return None

    def _answered(self, frame: RawFrame) -> bytes:
        """Record a method from the broker; return its bytes unless the producer has already received this reply."""
        method = method_in(frame.raw) if frame.kind == METHOD else 0
        if frame.kind == HEARTBEAT:
            return frame.raw
        if method == methods.CONNECTION_START:
            self.lease.start = frame.raw
        elif method == methods.CONNECTION_TUNE:
            self.lease.tune = frame.raw
        else:
            if method == methods.CONNECTION_OPEN_OK:
                self.lease.open_ok = frame.raw
            # Any method other than OpenOk is a refusal or a further step of the login; such a connection is not kept.
            self._passes_through = True
            return frame.raw
        if not self._answers_given:
            return frame.raw
        if self._answers_given.pop(0) != frame.raw:
            self._passes_through = True
            return connection_close(320, reply_text(320, _CHANGED))
        if self._answers_given:
            # This is StartOk. The other frames are sent after the broker's Tune.
            self.to_upstream.append(self._producer_frames.pop(0))
        else:
            self._send_producer_frames()
        return b""

    def _send_producer_frames(self) -> None:
        self.to_upstream += self._producer_frames
        self._producer_frames.clear()
