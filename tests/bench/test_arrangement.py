from __future__ import annotations

from pathlib import Path

import pytest

from oxproxy.addressing.targets import Target
from oxproxy.routing.decision import Facts, QueueNames
from oxproxy.routing.router import Router
from oxproxy.rules.loader import load_rules
from oxproxy.values import Value
from tests.bench import arrangement, compare
from tests.bench.cases import CASES, Case, Way
from tests.rabbitmq import Broker

REAL_CASES = [
    case
    for case in (*CASES.values(), *compare.SUBJECTS.values(), *compare.THOUSAND_SUBJECTS.values())
    if case.way in (Way.RULES, Way.RULES_AUDITED, Way.FLOODED) and not case.prefetch
]
OPEN_CASES = [case for case in CASES.values() if case.shape.exchange.startswith(("bench.hkv", "bench.rk"))]
ADDRESSED = [case for case in CASES.values() if case.name in ("local", "remote", "table-10", "table-many")]
BROKER = Broker("127.0.0.1", 1234, "http://127.0.0.1:1235")
CHECKED = 20
"""Number of checked messages per case: two for each of the ten queues."""


@pytest.fixture(scope="module")
def routers(tmp_path_factory: pytest.TempPathFactory) -> dict[Way, Router]:
    """Return the compiled rules of each sidecar. They are compiled once, since the large file takes a long time."""
    folder = tmp_path_factory.mktemp("rules")
    small = load_rules([arrangement.small_rules(folder, BROKER)]).routers["/"]
    large = load_rules([arrangement.large_rules(folder, BROKER)]).routers["/"]
    return {Way.SIDECAR: small, Way.AUDITED: small, Way.LOADED: large}


def facts(case: Case, number: int) -> Facts:
    key = case.shape.routing_keys[number % len(case.shape.routing_keys)]
    kind = case.shape.kinds[number % len(case.shape.kinds)]
    return Facts(key.encode(), ((b"kind", Value("S", kind.encode())),))


@pytest.mark.parametrize("case", OPEN_CASES, ids=lambda case: case.name)
def test_each_message_goes_to_one_queue_and_the_queues_take_turns(case: Case, routers: dict[Way, Router]) -> None:
    exchange = case.shape.exchange.encode()

    for number in range(CHECKED):
        decision = routers[case.way].decide(exchange, facts(case, number), 0.0, QueueNames(), lambda _: 0)
        assert decision.queues == (arrangement.queue(number).encode(),)


def test_where_eight_queues_are_meant_each_message_goes_to_eight(routers: dict[Way, Router]) -> None:
    case = CASES["eight"]

    for number in range(CHECKED):
        decision = routers[case.way].decide(b"bench.eight", facts(case, number), 0.0, QueueNames(), lambda _: 0)
        assert set(decision.queues) == {name.encode() for name in arrangement.eight_queues(number)}
        assert len(decision.queues) == 8


@pytest.mark.parametrize("case", REAL_CASES, ids=lambda case: case.name)
def test_each_real_message_goes_to_one_queue_and_the_queues_take_turns(case: Case, tmp_path: Path) -> None:
    router = load_rules([arrangement.real_rules(tmp_path)]).routers["/"]

    for number in range(CHECKED):
        key, kind = (some[number % 10].encode() for some in (case.shape.routing_keys, case.shape.kinds))
        seen = Facts(key, ((b"kind", Value("S", kind)), (b"amount", Value("I", number))))
        decision = router.decide(case.shape.exchange.encode(), seen, 0.0, QueueNames(), lambda _: 0)
        assert decision.queues == (arrangement.queue(number).encode(),)
        assert len(decision.matched) == 1


def test_the_mixed_bindings_are_a_thousand_with_three_regular_expressions(tmp_path: Path) -> None:
    exchange = load_rules([arrangement.real_rules(tmp_path)]).routers["/"].exchanges[b"bench.mixed"]

    assert len(list(exchange.bindings)) == 1_000
    assert sum(compiled.regexes for compiled in exchange.entries) == 3


@pytest.mark.parametrize("case", ADDRESSED, ids=lambda case: case.name)
def test_each_message_of_the_address_table_goes_where_the_direct_ones_go(case: Case, tmp_path: Path) -> None:
    make = arrangement.large_rules if case.way is Way.LOADED else arrangement.small_rules
    book = load_rules([make(tmp_path, BROKER)]).books["/"]

    for key in case.shape.routing_keys[:CHECKED]:
        target = book.look_up(case.shape.exchange.encode(), key.encode())
        assert isinstance(target, Target)
        exchange = case.shape.exchange if case.name == "remote" else "bench.direct"
        assert target.publication == (exchange.encode(), key.encode())
        assert (target.remote is not None) == (case.name == "remote")
