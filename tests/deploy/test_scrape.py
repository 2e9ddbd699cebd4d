"""Runs every expression of rules, dashboards and runbooks in a real Prometheus that scrapes a sidecar under load."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.deploy.expressions import always_answered, every_expression, of_rules, with_choices
from tests.deploy.load import Scraped, scraped, traffic
from tests.deploy.prometheus import ROOT
from tests.private_broker import BrokerMissing
from tests.producer import until

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def scraped_sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """A sidecar under load, scraped by Prometheus."""
    with contextlib.ExitStack() as stack:
        rules = ROOT / "config" / "rules" / "documents.yaml"
        try:
            environment = stack.enter_context(scraped(rules, tmp_path_factory.mktemp("whole")))
        except BrokerMissing as missing:
            pytest.skip(str(missing))
        stack.enter_context(environment.sidecar)
        stack.enter_context(traffic(environment.sidecar.address))
        yield environment


@pytest.mark.parametrize("expression", every_expression(), ids=lambda expression: expression.where)
def test_an_expression_returns_data(expression: tuple[str, str], scraped_sidecar: Scraped) -> None:
    text = always_answered(with_choices(expression[1]))
    assert scraped_sidecar.prometheus.await_data(text), text


@pytest.mark.parametrize("outcome", ["routed", "unrouted", "rejected", "passed"])
def test_publishes_are_counted_by_outcome(outcome: str, scraped_sidecar: Scraped) -> None:
    assert scraped_sidecar.prometheus.await_data(f'oxproxy_publishes_total{{outcome="{outcome}"}} > 0')


def test_metrics_of_broker_and_sidecar_can_be_combined(scraped_sidecar: Scraped) -> None:
    both = (
        'sum(rate(oxproxy_publishes_total{outcome!~"rejected|filtered"}[10s]))'
        " / sum(rate(rabbitmq_global_messages_received_total[10s])) > 0"
    )
    assert scraped_sidecar.prometheus.await_data(both)


@pytest.mark.parametrize("name", [rule.where for rule in of_rules() if rule.where.startswith("Oxproxy")])
def test_no_alert_fires_for_a_healthy_sidecar(name: str, scraped_sidecar: Scraped) -> None:
    # On a busy machine a scrape can time out, so that an alert is pending until the next scrape.
    until(
        lambda: name not in {alert["labels"]["alertname"] for alert in scraped_sidecar.prometheus.alerts()}, every=0.2
    )
