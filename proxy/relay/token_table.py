"""State of the destination tokens of one carrier exchange. Only this module changes that state.

Both the relays and the control plane report events (a bind was sent, answered or refused; a queue was deleted; a
listing arrived; a destination is needed, or no longer needed) and query what to bind and unbind. The current time is
passed in as an argument, and this module performs no I/O.

Several bindings ("rows") of a destination may have the same token as their routing key. Messages reach the destination
while at least one of these rows exists. There are three kinds of rows:

- A *plain* row has no arguments. The control plane binds plain rows for rules files and for publishes that request
  them. All sidecars share a plain row, and no sidecar can determine which other sidecars need the row. A sidecar
  therefore unbinds a plain row only if the sidecar's own rules used to need the row, or if an exchange that clients
  declared has no bindings left. Rules rely only on plain rows.
- A *mark* is a client's binding whose routing key is the token. It is removed when the client's binding is unbound,
  through any sidecar.
- A *pin* has an argument that no other row has. A sidecar binds a pin if a client's binding has a storage key and none
  of the sidecar's marks or pins is recent enough. It also binds pins for the destinations of routes in clients'
  bindings.

A client's binding that was created through another sidecar may rely on a row, even if this sidecar has not seen the
binding yet. No sidecar may remove the last row on which a binding relies. The broker has no compare-and-delete, but an
unbind names the exact arguments of a row. Therefore, sidecars proceed as follows:

1. A binding with a storage key relies on an *assertion*: a mark or pin that the *same* sidecar sent less than
  `LEASE_SECONDS` before the broker confirmed the binding (`may_rely`, `holds`). If there is no such assertion, the
  sidecar binds another pin, with an argument that was never used before, and only then answers the client. After
  `RENEWAL_SECONDS`, an assertion is renewed, so that the replies to pipelined binds usually arrive before the
  lease ends.
2. A sidecar unbinds its own assertions as soon as nothing known to this sidecar needs the destination. Bindings
  created through other sidecars do not rely on these assertions.
3. A row of another sidecar is unbound only when it is *settled*: the row was first listed, another listing was
  requested at least `LEASE_SECONDS` later, and that listing has arrived. No new binding relies on such a row, and the
  listing contains all earlier bindings that rely on it. If a client unbinds a mark of another sidecar before the mark
  is settled, a pin replaces the mark (`unbind_plan`).
4. Rows are unbound when two passes, `GRACE_SECONDS` apart, have shown that nothing needs these rows (`idle`).
  Pins of other sidecars are also unbound if this sidecar has a later pin (`outdated`), since a sidecar that has exited
  can't remove its pins.
5. The rules of another sidecar may need a plain row that the rules of this sidecar no longer need. Before this sidecar
  unbinds the plain row, it binds a pin that counts as a pin of another sidecar. A sidecar whose rules need the
  destination then recreates the plain row in its next pass. On the carriers of exchanges from rules files, pins of
  other sidecars are settled only after `handover_seconds`, so that every sidecar has time to run a pass. While new
  rules are being applied, other sidecars may hand over rows that these rules need. If applying the rules took a
  long time, another pass is therefore run before the rules take effect.

Points 1 to 4 guarantee that the last row on which a binding relies is kept, regardless of the order in which the broker
executes the steps of any number of sidecars. The guarantee depends only on durations, so the sidecars' clocks need not
agree. `tests/relay/test_token_table.py` runs the steps of two sidecars and a broker in orders that hypothesis
generates, with the same rules and with different rules.

Source: architecture, "The control plane".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum, Flag
from typing import Final, NamedTuple, TypeAlias

from proxy.values import Destination

#: Time for which further bindings created through the same sidecar may rely on a mark or pin.
LEASE_SECONDS: Final = 2.0
#: Age from which new bindings no longer rely on a mark or pin. A binding whose reply arrives after the lease needs a
#: separate pin.
RENEWAL_SECONDS: Final = 1.5
#: A row is unbound only after nothing has needed the row for this long.
GRACE_SECONDS: Final = 5.0
#: identifies the plain row
PLAIN: Final = b""
_LONG_AGO: Final = float("-inf")

#: Identifies a row among the rows with the same token: PLAIN, the value of a pin, or the sequence number of a mark.
Row: TypeAlias = bytes | int


class TokenState(Enum):
    """Known state of one token."""

    UNKNOWN = "unknown"
    BINDING = "binding"
    BOUND = "bound"
    UNBINDING = "unbinding"
    MISSING = "missing"


class Need(Flag):
    """What needs a token."""

    NOBODY = 0
    #: rules files, or a client's binding whose destination the control user binds
    RULES = 1
    #: a client's binding to the destination
    CLIENT = 2
    #: a publish that has requested the destination
    DEMAND = 4


@dataclass(slots=True)
class TokenRecord:
    """State of the token of one destination."""

    state: TokenState = TokenState.UNKNOWN
    #: what needs the token, as far as this process knows
    needs: Need = Need.NOBODY
    #: the table's event count at the last change. The change takes precedence over listings requested before it.
    changed: int = 0
    #: sequence numbers of the marks made by this process
    marks: set[int] = field(default_factory=set)
    #: the pins made by this process
    pins: set[bytes] = field(default_factory=set)
    #: the pins that this process made before the carrier's tokens changed, and that have former tokens as routing keys
    former_pins: set[bytes] = field(default_factory=set)
    #: time at which the newest mark or pin made by this process was sent
    asserted_at: float = _LONG_AGO
    #: connection that made the newest mark or pin; None if a new queue with the same name may have replaced the
    #: destination
    binder: object | None = None
    #: the table's event count when this process last removed assertions
    withdrawn: int = 0
    #: the rows in the last listing
    listed: frozenset[Row] = frozenset()
    #: time at which these rows were first listed
    listed_since: float = _LONG_AGO
    #: when the latest listing was requested, counting only listings requested after the last change
    looked_at: float = _LONG_AGO
    #: time since which listings have shown that nothing needs the token; None if something needs it
    idle_since: float | None = None

    @property
    def is_blank(self) -> bool:
        """True if the record contains no information, so that it can be removed."""
        return self.state is TokenState.UNKNOWN and not (self.needs or self.marks or self.pins or self.listed)

    @property
    def lacks_plain(self) -> bool:
        """True if the token has rows in the last listing, but no plain row."""
        return bool(self.listed) and PLAIN not in self.listed


class Look(NamedTuple):
    """The time at which a listing was requested, and the table's event count at that time."""

    events: int
    began_at: float


