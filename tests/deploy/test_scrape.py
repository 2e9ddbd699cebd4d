"""Does a real Prometheus, scraping a loaded sidecar and its broker, have an answer to every expression?"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator

import pytest

from tests.deploy.expressions import always_answered, every_expression, of_rules, with_choices
from tests.deploy.load import Scraped, scraped, traffic
from tests.deploy.prometheus import ROOT, Prometheus
from tests.private_broker import BrokerMissing
from tests.producer import until
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """A sidecar under load."""
    with contextlib.ExitStack() as stack:
        rules = ROOT / "config" / "rules" / "documents.yaml"
        try:
            found = stack.enter_context(scraped(rules, tmp_path_factory.mktemp("whole")))
        except BrokerMissing as missing:
            pytest.skip(str(missing))
        stack.enter_context(found.sidecar)
        stack.enter_context(traffic(found.sidecar.address))
        yield found


@pytest.mark.parametrize("expression", every_expression(), ids=lambda expression: expression.where)
def test_an_expression_gives_data(expression: tuple[str, str], watched: Scraped) -> None:
    text = always_answered(with_choices(expression[1]))
    assert watched.prometheus.await_data(text), text


@pytest.mark.parametrize("outcome", ["routed", "unrouted", "rejected", "passed"])
def test_the_load_is_seen_with_every_outcome_that_it_has(outcome: str, watched: Scraped) -> None:
    assert watched.prometheus.await_data(f'oxproxy_publishes_total{{outcome="{outcome}"}} > 0')


def test_the_broker_counts_what_the_sidecar_counts(watched: Scraped) -> None:
    both = (
        'sum(rate(oxproxy_publishes_total{outcome!~"rejected|filtered"}[10s]))'
        " / sum(rate(rabbitmq_global_messages_received_total[10s])) > 0"
    )
    assert watched.prometheus.await_data(both)


@pytest.mark.parametrize("name", [rule.where for rule in of_rules() if rule.where.startswith("Oxproxy")])
def test_no_alert_is_raised_by_a_sidecar_that_is_well(name: str, watched: Scraped) -> None:
    # A scrape that a loaded machine delays beyond its second makes an alert pending until the next one.
    until(lambda: name not in {alert["labels"]["alertname"] for alert in watched.prometheus.alerts()}, every=0.2)


def test_a_worker_that_is_killed_raises_its_alert_and_no_other_one(broker: Broker) -> None:
    with Sidecar(broker, settings={"workers": 2}) as sidecar:
        targets = [f"127.0.0.1:{sidecar.admin_port + worker}" for worker in range(2)]
        with Prometheus({"oxproxy": targets}) as prometheus:
            assert prometheus.await_data("sum(oxproxy_worker_restarts_total) == 0 and count(oxproxy_workers) == 2")
            victim = json.loads(sidecar.get("/status"))["process"]
            os.kill(victim, signal.SIGKILL)
            assert prometheus.await_data('ALERTS{alertname="OxproxyWorkerEnded", alertstate="firing"}', 60)
            assert prometheus.await_data('oxproxy_worker_restarts_total{worker="0"} == 1', 60)
            firing = {one["labels"]["alertname"] for one in prometheus.alerts() if one["state"] == "firing"}
            assert firing == {"OxproxyWorkerEnded"}
