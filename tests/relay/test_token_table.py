"""Tests the table of destination tokens: events in all states, and two sidecars on one broker in any order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies

from proxy.relay.token_table import (
    GRACE_SECONDS,
    LEASE_SECONDS,
    PLAIN,
    RENEWAL_SECONDS,
    Need,
    Row,
    TokenState,
    TokenTable,
    pin_row,
)
from proxy.values import Destination

Rows: TypeAlias = dict[Destination, frozenset[Row]]
A: Destination = ("queue", b"a")
B: Destination = ("queue", b"b")

# -- one table ---------------------------------------------------------------------------------------------------------

#: state -> an event that leads to it
REACHED: dict[TokenState, Callable[[TokenTable], object]] = {
    TokenState.UNKNOWN: lambda table: None,
    TokenState.BINDING: lambda table: table.binding(A),
    TokenState.BOUND: lambda table: table.bind_ok(A),
    TokenState.UNBINDING: lambda table: table.unbinding(A),
    TokenState.MISSING: lambda table: table.refused(A),
}
#: name -> an event, and the next state after this event in each state of `REACHED`
U, G, OK, N, M = REACHED
EVENTS: dict[str, tuple[Callable[[TokenTable], object], tuple[TokenState, ...]]] = {
    "binding": (lambda table: table.binding(A), (G, G, OK, G, G)),
    "bind-ok": (lambda table: table.bind_ok(A), (OK, OK, OK, OK, OK)),
    "mark bound": (lambda table: table.asserted(A, 1, 0.0, None), (OK, OK, OK, OK, OK)),
    "pin bound": (lambda table: table.asserted(A, b"p", 0.0, None), (OK, OK, OK, OK, OK)),
    "refused": (lambda table: table.refused(A), (M, M, OK, M, M)),
    "not found": (lambda table: table.not_found(A, table.events), (M, M, M, M, M)),
    "not bound": (lambda table: table.not_bound(A), (U, U, U, U, U)),
    "unbinding": (lambda table: table.unbinding(A), (N, N, N, N, N)),
    "unbound": (lambda table: table.unbound(A), (U, G, OK, U, M)),
    "not unbound": (lambda table: table.not_unbound(A), (U, G, OK, OK, M)),
    "deleted": (lambda table: table.deleted(A), (U, U, U, U, U)),
    "declared": (lambda table: table.declared(A), (U, G, OK, N, U)),
    "listed": (lambda table: table.listed(table.look(0.0), {A: frozenset({PLAIN})}, 0.0), (OK, OK, OK, N, OK)),
    "not listed": (lambda table: table.listed(table.look(0.0), {}, 0.0), (U, U, U, N, U)),
    "needed": (lambda table: table.need(A, Need.CLIENT), (U, G, OK, N, M)),
    "not needed": (lambda table: table.no_need(A, Need.CLIENT), (U, G, OK, N, M)),
}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", REACHED, ids=lambda state: state.value)
def test_every_event_in_every_state(state: TokenState, event: str) -> None:
    table = TokenTable()
    REACHED[state](table)
    happens, leads_to = EVENTS[event]
    happens(table)
    expected = leads_to[list(REACHED).index(state)]
    assert table.state(A) is expected
    assert (A in table.bound) == (expected is TokenState.BOUND)


def test_a_listing_does_not_revert_later_changes() -> None:
    table = TokenTable([A])
    look = table.look(0.0)
    table.deleted(A)
    table.bind_ok(B)
    table.listed(look, {A: frozenset({PLAIN})}, 0.1)
    assert table.bound == {B}
    table.listed(table.look(0.2), {A: frozenset({PLAIN})}, 0.3)
    assert table.bound == {A}


def test_released_tokens_are_retired_although_their_pins_are_gone() -> None:
    table = TokenTable([A, B])
    for destination in (A, B):
        table.release(destination)
    table.unbinding(A)
    table.unbound(A)
    table.bind_ok(B)
    assert (table.retire(A), table.retire(B), table.retire(A)) == (True, False, False)


def test_pins_of_former_tokens_are_kept_until_unbound() -> None:
    table = TokenTable()
    table.asserted(A, 1, 0.0, None)
    table.asserted(A, b"p", 0.0, None)
    table.forget_assertions()
    table.asserted(A, b"later", 1.0, None)
    assert (table.former_pins(A), table.removable(A)) == ((b"p",), (b"later",))
    assert not table.unbind_plan(A, (1,), needed=False).pin  # no pin is needed: the mark is still valid
    table.unbinding(A)
    assert table.former_pins(A) == ()


def test_a_deleted_destination_is_missing_if_it_is_needed() -> None:
    table = TokenTable([A, B])
    table.need(A, Need.RULES)
    assert [table.deleted(destination) for destination in (A, B)] == [True, True]
    assert table.state(A) is TokenState.MISSING
    assert table.state(B) is TokenState.UNKNOWN


def test_an_assertion_is_valid_for_its_connection_for_a_limited_time() -> None:
    table = TokenTable()
    own, other = object(), object()
    table.asserted(A, 1, 10.0, own)
    assert table.may_rely(A, own, 11.0)
    assert not table.may_rely(A, other, 11.0)
    assert not table.may_rely(A, own, 10.0 + RENEWAL_SECONDS)
    assert table.holds(A, table.events, 10.0 + RENEWAL_SECONDS)
    table.declared(A)
    assert not table.may_rely(A, own, 11.0)


def test_an_assertion_withdrawn_in_the_meantime_is_invalid() -> None:
    table = TokenTable()
    table.asserted(A, 1, 10.0, None)
    since = table.events
    assert table.holds(A, since, 11.0)
    assert not table.holds(A, since, 10.0 + LEASE_SECONDS)
    table.unbinding_marks(A, {1})
    assert not table.holds(A, since, 11.0)


def test_own_pins_are_removed_at_once_and_those_of_others_when_settled() -> None:
    table = TokenTable()
    table.asserted(A, b"mine", 0.0, None)
    rows: Rows = {A: frozenset({b"mine", b"theirs", PLAIN, 7})}
    table.listed(table.look(0.0), rows, 0.1)
    assert table.removable(A) == (b"mine",)
    table.listed(table.look(LEASE_SECONDS), rows, LEASE_SECONDS + 0.1)
    assert table.removable(A) == (b"mine",)  # the pin of the other sidecar was first listed at 0.1 s
    table.listed(table.look(LEASE_SECONDS + 0.1), rows, LEASE_SECONDS + 0.2)
    assert table.removable(A) == (b"mine", b"theirs")


def test_pins_of_others_that_rules_may_rely_on_stay_until_every_sidecar_has_reconciled() -> None:
    table = TokenTable()
    table.handover_seconds = 15.0
    table.asserted(A, pin_row("mine", 2), 0.0, None)
    rows: Rows = {A: frozenset({pin_row("mine", 2), pin_row("theirs", 1)})}
    for at in (0.0, 5.0, 10.0, 14.9):
        table.listed(table.look(at), rows, at)
        assert (table.removable(A), table.outdated()) == ((pin_row("mine", 2),), [])
    table.listed(table.look(15.0), rows, 15.0)
    assert table.outdated() == [(A, (pin_row("theirs", 1),))]
    assert set(table.removable(A)) == set(rows[A])


def test_tokens_that_rules_need_are_bound_in_addition_to_other_bindings() -> None:
    table = TokenTable()
    table.listed(table.look(0.0), {A: frozenset({7}), B: frozenset({7})}, 0.1)
    assert table.lacking({A, B}, {B}) == {B}
    table.listed(table.look(1.0), {A: frozenset({7}), B: frozenset({7, PLAIN})}, 1.1)
    assert table.lacking({A, B}, {B}) == set()


def test_tokens_that_rules_need_are_bound_despite_a_client_bind_during_the_listing() -> None:
    table = TokenTable()
    look = table.look(0.0)
    table.asserted(A, 7, 0.1, None)
    table.listed(look, {A: frozenset({b"handed over"})}, 0.2)
    assert table.lacking({A}, {A}) == {A}


def test_a_binding_that_a_client_is_unbinding_is_kept_for_one_pass() -> None:
    table = TokenTable()
    rows: Rows = {A: frozenset({7}), B: frozenset({7})}
    table.listed(table.look(0.0), rows, 0.1)
    for destination in (A, B):
        table.unbinding(destination)
    table.listed(table.look(1.0), rows, 1.1)
    assert table.lacking({A, B}, {B}) == {B}  # rules need this token
    table.unbound(B)
    table.listed(table.look(2.0), {}, 2.1)
    assert table.lacking({A, B}, set()) == {A, B}  # the connection that was unbinding it may have closed


def test_older_pins_of_others_are_removed_after_a_later_own_pin() -> None:
    table = TokenTable()
    older, own, later = (pin_row("sidecar", number) for number in (9, 10, 11))
    table.asserted(A, own, 0.0, None)
    rows: Rows = {A: frozenset({older, own, later, PLAIN, 7})}
    table.listed(table.look(0.0), rows, 0.1)
    assert table.outdated() == []
    table.listed(table.look(5.0), rows, 5.1)
    assert table.outdated() == [(A, (older,))]


def test_a_mark_of_another_sidecar_is_replaced_before_it_is_removed() -> None:
    table = TokenTable()
    rows: Rows = {A: frozenset({7})}
    table.listed(table.look(0.0), rows, 0.1)
    assert table.unbind_plan(A, {7}, needed=False) == (True, True)
    table.listed(table.look(5.0), rows, 5.1)
    assert table.unbind_plan(A, {7}, needed=False) == (False, False)
    assert table.unbind_plan(A, {7}, needed=True) == (True, False)
    table = TokenTable()
    table.shared = False
    assert table.unbind_plan(A, {7}, needed=False) == (False, False)
    assert table.removable(A) == (PLAIN,)


def test_a_token_unneeded_in_two_passes_is_idle() -> None:
    table = TokenTable([A, B])

    def look(at: float) -> list[Destination]:
        table.listed(table.look(at), {destination: frozenset({PLAIN}) for destination in (A, B)}, at)
        return table.idle(lambda destination: destination == B, at)

    assert [look(at) for at in (0.0, 1.0, GRACE_SECONDS)] == [[], [], [A]]
    table.need(A, Need.CLIENT)
    assert look(2 * GRACE_SECONDS) == []


# -- two sidecars on one broker ----------------------------------------------------------------------------------------

#: A binding on the broker: identity (0: a pin), sequence number or pin, and whether its routing key is the token.
BrokerRow: TypeAlias = tuple[int, int | bytes, bool]
Step: TypeAlias = tuple[bool, BrokerRow]


@dataclass
class Job:
    """Methods that are sent in order, and a callback after the last reply."""

    steps: list[Step]
    then: Callable[[], None]
    identity: int
    answers: int = 0


@dataclass
class Lane:
    """A channel, whose jobs the broker executes and answers in order."""

    jobs: list[Job] = field(default_factory=list)
    #: whether a mark or pin of this sidecar is being bound
    marking: bool = False

    def clear(self) -> None:
        self.jobs.clear()
        self.marking = False


class Peer:
    """A sidecar: makes the calls to the table that its relays and its control plane would make."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.table = TokenTable()
        self.lanes = [Lane(), Lane()]
        self.control = Lane()
        #: known bindings of clients: identity -> copies on the broker
        self.clients: dict[int, frozenset[BrokerRow]] = {}
        self.changed: dict[int, int] = {}
        self.busy: set[int] = set()
        self.looking: tuple[Any, int, frozenset[BrokerRow] | None] | None = None
        self.ready = False

    # -- bindings of clients, as in `relay.declare.bindings`

    def bind(self, identity: int, lane: Lane) -> None:
        world, table = self.world, self.table
        self.busy.add(identity)
        known = self.clients.get(identity)
        if known:
            row = min(known, key=repr)
        else:
            is_mark = not (table.has_assertion(A) or lane.marking)
            row = (identity, next(world.numbers), is_mark)
        mark = row[2]
        steps: list[Step] = [(True, row)]
        if mark:
            lane.marking = True
            sent_at = world.now
            self.send(lane, identity, steps, lambda: self.marked(lane, row, sent_at, new=not known))
        elif lane.marking or table.may_rely(A, lane, world.now):
            since = table.events
            self.send(lane, identity, steps, lambda: self.relied(lane, row, since))
        else:
            self.pin(lane, identity, steps, lambda: self.bound(row))

    def marked(self, lane: Lane, row: BrokerRow, sent_at: float, *, new: bool) -> None:
        lane.marking = False
        if new:
            assert isinstance(row[1], int)
            self.table.asserted(A, row[1], sent_at, lane)
        self.bound(row)

    def relied(self, lane: Lane, row: BrokerRow, since: int) -> None:
        if self.table.holds(A, since, self.world.now):
            self.bound(row)
        else:
            self.pin(lane, row[0], [], lambda: self.bound(row))

    def pin(self, lane: Lane, identity: int, before: list[Step], then: Callable[[], None], *, own: bool = True) -> None:
        world, table = self.world, self.table
        pin = pin_row("", next(world.numbers))
        old = table.superseded(A) if own else ()
        steps = [*before, (True, (0, pin, True)), *((False, (0, old_pin, True)) for old_pin in old)]
        sent_at = world.now
        lane.marking = lane.marking or own

        def done() -> None:
            if own:
                lane.marking = False
                table.asserted(A, pin, sent_at, lane, old)
            then()

        self.send(lane, identity, steps, done)

    def bound(self, row: BrokerRow) -> None:
        identity = row[0]
        self.busy.discard(identity)
        self.clients[identity] = self.clients.get(identity, frozenset()) | {row}
        self.note(identity)
        self.table.need(A, Need.CLIENT)
        self.world.answered.add(identity)

    def unbind(self, identity: int, lane: Lane) -> None:
        self.busy.add(identity)
        self.world.answered.discard(identity)
        plan = self.table.unbind_plan(A, self.marks(identity), needed=self.needed(identity))
        if plan.pin:
            self.pin(lane, identity, [], lambda: self.drop(identity, lane), own=not plan.handed_over)
        else:
            self.drop(identity, lane)

    def drop(self, identity: int, lane: Lane) -> None:
        table, copies = self.table, self.clients.get(identity, frozenset())
        rows: tuple[bytes, ...] = ()
        table.unbinding_marks(A, self.marks(identity))
        if not self.needed(identity):
            rows = table.removable(A)
            table.unbinding(A)
        steps: list[Step] = [(False, (0, row, True)) for row in rows]
        steps += [(False, copy) for copy in sorted(copies, key=repr)]
        self.send(lane, identity, steps, lambda: self.unbound(identity))

    def unbound(self, identity: int) -> None:
        self.table.unbound(A)
        self.busy.discard(identity)
        self.clients.pop(identity, None)
        self.note(identity)

    def marks(self, identity: int) -> set[int]:
        return {row[1] for row in self.clients.get(identity, ()) if row[2] and isinstance(row[1], int)}

    def needed(self, but: int = -1) -> bool:
        return any(identity != but for identity in self.clients)

    # -- reconcile passes, as in the control plane

    def look(self) -> None:
        self.looking = (self.table.look(self.world.now), next(self.world.numbers), None)

    def listed(self) -> None:
        assert self.looking is not None
        look, since, rows = self.looking
        self.looking = None
        assert rows is not None
        there = frozenset(row for _, row, under in rows if under)
        self.table.listed(look, {A: there} if there else {}, self.world.now)
        copies: dict[int, frozenset[BrokerRow]] = {}
        for row in rows:
            if row[0]:
                copies[row[0]] = copies.get(row[0], frozenset()) | {row}
        for identity in {*copies, *self.clients}:
            if self.changed.get(identity, 0) < since:
                if identity in copies:
                    self.clients[identity] = copies[identity]
                else:
                    del self.clients[identity]
        self.ready = True
        for _, outdated in self.table.outdated():
            self.send(self.control, 0, [(False, (0, row, True)) for row in outdated], lambda: None)
        if self.table.idle(lambda _: self.needed(), look.began_at) and not self.control.jobs:
            self.remove()
        self.bind_lacking()

    def remove(self) -> None:
        """Unbind the removable bindings of a token that is not needed, as `OrphanTokens` does."""
        rows = self.table.removable(A)
        if rows:
            self.table.unbinding(A)
            self.send(self.control, 0, [(False, (0, row, True)) for row in rows], lambda: self.table.unbound(A))

    def bind_lacking(self) -> None:
        """Pin the token if bindings of clients need it; after a restart, it may have no pin and no outstanding bind."""
        if self.table.lacking({A} if self.needed() else set(), set()) and not self.control.jobs:
            pin, sent_at = pin_row("", next(self.world.numbers)), self.world.now
            self.send(self.control, 0, [(True, (0, pin, True))], lambda: self.table.asserted(A, pin, sent_at, None))

    def note(self, identity: int) -> None:
        self.changed[identity] = next(self.world.numbers)

    def send(self, lane: Lane, identity: int, steps: list[Step], then: Callable[[], None]) -> None:
        if steps:
            lane.jobs.append(Job(steps, then, identity))
        else:
            then()

    def close(self, lane: Lane) -> None:
        """Close the channel. Its outstanding methods are lost, or have been executed without a reply."""
        for job in lane.jobs:
            self.busy.discard(job.identity)
        lane.clear()


