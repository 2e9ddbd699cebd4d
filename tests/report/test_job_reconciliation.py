"""Tests that publishes through a sidecar, audit records, numbers in the report and messages in queues agree."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.broker.delivery.site import standing
from tests.broker.delivery.test_audit import audited, records
from tests.rabbitmq import Broker
from tests.sidecar import PROGRAM

COUNT = 400
RULES = """
queues: [a, b, {name: full, arguments: {x-max-length: 1, x-overflow: reject-publish}}]
exchanges:
  - name: letters
    arguments: {max-payload-size: 100000}
    bindings:
      - {queue: a, name: to a, arguments: {"x-?hkv= to": a, x-addq-ontrue: b}}
      - {queue: b, name: to b, arguments: {"x-?hkv= to": b}}
      - {queue: full, name: to nobody ever, arguments: {"x-?hkv= to": full}}
"""


def test_publishes_lines_report_and_queues_agree(broker: Broker, spark: SparkSession, tmp_path: Path) -> None:
    directory, settings = audited(tmp_path, instance="edge-1")
    with standing(broker, tmp_path, RULES, settings) as site:
        producer = site.producer()
        for number in range(COUNT):
            to = ("a", "b", "a", "nobody")[number % 4]
            producer.publish("letters", f"order.{number}", {"to": to}, b"x" * number, message_id=b"m%d" % (number // 2))
        producer.publish("amq.direct", "elsewhere", body=b"")
        producer.settle_all(COUNT + 1)
        for number in range(3):
            producer.publish("letters", f"back.{number}", {"to": "nobody"}, b"", mandatory=True)
            assert producer.settle().returned
        second = site.producer()
        second.publish("letters", "big", body=b"x" * 100_001)
        assert second.closed().code == 406
        held = {queue: len(site.take(queue)) for queue in ("a", "b", "full")}
        vhost = site.vhost
    published = COUNT + 1 + 3 + 1
    assert len(records(directory)) == published

    output = tmp_path / "report"
    command = [PROGRAM, "report", "--input", directory, "--output", output, "--rules", tmp_path / "rules.yaml"]
    done = subprocess.run(
        [*map(str, command), "--master", "local[2]", "--trace"],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    assert f"{published} publishes" in done.stdout

    def rows(name: str, columns: str) -> list[tuple[Any, ...]]:  # values of any column
        return sorted(map(tuple, spark.read.parquet(f"{output}/{name}").select(*columns.split()).collect()))

    traffic = rows("traffic", "vhost proxy exchange outcome publishes bytes")
    assert sum(row[4] for row in traffic) == published
    assert sum(row[5] for row in traffic) == sum(range(COUNT)) + 100_001
    assert {row[:2] for row in traffic} == {(vhost, "edge-1")}
    outcomes: Counter[str] = Counter()
    for row in traffic:
        outcomes[row[3]] += row[4]
    assert outcomes == {"routed": COUNT * 3 // 4, "unrouted": COUNT // 4 + 3, "passed": 1, "rejected": 1}

    counted: Counter[str] = Counter()
    for destination, publishes in rows("destinations", "destination publishes"):
        counted[destination] += publishes
    assert counted == {queue: count for queue, count in held.items() if count}
    assert counted == {"a": COUNT // 2, "b": COUNT * 3 // 4}

    bindings: Counter[str] = Counter()
    for name, matches, in_file in rows("bindings", "binding matches in_file"):
        bindings[name] += matches
        assert in_file
    assert bindings == {"to a": COUNT // 2, "to b": COUNT // 4, "to nobody ever": 0}
    lost = [row for row in rows("unroutable", "exchange rk_pattern publishes returned outcome") if row[4] != "rejected"]
    assert (sum(row[2] for row in lost), sum(row[3] for row in lost)) == (COUNT // 4 + 3, 3)
    assert {row[:2] for row in lost} == {("letters", "order.*"), ("letters", "back.*")}
    assert {row[0] for row in rows("latency", "what")} <= {"decide", "confirm"}
    assert sum(row[1] for row in rows("producers", "user publishes")) == published
    assert {row[0] for row in rows("anomalies", "what")} == {"duplicate message_id"}
    assert len(rows("trace", "message_id")) == COUNT
    page = (output / "report.html").read_text()
    assert "to nobody ever" in page
    assert "Nothing was published" not in page
