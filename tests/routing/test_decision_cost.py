"""The cost of one decision is limited, whatever clients bind and whatever a message requests.

Costs are counted, not measured: the number of times that names are hashed, and the number of searches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from oxproxy.routing.bindings import patterns
from oxproxy.routing.decision import Decision, Facts, QueueNames
from oxproxy.routing.exchange import Exchange
from oxproxy.routing.router import Router
from oxproxy.values import Table, Value
from tests.routing.building import NOW, Plain, exchange, many, no_draw, to_queue

BINDINGS = 4000
#: A decision may take this many steps of about 0.2 us for each owner.
STEPS = patterns.Budget().steps
#: a smaller budget, and its steps
SMALL = 10_000
SMALL_STEPS = patterns.Budget(SMALL).steps


class Name(bytes):
    """A name that counts how often it is hashed, which each addition to a set does, compared, and tested for equality.

    A set tests a name for equality once, and a list tests each of its names.
    """

    hashed = 0
    compared = 0
    equated = 0

    def __hash__(self) -> int:
        Name.hashed += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        Name.equated += 1
        return super().__eq__(other)

    def __lt__(self, other: bytes) -> bool:
        Name.compared += 1
        return super().__lt__(other)


class Searches:
    """Counts calls of PCRE2."""

    def __init__(self) -> None:
        self.count = 0


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Searches]:
    library = patterns._library()
    counted, match = Searches(), library.match

    def search(*arguments: object) -> int:
        counted.count += 1
        result: int = match(*arguments)
        return result

    monkeypatch.setattr(library, "match", search)
    patterns._kept.cache_clear()
    yield counted
    patterns._kept.cache_clear()


def of_client(arguments: dict[str, Plain], count: int = BINDINGS, client: str = "guest") -> Exchange:
    return exchange(
        *(replace(to_queue("q", {**arguments, "x-order": number}), owner=client) for number in range(100, count + 100))
    )


def names_in(header: str, count: int) -> Table:
    elements = tuple(Value("S", Name(b"name%d" % number)) for number in range(count))
    return ((header.encode(), Value("A", elements)),)


def decide(
    made: Exchange, headers: Table = (), queues: QueueNames | None = None, budget: int = patterns.DEFAULT_BUDGET
) -> Decision:
    Name.hashed = Name.compared = Name.equated = 0
    return Router([made]).decide(
        made.name, Facts(b"", headers), NOW, queues or QueueNames(), no_draw, regex_budget=budget
    )


def test_names_in_a_message_are_compared_once_and_not_for_each_binding() -> None:
    count = 9000
    decision = decide(of_client({"x-msg-addq-ontrue": ""}), names_in("x-addq-ontrue", count))
    assert Name.hashed < 8 * count
    assert len(decision.queues) == 1 + count
    assert decision.spent_budgets == ()


def test_bindings_that_delete_and_add_the_names_of_a_message_spend_its_budget() -> None:
    count = 9000
    made = of_client({"x-msg-addq-ontrue": "", "x-msg-delq-ontrue": ""})
    headers = names_in("x-addq-ontrue", count) + names_in("x-delq-ontrue", count)
    decision = decide(made, headers)
    assert Name.hashed < 4 * STEPS
    assert decision.spent_budgets == ("message",)


@pytest.mark.parametrize(
    ("arguments", "headers"),
    [
        ({"x-msg-delqre-ontrue": ""}, ((b"x-delqre-ontrue", Value("S", b"^queue")),)),
        ({"x-delq-ontrue": many(*(f"other{number}" for number in range(500))), "x-delqre-ontrue": "^other"}, ()),
    ],
    ids=["requested by the message", "selected by the binding"],
)
def test_queues_that_a_pattern_deletes_are_compared_once_with_those_of_the_message(
    arguments: dict[str, Plain], headers: Table
) -> None:
    count = 1000
    others = tuple(Name(b"other%d" % number) for number in range(count))
    # the first binding adds names, and the second deletes some
    made = exchange(
        to_queue("q", {"x-order": 100, "x-addqre-ontrue": "^other"}), to_queue("q", {"x-order": 200, **arguments})
    )
    queues = QueueNames(tuple(sorted((*others, *(Name(b"queue%d" % number) for number in range(count + 9))))), 1)
    decision = decide(made, headers, queues)
    assert Name.equated < 8 * count
    assert len(decision.queues) == (1 if "x-delqre-ontrue" in arguments else 1 + count)


def test_a_pattern_in_a_message_is_searched_once_for_each_queue(searches: Searches) -> None:
    queues = QueueNames(tuple(b"queue%03d" % number for number in range(600)), 1)
    headers = ((b"x-addqre-ontrue", Value("S", b"1$")),)
    decision = decide(of_client({"x-msg-addqre-ontrue": ""}), headers, queues)
    assert searches.count == 600
    assert len(decision.queues) == 61


@pytest.mark.parametrize(("queues", "chosen"), [(9_000, True), (10_001, False)])
def test_the_number_of_searches_that_a_message_requests_is_limited(
    queues: int, chosen: bool, searches: Searches
) -> None:
    names = QueueNames(tuple(sorted(b"queue%d" % number for number in range(queues))), 1)
    made = exchange(to_queue("q", {"x-msg-addqre-ontrue": ""}))
    decision = decide(made, ((b"x-addqre-ontrue", Value("S", b"queue77")),), names)
    assert (len(decision.queues) > 1, decision.spent_budgets) == (chosen, () if chosen else ("message",))
    assert searches.count == (queues if chosen else 0)


def test_visits_to_the_bindings_of_one_client_are_limited_and_other_bindings_are_still_visited() -> None:
    made = of_client({"x-?rk!=": "k"}, SMALL_STEPS + 10)
    others = {"rules": None, "client": "other"}
    for name, owner in others.items():
        assert made.bind(replace(to_queue(name, {"x-?rk!=": "k", "x-order": 90_000}), owner=owner))
    decision = decide(made, budget=SMALL)
    assert len(decision.matched) == SMALL_STEPS + len(others)
    assert decision.queues == (b"client", b"q", b"rules")
    assert decision.spent_budgets == ("client",)


def test_names_in_the_arguments_of_bindings_are_charged_to_their_client() -> None:
    names = [f"name{number}" for number in range(1000)]
    decision = decide(of_client({"x-addq-ontrue": many(*names)}, 100))
    assert len(decision.matched) == 50
    assert decision.spent_budgets == ("client",)


def test_bindings_of_rules_files_are_not_charged() -> None:
    made = exchange(*(to_queue(f"q{number}", {"x-?rk!=": "k"}) for number in range(SMALL_STEPS + 10)))
    decision = decide(made, budget=SMALL)
    assert len(decision.queues) == SMALL_STEPS + 10
    assert decision.spent_budgets == ()


def test_conditions_on_some_headers_do_not_compare_all_headers() -> None:
    count = 10_000
    headers = tuple((Name(b"h%05d" % number), Value("I", 1)) for number in range(count))
    made = of_client({"x-match": "set 1", "x-?hkex": "h09990"}, 20)
    assert len(decide(made, headers).matched) == 20
    assert Name.compared < 1.5 * count  # the headers are sorted once
