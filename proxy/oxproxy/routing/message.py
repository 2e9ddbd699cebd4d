"""The message being evaluated, with its facts and data derived from them.

A `Message` exists for one decision and is shared by all evaluated exchanges, so that everything is derived at most
once: the clock is read once, headers are sorted once, and the producer's routes are read once.

Source: the open-exchange specification, section 1 (sorting of headers, BCC), section 5 (clock text).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Set
from contextlib import contextmanager
from datetime import datetime, tzinfo
from typing import Final

from oxproxy.routing.bindings.binding import by_name
from oxproxy.routing.bindings.patterns import DEFAULT_BUDGET, FREE_SEARCH_STEPS, Budget
from oxproxy.routing.bindings.producer_routes import NAMED_ROUTES, PatternRoute, ProducerRoutes
from oxproxy.routing.decision import Facts, QueueNames
from oxproxy.values import QUEUE, Destination, Table, Value

#: The broker removes this header before the exchange evaluates the message.
UNSEEN_HEADER: Final = b"BCC"

#: Owner of the regexes in the headers of the message itself.
PRODUCER = ("message",)

_NONE: Final[frozenset[str]] = frozenset()
_NOTHING: Final[frozenset[Destination]] = frozenset()
_INTEGER: Final = re.compile(rb"[+-]?[0-9]+")


class Message:
    """A message being evaluated.

    The facts and the state of the evaluation are attributes of one object, since operators read them for each binding.

    Args:
        facts: the facts of the message.
        now: seconds since the epoch.
        queues: the queues of the virtual host.
        draw: returns an index below its argument, for random picks.
        regex_budget: budget for the regexes of each owner, in match-limit units. Owners are the rules files, each
            client, and the message itself.
    """

    __slots__ = (
        "_budget",
        "_budgets",
        "_clock",
        "_producer",
        "_regex_budget",
        "_requested",
        "_sorted",
        "draw",
        "first",
        "headers",
        "included",
        "keep",
        "now",
        "payer",
        "properties",
        "queues",
        "routing_key",
        "size",
        "spent_budgets",
    )

    def __init__(
        self,
        facts: Facts,
        now: float,
        queues: QueueNames,
        draw: Callable[[int], int],
        regex_budget: int = DEFAULT_BUDGET,
    ) -> None:
        self.routing_key = facts.routing_key
        self.properties = facts.properties
        self.size = facts.body_size_bytes
        headers = facts.headers
        first: dict[bytes, Value] = {}
        for name, value in headers:
            if name not in first:
                first[name] = value
        if UNSEEN_HEADER in first:
            headers = tuple(entry for entry in headers if entry[0] != UNSEEN_HEADER)
            del first[UNSEEN_HEADER]
        self.headers = headers
        #: The first value of each header name, for `all` and `any`.
        self.first = first
        self.now = now
        self.queues = queues
        self.draw = draw
        #: Whether the decision may be cached. False after a random pick.
        self.keep = True
        #: Kinds of owners whose budget is spent: rules, client, message.
        self.spent_budgets: frozenset[str] = _NONE
        self._regex_budget = regex_budget
        #: Owner to which searches are charged (see `charge`), and the owner's budget, which is None until it is used.
        self.payer: Hashable = None
        self._budget: Budget | None = None
        self._budgets: dict[Hashable, Budget] | None = None
        self._sorted: Table | None = None
        self._clock: dict[tzinfo | None, bytes] | None = None
        self._producer: ProducerRoutes | None = None
        #: What `requested` has returned, by header; None if the message's budget was too small.
        self._requested: dict[bytes, Set[Destination] | None] = {}
        #: Headers whose destinations have been added to the exchange's result, and have not been deleted since then.
        self.included: set[bytes] = set()

    @property
    def sorted_headers(self) -> Table:
        if self._sorted is None:
            self._sorted = by_name(self.headers)
        return self._sorted

    @property
    def producer(self) -> ProducerRoutes:
        if self._producer is None:
            self._producer = ProducerRoutes(self.sorted_headers)
        return self._producer

    def charge(self, owner: Hashable) -> None:
        """Charge the following searches to an owner: None (for rules files), a user, or PRODUCER."""
        if owner is not self.payer:
            self.payer = owner
            self._budget = None

    @property
    def budget(self) -> Budget:
        budget = self._budget
        if budget is None:
            if self._budgets is None:
                self._budgets = {}
            budget = self._budgets.get(self.payer)
            if budget is None:
                budget = self._budgets[self.payer] = Budget(self._regex_budget)
            self._budget = budget
        return budget

    def pays(self, owner: Hashable, steps: int) -> bool:
        """Charge steps to a client or to the message; return False if the owner's budget is spent.

        Rules files (None) are not charged, since the operator chooses the number of their bindings.
        """
        if owner is None:
            return True
        self.charge(owner)
        if not steps or self.budget.take(steps):
            return True
        self.note_spent(owner)
        return False

    def requested(self, header: bytes) -> Set[Destination]:
        """Return the destinations that the message requests in one header.

        They are determined once per message, however many bindings grant the request, and are charged to the message.
        """
        if header not in self._requested:
            self._requested[header] = self._request(header)
        chosen = self._requested[header]
        if chosen is None:
            self.charge(PRODUCER)
            self.note_spent(PRODUCER)
            return _NOTHING
        return chosen

    def _request(self, header: bytes) -> Set[Destination] | None:
        """Return all destinations that the message requests in one header; None if its budget is too small."""
        if header in NAMED_ROUTES:
            named = self.producer.named.get(header, _NOTHING)
            return named if self.pays(PRODUCER, len(named)) else None
        route = self.producer.patterns.get(header)
        if route is None:
            return _NOTHING
        if not self.pays(PRODUCER, len(self.queues.names) * FREE_SEARCH_STEPS):
            return None
        chosen = matching(route, self)
        return None if self.budget.exceeded else frozenset(chosen)

    @property
    def match_limit_hits(self) -> int:
        if self._budgets is None:
            return 0
        hits = 0
        for budget in self._budgets.values():
            hits += budget.match_limit_hits
        return hits

    def note_spent(self, owner: Hashable) -> None:
        """Record that a binding or a route was abandoned because its owner's budget is spent."""
        self.budget.exceeded = False
        kind = "rules" if owner is None else "message" if owner == PRODUCER else "client"
        self.spent_budgets |= {kind}

    @contextmanager
    def uncharged(self) -> Iterator[None]:
        """Allow a trace to repeat searches, or to run additional searches, without changing budgets or counts."""
        kept = self._budgets, self._budget, self.payer, self.spent_budgets
        self._budgets, self._budget, self.payer, self.spent_budgets = {}, None, None, _NONE
        try:
            yield
        finally:
            self._budgets, self._budget, self.payer, self.spent_budgets = kept

    def clock(self, zone: tzinfo | None) -> bytes:
        """Return the time in a zone, as 20 characters: ``YYYYMMDD HHmmSS d We`` with ISO weekday and ISO week."""
        if self._clock is None:
            self._clock = {}
        text = self._clock.get(zone)
        if text is None:
            time = datetime.fromtimestamp(self.now, zone)
            _, week, weekday = time.isocalendar()
            text = f"{time:%Y%m%d %H%M%S} {weekday} {week:02}".encode()
            self._clock[zone] = text
        return text


def matching(route: PatternRoute, message: Message) -> list[Destination]:
    """Return the queues that a route selects. The result is invalid if the regex budget was exceeded."""
    return [(QUEUE, name) for name in message.queues.names if selects(route, name, message)]


def selects(route: PatternRoute, name: bytes, message: Message) -> bool:
    return (route.pattern.search(name, message.budget) is True) is not route.negated


def spelled_integer(text: bytes | int) -> int | None:
    """Return the value of an integer property; None for an expiration that the broker will reject."""
    if isinstance(text, int):
        return text
    return int(text) if _INTEGER.fullmatch(text) else None