class UnbindPlan(NamedTuple):
    """What to do before a client's binding is removed."""

    #: whether a pin has to be bound before a mark is removed
    pin: bool
    #: whether this pin is for other sidecars, so that this sidecar does not count it as its own
    handed_over: bool


_ABSENT: Final = TokenRecord()


def pin_row(sidecar: str, sequence: int) -> bytes:
    """Return a new pin, made from the sidecar's unique name and a number that the sidecar has not used before."""
    return f"{sequence} {sidecar}".encode()


def _age(pin: bytes) -> tuple[int, bytes]:
    number, _, sidecar = pin.partition(b" ")
    return (int(number), sidecar) if number.isdigit() else (0, pin)


class TokenTable:
    """The tokens of one carrier exchange.

    Args:
        bound: destinations that are known to be bound.
    """

    def __init__(self, bound: Iterable[Destination] = ()) -> None:
        #: whether other sidecars may bind on the same carrier, so that their bindings appear in listings
        self.shared = True
        #: how long pins of other sidecars are kept, for sidecars whose rules may need the destinations
        self.handover_seconds = LEASE_SECONDS
        self._records: dict[Destination, TokenRecord] = {}
        self._bound: set[Destination] = set()
        #: number of changes so far
        self.events = 0
        #: the event counts when the latest received listing (`_look`) and the one before it were requested
        self._look = self._last_look = 0
        self._wanted: frozenset[Destination] = frozenset()
        #: destinations that a rules file names
        self._plain: frozenset[Destination] = frozenset()
        #: destinations that rules no longer need and whose plain row has not been bound since then
        self._released: set[Destination] = set()
        #: request time of the latest received listing
        self.looked_at = _LONG_AGO
        for destination in bound:
            self.bind_ok(destination)

    # -- publishes ---------------------------------------------------------------------------------------------

    @property
    def bound(self) -> Set[Destination]:
        """Destinations whose token is bound."""
        return self._bound

    @property
    def destinations(self) -> Set[Destination]:
        """All destinations that have a record, whether or not their token is bound."""
        return self._records.keys()

    def state(self, destination: Destination) -> TokenState:
        return self._records.get(destination, _ABSENT).state

    # -- needs -------------------------------------------------------------------------------------------------

    def need(self, destination: Destination, need: Need) -> None:
        record = self._record(destination)
        record.needs |= need
        record.idle_since = None

    def no_need(self, destination: Destination, need: Need) -> None:
        record = self._records.get(destination)
        if record is not None:
            record.needs &= ~need

    def needs_plain(self, destination: Destination) -> bool:
        """Return True if a rules file, or a publish that requested the destination, relies on the plain row."""
        return destination in self._plain or Need.DEMAND in self._records.get(destination, _ABSENT).needs

    def rules_need(self, wanted: frozenset[Destination], plain: frozenset[Destination]) -> None:
        """Set the destinations that rules need (`wanted`), and those of them that a rules file names (`plain`)."""
        self._plain = plain
        for destination in self._wanted - wanted:
            self.no_need(destination, Need.RULES)
        for destination in wanted - self._wanted:
            self.need(destination, Need.RULES)
        self._wanted = wanted

    # -- binding and unbinding ---------------------------------------------------------------------------------

    def binding(self, destination: Destination) -> int:
        """Record that a bind of the plain row was sent; return the value of `events`, for `not_found`."""
        record = self._change(destination)
        self._released.discard(destination)
        if record.state is not TokenState.BOUND:
            self._set(destination, record, TokenState.BINDING)
        return self.events

    def bind_ok(self, destination: Destination) -> None:
        """Record that the broker has bound a row."""
        self._released.discard(destination)
        self._set(destination, self._change(destination), TokenState.BOUND)

    def refused(self, destination: Destination) -> None:
        """Record that the broker refused a bind. An earlier row may still exist."""
        record = self._change(destination)
        if record.state is not TokenState.BOUND:
            self._withdraw(record)
            self._set(destination, record, TokenState.MISSING)

    def not_found(self, destination: Destination, sent: int) -> None:
        """Record that the broker has not found the destination of a bind.

        Args:
            sent: the value that `binding` returned. After a later change, such as the declaration of the destination
                and another bind, the reply is obsolete.
        """
        record = self._record(destination)
        if record.changed <= sent:
            self._withdraw(self._change(destination))
            self._set(destination, record, TokenState.MISSING)

    def not_bound(self, destination: Destination) -> None:
        """Record that the token is not bound, or that its state is unknown."""
        record = self._records.get(destination)
        if record is not None:
            self._change(destination)
            self._withdraw(record)
            self._set(destination, record, TokenState.UNKNOWN)

    def unbinding(self, destination: Destination) -> None:
        """Record that a token is about to be unbound. From now on, publishes must not use the token."""
        record = self._change(destination)
        self._withdraw(record)
        record.former_pins.clear()
        self._set(destination, record, TokenState.UNBINDING)

    def release(self, destination: Destination) -> None:
        """Record that rules no longer need a token. Its plain row is unbound after a grace period (`retire`)."""
        self.unbinding(destination)
        self._released.add(destination)

    def retire(self, destination: Destination) -> bool:
        """Finish `release`; return True if the plain row has not been bound since `release` was called."""
        is_due = destination in self._released
        self._released.discard(destination)
        return is_due

    def unbound(self, destination: Destination) -> None:
        """Record that the unbind announced by `unbinding` is complete; rows bound in the meantime remain."""
        record = self._change(destination)
        if record.state is TokenState.UNBINDING:
            self._set(destination, record, TokenState.UNKNOWN)

    def not_unbound(self, destination: Destination) -> None:
        """Record that the broker has not carried out the unbind announced by `unbinding`, so the rows still exist."""
        record = self._records.get(destination)
        if record is not None and record.state is TokenState.UNBINDING:
            self._set(destination, self._change(destination), TokenState.BOUND)

    def deleted(self, destination: Destination) -> bool:
        """Record that a queue or exchange, and its rows, were deleted; return whether its token was bound."""
        record = self._records.get(destination)
        if record is None:
            return False
        was_bound = destination in self._bound
        self._withdraw(self._change(destination))
        record.former_pins.clear()
        record.listed = frozenset()
        self._released.discard(destination)
        self._set(destination, record, TokenState.MISSING if record.needs else TokenState.UNKNOWN)
        return was_bound

    def declared(self, destination: Destination) -> None:
        """Record that a destination was declared. It may be new; if it was missing, it can now be bound."""
        record = self._records.get(destination)
        if record is not None:
            record.binder = None
            if record.state is TokenState.MISSING:
                self._set(destination, self._change(destination), TokenState.UNKNOWN)

    def lacking(self, wanted: Set[Destination], plain: Set[Destination]) -> Set[Destination]:
        """Return the wanted destinations that have to be bound. Must be called after each listing.

        Args:
            plain: the wanted destinations that a rules file names. Rules rely only on the plain row.
        """
        # This includes destinations whose rows changed after the listing was requested, since binding a plain row again
        # costs little.
        without = {name for name in plain if self._records.get(name, _ABSENT).lacks_plain}
        # Destinations that a client is unbinding. A plain row would be superfluous, so a later pass handles them.
        leaving = {name for name in wanted - self._bound - plain if self._is_leaving(name)}
        return (wanted - self._bound - leaving) | (wanted & without)

    def has_plain(self, destination: Destination) -> bool:
        """Return True if the plain row of a destination may exist."""
        return not (self.shared and self._records.get(destination, _ABSENT).lacks_plain)

    def handed_over(self) -> list[Destination]:
        """Return the destinations that had only pins of other sidecars in the last listing."""
        destinations: list[Destination] = []
        for destination, record in self._records.items():
            pins = all(isinstance(row, bytes) for row in record.listed) and record.listed.isdisjoint(record.pins)
            if record.lacks_plain and pins and record.changed <= self._look:
                destinations.append(destination)
        return destinations

    def _is_leaving(self, destination: Destination) -> bool:
        record = self._records.get(destination, _ABSENT)
        return self.shared and record.state is TokenState.UNBINDING and record.changed > self._last_look

    # -- bindings of clients -----------------------------------------------------------------------------------

    def has_assertion(self, destination: Destination) -> bool:
        """Return True if a mark or pin of this process is known to exist."""
        record = self._records.get(destination, _ABSENT)
        return destination in self._bound and bool(record.marks or record.pins)

    def may_rely(self, destination: Destination, binder: object, now: float) -> bool:
        """Return True if a new binding created on a connection may rely on that connection's earlier assertion."""
        record = self._records.get(destination, _ABSENT)
        return destination in self._bound and record.binder is binder and now < record.asserted_at + RENEWAL_SECONDS

    def holds(self, destination: Destination, since: int, now: float) -> bool:
        """Return True if the rows on which a binding relies still exist.

        Args:
            since: the value of `events` when the binding was sent.
        """
        record = self._records.get(destination, _ABSENT)
        return record.withdrawn <= since and now < record.asserted_at + LEASE_SECONDS

    def superseded(self, destination: Destination) -> tuple[bytes, ...]:
        """Return the pins of this process, all of which a new pin would replace."""
        return tuple(sorted(self._records.get(destination, _ABSENT).pins - {PLAIN}))

    def former_pins(self, destination: Destination) -> tuple[bytes, ...]:
        """Return the pins that this process made before the carrier's tokens changed."""
        return tuple(sorted(self._records.get(destination, _ABSENT).former_pins - {PLAIN}))

    def asserted(
        self, destination: Destination, row: Row, sent_at: float, binder: object | None, replaced: Iterable[bytes] = ()
    ) -> None:
        """Record that the broker has bound a mark or pin of this process, and unbound the pins that it replaces."""
        record = self._change(destination)
        if isinstance(row, int):
            record.marks.add(row)
        else:
            record.pins.difference_update(replaced)
            record.pins.add(row)
        record.asserted_at = max(record.asserted_at, sent_at)
        record.binder = binder
        self._set(destination, record, TokenState.BOUND)

    def unbind_plan(self, destination: Destination, marks: Collection[int], *, needed: bool) -> UnbindPlan:
        """Decide whether a pin is bound before a client's binding is unbound."""
        record = self._records.get(destination, _ABSENT)
        foreign = self.shared and not (record.marks.issuperset(marks) or self._settled(record, marks))
        pin = bool(marks) and (foreign or (needed and not record.pins))
        return UnbindPlan(pin, foreign)

    def removable(self, destination: Destination) -> tuple[bytes, ...]:
        """Return the rows, other than marks, that may be unbound if nothing is known to need the destination."""
        record = self._records.get(destination, _ABSENT)
        listed = {row for row in record.listed if isinstance(row, bytes) and row != PLAIN}
        if not self.shared:
            return (PLAIN,)
        settled = self._settled(record, listed, self.handover_seconds)
        return tuple(sorted(record.pins | (listed if settled else set())))

    def outdated(self) -> list[tuple[Destination, tuple[bytes, ...]]]:
        """Return the settled pins of other sidecars that are replaced by a later pin of this sidecar."""
        outdated: list[tuple[Destination, tuple[bytes, ...]]] = []
        for destination, record in self._records.items():
            own = [pin for pin in record.pins if pin in record.listed]
            if own and len(record.listed) > 1 and self._settled(record, record.listed, self.handover_seconds):
                newest = max(map(_age, own))
                pins = (row for row in record.listed - record.pins if isinstance(row, bytes) and row != PLAIN)
                older = tuple(sorted(pin for pin in pins if _age(pin) < newest))
                outdated += [(destination, older)] if older else []
        return outdated

    def unbinding_marks(self, destination: Destination, marks: Collection[int]) -> None:
        """Record that a destination's marks are being unbound. New bindings can't rely on earlier assertions."""
        record = self._change(destination)
        record.marks.difference_update(marks)
        record.withdrawn = self.events
        record.binder = None

    def forget_assertions(self) -> None:
        """Discard this process's assertions, but keep the record of the marks that it made.

        Called when the carrier's tokens change.
        """
        for record in self._records.values():
            marks = set(record.marks)
            record.former_pins |= record.pins
            self.events += 1
            self._withdraw(record)
            record.marks = marks  # no binding created through another sidecar relies on them

    def _settled(self, record: TokenRecord, rows: Collection[Row], seconds: float = LEASE_SECONDS) -> bool:
        """Return True if all bindings that rely on the given listed rows are known (module docstring, 3 and 5)."""
        return record.listed.issuperset(rows) and record.listed_since + seconds <= record.looked_at

    # -- listings ----------------------------------------------------------------------------------------------

    def look(self, now: float) -> Look:
        """Record that a listing of the carrier's bindings is being requested."""
        for record in self._records.values():
            record.binder = None  # a new queue with the same name may have replaced the queue
        return Look(self.events, now)

    def listed(self, look: Look, rows: Mapping[Destination, frozenset[Row]], now: float) -> None:
        """Process a listing; events recorded after the listing was requested take precedence."""
        for destination in [name for name in self._records if name not in rows]:
            self._listed(destination, self._records[destination], frozenset(), look, now)
        for destination, its_rows in rows.items():
            self._listed(destination, self._record(destination), its_rows, look, now)
        self.looked_at = look.began_at
        self._last_look, self._look = self._look, look.events

    def _listed(
        self, destination: Destination, record: TokenRecord, rows: frozenset[Row], look: Look, now: float
    ) -> None:
        if rows != record.listed:
            record.listed, record.listed_since = rows, now
        if record.changed > look.events:
            return
        record.looked_at = look.began_at
        record.marks.intersection_update(row for row in rows if isinstance(row, int))
        record.pins.intersection_update(row for row in rows if isinstance(row, bytes))
        if rows and record.state is not TokenState.UNBINDING:
            self._set(destination, record, TokenState.BOUND)
        elif not rows:
            if record.state is TokenState.UNBINDING and record.changed > self._look:
                return  # an unbind has not been answered yet
            record.needs &= ~Need.DEMAND  # the destination was deleted; publishes that choose it request it again
            if record.state is not TokenState.MISSING or not record.needs:
                self._withdraw(record)
                self._set(destination, record, TokenState.UNKNOWN)
            self._tidy(destination, record)

    def idle(self, needed: Callable[[Destination], bool], now: float) -> list[Destination]:
        """Return the destinations that nothing has needed for the grace period. Must be called after each listing."""
        due: list[Destination] = []
        for destination, record in self._records.items():
            if not (record.listed or record.state is TokenState.BOUND) or needed(destination):
                record.idle_since = None
            elif record.idle_since is None:
                record.idle_since = now
            elif now >= record.idle_since + GRACE_SECONDS:
                due.append(destination)
        return due

    # -- records -----------------------------------------------------------------------------------------------

    def _record(self, destination: Destination) -> TokenRecord:
        record = self._records.get(destination)
        if record is None:
            record = self._records[destination] = TokenRecord()
        return record

    def _change(self, destination: Destination) -> TokenRecord:
        record = self._record(destination)
        self.events += 1
        record.changed = self.events
        return record

    def _withdraw(self, record: TokenRecord) -> None:
        record.marks.clear()
        record.pins.clear()
        record.asserted_at = _LONG_AGO
        record.binder = None
        record.withdrawn = self.events

    def _set(self, destination: Destination, record: TokenRecord, state: TokenState) -> None:
        record.state = state
        if state is TokenState.BOUND:
            self._bound.add(destination)
        else:
            self._bound.discard(destination)
            if not self.shared:
                self._tidy(destination, record)

    def _tidy(self, destination: Destination, record: TokenRecord) -> None:
        """Remove a blank record. On a shared carrier, call this only for a listing requested after the last change."""
        if record.is_blank:
            self._records.pop(destination, None)
