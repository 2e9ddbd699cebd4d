"""Who gets what, and why: a producer and consumers that know nothing of us, around a real sidecar and broker.

``make demo`` runs it. It starts a private RabbitMQ (or takes the one that RABBITMQ_URL names, in a virtual host
of its own) and ``oxproxy serve`` with the sample rules, publishes ``traffic.yaml`` by pika with confirms, and
compares what each consumer got with what the file says. Configuration, log, audit and metrics stay in build/demo.
Exit status: 0 as expected, 1 not as expected, 2 nothing to run with.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pika
import yaml
from pika.exceptions import ChannelClosedByBroker, NackError, UnroutableError

from tests.private_broker import BrokerFailed, BrokerMissing, PrivateBroker, some_broker
from tests.rabbitmq import Broker
from tests.sidecar import PROGRAM, Sidecar, SidecarFailed

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RULES = ROOT / "config" / "rules" / "documents.yaml"
OUTPUT = ROOT / "build" / "demo"

#: Metrics worth a look after six messages.
SHOWN_METRICS = ("publishes_total", "binding_matches_total", "destination_publishes_total", "returns_total")

#: Seconds until a consumer must have what was confirmed.
DELIVERY_SECONDS = 10


@dataclass
class Message:
    """One message of traffic.yaml and what became of it.

    Args:
        name: what it is, for people.
        publish: exchange, routing_key, headers, properties and body.
        outcome: confirmed, returned or refused.
        queues: where it must arrive.
    """

    name: str
    publish: dict[str, Any]  # as YAML gives it
    outcome: str
    queues: list[str] = field(default_factory=list)
    seen_outcome: str = ""
    seen_queues: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        """Whether what became of it is what the file says."""
        return self.seen_outcome.split()[0] == self.outcome and sorted(self.seen_queues) == sorted(self.queues)

    @property
    def described(self) -> str:
        """The message as ``oxproxy explain`` reads it."""
        facts = {key: value for key, value in self.publish.items() if key != "body"}
        return json.dumps(facts | {"body_size": len(self.publish.get("body", ""))})


class Consumers:
    """One pika connection and consumer for each queue."""

    def __init__(self, parameters: pika.URLParameters, queues: list[str], messages: list[Message]) -> None:
        self._messages = messages
        self._connections: list[Any] = []  # pika has no types
        self._channels: list[Any] = []
        for queue in queues:
            connection = pika.BlockingConnection(parameters)
            self._connections.append(connection)
            channel = connection.channel()
            channel.basic_consume(queue, self._receiver(queue), auto_ack=True)
            self._channels.append(channel)

    def _receiver(self, queue: str) -> Any:
        def receive(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            self._messages[int(properties.message_id)].seen_queues.append(queue)

        return receive

    def finish(self) -> None:
        """Take in what was confirmed; after the cancel nothing else can come, so that a surplus is seen too."""
        for connection, channel in zip(self._connections, self._channels, strict=True):
            for _ in range(DELIVERY_SECONDS * 10):
                if all(len(message.seen_queues) >= len(message.queues) for message in self._messages):
                    break
                connection.process_data_events(time_limit=0.1)
            for tag in list(channel.consumer_tags):
                channel.basic_cancel(tag)
            connection.process_data_events(time_limit=0)

    def close(self) -> None:
        """Close what is open."""
        for connection in self._connections:
            if connection.is_open:
                connection.close()


def send(parameters: pika.URLParameters, messages: list[Message]) -> None:
    """Publish each message with a confirm, and note what the producer was told."""
    connection = pika.BlockingConnection(parameters)
    for number, message in enumerate(messages):
        channel = connection.channel()
        channel.confirm_delivery()
        publish = message.publish
        properties = pika.BasicProperties(
            headers=publish.get("headers"), message_id=str(number), **publish.get("properties", {})
        )
        body = publish.get("body", "").encode()
        try:
            channel.basic_publish(publish["exchange"], publish.get("routing_key", ""), body, properties, mandatory=True)
            message.seen_outcome = "confirmed"
        except UnroutableError as error:
            method = error.messages[0].method
            message.seen_outcome = f"returned {method.reply_code} {method.reply_text}"
        except NackError:
            message.seen_outcome = "nacked"
        except ChannelClosedByBroker as error:
            message.seen_outcome = f"refused {error.reply_code} {error.reply_text}"
    connection.close()


def explain(rules: Path, message: Message) -> str:
    """Return why one message goes where it goes, in the words of ``oxproxy explain``."""
    command = [str(PROGRAM), "explain", "--rules", str(rules), "--message", "-"]
    for queue in message.queues:
        command += ["--expect", queue]
    done = subprocess.run(command, input=message.described, capture_output=True, text=True, check=False)
    if done.returncode:
        message.seen_outcome += f"; explained otherwise ({done.returncode})"
    return (done.stdout + done.stderr).rstrip()


def table(messages: list[Message]) -> str:
    """Return what became of each message, one line each."""
    rows = [("", "message", "key", "what the producer heard", "who got it")]
    for number, message in enumerate(messages, 1):
        got = ", ".join(message.seen_queues) or "nobody"
        mark = "" if message.right else f"   WRONG, expected {message.outcome}: {', '.join(message.queues)}"
        row = (str(number), message.name, message.publish.get("routing_key", ""), message.seen_outcome, got + mark)
        rows.append(row)
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]).rstrip()
        for row in rows
    )


@contextlib.contextmanager
def virtual_host(broker: Broker) -> Iterator[str]:
    """``/`` of a private broker; on a given one a virtual host of our own, deleted afterwards."""
    if isinstance(broker, PrivateBroker):
        yield "/"
        return
    name = f"oxproxy-demo-{secrets.token_hex(4)}"
    broker.create_vhost(name)
    try:
        yield name
    finally:
        broker.delete_vhost(name)


def rules_for(vhost: str) -> Path:
    """Return the sample rules; in another virtual host than ``/`` a copy that names it."""
    if vhost == "/":
        return RULES
    copy = OUTPUT / RULES.name
    copy.write_text(re.sub(r"(?m)^vhost:.*$", f"vhost: {vhost}", RULES.read_text()))
    return copy


def demonstrate(broker: Broker, vhost: str) -> bool:
    """Run the traffic, print what became of it and return whether it is what traffic.yaml says."""
    rules = rules_for(vhost)
    messages = [Message(**entry) for entry in yaml.safe_load((HERE / "traffic.yaml").read_text())]
    queues = sorted({queue for message in messages for queue in message.queues})
    version = broker.api("GET", "overview")["rabbitmq_version"]
    print(f"Broker   RabbitMQ {version} on {broker.address}, untouched: no plugin of ours", flush=True)
    sidecar = Sidecar(broker, [rules], folder=OUTPUT)
    with sidecar:
        print(f"Sidecar  oxproxy on {sidecar.address} in front of it, rules {shown(rules)}\n", flush=True)
        address = Broker("127.0.0.1", sidecar.port, broker.management, broker.username, broker.password)
        parameters = pika.URLParameters(address.url(vhost))
        consumers = Consumers(parameters, queues, messages)
        try:
            send(parameters, messages)
            consumers.finish()
        finally:
            consumers.close()
        reasons = [explain(rules, message) for message in messages]
        print("Who got what (a pika producer with confirms, a pika consumer on each queue):\n")
        print(textwrap.indent(table(messages), "  "))
        print("\nWhy (oxproxy explain):\n")
        for number, reason in enumerate(reasons, 1):
            print(textwrap.indent(f"{number}\n{textwrap.indent(reason, '  ')}", "  "))
        metrics = sidecar.get("/metrics")
        (OUTPUT / "metrics.txt").write_text(metrics)
        print(f"\nMetrics  {sidecar.admin}/metrics while it runs; now in {shown(OUTPUT / 'metrics.txt')}:\n")
        print(textwrap.indent("\n".join(worth_a_look(metrics)), "  "))
    print(f"\nLog      {shown(sidecar.log)}")
    print(f"Audit    {shown(sidecar.audit)}")
    print(f"Settings {shown(sidecar.configuration)}")
    return all(message.right for message in messages)


def worth_a_look(metrics: str) -> list[str]:
    """Return the few lines of ``/metrics`` that six messages have changed."""
    names = "|".join(SHOWN_METRICS)
    return [line for line in metrics.splitlines() if re.match(rf"oxproxy_(?:{names})\b.* (?!0\.0$)", line)]


def shown(path: Path) -> str:
    """Return ``path`` as seen from the project's folder."""
    return path.relative_to(ROOT).as_posix()


def main() -> int:
    """Run the demo and say whether it went as it should."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(parents=True)
    try:
        with some_broker() as broker, virtual_host(broker) as vhost:
            well = demonstrate(broker, vhost)
    except BrokerMissing as error:
        print(error, file=sys.stderr)
        return 2
    except (BrokerFailed, SidecarFailed) as error:
        print(error, file=sys.stderr)
        return 1
    print("\nAll as expected; nothing is left running." if well else "\nNot as expected: see WRONG above.")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
