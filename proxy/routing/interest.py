"""Which facts can change the decision of an exchange?

Needs are counted as bindings come and go, so that the answer is exact at any time and costs nothing where no need
appears or vanishes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import cast

from proxy.routing.bindings.operators import ALL_HEADERS, CLOCK, HEADER, PROPERTY, QUEUE_NAMES, ROUTING_KEY, Need
from proxy.routing.decision import Interest
from proxy.routing.filters import Filter, PayloadFilter
from proxy.routing.message import UNSEEN_HEADER

_NO_INTEREST = Interest()


class InterestCount:
    """The needs of the bindings and filters of one exchange.

    Args:
        filters: of the exchange.
    """

    __slots__ = ("_body_sizes", "_headers_whole", "_interest", "_needs")

    def __init__(self, filters: Iterable[Filter]) -> None:
        """Take the filters in; they never change."""
        cuts = {each.cut for each in filters if isinstance(each, PayloadFilter)}
        self._body_sizes = tuple(sorted(cut for cut in cuts if cut > 0))
        self._headers_whole = any(not isinstance(each, PayloadFilter) for each in filters)
        self._needs: Counter[Need] = Counter()
        self._interest: Interest | None = None

    def add(self, needs: Iterable[Need]) -> None:
        """Count the needs of a binding."""
        for need in needs:
            self._needs[need] += 1
            if self._needs[need] == 1:
                self._interest = None

    def remove(self, needs: Iterable[Need]) -> None:
        """Count them off again."""
        for need in needs:
            self._needs[need] -= 1
            if not self._needs[need]:
                del self._needs[need]
                self._interest = None

    @property
    def interest(self) -> Interest:
        """What matters now."""
        if self._interest is None:
            self._interest = self._collect()
        return self._interest

    @property
    def sees_queues(self) -> bool:
        """Whether the names of all queues matter; cheap also where the needs have just changed."""
        return QUEUE_NAMES in self._needs

    def _collect(self) -> Interest:
        needs = self._needs
        whole = self._headers_whole or ALL_HEADERS in needs
        headers = {cast("bytes", name) for family, name in needs if family == HEADER} - {UNSEEN_HEADER}
        return Interest(
            routing_key=(ROUTING_KEY, "") in needs,
            headers=None if whole else frozenset(headers),
            properties=frozenset(cast("str", name) for family, name in needs if family == PROPERTY),
            body_sizes=self._body_sizes,
            clock=(CLOCK, "") in needs,
            queues=QUEUE_NAMES in needs,
        )


def joined(interests: Iterable[Interest]) -> Interest:
    """What matters to any of several exchanges."""
    result = _NO_INTEREST
    for each in interests:
        if result == _NO_INTEREST:
            result = each
            continue
        whole = result.headers is None or each.headers is None
        result = Interest(
            routing_key=result.routing_key or each.routing_key,
            headers=None if whole else (result.headers or frozenset()) | (each.headers or frozenset()),
            properties=result.properties | each.properties,
            body_sizes=tuple(sorted({*result.body_sizes, *each.body_sizes})),
            clock=result.clock or each.clock,
            queues=result.queues or each.queues,
        )
    return result
