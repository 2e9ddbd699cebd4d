"""The address table while another broker is down, slow or back again, and during a drain of the sidecar."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from pamqp import commands

from tests.broker.delivery.distance import SECRET, VHOST, Far
from tests.broker.delivery.site import Site, standing
from tests.private_broker import free_port
from tests.producer import Closed, Producer, until
from tests.rabbitmq import Broker
from tests.tap import Tap

#: How long the other broker is down, and how long a message to `hasty` may wait.
GONE_SECONDS, HASTY_SECONDS = 10.0, 1.0
#: Interval between two messages to a broker, which only limits the rate.
EVERY_SECONDS = 0.02

RULES = """
queues: [a]
brokers:
  patient: {{address: "{address}", username: mover, password: {secret}, vhost: {vhost}, deadline: 90s}}
  hasty: {{address: "{address}", username: mover, password: {secret}, vhost: {vhost}, deadline: {hasty}s}}
  small: {{address: "{address}", username: mover, password: {secret}, vhost: {vhost}, unconfirmed: 10, deadline: 90s}}
  nobody: {{address: "127.0.0.1:{nobody}", deadline: 90s}}
addresses:
  - {{pattern: "patient/*", translation: patient/queue/$1}}
  - {{pattern: "hasty/*", translation: hasty/queue/$1}}
  - {{pattern: "small/*", translation: small/queue/$1}}
  - {{pattern: "nobody/*", translation: nobody/queue/$1}}
"""


def rules(address: str) -> str:
    return RULES.format(
        address=address,
        secret=json.dumps(SECRET),
        vhost=json.dumps(VHOST),
        hasty=HASTY_SECONDS,
        nobody=free_port(),
    )


class Confirms:
    """The confirms of one producer's publishes on channel 1. Fails if a publish is settled twice."""

    def __init__(self, producer: Producer, published: int) -> None:
        self.producer = producer
        self.open = set(range(1, published + 1))
        self.acked: set[int] = set()
        self.nacked: set[int] = set()

    def read(self) -> None:
        """Read one ack or nack."""
        confirm = self.producer.expect("Basic.Ack", "Basic.Nack")
        tag = int(str(confirm.arguments["delivery_tag"]))
        assert tag in self.open
        covered = {open_tag for open_tag in self.open if open_tag <= tag} if confirm.arguments["multiple"] else {tag}
        self.open -= covered
        (self.acked if confirm.name == "Basic.Ack" else self.nacked).update(covered)

    def read_all(self) -> None:
        """Read until every publish is settled."""
        while self.open:
            self.read()

    def read_to_the_end(self) -> Closed:
        """Read until the connection is closed; return the close."""
        try:
            while True:
                self.read()
        except Closed as closed:
            self.producer.call(commands.Connection.CloseOk(), channel=0)
            return closed


class Load:
    """Continuous publishes, where number N is the body of delivery tag N."""

    def __init__(self, site: Site, key: str) -> None:
        self.producer = site.producer()
        self.key = key
        self.count = 0

    def publish(self) -> None:
        self.count += 1
        self.producer.publish("", self.key, body=b"%d" % self.count, delivery_mode=2)

    def confirms(self) -> Confirms:
        return Confirms(self.producer, self.count)


def publish_for(seconds: float, *loads: Load) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for load in loads:
            load.publish()
        time.sleep(EVERY_SECONDS)


def taken(far: Far, queue: str) -> set[int]:
    """Take the messages from a queue of the other broker; return their numbers. Fails on duplicates."""
    numbers = [int(body) for body in far.take(queue)]
    assert len(numbers) == len(set(numbers))
    return set(numbers)


def test_a_broker_that_is_down_for_ten_seconds_under_load_loses_no_acked_message(
    broker: Broker, far: Far, tmp_path: Path
) -> None:
    with standing(broker, tmp_path, rules(f"127.0.0.1:{far.broker.port}")) as site:
        patient, hasty, home = Load(site, "patient/load"), Load(site, "hasty/away"), Load(site, "a")
        publish_for(0.5, patient, hasty, home)
        far.broker.kill()
        publish_for(0.2, patient, hasty, home)
        until(lambda: not site.metric("remote_up", broker="patient") and not site.metric("remote_up", broker="hasty"))
        seen_down = patient.count
        publish_for(GONE_SECONDS - HASTY_SECONDS - 0.5, patient, hasty, home)
        too_early_for_the_hasty = hasty.count
        publish_for(HASTY_SECONDS + 0.5, patient, hasty, home)
        far.broker.start()
        until(lambda: site.metric("remote_up", broker="patient") and site.metric("remote_up", broker="hasty"), 40)
        back = hasty.count
        publish_for(0.5, patient, hasty, home)
        confirms_of = {load: load.confirms() for load in (patient, hasty, home)}
        for confirms in confirms_of.values():
            confirms.read_all()
        # Messages for the sidecar's own broker are not affected.
        assert confirms_of[home].nacked == set()
        # Messages within their deadline were acked when the broker was back. Only those already sent are uncertain.
        assert confirms_of[patient].nacked <= set(range(1, seen_down + 1))
        assert confirms_of[patient].acked <= taken(far, "load")
        # Messages beyond their deadline were nacked, and did not arrive later.
        assert set(range(seen_down + 1, too_early_for_the_hasty + 1)) <= confirms_of[hasty].nacked
        assert set(range(back + 1, hasty.count + 1)) <= confirms_of[hasty].acked
        there = taken(far, "away")
        assert confirms_of[hasty].acked <= there
        assert there.isdisjoint(range(seen_down + 1, too_early_for_the_hasty + 1))


