"""A sidecar with every kind of metric, traffic through it, and a Prometheus that scrapes it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pika
from pika.exceptions import AMQPError, ChannelClosedByBroker, UnroutableError

from oxproxy.observe.exposition import Exposition
from oxproxy.relay.counters import Counters, RemoteCounters
from tests.certificates import Authority
from tests.deploy.prometheus import Prometheus
from tests.private_broker import PrivateBroker, free_port
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar, answering

#: Of this many messages, one is unroutable and one is too large. The first ones are sent immediately.
RARELY = 2000

#: Seconds between two messages. The load is moderate, because other tests run at the same time.
PACE_SECONDS = 0.003

#: Timeout in seconds for the end of the producer.
PATIENCE_SECONDS = 10.0


def message(number: int) -> tuple[str, str, dict[str, object], bytes]:
    """Return exchange, routing key, headers and body of a message for the sample rules."""
    if number % RARELY == 1:
        return "documents", "a.b", {"document.type": "private"}, b"unroutable"
    if number % RARELY == 2:
        return "documents", "a.b", {"document.type": "public"}, b"x" * 1_048_577
    if number % RARELY == 4:
        return "missing", "a.b", {}, b"the broker closes the channel"
    if number % 10 == 3:
        return "", "documents.log", {}, b"without rules"
    return "documents", f"a.{number % 7}", {"document.type": ("public", "general")[number % 2]}, b"x" * (number % 500)


@contextlib.contextmanager
def traffic(address: str, unwanted: bool = False) -> Iterator[None]:
    """Publish to the sidecar in a thread while the context is active.

    Args:
        address: ``host:port``.
        unwanted: publish only messages that no binding matches.
    """
    over = threading.Event()
    faults: list[Exception] = []

    def publish() -> None:
        try:
            _publish_until(over, address, unwanted)
        except (AMQPError, OSError) as error:
            faults.append(error)

    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(PATIENCE_SECONDS)
    assert not faults, faults


def _publish_until(over: threading.Event, address: str, unwanted: bool) -> None:
    host, port = address.rsplit(":", 1)
    number = 0
    with pika.BlockingConnection(pika.URLParameters(Broker(host, int(port), "").url())) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        while not over.wait(PACE_SECONDS):
            number += 1
            exchange, key, headers, body = message(1 if unwanted else number)
            properties = pika.BasicProperties(headers=headers)
            try:
                channel.basic_publish(exchange, key, body, properties, mandatory=True)
            except UnroutableError:
                pass  # expected for some messages
            except ChannelClosedByBroker:
                channel = connection.channel()
                channel.confirm_delivery()


def complete_sidecar(broker: Broker, rules: Path, folder: Path) -> Sidecar:
    """Return a sidecar with an audit log and a TLS listener, not yet started."""
    certificate, key = Authority(folder / "tls").certificate("localhost", days=60)
    audit = folder / "audit"
    audit.mkdir()
    settings: dict[str, object] = {"audit": {"directory": str(audit)}}
    sidecar = Sidecar(broker, [rules], settings)
    secure = f"127.0.0.1:{free_port()}"
    tls = {"certificate": str(certificate), "key": str(key)}
    settings["listen"] = [{"address": sidecar.address}, {"address": secure, "tls": tls}]
    return sidecar


@contextlib.contextmanager
def page_with_other_brokers() -> Iterator[str]:
    """Serve the metrics of a sidecar with an exchange contract and another broker, and yield the server's address."""
    counters = Counters()
    counters.traffic.name(counters.traffic.labels((), (), (), [("/", b"orders")]))
    counters.remotes["archive"] = RemoteCounters(links=1, wanted=1)
    counters.remotes["archive"].results["acked"] = 10
    page, kind = asyncio.run(Exposition(counters).render())
    with answering(lambda *_: (200, kind, page)) as port:
        yield f"127.0.0.1:{port}"


class Scraped(NamedTuple):
    """A broker, a sidecar that is not started yet, and a Prometheus that scrapes both."""

    broker: PrivateBroker
    sidecar: Sidecar
    prometheus: Prometheus


@contextlib.contextmanager
def scraped(rules: Path, folder: Path) -> Iterator[Scraped]:
    """Run a broker and a Prometheus for a sidecar with these rules; ``folder`` is for its audit log and certificate."""
    numbers = free_port()
    lines = (f"prometheus.tcp.port = {numbers}", "prometheus.tcp.ip = 127.0.0.1")
    with PrivateBroker(lines, ("rabbitmq_prometheus",)) as broker, page_with_other_brokers() as more:
        sidecar = complete_sidecar(broker, rules, folder)
        targets = {
            "oxproxy": sidecar.admin.removeprefix("http://"),
            "oxproxy-more": more,
            "rabbitmq": f"127.0.0.1:{numbers}",
        }
        with Prometheus({name: [target] for name, target in targets.items()}) as prometheus:
            yield Scraped(broker, sidecar, prometheus)
