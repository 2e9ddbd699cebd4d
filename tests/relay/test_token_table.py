"""Tests what a sidecar knows about the destinations of one exchange: every event in every state."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oxproxy.relay.token_table import Missing, TokenState, TokenTable
from oxproxy.values import Destination

A: Destination = ("queue", b"a")
B: Destination = ("queue", b"b")
TOKEN, OTHER = b"x.o.p.e.n.x.q.1", b"x.o.p.e.n.x.q.2"
BOUND = {A: frozenset((TOKEN,))}

#: state -> an event that leads to it
REACHED: dict[TokenState, Callable[[TokenTable], object]] = {
    TokenState.ABSENT: lambda table: None,
    TokenState.PENDING: lambda table: table.requested(A),
    TokenState.BOUND: lambda table: table.bind_ok(A, (TOKEN,)),
    TokenState.MISSING: lambda table: table.refused(A, "404", 1.0),
}
#: name -> an event, and the next state after this event in each state of `REACHED`
_, P, OK, M = REACHED
N = TokenState.ABSENT
EVENTS: dict[str, tuple[Callable[[TokenTable], object], tuple[TokenState, ...]]] = {
    "requested": (lambda table: table.requested(A), (P, P, OK, M)),
    "bind-ok": (lambda table: table.bind_ok(A, (TOKEN,)), (OK, OK, OK, OK)),
    "exists": (lambda table: table.bind_ok(A), (OK, OK, OK, OK)),
    "refused": (lambda table: table.refused(A, "403", 2.0), (M, M, M, M)),
    "deleted": (lambda table: table.deleted(A), (N, P, N, M)),
    "declared": (lambda table: table.declared(A), (N, P, OK, N)),
    "found": (lambda table: table.declared(A, table.events), (N, P, OK, N)),
    "found before": (lambda table: table.declared(A, -1), (N, P, OK, M)),
    "absent": (lambda table: table.absent(A, table.events), (N, P, N, M)),
    "absent before": (lambda table: table.absent(A, -1), (N, P, OK, M)),
    "listed": (lambda table: table.listed(table.events, BOUND), (OK, OK, OK, OK)),
    "not listed": (lambda table: table.listed(table.events, {}), (N, P, N, M)),
    "missing for long": (lambda table: table.forget_missing(1.0), (N, P, OK, N)),
    "missing and named": (lambda table: table.forget_missing(1.0, A.__eq__), (N, P, OK, M)),
    "too many missing": (lambda table: table.limit_missing(0), (N, P, OK, N)),
}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", REACHED, ids=lambda state: state.value)
def test_every_event_in_every_state(state: TokenState, event: str) -> None:
    table = TokenTable()
    REACHED[state](table)
    before, notified = (set(table.bound), dict(table.missing), table.version), []
    table.notify = lambda: notified.append(event)
    happens, leads_to = EVENTS[event]
    happens(table)
    expected = leads_to[list(REACHED).index(state)]
    assert table.state(A) is expected
    assert table.knows(A) == (expected is not N)
    assert (A in table.bound) == (expected is OK)
    assert (A in table.missing) == (expected is M)
    left = before[0] - table.bound.keys() or before[1].keys() - table.missing.keys()
    if left or (table.missing and not before[1]):  # cached decisions depend on it
        assert table.version > before[2]
        assert notified


def test_a_new_token_of_a_bound_destination_is_added() -> None:
    table = TokenTable({A: frozenset((TOKEN,))})
    table.bind_ok(A, (OTHER,))
    assert table.bound == {A: {TOKEN, OTHER}}
    table.listed(table.events, {A: frozenset((OTHER,))})
    assert table.bound == {A: {OTHER}}


@pytest.mark.parametrize(
    ("event", "state"),
    [
        (lambda table: table.bind_ok(B, (TOKEN,)), OK),
        (lambda table: table.deleted(A), N),
        (lambda table: table.refused(A, "404", 1.0), M),
    ],
)
def test_an_event_takes_precedence_over_a_listing_requested_before(
    event: Callable[[TokenTable], object], state: TokenState
) -> None:
    table = TokenTable(BOUND)
    requested = table.events
    event(table)
    table.listed(requested, BOUND)
    destination = B if state is OK else A
    assert table.state(destination) is state
    table.listed(table.events, BOUND)
    assert table.bound == BOUND


def test_a_bounded_number_of_events_takes_precedence_singly() -> None:
    """After more events, a listing requested before them changes nothing, and one requested later is applied."""
    table = TokenTable(BOUND)
    requested = table.events
    for number in range(70_000):
        table.declared(("queue", b"%d" % number))
    table.listed(requested, {B: frozenset((TOKEN,))})
    assert table.bound == BOUND
    assert len(table._changed) < 70_000
    table.listed(table.events, {B: frozenset((TOKEN,))})
    assert table.bound == {B: {TOKEN}}


def test_an_older_listing_is_ignored_after_a_later_one() -> None:
    table = TokenTable()
    older = table.events
    table.bind_ok(B, (TOKEN,))
    table.listed(table.events, BOUND)
    table.listed(older, {B: frozenset((TOKEN,))})
    assert table.bound == BOUND


def test_a_destination_is_missing_since_the_first_refusal() -> None:
    table = TokenTable()
    for reason, now in (("404", 1.0), ("404", 2.0), ("403", 3.0)):
        table.refused(A, reason, now)
    assert table.missing == {A: Missing("403", 1.0)}
    table.forget_missing(0.9)
    assert A in table.missing


def test_the_earliest_missing_destinations_are_forgotten_if_there_are_too_many() -> None:
    table = TokenTable()
    for number in range(4):
        table.refused(("queue", b"%d" % number), "404", float(number))
    table.limit_missing(2, ("queue", b"0").__eq__)
    assert [name for _, name in table.missing] == [b"0", b"3"]


def test_a_refusal_older_than_the_last_event_is_ignored() -> None:
    table = TokenTable(BOUND)
    requested = table.events
    table.refused(B, "404", 1.0, requested)
    table.bind_ok(A, (TOKEN,))
    table.refused(A, "404", 1.0, requested)
    assert (table.state(A), table.state(B)) == (OK, M)
    table.refused(A, "404", 1.0, table.events)
    assert table.state(A) is M
