"""Follows docs/how-to/migration.md: imports definitions exported by rabbitmqctl, which then route as on the broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.broker.observed import Outside
from tests.private_broker import BrokerMissing, PrivateBroker
from tests.producer import Producer, until
from tests.routing.building import Plain, arguments
from tests.sidecar import Sidecar, oxproxy

QUEUES = ("invoices", "europe", "late", "pdf reports", "pdf or log", "everything")
#: Exchange, routing key and headers of each message.
MESSAGES: list[tuple[str, str, dict[str, Plain]]] = [
    ("by.topic", "invoice.eu", {}),
    ("by.topic", "invoice.us.late", {}),
    ("by.topic", "letter", {}),
    ("by.headers", "k", {"format": "pdf", "type": "report"}),
    ("by.headers", "k", {"format": "zip", "type": "log"}),
    ("by.headers", "k", {"format": "zip"}),
    ("by.fanout", "k", {}),
]


@pytest.fixture(scope="module")
def private() -> Iterator[PrivateBroker]:
    with ExitStack() as stack:
        try:
            yield stack.enter_context(PrivateBroker())
        except BrokerMissing as missing:
            pytest.skip(str(missing))


def declare_topology(outside: Outside) -> None:
    """Declare exchanges, queues and bindings of the broker's own types."""
    outside.make_queues(*QUEUES)
    for kind in ("topic", "headers", "fanout"):
        outside.make_exchange(f"by.{kind}", kind)
    for queue, key in (("invoices", "invoice.#"), ("europe", "*.eu.#"), ("late", "#.late")):
        outside.bind("by.topic", queue, key)
    outside.bind("by.headers", "pdf reports", "", **{"x-match": "all", "format": "pdf", "type": "report"})
    outside.bind("by.headers", "pdf or log", "", **{"x-match": "any", "format": "pdf", "type": "log"})
    outside.bind("by.fanout", "everything", "")


def routed(port: int, outside: Outside, message: tuple[str, str, dict[str, Plain]]) -> list[str]:
    """Publish one message to a port, and return the queues that received it."""
    exchange, key, headers = message
    with Producer(port, outside.vhost).open(confirm=True) as producer:
        assert producer.send_settled(exchange, key, arguments(headers)).acked
        return [queue for queue in QUEUES if producer.take(queue)]


@pytest.mark.broker
def test_imported_rules_route_as_the_broker_did(private: PrivateBroker, tmp_path: Path) -> None:
    outside = Outside(private, "/")
    declare_topology(outside)
    before = [routed(private.port, outside, message) for message in MESSAGES]
    definitions, rules = tmp_path / "definitions.json", tmp_path / "imported.yaml"
    private.rabbitmqctl("export_definitions", str(definitions))
    rules.write_text(oxproxy("import", definitions, check=True).stdout)
    oxproxy("check", rules, check=True)
    with Sidecar(private, [rules], folder=tmp_path) as sidecar:
        after = [routed(sidecar.port, outside, message) for message in MESSAGES]
        evaluated = [line for line in sidecar.get("/metrics").splitlines() if 'outcome="routed"' in line]
        until(lambda: "degraded" not in sidecar.get("/readyz"))
    assert after == before
    assert sum(len(queues) for queues in before) > len(MESSAGES) / 2
    assert {name for name in ("by.topic", "by.headers", "by.fanout") if any(name in line for line in evaluated)} == {
        "by.topic", "by.headers", "by.fanout",
    }  # fmt: skip