class World:
    """The broker, two sidecars and a clock; `step` performs one of the possible actions."""

    peer: type[Peer] = Peer
    identities: tuple[int, ...] = (1, 2, 3)

    def __init__(self) -> None:
        self.numbers = count(1)
        self.now = 100.0
        self.rows: set[BrokerRow] = set()
        #: bindings that clients have created, as confirmed by bind-ok, and have not unbound since
        self.answered: set[int] = set()
        self.peers = [self.peer(self), self.peer(self)]
        for peer in self.peers:
            peer.ready = True

    def step(self, choice: int) -> None:
        possible = self.possible()
        possible[choice % len(possible)]()
        self.check()

    def possible(self) -> list[Callable[[], object]]:
        actions: list[Callable[[], object]] = [partial(self.wait, seconds) for seconds in (0.5, LEASE_SECONDS, 6.0)]
        # If two clients bind and unbind the same binding at the same time, the order is undefined.
        busy = {identity for peer in self.peers for identity in peer.busy}
        for peer in self.peers:
            lanes = [*peer.lanes, peer.control]
            for lane in peer.lanes if peer.ready else ():
                for identity in self.identities:
                    if identity not in busy:
                        there = identity in peer.clients
                        actions.append(partial(peer.unbind if there else peer.bind, identity, lane))
            for lane in lanes:
                if any(job.answers < len(job.steps) for job in lane.jobs):
                    actions += [partial(self.work, lane, 1), partial(self.work, lane, 9)]
                if lane.jobs and lane.jobs[0].answers == len(lane.jobs[0].steps):
                    actions += [partial(self.arrive, lane)] * 2
            if peer.looking is None:
                actions.append(peer.look)
            elif peer.looking[2] is None:
                actions.append(partial(self.list_rows, peer))
            else:
                actions.append(peer.listed)
        return actions + [partial(self.mishap, choice) for choice in range(2)]

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def mishap(self, number: int) -> None:
        """Cause a rare event: a channel closes, a listing is lost, or a sidecar restarts."""
        happens = next(self.numbers) % 12
        peer = self.peers[number]
        if happens < 3:
            peer.close([*peer.lanes, peer.control][happens % (len(peer.lanes) + 1)])
        elif happens == 3:
            peer.looking = None
        elif happens == 4:
            self.peers[number] = self.peer(self)

    def work(self, lane: Lane, steps: int) -> None:
        """Execute this many methods on the broker."""
        for job in lane.jobs:
            while steps and job.answers < len(job.steps):
                add, row = job.steps[job.answers]
                (self.rows.add if add else self.rows.discard)(row)
                job.answers += 1
                steps -= 1
                self.check()

    @staticmethod
    def arrive(lane: Lane) -> None:
        lane.jobs.pop(0).then()

    def list_rows(self, peer: Peer) -> None:
        assert peer.looking is not None
        peer.looking = (*peer.looking[:2], frozenset(self.rows))

    def finish(self, *lanes: Lane) -> None:
        """Complete everything that is outstanding."""
        for lane in lanes:
            while lane.jobs:
                self.work(lane, 99)
                self.arrive(lane)

    def look(self, peer: Peer) -> None:
        """Run a reconcile pass without interruption."""
        peer.looking = None
        peer.look()
        self.list_rows(peer)
        peer.listed()

    def check(self) -> None:
        """Check that messages reach the destination if a client has bound it, regardless of outstanding methods."""
        if any(row[0] in self.answered for row in self.rows):
            assert any(under for _, _, under in self.rows), "messages do not reach the bound destination"

    def settle(self) -> None:
        """Complete everything that is outstanding, and let both sidecars reconcile until nothing changes."""
        for _ in range(10):
            for peer in self.peers:
                self.finish(*peer.lanes, peer.control)
                self.wait(GRACE_SECONDS)
                self.look(peer)
        needed = any(row[0] for row in self.rows)
        assert any(under for _, _, under in self.rows) == needed, "a token is orphaned or missing"


