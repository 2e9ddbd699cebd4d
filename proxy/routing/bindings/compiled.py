"""What has become of a binding once it is ready to be visited?

A `CompiledBinding` is the same for every exchange type: a truth, effects for both results, a place in the order of
visits, and what an index and a cache must know about it. How it was made is `exchange_types`' question.

Source: the open-exchange specification, sections 1, 7 and 8.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from proxy.routing.bindings.binding import EXCHANGE, Binding, Destination
from proxy.routing.bindings.match import Match, Truth
from proxy.routing.bindings.operators import HEADER, ROUTING_KEY, Access, Need, Operator
from proxy.routing.bindings.producer_routes import NAMED_ROUTES, PATTERN_ROUTES
from proxy.routing.bindings.routes import Effects
from proxy.routing.message import Message

#: Place in the order of visits: order, then the greater sequence, then the later arrival.
Rank: TypeAlias = tuple[int, int, int]

_REGEX_HEADERS: tuple[Need, ...] = tuple((HEADER, name) for name in PATTERN_ROUTES)


@dataclass(slots=True, eq=False)
class CompiledBinding:
    """A binding ready to be visited.

    Args:
        binding: as it was declared.
        order: its order.
        match_type: name of the match type, for people.
        match: truth, and what it depends on.
        operators: for people and for what they look at; `match` holds them as well.
        destination: added when true; None: the queue that the routing key names.
        on_true: effects when true, None where there are none beyond the destination.
        on_false: effects when false.
        rank: its place, given by the exchange that it is bound to.
        regexes: regular expressions in its arguments.
        mark: exchange and id, as a decision lists them.
        found_by: where the index has put it.
    """

    binding: Binding
    order: int
    match_type: str
    match: Match
    operators: tuple[Operator, ...]
    destination: Destination | None
    on_true: Effects | None = None
    on_false: Effects | None = None
    regexes: int = 0
    rank: Rank = (0, 0, 0)
    mark: tuple[bytes, str] = (b"", "")
    found_by: tuple[Access, ...] | None = None
    truth: Truth = field(init=False)
    asks_producer: bool = field(init=False)
    plain: bool = field(init=False)

    def __post_init__(self) -> None:
        """Work out what the engine asks for at each visit."""
        self.truth = self._truth_within_budget if self.regexes else self.match.truth
        effects = [each for each in (self.on_true, self.on_false) if each is not None]
        self.asks_producer = any(each.asks_producer for each in effects)
        #: Adds one destination when true and does nothing else.
        self.plain = not effects and self.destination is not None

    def _truth_within_budget(self, message: Message) -> bool:
        """Whether it is true; a binding that needs a search when its owner's budget is spent is false."""
        message.charge(self.binding.owner)
        true = self.match.truth(message)
        if message.starved:
            message.note_spent(self.binding.owner)
            return False
        return true

    @property
    def idle_when_false(self) -> bool:
        """Whether a visit changes nothing when it is false, so that it may be left out."""
        return self.on_false is None and not self.asks_producer

    @property
    def needs(self) -> frozenset[Need]:
        """The facts that can change what it does."""
        needs = {operator.need for operator in self.operators}
        needs.update(self.match.needs)
        for effects in (self.on_true, self.on_false):
            if effects is not None:
                needs.update(effects.needs)
        if self.asks_producer:
            # An invalid regex among them closes the channel, whatever the binding permits.
            needs.update(_REGEX_HEADERS)
        if self.destination is None:
            needs.add((ROUTING_KEY, ""))
        return frozenset(needs)

    @property
    def lets_producer_add_exchanges(self) -> bool:
        """Whether a message can name further exchanges itself."""
        effects = [each for each in (self.on_true, self.on_false) if each is not None]
        return any(NAMED_ROUTES.get(header) == EXCHANGE for each in effects for header in each.granted_add)

    @property
    def chooses_queues(self) -> bool:
        """Whether a message can reach queues that it does not name: by a pattern, or since the message names them."""
        effects = [each for each in (self.on_true, self.on_false) if each is not None]
        granted = any(NAMED_ROUTES.get(header) != EXCHANGE for each in effects for header in each.granted_add)
        return self.destination is None or granted or any(each.add_queues for each in effects)

    @property
    def destinations(self) -> frozenset[Destination]:
        """Everything that it names as a destination: the declared one and what its routes add."""
        named = {(self.binding.destination_type, self.binding.destination)}
        for effects in (self.on_true, self.on_false):
            if effects is not None:
                named |= effects.add
        return frozenset(named)


#: What is kept in visiting order. A rank is unique in its exchange, so that it alone orders entries.
Entry: TypeAlias = tuple[Rank, CompiledBinding]
