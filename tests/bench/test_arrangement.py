from __future__ import annotations

from pathlib import Path

import pytest

from proxy.routing.decision import Facts, QueueNames
from proxy.routing.router import Router
from proxy.routing.values import Value
from proxy.rules.loader import load_rules, rules_files
from proxy.rules.settings import load_settings
from tests.bench import arrangement
from tests.bench.cases import CASES, Case, Way
from tests.rabbitmq import Broker

OPEN_CASES = [case for case in CASES.values() if case.shape.exchange != "bench.direct"]
CHECKED = 20
"""Messages of a case that are looked at: ten queues, twice."""


@pytest.fixture(scope="module")
def routers(tmp_path_factory: pytest.TempPathFactory) -> dict[Way, Router]:
    """The rules of each sidecar, compiled; once, as the big file takes its time."""
    folder = tmp_path_factory.mktemp("rules")
    files = {Way.SIDECAR: arrangement.small_rules(folder), Way.LOADED: arrangement.large_rules(folder)}
    return {way: load_rules([path]).routers["/"] for way, path in files.items()}


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


def test_what_is_sent_nowhere_has_no_queue(routers: dict[Way, Router]) -> None:
    nowhere = Facts(b"", ((b"kind", Value("S", arrangement.NOWHERE.encode())),))

    decision = routers[Way.SIDECAR].decide(b"bench.hkv-10", nowhere, 0.0, QueueNames(), lambda _: 0)

    assert decision.queues == ()


def test_the_file_whose_loading_is_timed_has_ten_thousand_bindings(tmp_path: Path) -> None:
    loaded = load_rules([arrangement.many_rules(tmp_path)])

    (exchange,) = loaded.rules.vhosts["/"].exchanges
    assert len(exchange.bindings) == 10_000


def test_the_sidecars_configuration_names_broker_ports_and_rules(tmp_path: Path) -> None:
    rules = arrangement.small_rules(tmp_path)
    broker = Broker("127.0.0.1", 1234, "http://127.0.0.1:1235")

    path = arrangement.sidecar_config(tmp_path / "bench.yaml", broker, 1236, 1237, rules)

    settings, _ = load_settings(path, {})
    assert rules_files(settings) == [rules]
    assert [listener.address.port for listener in settings.listen] == [1236]
    assert [address.port for address in settings.upstream.addresses] == [1234]
