"""Confirms that wait for the audit lines of their publishes: no confirm without its line on disk (`strict`).

Only confirms wait: acks, nacks (an ack before may be among the tags that they name) and Tx.CommitOk, each for the last
line of its channel. Everything else passes them. Returns do, too, as they come before the ack of their publish.

The end of a channel or connection must not overtake its confirms. While lines are being written, it and all that
follows waits for them; that takes as long as one write. If the disk refuses lines, or does not answer, the wait has no
bound: then the end passes, and confirms of what has ended are dropped. Their publishes stay unconfirmed for the
producer, as if the broker's confirms had crossed the close.

Source: docs/audit.md (modes); RabbitMQ guide "Consumer acknowledgements and publisher confirms".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from proxy.relay.channel import Channel

#: What an entry takes in addition to its bytes.
_ENTRY_BYTES = 128


class AuditCommits(Protocol):
    """The audit log as confirms see it."""

    #: number of the last line that is on disk, all before it included
    durable: int
    #: what the disk says while it refuses lines
    failure: str | None

    @property
    def appended(self) -> int:
        """Number of the last line that was appended."""

    def commit_point(self) -> int:
        """Have what was appended written now."""


class DelayedConfirms:
    """Confirms of one connection that wait.

    Args:
        lines: the audit log.
        out: what goes to the producer.
        send: sends methods on a channel of a number, after a content that is on its way there.
    """

    __slots__ = ("_before", "_last", "_lines", "_out", "_sealed", "_send", "_waiting", "_wrote", "size_bytes", "until")

    def __init__(self, lines: AuditCommits, out: list[bytes], send: Callable[[int, bytes], None]) -> None:
        """Start with nothing that waits."""
        self._lines = lines
        self._out = out
        self._send = send
        #: channels with lines whose numbers have not been looked up, and the last of them
        self._wrote: list[Channel] = []
        self._last: Channel | None = None
        #: by channel number, (line, confirms), oldest first
        self._waiting: dict[int, deque[tuple[int, bytes]]] = {}
        self.size_bytes = 0
        #: line that the end of a channel waits for, and all after it; None where none does
        self.until: int | None = None
        #: what goes to the producer meanwhile; and which pieces after it are confirms
        self._before: list[bytes] = []
        self._sealed: list[bytes] = []

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._waiting) or self.until is not None

    @property
    def out(self) -> list[bytes]:
        """Pieces that may go to the producer."""
        return self._out if self.until is None else self._before

    def wrote(self, channel: Channel) -> None:
        """A line of a publish on a channel has been appended."""
        if channel is not self._last:
            self._last = channel
            self._wrote.append(channel)

    def note(self) -> None:
        """Note the number of the last line of each channel that has new ones."""
        if self._wrote:
            appended = self._lines.appended
            for channel in self._wrote:
                channel.audit.line = appended
            self._wrote.clear()
            self._last = None

    def waits(self, channel: Channel) -> bool:
        """Whether a confirm on a channel has to wait now."""
        self.note()
        return channel.audit.line > self._lines.durable or channel.number in self._waiting

    def keep(self, channel: Channel, frames: bytes) -> None:
        """Keep confirms of a channel that have to wait, and have their lines written."""
        self._lines.commit_point()
        self._waiting.setdefault(channel.number, deque()).append((channel.audit.line, frames))
        self.size_bytes += len(frames) + _ENTRY_BYTES

    def end(self, number: int, interrupted: bool) -> None:
        """A channel ends: what is said next to the producer may be its close.

        Args:
            number: its number.
            interrupted: whether a content is on its way to the producer, so that nothing can be said before the close.
        """
        waiting = self._waiting.pop(number, None)
        if waiting is None:
            return
        self.size_bytes -= sum(len(frames) + _ENTRY_BYTES for _, frames in waiting)
        if interrupted or self._lines.failure is not None:
            return
        if self.until is None:
            self._before += self._out
            self._out.clear()
        self.until = max(waiting[-1][0], self.until or 0)
        confirms = b"".join([frames for _, frames in waiting])
        self._sealed.append(confirms)
        self._out.append(confirms)

    def durable(self, line: int) -> None:
        """Lines up to a number are on disk: let go what waits for them."""
        for number, waiting in tuple(self._waiting.items()):
            while waiting and waiting[0][0] <= line:
                _, frames = waiting.popleft()
                self.size_bytes -= len(frames) + _ENTRY_BYTES
                self._send(number, frames)
            if not waiting:
                del self._waiting[number]
        if self.until is not None and self.until <= line:
            self._go_on()

    def failing(self) -> None:
        """The disk refuses lines: what has ended waits no more, and gets no confirms."""
        if self.until is not None:
            sealed = {id(confirms) for confirms in self._sealed}
            self._out[:] = [piece for piece in self._out if id(piece) not in sealed]
            self._go_on()

    def _go_on(self) -> None:
        self._out[:0] = self._before
        self._before.clear()
        self._sealed.clear()
        self.until = None
