"""The queues and exchanges of one virtual host that are known to exist.

This information has two sources: listings, and declarations through the sidecar. A listing shows the state at an
unknown time between the request and the response, so declarations made in between take precedence.
"""

from __future__ import annotations

from collections.abc import Mapping

from oxproxy.broker.management_api import ExchangeInfo, QueueInfo
from oxproxy.broker.methods import ABSENT, EXCLUSIVE, unnameable
from oxproxy.routing.decision import QueueNames
from oxproxy.values import Destination


class ObservedState:
    """Queues and exchanges of a virtual host."""

    def __init__(self) -> None:
        self.queues: dict[bytes, QueueInfo] = {}
        self.exchanges: dict[bytes, ExchangeInfo] = {}
        #: Whether all existing queues are known. False until the first listing and while listings fail.
        self.queues_complete = False
        self.exchanges_complete = False

    def add_queue(self, name: bytes, exclusive: bool = False) -> None:
        known = self.queues.get(name)
        if known is None or known.exclusive != exclusive:
            self.queues[name] = QueueInfo(name, exclusive)

    def remove_queue(self, name: bytes) -> None:
        self.queues.pop(name, None)

    def queues_listed(self, before: Mapping[bytes, QueueInfo], listed: Mapping[bytes, QueueInfo]) -> None:
        """Process a listing of queues; `before` is a copy of `queues` from the time of the request."""
        now = self.queues
        self.queues = {name: info for name, info in listed.items() if name in now or name not in before}
        # If a queue was removed and added again, it has a different `QueueInfo` object.
        self.queues.update((name, info) for name, info in now.items() if before.get(name) is not info)
        self.queues_complete = True

    def exchanges_listed(self, listed: Mapping[bytes, ExchangeInfo]) -> None:
        self.exchanges = dict(listed)
        self.exchanges_complete = True

    def absence_reason(self, destination: Destination) -> str | None:
        """Return ABSENT if a destination is known not to exist; None if it exists, or if this is unknown."""
        kind, name = destination
        if kind == "queue":
            lacking = self.queues_complete and name not in self.queues
        else:
            lacking = self.exchanges_complete and name not in self.exchanges
        return ABSENT if lacking else None

    def knows(self, destination: Destination) -> bool:
        kind, name = destination
        return name in (self.queues if kind == "queue" else self.exchanges)

    def exclusive(self, destination: Destination) -> bool:
        kind, name = destination
        return kind == "queue" and name in self.queues and self.queues[name].exclusive

    def unbindable(self, destination: Destination) -> str | None:
        """Return why a token can't be bound; None if it can be bound, or if this is unknown."""
        why = unnameable(destination[1]) or self.absence_reason(destination)
        return EXCLUSIVE if why is None and self.exclusive(destination) else why

    def names(self, last: QueueNames) -> QueueNames:
        """Return the names of all queues: `last` itself if they are unchanged, otherwise a new version."""
        names = tuple(sorted(self.queues))
        return last if names == last.names else QueueNames(names, last.version + 1)
