"""The audit log in strict mode on a full or blocked disk: confirms wait, and nothing else does."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pamqp import commands

from tests import client, sidecar
from tests.broker.delivery.site import Site, standing
from tests.broker.delivery.test_audit import records
from tests.faults.faulty_disk import FaultyDisk, State
from tests.producer import Producer, until
from tests.rabbitmq import Broker
from tests.sidecar import request_page

RULES = """
queues: [a, inbox]
exchanges:
  - name: letters
    bindings: [{queue: a, arguments: {"x-?hkv= to": a}}]
"""
FAULTS = (State.FULL, State.HUNG)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> FaultyDisk:
    return FaultyDisk(tmp_path_factory.mktemp("disk"))


@pytest.fixture(scope="module")
def site(broker: Broker, disk: FaultyDisk, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("strict")
    (folder / "audit").mkdir()
    audit = {"directory": str(folder / "audit"), "mode": "strict", "buffer_mib": 1, "instance": "m"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sidecar, "PROGRAM", disk.program)
        with standing(broker, folder, RULES, {"audit": audit}) as made:
            yield made


@pytest.fixture(autouse=True)
def tidy(site: Site, disk: FaultyDisk) -> Iterator[None]:
    yield
    disk.become(State.WELL)
    until(lambda: site.metric("audit_failing") == 0)
    site.tidy()
    for queue in ("a", "inbox"):
        site.take(queue)


def not_ready(site: Site) -> str:
    code, text = request_page(site.sidecar.admin + "/readyz")
    return "" if code == 200 else text


def failing(site: Site) -> None:
    until(lambda: site.metric("audit_failing") == 1)


def consume(producer: Producer, channel: int = 1) -> None:
    producer.ask(commands.Basic.Consume(queue="inbox", consumer_tag="c", no_ack=True), channel)


def delivered(producer: Producer, count: int, size: int) -> None:
    for _ in range(count):
        producer.expect("Basic.Deliver")
        producer.expect("Header")
        left = size
        while left:
            left -= len(producer.expect("Body").payload)


@pytest.mark.parametrize("fault", FAULTS)
def test_only_the_confirm_waits(site: Site, disk: FaultyDisk, fault: State) -> None:
    producer = site.producer()
    producer.publish("letters", table={"to": "a"}, body=b"before")
    producer.settle()
    consume(producer)
    disk.become(fault)
    producer.publish("letters", table={"to": "a"}, body=b"behind")
    assert site.next("a").body == b"before"
    assert site.next("a").body == b"behind"  # the broker has confirmed it
    # Deliveries on the same channel, far above any limit on buffers, then new channels and connections.
    for _ in range(40):
        site.direct.publish("", "inbox", body=bytes(1 << 20))
    delivered(producer, 40, 1 << 20)
    producer.open(2, confirm=True)
    producer.ask(commands.Queue.Declare(queue="inbox", passive=True), 2)
    with Producer(site.sidecar.port, site.vhost) as second:
        second.open()
        second.ask(commands.Queue.Declare(queue="inbox", passive=True))
        second.close()
    failing(site)
    assert producer.silent()
    disk.become(State.WELL)
    assert producer.expect("Basic.Ack").arguments["delivery_tag"] == 2


def test_a_commit_waits_for_its_own_lines_and_not_for_those_of_others(site: Site, disk: FaultyDisk) -> None:
    second = site.producer()
    disk.become(State.FULL)
    second.publish("letters", table={"to": "a"})
    assert site.next("a")
    failing(site)
    producer = site.producer(confirm=False)
    producer.ask(commands.Tx.Select())
    producer.ask(commands.Tx.Commit())
    producer.publish("letters", table={"to": "a"})
    producer.call(commands.Tx.Commit())
    assert site.next("a")
    assert producer.silent()
    disk.become(State.WELL)
    producer.expect("Tx.CommitOk")
    assert second.settle().acked


def test_producers_and_the_audit_log_share_the_deadline_of_a_shutdown(
    broker: Broker, disk: FaultyDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sidecar, "PROGRAM", disk.program)
    audit = {"directory": str(tmp_path / "audit"), "mode": "strict"}
    with standing(broker, tmp_path, RULES, {"audit": audit, "shutdown": {"deadline": "8s"}}) as site:
        producer = site.producer()
        disk.become(State.HUNG)
        producer.publish("letters", table={"to": "a"})
        assert site.next("a")
        began = time.monotonic()
        os.kill(site.sidecar.process_id, signal.SIGTERM)
        assert producer.closed(channel=0).code == 320  # once the disk counts as failed
        assert time.monotonic() - began > 4
        until(lambda: "event=stopped" in site.sidecar.log.read_text(), 30)
        assert time.monotonic() - began < 12


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failing_disk_is_reported_and_ends_readiness_until_it_recovers(
    site: Site, disk: FaultyDisk, fault: State
) -> None:
    producer = site.producer()
    assert not_ready(site) == ""
    disk.become(fault)
    producer.publish("letters", table={"to": "a"})
    failing(site)
    reason = "No space left on device" if fault is State.FULL else "the disk has not responded for 5 s"
    assert f"audit log: {reason}" in not_ready(site) or f"audit log: [Errno 28] {reason}" in not_ready(site)
    assert reason in json.loads(site.sidecar.get("/status"))["audit_failure"]
    disk.become(State.WELL)
    assert producer.settle().acked
    until(lambda: not_ready(site) == "")


def test_waiting_confirms_pause_the_reading_from_the_broker(site: Site, disk: FaultyDisk) -> None:
    producer = site.producer()
    disk.become(State.FULL)
    count = 12_000  # their confirms exceed the buffer of a connection
    for _ in range(count // 200):
        producer.send(client.publish(1, b"amq.fanout", b"", (), b"") * 200)
    failing(site)
    disk.become(State.WELL)
    producer.settle_all(count)
    assert len(records(site.sidecar.folder / "audit")) >= count


@pytest.mark.parametrize("fault", FAULTS)
def test_a_channel_and_a_connection_can_be_closed_without_their_confirms(
    site: Site, disk: FaultyDisk, fault: State
) -> None:
    producer = site.producer()
    disk.become(fault)
    producer.publish("letters", table={"to": "a"})
    assert site.next("a")
    producer.ask(commands.Channel.Close(200, "", 0, 0))
    producer.open(1, confirm=True)
    producer.publish("letters", table={"to": "a"})
    assert site.next("a")
    producer.close()
    with Producer(site.sidecar.port, site.vhost) as second:
        second.open(confirm=True).publish("nowhere")
        assert second.closed().code == 404
