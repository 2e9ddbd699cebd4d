"""The broker connection is lost, or publishes do not settle, while the sidecar serves or drains."""

from __future__ import annotations

import json
import signal

import pika
import pika.exceptions
import pytest

from tests.broker.observed import Outside
from tests.private_broker import free_port
from tests.producer import Closed, Producer, until
from tests.served import END_SECONDS, Connect, Running, Serve
from tests.tap import Tap


def test_a_lost_broker_closes_producers_with_320_and_service_resumes_with_it(
    serve: Serve, connect: Connect, outside: Outside
) -> None:
    broker, port = outside.broker, free_port()
    with Tap(broker.host, broker.port, port):
        running = serve(upstream={"address": f"127.0.0.1:{port}"})
        running.await_ready()
        idle = connect(running)
    lost = idle.closed(channel=0)
    assert (lost.code, lost.text) == (320, "CONNECTION_FORCED - upstream connection lost")
    with pytest.raises(Closed) as caught:
        Producer(running.port, outside.vhost)
    assert (caught.value.code, "upstream unavailable" in caught.value.text) == (320, True)
    # docs/runbooks/OxproxyUpstreamUnavailable.md describes this error, which pika calls an authentication error.
    refused = r"\(320\) 'CONNECTION_FORCED - upstream unavailable: .*'"
    with pytest.raises(pika.exceptions.ProbableAuthenticationError, match=refused):
        pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", running.port, outside.vhost))
    assert running.get("/livez")[0] == 200
    until(lambda: "degraded: " in running.get("/readyz")[1])
    assert running.get("/readyz")[0] == 200
    with Tap(broker.host, broker.port, port), Producer(running.port, outside.vhost).open(confirm=True) as producer:
        assert producer.send_settled("letters", "k") == (True, [])
        until(lambda: "degraded: " not in running.get("/readyz")[1])


def test_unsettled_publishes_settle_then_320_then_exit_0(
    serve: Serve, connect: Connect, outside: Outside, tap: Tap
) -> None:
    running = serve(upstream={"address": tap.address})
    running.await_ready()
    idle = connect(running)
    producer = connect(running).open(confirm=True)
    tap.last.reading.clear()
    producer.publish("letters", "k", None, b"last words")
    until(lambda: tap.last.named("Body"))
    running.process.send_signal(signal.SIGTERM)
    until(lambda: running.get("/readyz") == (503, "not ready\ndraining\n"))
    assert running.get("/livez")[0] == 200
    assert "oxproxy_confirms_total" in running.get("/metrics")[1]
    assert json.loads(running.get("/status")[1])["not_ready"] == ["draining"]
    until(lambda: not running.listens())
    assert producer.silent()
    tap.last.reading.set()
    assert producer.settle() == (True, [])
    for peer in (producer, idle):
        close = peer.closed(channel=0)
        assert (close.code, close.text) == (320, "CONNECTION_FORCED - the proxy is shutting down")
        assert peer.gone()
    assert running.process.wait(END_SECONDS) == 0
    with Producer(outside.broker.port, outside.vhost).open() as direct:
        assert [message.body for message in direct.take("a")] == [b"last words"]


def signalled(serve: Serve, connect: Connect, tap: Tap, **settings: object) -> tuple[Running, Producer]:
    """A sidecar that gets SIGTERM while a publish is not settled, and its producer."""
    running = serve(upstream={"address": tap.address}, **settings)
    running.await_ready()
    producer = connect(running).open(confirm=True)
    tap.last.reading.clear()
    producer.publish("letters", "k")
    until(lambda: tap.last.named("Body"))
    running.process.send_signal(signal.SIGTERM)
    return running, producer


def test_unsettled_publishes_delay_the_exit_until_the_deadline_only(serve: Serve, connect: Connect, tap: Tap) -> None:
    running, producer = signalled(serve, connect, tap, shutdown={"deadline": "200ms"})
    assert producer.closed(channel=0).code == 320
    assert producer.gone()
    tap.last.cut()
    assert running.process.wait(END_SECONDS) == 0
    assert "publishes not confirmed in time" in running.log.read_text()


def test_a_second_signal_ends_it_at_once(serve: Serve, connect: Connect, tap: Tap) -> None:
    running, _ = signalled(serve, connect, tap, shutdown={"deadline": "60s"})
    running.await_log("event=draining")

    def ended() -> bool:
        """Send a signal again; within the first second, it counts as the first signal."""
        running.process.send_signal(signal.SIGTERM)
        return running.process.poll() is not None

    until(ended, every=0.2)
    assert running.process.returncode == -signal.SIGTERM
