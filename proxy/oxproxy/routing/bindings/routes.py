"""The effects of a binding on the set of destinations.

`Effects` describes what a binding does if it is true, or if it is false: additions first, then deletions, then the
order at which the evaluation continues. Effects are independent of operators and of the order of bindings.

Source: the open-exchange specification, sections 7 and 8.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from oxproxy.routing.bindings.operators import HEADER, QUEUE_NAMES, FactName
from oxproxy.routing.bindings.patterns import FREE_SEARCH_STEPS, Pattern
from oxproxy.routing.bindings.producer_routes import PATTERN_ROUTES, PatternRoute
from oxproxy.routing.decision import QueueNames
from oxproxy.routing.message import PRODUCER, Message, matching, selects
from oxproxy.values import QUEUE, Destination

#: The order to which a stop jumps, which is higher than the order of any binding.
STOP: Final = 1_000_000


class _Selection:
    """The result of a regex route: the queues that were searched, and the destinations.

    Args:
        before: `Budget.left` and `Budget.unproven` before the searches.
        after: `Budget.left` and `Budget.unproven` after the searches.
    """

    __slots__ = ("after", "before", "destinations", "is_free", "match_limit_hits", "queues")

    def __init__(
        self,
        queues: QueueNames | None = None,
        before: tuple[int, int] = (0, 0),
        after: tuple[int, int] = (0, 0),
        match_limit_hits: int = 0,
        destinations: Sequence[Destination] = (),
    ) -> None:
        self.queues = queues
        self.before = before
        self.after = after
        self.match_limit_hits = match_limit_hits
        self.destinations = destinations
        self.is_free: bool = before == after and not match_limit_hits


class QueueRoute:
    """A binding's regex route, which selects queues of the virtual host by name.

    The selection depends only on the list of queues, so the last result is cached together with that list.

    Args:
        pattern: the regex.
        negated: whether it selects names that don't match.
        only_one: whether only one of the selected queues is used, picked at random.
    """

    __slots__ = ("_kept", "negated", "only_one", "pattern")

    def __init__(self, pattern: Pattern, negated: bool, only_one: bool) -> None:
        self.pattern = pattern
        self.negated = negated
        self.only_one = only_one
        #: replaced as a whole, since another thread may use the same route for an explanation
        self._kept = _Selection()

    def select(self, message: Message) -> Collection[Destination]:
        """Return the destinations for this message."""
        budget = message.budget
        state = (budget.left, budget.unproven)
        kept = self._kept
        if kept.queues is message.queues and not budget.spent and (kept.is_free or kept.before == state):
            # The searches are charged again, so that equal messages have the same destinations.
            if not kept.is_free:
                budget.left, budget.unproven = kept.after
                budget.match_limit_hits += kept.match_limit_hits
            selected = kept.destinations
        else:
            hits = budget.match_limit_hits
            selected = matching(PatternRoute(self.pattern, self.negated), message)
            if not budget.exceeded:
                after = (budget.left, budget.unproven)
                self._kept = _Selection(message.queues, state, after, budget.match_limit_hits - hits, selected)
        if not self.only_one or len(selected) < 2:
            return selected
        message.keep = False
        return [selected[message.draw(len(selected))]]


@dataclass(frozen=True, slots=True)
class Effects:
    """What a binding does if it is true, or if it is false."""

    add: frozenset[Destination] = frozenset()  # destinations to add by name
    delete: frozenset[Destination] = frozenset()  # destinations to delete by name
    add_queues: tuple[QueueRoute, ...] = ()  # regex routes that add queues
    delete_queues: tuple[PatternRoute, ...] = ()  # regex routes that delete queues chosen before this binding
    granted_add: tuple[bytes, ...] = ()  # headers in which the producer may request additions
    granted_delete: tuple[bytes, ...] = ()  # headers in which the producer may request deletions
    jump: int = 0  # order at which the evaluation continues; STOP for the end, 0 for the next binding

    def apply(
        self,
        routed: set[Destination],
        main: Destination | None,
        message: Message,
        owner: str | None = None,
    ) -> None:
        """Change `routed` to ``(routed + main + additions) - deletions``.

        A regex route chooses nothing if its owner's budget is not sufficient.
        """
        deleted = self._deleted(routed, message, owner)
        if main is not None:
            routed.add(main)
        if self.add and message.pays(owner, len(self.add)):
            routed.update(self.add)
        if self.add_queues:
            message.charge(owner)
            for selection in self.add_queues:
                selected = selection.select(message)
                if not _budget_exceeded(message, owner) and message.pays(owner, len(selected)):
                    routed.update(selected)
        for header in self.granted_add:
            if header not in message.included:
                requested = message.requested(header)
                if message.pays(PRODUCER, len(requested)):
                    routed.update(requested)
                    message.included.add(header)
        for payer, names in deleted:
            if message.pays(payer, min(len(names), len(routed))):
                _remove(names, routed, message)

    def _deleted(
        self, routed: set[Destination], message: Message, owner: str | None
    ) -> list[tuple[Hashable, Set[Destination]]]:
        """Return the destinations to delete, and who pays for each deletion. Regexes select from `routed`."""
        deleted: list[tuple[Hashable, Set[Destination]]] = [(owner, self.delete)] if self.delete else []
        for route in self.delete_queues:
            if message.pays(owner, len(routed) * FREE_SEARCH_STEPS):
                message.charge(owner)
                chosen = {name for name in routed if name[0] == QUEUE and selects(route, name[1], message)}
                if not _budget_exceeded(message, owner):
                    deleted.append((owner, chosen))
        for header in self.granted_delete:
            deleted.append((PRODUCER, message.requested(header)))
        return deleted

    @property
    def chooses(self) -> bool:
        """True if messages choose destinations to add: by a regex on queue names, or in headers."""
        return bool(self.add_queues or self.granted_add)

    @property
    def asks_producer(self) -> bool:
        """True if there are regex routes, or headers in which the producer may request routes.

        The channel is then closed if a message has an invalid regex in any header for regex routes, even if the binding
        does not permit this header.
        """
        return bool(self.granted_add or self.granted_delete or self.add_queues or self.delete_queues)

    @property
    def fact_names(self) -> Iterator[FactName]:
        granted = self.granted_add + self.granted_delete
        yield from ((HEADER, header) for header in granted)
        if self.add_queues or any(header in PATTERN_ROUTES for header in granted):
            yield QUEUE_NAMES


@dataclass(slots=True, eq=False)
class EffectsDraft:
    """Effects read so far from the arguments, with at most one positive and one negated regex route of each kind."""

    add: set[Destination] = field(default_factory=set)
    delete: set[Destination] = field(default_factory=set)
    add_queues: dict[bool, QueueRoute] = field(default_factory=dict)
    delete_queues: dict[bool, PatternRoute] = field(default_factory=dict)
    granted_add: set[bytes] = field(default_factory=set)
    granted_delete: set[bytes] = field(default_factory=set)
    goto: int = 0
    stop: bool = False

    def finished(self) -> Effects:
        """Return the effects. A stop overrides a goto."""
        return Effects(
            frozenset(self.add),
            frozenset(self.delete),
            tuple(self.add_queues.values()),
            tuple(self.delete_queues.values()),
            tuple(sorted(self.granted_add)),
            tuple(sorted(self.granted_delete)),
            STOP if self.stop else self.goto,
        )


def _budget_exceeded(message: Message, owner: Hashable) -> bool:
    if not message.budget.exceeded:
        return False
    message.note_spent(owner)
    return True


def _remove(names: Set[Destination], routed: set[Destination], message: Message) -> None:
    """Remove destinations from the result; the cost depends on the smaller of both collections."""
    smaller, larger = (names, routed) if len(names) <= len(routed) else (routed, names)
    found = [name for name in smaller if name in larger]
    if found:
        routed.difference_update(found)
        message.included.clear()
