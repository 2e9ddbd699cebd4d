"""What the audit log contains after the sidecar is killed or its disk was full."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from urllib.error import HTTPError

import pytest

from tests.broker.delivery.site import standing
from tests.broker.delivery.test_audit import RULES, audited, records
from tests.producer import Gone, Producer, until
from tests.rabbitmq import Broker


@pytest.mark.parametrize("mode", ["strict", "backpressure"])
def test_every_confirmed_publish_has_its_line_when_the_sidecar_is_killed(
    broker: Broker, tmp_path: Path, mode: str
) -> None:
    """Only strict mode guarantees it; the other mode must work until the kill, too."""
    directory, settings = audited(tmp_path, mode=mode)
    with standing(broker, tmp_path, RULES, settings) as site:
        producer = Producer(site.sidecar.port, site.vhost).open(confirm=True)
        sent = confirmed = 0
        try:
            while confirmed < 3000:
                for _ in range(200):
                    producer.publish("letters", f"k{sent}", {"to": "a"})
                    sent += 1
                while confirmed < sent - 400:
                    ack = producer.expect("Basic.Ack")
                    confirmed = max(confirmed, int(str(ack.arguments["delivery_tag"])))
                if sent == 2000:
                    os.kill(site.sidecar.process_id, signal.SIGKILL)
        except (Gone, OSError):
            producer.disconnect()
        assert sent >= 2000
        assert confirmed
        if mode == "strict":
            lines = {str(line["rk"]) for line in records(directory)}
            # RabbitMQ confirms in order here, so a tag covers all tags before it.
            assert {f"k{number}" for number in range(confirmed)} <= lines


@pytest.mark.parametrize("mode", ["best_effort", "backpressure", "strict"])
def test_on_a_full_disk_each_mode_keeps_its_guarantee_and_logs_the_failure(
    broker: Broker, small_disk: Path, tmp_path: Path, mode: str
) -> None:
    settings = {"audit": {"directory": str(small_disk), "mode": mode, "buffer_mib": 1}}
    count, confirmed = 0, 0
    with standing(broker, tmp_path, RULES, settings) as site:
        # If lines may be lost, only publishes write lines, so that they can be counted.
        producer = site.producer(confirm=mode != "best_effort")
        # If lines may be lost, the failure lasts until the record of the gap fits: a second, unless more lines come.
        while count < 2200 or (mode == "best_effort" and not site.metric("audit_failing")):
            assert count < 50_000, "the disk is never full"
            for _ in range(200):
                producer.publish("letters", "k" * 200, {"to": "a"}, message_id=b"%0200d" % count)
                count += 1
        if mode != "best_effort":
            until(lambda: site.metric("audit_failing") == 1)
        assert site.logged("audit log can't be written")
        if mode == "best_effort":
            until(lambda: site.metric("publishes_total", exchange="letters", outcome="routed") == count)
            until(lambda: site.metric("audit_dropped_total") > 0)
        else:
            until(lambda: site.metric("paused_producers") == 1)
            with pytest.raises(HTTPError, match="503"):
                site.sidecar.get("/readyz")
            while not producer.silent():
                confirmed = int(str(producer.expect("Basic.Ack").arguments["delivery_tag"]))
            assert mode != "strict" or confirmed <= len(records(small_disk)) < count
        subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
        until(lambda: site.metric("audit_failing") == 0)
        while mode != "best_effort" and confirmed < count:
            confirmed = int(str(producer.expect("Basic.Ack").arguments["delivery_tag"]))
        until(lambda: site.metric("paused_producers") == 0)
        dropped = site.metric("audit_dropped_total")
    kept = {line["message_id"] for line in records(small_disk)}
    assert len(kept) == len(records(small_disk)) == count - dropped
    assert (dropped > 0) is (mode == "best_effort")
    assert sum(int(str(gap["dropped"])) for gap in records(small_disk, "gap")) == dropped
