"""What this process knows about the destinations of one exchange. Only this module changes that knowledge.

A destination is absent, pending, bound or missing:

    absent    nothing is known; a publish that needs the destination requests it
    pending   a bind has been requested; publishes that need the destination wait
    bound     at least one token is bound; publishes carry the first candidate that is (`relay.tokens.Tokens`)
    missing   the destination can't be reached, for a reason; publishes leave it out, and it is counted and reported

This is the only place that records why a destination is missing; `VhostState.missing` collects the entries of all
exchanges for the log, ``/status`` and the metrics. Both the relays and the control plane report events: a bind was
answered or refused, a destination was deleted, a listing arrived, a pass ended. An event that happened after a listing
was requested takes precedence over that listing. The table serves publishes only: whatever binds or declares always
sends its rows to the broker, whatever the table contains (`relay.declare`).

With queue delivery there are no tokens; a destination is then bound if messages can be published to it.

Times are passed in as arguments, and this module performs no I/O. Source: architecture, "Rows are facts".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from itertools import islice
from typing import NamedTuple

from oxproxy.values import Destination

#: Maximum number of events that are remembered singly. If there are more since the last listing was requested, an
#: earlier request counts as older than all of them, so that its answer changes nothing.
_REMEMBERED = 65536


class TokenState(Enum):
    """State of one destination."""

    ABSENT = "absent"
    PENDING = "pending"
    BOUND = "bound"
    MISSING = "missing"


class Missing(NamedTuple):
    """Why a destination can't be reached, and since when, in seconds on the caller's monotonic clock."""

    reason: str
    since: float


def _nobody() -> None:
    """Do nothing: no data depends on the table of an exchange that is not in use."""


def _none(_destination: Destination) -> bool:
    return False


class TokenTable:
    """The destinations of one exchange."""

    __slots__ = ("_applied", "_bound", "_changed", "_forgotten", "_missing", "_pending", "events", "notify", "version")

    def __init__(self, bound: Mapping[Destination, frozenset[bytes]] | None = None) -> None:
        self._bound: dict[Destination, frozenset[bytes]] = dict(bound or {})
        self._missing: dict[Destination, Missing] = {}
        self._pending: set[Destination] = set()
        #: for each destination with an event since the last listing was requested, the value of `events` at that time
        self._changed: dict[Destination, int] = {}
        #: the value that counts for destinations that are not in `_changed`
        self._forgotten = 0
        #: the value of `events` when the latest listing that was applied had been requested
        self._applied = 0
        #: number of events so far; taken before a listing is requested, and passed to `listed`
        self.events = 0
        #: increases with every change that can change where a publish is sent
        self.version = 0
        #: called after such a change
        self.notify: Callable[[], None] = _nobody

    # -- what publishes need -----------------------------------------------------------------------------------

    def state(self, destination: Destination) -> TokenState:
        if destination in self._bound:
            return TokenState.BOUND
        if destination in self._missing:
            return TokenState.MISSING
        return TokenState.PENDING if destination in self._pending else TokenState.ABSENT

    @property
    def bound(self) -> Mapping[Destination, frozenset[bytes]]:
        """The destinations that can be reached, each with its bound tokens; no tokens with queue delivery."""
        return self._bound

    @property
    def missing(self) -> Mapping[Destination, Missing]:
        """The destinations that can't be reached."""
        return self._missing

    def knows(self, destination: Destination) -> bool:
        return self.state(destination) is not TokenState.ABSENT

    # -- events ------------------------------------------------------------------------------------------------

    def requested(self, destination: Destination) -> None:
        """Record that a bind was requested for publishes that wait."""
        self._pending.add(destination)

    def bind_ok(self, destination: Destination, tokens: Iterable[bytes] = ()) -> None:
        """Record that the broker has bound tokens of a destination, or that a destination without token exists."""
        self._event(destination)
        self._add(destination, self._bound.get(destination, frozenset()).union(tokens))

    def refused(self, destination: Destination, reason: str, now: float, events: int | None = None) -> None:
        """Record that a destination can't be bound. A token that was bound earlier may have gone with it.

        Args:
            events: the value of `events` when the bind was requested; the refusal is ignored if it is older than the
                last event of the destination.
        """
        if events is not None and self.has_changed(destination, events):
            return
        self._event(destination)
        self._pending.discard(destination)
        known = self._missing.get(destination)
        if self._bound.pop(destination, None) is not None or known is None or known.reason != reason:
            self._missing[destination] = Missing(reason, now if known is None else known.since)
            self._change()

    def deleted(self, destination: Destination) -> None:
        """Record that a destination was deleted, together with its bindings."""
        self._event(destination)
        self._change(self._bound.pop(destination, None) is not None)

    def absent(self, destination: Destination, events: int) -> None:
        """Process a listing of queues or exchanges without this destination, whose bindings have gone with it.

        Args:
            events: the value of `events` before the listing was requested.
        """
        if not self.has_changed(destination, events):
            self._change(self._bound.pop(destination, None) is not None)

    def declared(self, destination: Destination, events: int | None = None) -> None:
        """Record that a destination was declared or found, so that it is no longer missing.

        Args:
            events: as in `refused`.
        """
        if events is not None and self.has_changed(destination, events):
            return
        self._event(destination)
        self._change(self._missing.pop(destination, None) is not None)

    def listed(self, events: int, tokens: Mapping[Destination, frozenset[bytes]]) -> None:
        """Process a listing of the broker's bindings.

        Args:
            events: the value of `events` when the listing was requested.
            tokens: the bound tokens of each destination.
        """
        if events < self._applied:
            return  # a later listing has already been applied
        self._applied = events
        for destination in [name for name in self._bound if name not in tokens]:
            if not self.has_changed(destination, events):
                del self._bound[destination]
                self._change()
        for destination, its_tokens in tokens.items():
            if not self.has_changed(destination, events):
                self._add(destination, its_tokens)
        self._changed = {name: event for name, event in self._changed.items() if event > events}

    def has_changed(self, destination: Destination, events: int) -> bool:
        """Return True if a destination has had an event since `events` had the given value."""
        return self._changed.get(destination, self._forgotten) > events

    def forget_missing(self, before: float, keeps: Callable[[Destination], bool] = _none) -> None:
        """Forget destinations that have been missing since `before` or longer, except those to keep.

        The next publish that needs such a destination requests it again.
        """
        self._drop_missing(
            name for name, missing in self._missing.items() if missing.since <= before and not keeps(name)
        )

    def limit_missing(self, count: int, keeps: Callable[[Destination], bool] = _none) -> None:
        """Forget the earliest entries, except those to keep, if more than `count` destinations are missing."""
        excess = len(self._missing) - count
        if excess > 0:
            self._drop_missing(islice((name for name in self._missing if not keeps(name)), excess))

    def _drop_missing(self, names: Iterable[Destination]) -> None:
        for name in list(names):
            del self._missing[name]
            self._change()

    def _add(self, destination: Destination, tokens: frozenset[bytes]) -> None:
        self._pending.discard(destination)
        known = self._bound.get(destination)
        if known != tokens:
            self._bound[destination] = tokens
            # The first token of a destination changes no cached decision, since none is cached without it.
            self._change(known is not None)
        if self._missing.pop(destination, None) is not None:
            self._change()

    def _change(self, happened: bool = True) -> None:
        if happened:
            self.version += 1
            self.notify()

    def _event(self, destination: Destination) -> None:
        self.events += 1
        if len(self._changed) >= _REMEMBERED:  # as with queue delivery, for which no bindings are listed
            self._changed.clear()
            self._forgotten = self.events
        self._changed[destination] = self.events
