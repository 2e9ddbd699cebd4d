"""Remembers publishes by their method frame, and which one followed another.

A producer sends to the same few addresses, often in turn: what followed last time is compared first, at the price of
one comparison, and looked up only where something else has come.

Source: architecture, "Bodies stream, headers are read in place".
"""

from __future__ import annotations

from proxy.amqp.frames import OVERHEAD, U32
from proxy.relay.channel import PendingPublish


class KnownPublishes(dict[bytes, PendingPublish]):
    """Publishes of one connection by their whole method frame.

    Args:
        most: publishes remembered.
    """

    __slots__ = ("_most",)

    def __init__(self, most: int) -> None:
        """Start with none."""
        super().__init__()
        self._most = most

    def remember(self, publish: PendingPublish) -> None:
        """Take one more; where there are too many, the others are forgotten."""
        if len(self) >= self._most:
            self.clear()
        self[publish.frame] = publish

    def clear(self) -> None:
        """Forget all; none keeps another alive, nor its plan."""
        for publish in self.values():
            publish.successor = None
        super().clear()

    def following(self, publish: PendingPublish, data: bytes, at: int, end: int) -> PendingPublish | None:
        """Find the publish that begins after another, and expect it there next time.

        Args:
            publish: the one before it.
            data: a read buffer.
            at: where its method frame begins.
            end: how much of the buffer is there.

        Returns:
            None where it is not known, or of another channel or kind (evaluated here or not).
        """
        if end - at < OVERHEAD:
            return None
        found = self.get(data[at : at + U32.unpack_from(data, at + 3)[0] + OVERHEAD])
        if found is None or found.channel is not publish.channel or (found.plan is None) != (publish.plan is None):
            return None
        publish.successor = found
        return found
