"""Traffic of every kind through a sidecar, for as long as somebody looks at what it does to the metrics."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pika
from pika.exceptions import AMQPError, ChannelClosedByBroker, UnroutableError

from tests.rabbitmq import Broker

#: Of so many messages one is of a kind that should be rare; the first of them comes at once.
RARELY = 2000

#: Seconds between two messages: a load that leaves the machine time for others.
PACE_SECONDS = 0.003

#: Seconds that the producer takes to notice that it is to end.
PATIENCE_SECONDS = 10.0


def message(number: int) -> tuple[str, str, dict[str, object], bytes]:
    """Return exchange, routing key, headers and body of a message that the sample rules know what to do with."""
    if number % RARELY == 1:
        return "documents", "a.b", {"document.type": "private"}, b"nobody wants it"
    if number % RARELY == 2:
        return "documents", "a.b", {"document.type": "public"}, b"x" * 1_048_577
    if number % 10 == 3:
        return "", "documents.log", {}, b"past the rules"
    return "documents", f"a.{number % 7}", {"document.type": ("public", "general")[number % 2]}, b"x" * (number % 500)


@contextlib.contextmanager
def traffic(address: str, unwanted: bool = False) -> Iterator[None]:
    """Publish to the sidecar at ``address`` in a thread until the context ends.

    Args:
        address: ``host:port``.
        unwanted: publish only messages that no binding takes.
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
                pass  # it came back, as it should
            except ChannelClosedByBroker:
                channel = connection.channel()
                channel.confirm_delivery()
