"""Tracks which publishes on a channel are settled, and combines several upstream confirms or returns into one.

As long as every publish from the producer results in one upstream publish, the tags on both sides are equal, the
broker's acks are relayed, and `Settled` counts them. `Ledger` takes over on a channel with the first publish that needs
several upstream publishes. From then on, the tags differ. A producer's tag is settled when all copies of the publish
are settled, and it is nacked if at least one copy was nacked. `Returns` decides when a return is relayed: when
all copies have been returned. A return has no tag, so it is identified by its content, which also works on channels
without confirms. The broker has sent all returns of a publish when it answers a later method on the channel or, in a
transaction, the commit.

`broker_frames` handles the broker's acks and nacks, records them here and relays them.

Sources: architecture, "One publish in, one publish out"; RabbitMQ guide "Consumer acknowledgements and publisher
confirms".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

#: Maximum number of publishes per channel whose returns are combined. Publishes that the broker has processed are
#: removed. If the limit is exceeded, for example in a transaction, the oldest publishes are removed, and their returns
#: are relayed once per copy.
WAITING_RETURNS: Final = 4096


class Settled:
    """Counts the delivery tags settled by acks and nacks, with or without `multiple`, in any order."""

    __slots__ = ("_above", "count", "low")

    def __init__(self) -> None:
        #: greatest tag up to which all tags are settled
        self.low = 0
        #: settled tags above `low`
        self._above: set[int] = set()
        #: number of settled tags
        self.count = 0

    def settle(self, tag: int, multiple: int, published: int) -> int:
        """Count one ack or nack; return how many publishes it settled.

        Args:
            tag: delivery tag of the ack or nack; 0 with `multiple` means all outstanding tags.
            multiple: non-zero if the ack or nack settles all tags up to `tag`.
            published: highest tag in use.
        """
        if multiple:
            return self.settle_to(min(tag or published, published))
        if tag == self.low + 1:
            return self.settle_to(tag)
        if tag <= self.low or tag in self._above:
            return 0
        self._above.add(tag)
        self.count += 1
        return 1

    def settle_to(self, tag: int) -> int:
        """Count an ack or nack of all tags up to `tag`; return how many publishes it settled."""
        if tag <= self.low:
            return 0
        settled = tag - self.low
        self.low = tag
        above = self._above
        if above:
            covered = {settled_tag for settled_tag in above if settled_tag <= tag}
            above -= covered
            settled -= len(covered)
            while self.low + 1 in above:
                self.low += 1
                above.remove(self.low)
        self.count += settled
        return settled

    def outstanding(self, published: int) -> list[int]:
        """Return the tags up to `published` that are not settled, ascending."""
        return [tag for tag in range(self.low + 1, published + 1) if tag not in self._above]


@dataclass(slots=True, eq=False)
class _Entry:
    producer_tag: int
    #: copies that are not settled yet
    copies: int
    acked: bool = True


class Ledger:
    """Combines the upstream confirms for each producer tag, including confirms from other brokers.

    Args:
        outstanding: producer tags that are not settled when the ledger takes over; their upstream tags are the same.
        published: highest tag in use on both sides at that time.
    """

    __slots__ = ("_entries", "_order", "_remote", "upstream_tag")

    def __init__(self, outstanding: list[int], published: int) -> None:
        self.upstream_tag = published
        self._order: deque[int] = deque(outstanding)
        self._entries: dict[int, _Entry] = {tag: _Entry(tag, 1) for tag in outstanding}
        #: publishes with copies on other brokers, by producer tag
        self._remote: dict[int, _Entry] = {}

    def add(self, producer_tag: int, copies: int, apart: int = 0) -> None:
        """Add a publish.

        Args:
            copies: number of copies sent to the producer's own broker.
            apart: number of copies sent to other brokers; `settle_remote` settles these copies.
        """
        entry = _Entry(producer_tag, copies + apart)
        if apart:
            self._remote[producer_tag] = entry
        for _ in range(copies):
            self.upstream_tag += 1
            self._entries[self.upstream_tag] = entry
            self._order.append(self.upstream_tag)

    def settle_remote(self, producer_tag: int, ack: bool) -> bool | None:
        """Settle a copy on another broker; return whether the publish is acked, or None if copies are outstanding."""
        entry = self._remote.get(producer_tag)
        if entry is None:
            return None
        entry.copies -= 1
        entry.acked = entry.acked and ack
        if entry.copies:
            return None
        del self._remote[producer_tag]
        return entry.acked

    def settle(self, upstream_tag: int, multiple: bool, ack: bool) -> list[tuple[int, bool]]:
        """Handle an upstream ack or nack; return (producer tag, acked) for each publish that it settles, ascending."""
        order, entries = self._order, self._entries
        tags = []
        if multiple:
            while order and (order[0] <= upstream_tag or not upstream_tag):
                tags.append(order.popleft())
        else:
            tags.append(upstream_tag)
        done = []
        for tag in tags:
            entry = entries.pop(tag, None)
            if entry is None:
                continue
            entry.copies -= 1
            entry.acked = entry.acked and ack
            if not entry.copies:
                self._remote.pop(entry.producer_tag, None)
                done.append((entry.producer_tag, entry.acked))
        while order and order[0] not in entries:
            order.popleft()
        return sorted(done)


@dataclass(slots=True, eq=False)
class _Whole:
    number: int
    #: copies that have not been returned yet
    copies: list[Hashable]
    #: copies on other brokers
    remote: frozenset[Hashable]
    #: whether it is known that some copy will not be returned, in which case no return is relayed
    kept: bool = False


class Returns:
    """Combines the returns of publishes that were sent as several copies.

    A copy is identified by a fingerprint of the parts that do not change when the broker returns the copy. If several
    publishes have the same fingerprint, a return counts for the oldest of them that may still be returned, since the
    producer can't distinguish them. Publishes are numbered from the start of the channel, because only publishes after
    Confirm.Select have delivery tags.
    """

    __slots__ = ("_copies", "_order", "requested")

    def __init__(self) -> None:
        #: whether a method was sent whose reply will show that the broker has processed the earlier publishes
        self.requested = False
        self._order: deque[_Whole] = deque()
        self._copies: dict[Hashable, deque[_Whole]] = {}

    def __bool__(self) -> bool:
        """Return True if a Basic.Return from the broker may belong to a tracked publish."""
        return bool(self._copies)

    def expect(self, number: int, copies: Iterable[Hashable], remote_copies: Iterable[Hashable] = ()) -> None:
        """Add a mandatory publish: its number on the channel, and the fingerprints of its copies."""
        remote = frozenset(remote_copies)
        whole = _Whole(number, [*copies, *remote], remote)
        self._order.append(whole)
        for copy in whole.copies:
            self._copies.setdefault(copy, deque()).append(whole)
        if len(self._order) > WAITING_RETURNS:
            self._forget(self._order.popleft())

    def returned(self, copy: Hashable) -> bool:
        """Record a return, and return True if it must be relayed.

        It must be relayed if its publish is not tracked, or if all copies of the publish have been returned.
        """
        waiting = self._copies.get(copy)
        if waiting is None:
            return True
        whole = next((whole for whole in waiting if not whole.kept), waiting[0])
        self._take(copy, whole)
        return not whole.copies and not whole.kept

    def kept(self, copy: Hashable) -> None:
        """Record that another broker will not return its copy. Returns of the other copies are then not relayed."""
        waiting = self._copies.get(copy)
        if waiting is not None:
            whole = waiting[0]
            whole.kept = True
            self._take(copy, whole)

    def settled(self, number: int) -> None:
        """Forget a confirmed publish, which can no longer be returned."""
        for whole in self._order:  # in ascending order
            if whole.number >= number:
                if whole.number == number:
                    self._order.remove(whole)
                    self._forget(whole)
                return

    def processed(self, number: int) -> None:
        """Record that the broker has returned all unroutable copies of the publishes up to the given number."""
        for whole in list(takewhile(lambda whole: whole.number <= number, self._order)):
            for copy in [copy for copy in whole.copies if copy not in whole.remote]:
                whole.kept = True
                self._take(copy, whole)

    def _take(self, copy: Hashable, whole: _Whole) -> None:
        self._remove(copy, whole)
        whole.copies.remove(copy)
        if not whole.copies:
            self._order.remove(whole)

    def _forget(self, whole: _Whole) -> None:
        for copy in whole.copies:
            self._remove(copy, whole)

    def _remove(self, copy: Hashable, whole: _Whole) -> None:
        waiting = self._copies[copy]
        waiting.remove(whole)
        if not waiting:
            del self._copies[copy]
