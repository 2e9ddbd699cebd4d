"""Tests back-tests against a sidecar: they show what the sidecar really does with the same publishes.

``python -m tests.report.test_backtest_truth COUNT`` does the same with any number of publishes.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.broker.delivery.site import standing
from tests.broker.delivery.test_audit import audited, records
from tests.rabbitmq import Broker
from tests.sidecar import oxproxy

COUNT = 3000
#: Publishes per connection, so that not all confirms have to be read at the end.
PER_CONNECTION = 2000
RULES = """
queues: [a, b, c, large]
exchanges:
  - name: orders
    arguments: {max-payload-size-silent: 90, alternate-exchange: amq.fanout}
    require: {amount is: number}
    violations: observe
    bindings:
      - {queue: a, name: eu, when: {region: eu}}
      - {queue: b, name: us, when: {region: us, "amount <": 50}}
      - {queue: large, name: large, when: {"amount >=": 80}}
      - {queue: c, name: express, when: {property type: express}}
  - name: events
    type: topic
    delivery: queue
    bindings:
      - {queue: a, routing_key: "order.*"}
      - {queue: b, routing_key: "#.1"}
"""
#: changes: a limit, a condition, a queue, a filter, a key, and the alternate exchange
NEXT = (
    RULES.replace('">=": 80', '">=": 60').replace("region: us, ", "region: de, ").replace("order.*", "order.1.*")
    .replace("max-payload-size-silent: 90, alternate-exchange: amq.fanout", "max-payload-size-silent: 50")
    .replace("name: express, when: {property type: express}", "name: express, when: {property type: slow}")
)  # fmt: skip


def publish(site: Any, count: int) -> None:
    """Publish the same messages in every call."""
    chance = random.Random(7)
    for number in range(count):
        if number % PER_CONNECTION == 0:
            producer, sent = site.producer(), 0
        headers: dict[str, Any] = {"region": chance.choice(("eu", "us", "de")), "trace": f"t{number}"}
        if chance.random() < 0.9:
            headers["amount"] = chance.choice((chance.randrange(100), float(chance.randrange(100)), "many"))
        exchange = chance.choice(("orders", "orders", "events"))
        key = f"order.{chance.randrange(3)}.{chance.randrange(2)}" if chance.random() < 0.5 else f"order.{number % 5}"
        properties = {"type": chance.choice((b"express", b"slow"))} if chance.random() < 0.5 else {}
        producer.publish(exchange, key, headers, b"x" * chance.randrange(120), message_id=b"m%d" % number, **properties)
        sent += 1
        if sent == PER_CONNECTION or number == count - 1:
            producer.settle_all(sent)


def log_of(broker: Broker, folder: Path, rules: str, count: int) -> tuple[Path, str]:
    """Return the audit directory of a sidecar with these rules, and its virtual host."""
    folder.mkdir()
    directory, settings = audited(folder, facts="all-mentioned")
    with standing(broker, folder, rules, settings) as site:
        publish(site, count)
        vhost: str = site.vhost
    return directory, vhost


def result(record: dict[str, Any]) -> str:
    names = [sorted(record.get(name, ())) for name in ("queues", "exchanges", "remotes", "violates")]
    return json.dumps([record["outcome"], *names, record.get("alternate")])


def judged(directory: Path, folder: Path, rules: str, vhost: str) -> dict[str, Any]:
    """Return the result of a back-test of rules for a virtual host, as JSON."""
    file = folder / "next.yaml"
    file.write_text(f"vhost: {vhost}\n{rules}")
    done = oxproxy("backtest", file, "--input", directory, "--output", folder / "out", "--json")
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def check(broker: Broker, folder: Path, count: int) -> None:
    before, vhost = log_of(broker, folder / "before", RULES, count)
    after, _ = log_of(broker, folder / "after", NEXT, count)
    began = time.monotonic()
    same = judged(before, folder, RULES, vhost)
    print(f"{count} publishes back-tested in {time.monotonic() - began:.1f} s, {same['evaluations']} evaluations")
    assert (same["equal"], same["different"], same["not_judged"]) == (count, 0, 0)
    found = judged(before, folder, NEXT, vhost)
    assert (found["judged"], found["not_judged"]) == (count, 0)
    was = {str(record["message_id"]): record for record in records(before)}
    is_now = {str(record["message_id"]): record for record in records(after)}
    assert was.keys() == is_now.keys()
    changes = Counter(
        (was[name]["exchange"], result(was[name]), result(is_now[name]))
        for name in was
        if result(was[name]) != result(is_now[name])
    )
    assert len(changes) > 10
    assert changes == {
        (row["exchange"], result(row["recorded"]), result(row["candidate"])): row["publishes"]
        for row in found["differences"]
    }
    print(f"{found['different']} different, in {len(changes)} kinds, as with the changed rules")


@pytest.mark.usefixtures("java")
def test_a_back_test_shows_what_the_sidecar_does(broker: Broker, tmp_path: Path) -> None:
    check(broker, tmp_path, COUNT)


if __name__ == "__main__":
    from tests.private_broker import PrivateBroker

    with PrivateBroker() as private, tempfile.TemporaryDirectory() as temporary:
        check(private, Path(temporary), int(sys.argv[1]))
