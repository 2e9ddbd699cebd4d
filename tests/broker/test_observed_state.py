from __future__ import annotations

from functools import cache

import pytest

from oxproxy.broker.management_api import ExchangeInfo, QueueInfo
from oxproxy.broker.methods import ABSENT
from oxproxy.broker.reconcile.observed import ObservedState
from oxproxy.routing.decision import QueueNames


def listing(*names: str) -> dict[bytes, QueueInfo]:
    return {name.encode(): QueueInfo(name.encode()) for name in names}


@cache
def numbered(name: str, number: int) -> QueueInfo:
    """The same object for the same arguments."""
    return QueueInfo(name.encode(), arguments={"number": number})


def infos(numbers: dict[str, int]) -> dict[bytes, QueueInfo]:
    return {name.encode(): numbered(name, number) for name, number in numbers.items()}


@pytest.mark.parametrize(
    ("before", "now", "listed", "expected"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}, {"b": 3, "c": 4}, {"b": 3, "c": 4}),
        ({}, {"new": 1}, {"old": 2}, {"new": 1, "old": 2}),
        ({"gone": 1}, {}, {"gone": 1}, {}),
    ],
    ids=["unchanged", "added meanwhile", "removed meanwhile"],
)
def test_a_listing_applies_to_names_that_did_not_change_meanwhile(
    before: dict[str, int], now: dict[str, int], listed: dict[str, int], expected: dict[str, int]
) -> None:
    observed = ObservedState()
    observed.queues = infos(now)
    observed.queues_listed(infos(before), infos(listed))
    assert observed.queues == infos(expected)


def test_a_queue_deleted_and_declared_again_during_a_listing_stays() -> None:
    observed = ObservedState()
    observed.add_queue(b"again")
    before = dict(observed.queues)
    observed.remove_queue(b"again")
    observed.add_queue(b"again")
    observed.queues_listed(before, {})
    assert observed.knows(("queue", b"again"))


def test_nothing_is_absent_before_the_first_listing() -> None:
    assert ObservedState().absence_reason(("queue", b"q")) is None


def test_names_missing_in_a_listing_are_absent() -> None:
    observed = ObservedState()
    observed.queues_listed({}, listing("there"))
    observed.exchanges_listed({b"x": ExchangeInfo(b"x", "topic")})
    answers = [
        observed.absence_reason(destination)
        for destination in (("queue", b"there"), ("queue", b"q"), ("exchange", b"x"))
    ]
    assert answers == [None, ABSENT, None]


def test_queues_and_exchanges_of_one_name_are_separate() -> None:
    observed = ObservedState()
    observed.queues_listed({}, listing("name"))
    observed.exchanges_listed({})
    assert observed.absence_reason(("exchange", b"name")) == ABSENT
    assert not observed.knows(("exchange", b"name"))


def test_only_a_queue_can_be_exclusive() -> None:
    observed = ObservedState()
    observed.add_queue(b"mine", exclusive=True)
    answers = [
        observed.exclusive(destination)
        for destination in (("queue", b"mine"), ("exchange", b"mine"), ("queue", b"other"))
    ]
    assert answers == [True, False, False]


def test_adding_a_known_queue_changes_nothing() -> None:
    observed = ObservedState()
    observed.add_queue(b"q")
    known = observed.queues[b"q"]
    observed.add_queue(b"q")
    assert observed.queues[b"q"] is known


def test_equal_names_keep_their_version() -> None:
    observed = ObservedState()
    observed.queues_listed({}, listing("b", "a"))
    first = observed.names(QueueNames())
    assert first == QueueNames((b"a", b"b"), 1)
    assert observed.names(first) is first


@pytest.mark.parametrize("name", [b"a", b"m", b"z"])
def test_adding_and_removing_a_name_keeps_the_order_and_changes_the_version(name: bytes) -> None:
    few = QueueNames((b"b", b"n"), 4)
    more = few.with_name(name)
    assert more == QueueNames(tuple(sorted((b"b", b"n", name))), 5)
    assert more.without_name(name) == QueueNames((b"b", b"n"), 6)


def test_adding_a_known_or_removing_an_unknown_name_changes_nothing() -> None:
    names = QueueNames((b"b", b"n"), 4)
    assert names.with_name(b"n") is names
    assert names.without_name(b"z") is names
    assert names.without_name(b"c") is names
