"""Contracts with a real RabbitMQ: what a producer gets, and where operators see a violation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.delivery.site import Site, standing
from tests.broker.delivery.test_audit import audited, records
from tests.producer import headers, until
from tests.rabbitmq import Broker
from tests.sidecar import oxproxy

REQUIRE = "require: {tenant is: string, amount >=: 1}"
RULES = f"""\
queues: [all]
exchanges:
  - name: observed
    {REQUIRE}
    violations: observe
    arguments: {{max-payload-size: 10}}
    bindings: [{{queue: all}}]
  - name: rejecting
    {REQUIRE}
    bindings: [{{queue: all}}]
"""
SECRET = 471147


@pytest.fixture(scope="module")
def site(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("contracts")
    _, settings = audited(folder)
    with standing(broker, folder, RULES, settings) as running:
        running.sidecar.get("/api/recent")  # violations are recorded from here on
        yield running


def violations(site: Site, exchange: str) -> float:
    return site.metric("contract_violations_total", vhost=site.vhost, exchange=exchange)


def newest(site: Site) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(site.sidecar.get("/api/recent"))["publishes"][-1]
    return found


def audit_record(site: Site, message_id: str) -> dict[str, object]:
    found: list[dict[str, object]] = []

    def written() -> bool:
        found[:] = [line for line in records(Path(site.sidecar.folder) / "audit") if line["message_id"] == message_id]
        return bool(found)

    until(written)
    return found[0]


def test_a_message_that_satisfies_the_contract_is_no_violation(site: Site) -> None:
    before = violations(site, "observed")
    table = headers({"tenant": "acme", "amount": 1})
    assert site.producer().send_settled("observed", "k", table, b"valid", message_id=b"valid").acked
    assert site.bodies("all") == [[b"valid"]]
    assert violations(site, "observed") == before
    assert audit_record(site, "valid")["reason"] is None


def test_an_observed_violation_is_delivered_and_shown_without_values(site: Site) -> None:
    before = violations(site, "observed")
    table = headers({"tenant": SECRET, "amount": 0})
    assert site.producer().send_settled("observed", "k", table, b"more than ten", message_id=b"observed").acked
    assert site.bodies("all") == [[b"more than ten"]]
    assert violations(site, "observed") == before + 1
    record = audit_record(site, "observed")
    assert (record["outcome"], record["reason"]) == ("routed", "contract_violation")
    assert record["violates"] == ["max-payload-size", "tenant is", "amount >="]
    shown = newest(site)
    assert (shown["result"], shown["exchange"]) == ("violating", "observed")
    assert all(condition in shown["reason"] for condition in ("tenant is", "amount >=", "max-payload-size"))
    tailed = oxproxy("tail", "--admin", site.sidecar.admin, check=True).stdout.splitlines()[-1]
    assert "  violating   " in tailed
    assert "tenant is" in tailed
    assert str(SECRET) not in json.dumps([record, shown, tailed]) + site.sidecar.log.read_text()


def test_a_rejected_violation_closes_the_channel_with_the_first_condition(site: Site) -> None:
    before = violations(site, "rejecting")
    producer = site.producer()
    producer.publish("rejecting", "k", headers({"tenant": SECRET}), b"rejected", message_id=b"rejected")
    close = producer.closed()
    text = "Contract violated: tenant is: got an integer, expected string"
    assert (close.code, close.text) == (406, f"PRECONDITION_FAILED - {text}")
    assert violations(site, "rejecting") == before + 1
    record = audit_record(site, "rejected")
    assert (record["outcome"], record["reason"]) == ("rejected", "contract_violation")
    assert record["violates"] == ["tenant is"]
    shown = newest(site)
    assert (shown["result"], shown["reason"]) == ("rejected", f"406 {text}")
    assert str(SECRET) not in json.dumps([record, shown]) + site.sidecar.log.read_text()
    assert site.bodies("all") == [[]]