#: One step for each byte. Hypothesis needs four times as long for a list of numbers, most of it outside the test.
CHOICES = strategies.binary(min_size=150, max_size=150)


@pytest.mark.timeout(600)
@settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))
@given(choices=CHOICES)
def test_two_sidecars_never_leave_a_bound_destination_without_a_token(choices: bytes) -> None:
    world = World()
    for choice in choices:
        world.step(choice)
    world.settle()


# -- two sidecars with different rules on one broker -------------------------------------------------------------------

#: Maximum time from the beginning of a reconcile pass to the end of the next one.
LOOK_SECONDS = 10.0
#: Prepared rules are applied after a pass of at most this duration. After a longer pass, another pass is run first.
PREPARE_SECONDS = 4.0
#: Number of passes after which nothing changes.
SETTLING_LOOKS = 24
PLAIN_ROW: BrokerRow = (0, PLAIN, True)


class RuledPeer(Peer):
    """A sidecar whose rules can be reloaded at any time; only some of them need the destination."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.table = TokenTable()
        self.table.handover_seconds = LOOK_SECONDS
        self.lanes = [Lane()]
        #: whether the active rules need the destination; whether the rules that are being prepared need it
        self.wants = self.prepares = False
        #: time at which rules that needed the destination were replaced; None once its plain row has been unbound
        self.released_at: float | None = None
        #: number of passes until the token is removed, counted from the removal of the last client binding
        self.left = 0
        self.began_at = self.looked_at = world.now

    def reload(self) -> None:
        if not (self.wants or self.prepares):
            self.prepares = True
        elif self.wants:
            self.wants = False
            self.released_at = self.world.now
            self.table.release(A)

    def look(self) -> None:
        self.began_at = self.world.now
        super().look()

    def listed(self) -> None:
        super().listed()
        if self.left and not self.needed() and self.table.has_plain(A) and not self.control.jobs:
            self.left -= 1
            if not self.left:
                self.table.unbinding(A)
                self.hand_over()

    def bind_lacking(self) -> None:
        wanted = {A} if self.needed() else set()
        plain = {A} if self.wants or self.prepares else set()
        if self.table.lacking(wanted, plain):
            self.table.binding(A)
            self.send(self.control, 0, [(True, PLAIN_ROW)], self.plain_bound)
        elif not self.control.jobs:
            self.looked()

    def plain_bound(self) -> None:
        self.table.bind_ok(A)
        self.looked()

    def looked(self) -> None:
        self.looked_at = self.began_at
        if self.prepares and self.world.now <= self.began_at + PREPARE_SECONDS:
            self.wants, self.prepares = True, False

    def retire(self) -> None:
        self.released_at = None
        if self.table.retire(A):
            self.hand_over()

    def hand_over(self) -> None:
        pin = pin_row("", next(self.world.numbers))
        self.send(self.control, 0, [(True, (0, pin, True)), (False, PLAIN_ROW)], lambda: self.table.unbound(A))

    def unbound(self, identity: int) -> None:
        super().unbound(identity)
        if not self.clients:
            self.left = 2

    def needed(self, but: int = -1) -> bool:
        return self.wants or self.prepares or super().needed(but)


class RuledWorld(World):
    """A world in which rules are also reloaded. Each sidecar reconciles often enough."""

    peer = RuledPeer

    def __init__(self, clients: int) -> None:
        super().__init__()
        self.identities = tuple(range(1, clients + 1))
        self.lossless = True

    def possible(self) -> list[Callable[[], object]]:
        actions = super().possible()
        for peer in self.ruled():
            actions.append(peer.reload)
            idle = peer.looking is None and not peer.control.jobs
            if idle and peer.released_at is not None and self.now >= peer.released_at + GRACE_SECONDS:
                actions += [peer.retire] * 3
            if not idle:
                actions = [step for step in actions if step != peer.look]  # passes never overlap
        return actions

    def ruled(self) -> list[RuledPeer]:
        return [peer for peer in self.peers if isinstance(peer, RuledPeer)]

    def wait(self, seconds: float) -> None:
        limits = [peer.looked_at + LOOK_SECONDS for peer in self.ruled() if peer.wants]
        self.now = max(self.now, min([self.now + seconds, *limits]))

    def mishap(self, number: int) -> None:
        before = list(self.peers)
        jobs = [list(peer.control.jobs) for peer in before]
        super().mishap(number)
        if before != self.peers or jobs != [peer.control.jobs for peer in before]:
            self.lossless = False

    def check(self) -> None:
        super().check()
        if any(peer.wants for peer in self.ruled()):
            assert any(under for _, _, under in self.rows), "messages do not reach a destination that rules need"

    def settle(self) -> None:
        # Each sidecar in turn unbinds its plain row, and leaves a pin that only the other sidecars can remove.
        for _ in range(SETTLING_LOOKS):
            for peer in self.ruled():
                self.finish(*peer.lanes, peer.control)
                self.look(peer)
                self.finish(peer.control)
                if peer.released_at is not None and self.now >= peer.released_at + GRACE_SECONDS:
                    peer.retire()
            self.wait(GRACE_SECONDS)
        needed = any(row[0] for row in self.rows) or any(peer.wants for peer in self.ruled())
        there = any(under for _, _, under in self.rows)
        # After a sidecar has restarted, no sidecar knows the bindings for its former rules.
        assert there == needed if self.lossless else there >= needed, "a token is orphaned or missing"


#: Steps after which rules have just released a destination, its plain row is due for removal, and its pins are idle.
RELEASED_AND_IDLE = bytes([7, 3, 3, 3, 3, 3, 7, 2, 8, 3, 3, 3, 3, 3, 7, 3, 3, 3, 3, 3, 3, 1, 1, 1, 7])


@example(clients=0, choices=RELEASED_AND_IDLE)
@pytest.mark.timeout(600)
@settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))
@given(clients=strategies.integers(0, 1), choices=CHOICES)
def test_two_sidecars_with_different_rules_never_remove_each_others_tokens(clients: int, choices: bytes) -> None:
    world = RuledWorld(clients)
    for choice in choices:
        world.step(choice)
    world.settle()


def test_an_old_listing_does_not_activate_rules() -> None:
    world = RuledWorld(0)
    late, other = world.ruled()

    def look(peer: RuledPeer) -> None:
        world.look(peer)
        world.finish(peer.control)

    other.reload()
    look(other)
    late.reload()
    late.look()
    world.list_rows(late)  # the listing contains the other sidecar's plain row
    other.reload()
    for _ in range(5):
        world.wait(GRACE_SECONDS)
        if other.released_at is not None:
            other.retire()
        look(other)
    assert world.rows == set()
    late.listed()
    world.finish(late.control)
    wanted = [late.wants]
    look(late)
    assert [*wanted, late.wants] == [False, True]
    assert world.rows == {PLAIN_ROW}


def test_nothing_is_kept_about_a_chosen_destination_that_was_deleted() -> None:
    table, now = TokenTable(), 0.0
    for number in range(100):
        name = ("queue", b"reply-%d" % number)
        table.bind_ok(name)
        table.need(name, Need.DEMAND)
        table.listed(table.look(now), {name: frozenset((PLAIN,))}, now)
        if number % 2:  # deleted through this sidecar; the other queues were deleted directly on the broker
            table.deleted(name)
        for _ in range(2):
            now += 5
            table.listed(table.look(now), {}, now)
    assert not table.destinations