@contextlib.contextmanager
def tapped(broker: Broker, far: Far, folder: Path, deadline: str = "30s") -> Iterator[tuple[Site, Tap]]:
    """A site with a tap in front of the other broker; `deadline` limits the drain of the sidecar."""
    with (
        Tap("127.0.0.1", far.broker.port) as tap,
        standing(broker, folder, rules(tap.address), {"shutdown": {"deadline": deadline}}) as site,
    ):
        yield site, tap


def unconfirmed_load(site: Site, tap: Tap, count: int) -> Load:
    """Publishes that the other broker has received and whose confirms are held back."""
    load = Load(site, "patient/load")
    load.publish()
    assert load.producer.settle().acked
    tap.last.answering.clear()
    for _ in range(count):
        load.publish()
    until(lambda: len(tap.last.named("Basic.Publish")) == load.count)
    return load


def test_a_slow_broker_pauses_only_the_producers_that_use_it(broker: Broker, far: Far, tmp_path: Path) -> None:
    far.take("load")
    with tapped(broker, far, tmp_path) as (site, tap):
        slow, home = Load(site, "small/load"), Load(site, "a")
        slow.publish()
        assert slow.producer.settle().acked
        tap.last.answering.clear()
        for _ in range(200):
            slow.publish()
            # One publish per read, so that the limit of ten unconfirmed messages takes effect after ten of them.
            until(lambda: site.metric("paused_producers") or slow.count <= len(tap.last.named("Basic.Publish")))
        assert site.metric("paused_producers") == 1
        assert len(tap.last.named("Basic.Publish")) < 30
        for _ in range(20):
            home.publish()
            assert home.producer.settle().acked
        tap.last.answering.set()
        confirms = slow.confirms()
        confirms.open.discard(1)
        confirms.read_all()
        assert confirms.acked == taken(far, "load") - {1}
        assert site.metric("paused_producers") == 0


def begin_drain(site: Site) -> None:
    os.kill(site.sidecar.process_id, signal.SIGTERM)
    until(lambda: site.logged("draining"))


def test_a_drain_waits_for_the_confirms_of_the_other_broker(broker: Broker, far: Far, tmp_path: Path) -> None:
    far.take("load")
    with tapped(broker, far, tmp_path) as (site, tap):
        load = unconfirmed_load(site, tap, 50)
        confirms = load.confirms()
        confirms.open.discard(1)
        begin_drain(site)
        assert load.producer.silent()
        tap.last.answering.set()
        assert confirms.read_to_the_end().code == 320
        assert confirms.acked == taken(far, "load") - {1}
        assert len(confirms.acked) == 50
        until(lambda: site.logged("stopped"))


def test_publishes_unconfirmed_by_the_other_broker_at_the_drain_deadline_are_nacked(
    broker: Broker, far: Far, tmp_path: Path
) -> None:
    far.take("load")
    with tapped(broker, far, tmp_path, "1s") as (site, tap):
        load = unconfirmed_load(site, tap, 50)
        waits = Load(site, "nobody/q")
        for _ in range(50):
            waits.publish()
        begin_drain(site)
        for pending, settled_before in ((load, {1}), (waits, set())):
            confirms = pending.confirms()
            confirms.open -= settled_before
            assert confirms.read_to_the_end().code == 320
            assert confirms.acked == set()
            assert len(confirms.nacked) == 50
        tap.last.answering.set()
        until(lambda: site.logged("stopped"))


def test_messages_acked_before_and_during_a_drain_under_load_are_delivered(
    broker: Broker, far: Far, tmp_path: Path
) -> None:
    far.take("load")
    with tapped(broker, far, tmp_path) as (site, _):
        load = Load(site, "patient/load")
        publish_for(0.3, load)
        begin_drain(site)
        with contextlib.suppress(OSError):
            publish_for(0.1, load)
        confirms = load.confirms()
        assert confirms.read_to_the_end().code == 320
        assert confirms.acked == taken(far, "load")
        assert confirms.nacked == set()
        until(lambda: site.logged("stopped"))
