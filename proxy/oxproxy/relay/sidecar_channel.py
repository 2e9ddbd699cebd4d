"""The channel that is reserved for the sidecar on an upstream connection.

It is the channel with the highest number, which is never offered to the producer. The sidecar uses it for methods that
only this connection may send, such as binds of the connection's exclusive queues. The sidecar sends a method only after
the previous method has been answered. A refusal closes only this channel.

Source: `relay.token_table`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TypeAlias

from oxproxy.amqp import methods
from oxproxy.amqp.method_frames import Close, channel_close_ok, channel_open, read_method
from oxproxy.amqp.methods import method_in

#: called when the methods have been answered: with the text of the broker's first refusal, or with None
Done: TypeAlias = Callable[[str | None], None]


class _State(Enum):
    CLOSED = "closed"
    OPENING = "opening"
    IDLE = "idle"
    WAITING = "waiting"


class SidecarChannel:
    """The sidecar's channel on an upstream connection. The channel is opened when it is first used.

    Args:
        number: channel number; None if the broker permits only one channel, in which case every method is refused.
    """

    __slots__ = ("_out", "_queue", "_refusal", "_state", "number")

    def __init__(self, number: int | None, to_upstream: list[bytes]) -> None:
        self.number = number
        self._out = to_upstream
        self._state = _State.CLOSED
        #: frames to send, each with a callback or None; the last frame of each `run` has the callback
        self._queue: deque[tuple[bytes, Done | None]] = deque()
        self._refusal: str | None = None

    @property
    def used(self) -> bool:
        """True if the channel is open on the broker or being opened."""
        return self._state is not _State.CLOSED

    def run(self, frames: Sequence[bytes], done: Done) -> None:
        """Send methods, each of which has one reply. Methods that are already waiting are sent first."""
        if self.number is None:
            done("the broker permits no additional channel")
            return
        self._queue += [(frame, None) for frame in frames[:-1]]
        self._queue.append((frames[-1], done))
        self._go_on()

    def take_method(self, frame: bytes) -> None:
        """Handle a method frame that the broker sent on this channel."""
        index = method_in(frame)
        if index == methods.CHANNEL_OPEN_OK:
            self._state = _State.IDLE
        elif index == methods.CHANNEL_CLOSE and self.number is not None:
            code, text, _, _ = read_method(Close, frame[7:-1])
            self._out.append(channel_close_ok(self.number))
            waiting = self._state is _State.WAITING
            self._state = _State.CLOSED
            if waiting:
                self._answered(f"{code} {text.decode(errors='replace')}")
        elif self._state is _State.WAITING:
            self._state = _State.IDLE
            self._answered(None)
        self._go_on()

    def _answered(self, refusal: str | None) -> None:
        _, done = self._queue.popleft()
        self._refusal = self._refusal or refusal
        if done is not None:
            first, self._refusal = self._refusal, None
            done(first)

    def _go_on(self) -> None:
        if not self._queue or self.number is None:
            return
        if self._state is _State.CLOSED:
            self._state = _State.OPENING
            self._out.append(channel_open(self.number))
        elif self._state is _State.IDLE:
            self._state = _State.WAITING
            self._out.append(self._queue[0][0])
