"""Which of a producer's publishes are settled, and how several upstream confirms become one.

`Settled` counts confirms where one publish is one upstream publish: tags are equal and the broker's own ack is
relayed. `Ledger` takes over on a channel from the first publish that needs several upstream publishes: from then
on the tags differ, and a producer's tag is settled when all its copies are; one nack is a nack.

Source: RabbitMQ guide "Consumer acknowledgements and publisher confirms"; architecture, "One in, one out".
"""

from __future__ import annotations

from collections import deque


class Settled:
    """Counts settled delivery tags, given acks and nacks with and without `multiple` in any order."""

    __slots__ = ("_above", "count", "low")

    def __init__(self) -> None:
        """Start with nothing published."""
        #: every tag up to this one is settled
        self.low = 0
        #: settled tags above `low`
        self._above: set[int] = set()
        #: settled tags in all
        self.count = 0

    def settle(self, tag: int, multiple: int, published: int) -> int:
        """Count one ack or nack.

        Args:
            tag: its delivery tag; 0 with `multiple`: all that are outstanding.
            multiple: whether all tags up to it are meant (any non-zero number).
            published: highest tag in use.

        Returns:
            How many publishes it settled.
        """
        above = self._above
        if not above and tag == self.low + 1:  # in order, with or without `multiple`: the usual case
            self.low = tag
            self.count += 1
            return 1
        if multiple:
            tag = min(tag or published, published)
            if tag <= self.low:
                return 0
            if above:
                covered = {one for one in above if one <= tag}
                above -= covered
                settled = tag - self.low - len(covered)
            else:
                settled = tag - self.low
            self.low = tag
        elif tag == self.low + 1:
            self.low = tag
            settled = 1
        elif tag <= self.low or tag in above:
            return 0
        else:
            above.add(tag)
            settled = 1
        while above and self.low + 1 in above:
            self.low += 1
            above.remove(self.low)
        self.count += settled
        return settled

    def outstanding(self, published: int) -> list[int]:
        """Tags up to `published` that are not settled, ascending."""
        return [tag for tag in range(self.low + 1, published + 1) if tag not in self._above]


class _Entry:
    __slots__ = ("acked", "copies", "mandatory", "producer_tag", "returns", "whole")

    def __init__(self, producer_tag: int, copies: int, mandatory: bool) -> None:
        self.producer_tag = producer_tag
        self.copies = copies
        self.acked = True
        self.mandatory = mandatory
        self.whole = copies
        self.returns = 0


class Ledger:
    """Joins upstream confirms per producer tag. Two counters, one ordered map.

    Args:
        outstanding: producer tags not settled when the ledger takes over (upstream tags are equal to them).
        published: highest tag in use then, on both sides.
    """

    __slots__ = ("_entries", "_order", "upstream_tag")

    def __init__(self, outstanding: list[int], published: int) -> None:
        """Take over the outstanding publishes."""
        self.upstream_tag = published
        self._order: deque[int] = deque(outstanding)
        self._entries: dict[int, _Entry] = {tag: _Entry(tag, 1, mandatory=False) for tag in outstanding}

    def add(self, producer_tag: int, copies: int, mandatory: bool) -> None:
        """Enter a publish that leaves as `copies` upstream publishes, in this order after all before it."""
        entry = _Entry(producer_tag, copies, mandatory)
        for _ in range(copies):
            self.upstream_tag += 1
            self._entries[self.upstream_tag] = entry
            self._order.append(self.upstream_tag)

    def settle(self, upstream_tag: int, multiple: bool, ack: bool) -> list[tuple[int, bool]]:
        """Enter an upstream ack or nack.

        Args:
            upstream_tag: its delivery tag; 0 with `multiple`: all.
            multiple: whether all up to it are meant.
            ack: False for a nack.

        Returns:
            (producer tag, acked) of each publish that is settled now, ascending.
        """
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
                done.append((entry.producer_tag, entry.acked))
        while order and order[0] not in entries:
            order.popleft()
        return sorted(done)

    def returned(self, upstream_tag_hint: int | None = None) -> bool:
        """Enter an upstream return of the oldest mandatory publish with copies left.

        Returns:
            Whether every copy of it has been returned now, so that the return goes to the producer.
        """
        for tag in self._order:
            entry = self._entries.get(tag)
            if entry is not None and entry.mandatory and entry.returns < entry.whole:
                entry.returns += 1
                return entry.returns == entry.whole
        return True
