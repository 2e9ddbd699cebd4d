"""Remembers what leaves in place of method and header frames that have come before, by their bytes.

A producer's messages often differ in their bodies only, and come in the same turn: what followed last time is compared
first, at the price of one comparison, and looked up only where something else has come.

Source: architecture, "Bodies stream, headers are read in place".
"""

from __future__ import annotations

from dataclasses import dataclass

from proxy.relay.channel import PendingPublish
from proxy.relay.counters import Tally

#: Heads remembered, a few hundred bytes each, and the bytes of them all: where they are large, fewer are kept.
REMEMBERED = 2048
REMEMBERED_BYTES = 1 << 20
#: Publishes that pass before heads are remembered again, once a whole cache of them was of no use.
UNASKED = 32 * REMEMBERED


@dataclass(slots=True, eq=False)
class Head:
    """Method and header frame of a publish, and what becomes of them.

    Args:
        came: the bytes as they came; empty where they are not remembered.
        leaves: what leaves in their place.
        tally: where it is counted.
        ending: of its audit line; empty where it has none.
        publish: its method.
        body_head: head of the body frame, empty where there is none.
        body_bytes: the whole body frame.
        body_size: the body alone.
    """

    came: bytes
    leaves: bytes
    tally: Tally
    ending: str
    publish: PendingPublish
    body_head: bytes
    body_bytes: int
    body_size: int
    #: what followed on this channel last time
    successor: Head | None = None


class KnownHeads(dict[bytes, Head]):
    """Heads of one connection by the bytes that came."""

    __slots__ = ("_bytes", "_once", "_unasked", "found")

    def __init__(self) -> None:
        """Start with none."""
        super().__init__()
        self._bytes = 0
        self._unasked = 0
        self._once: Head | None = None
        #: how often one was of use since there was last none
        self.found = 0

    def asks(self) -> bool:
        """Say whether the next head is worth a look; to be asked once for each."""
        if self._unasked:
            self._unasked -= 1
            return False
        return True

    def keep(self, head: Head) -> None:
        """Remember one; where they are too many, all are forgotten."""
        self._bytes += len(head.came) + len(head.leaves) + len(head.ending)
        if len(self) >= REMEMBERED or self._bytes > REMEMBERED_BYTES:
            # Heads that hardly ever repeat (a message id in each) are not worth a look for a while.
            self._unasked = 0 if self.found >= len(self) else UNASKED
            self.forget()
        else:
            self[head.came] = head

    def forget(self) -> None:
        """The rules or a channel have changed: none keeps another alive, nor its tally."""
        for head in self.values():
            head.successor = None
        self.clear()
        self._bytes = self.found = 0
        self._once = None

    def once(self, leaves: bytes, tally: Tally, ending: str, publish: PendingPublish, body_size: int) -> Head:
        """Give what holds until the next call, for a head that is not remembered."""
        head = self._once
        if head is None:
            head = self._once = Head(b"", leaves, tally, ending, publish, b"", 0, body_size)
            return head
        head.leaves = leaves
        head.tally = tally
        head.ending = ending
        head.publish = publish
        head.body_size = body_size
        return head
