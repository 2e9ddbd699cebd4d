"""Demonstrates routing with an ordinary producer and consumers, a real sidecar and a real broker.

``make demo`` runs it. It starts a private RabbitMQ, or uses a separate virtual host on the RabbitMQ that RABBITMQ_URL
names, and runs ``oxproxy serve`` with the sample rules. The tests in the rules file define the messages, which pika
publishes with confirms, and the expected results. At the end, Spark creates the report on the audit log. Configuration,
logs, metrics and report remain in build/demo. With KEEP=1 in the environment (``make demo KEEP=1``), the broker and the
sidecar then run until Ctrl-C. Exit status: 0 if all results are as expected, 1 if some are not, 2 if there is no broker
or RABBITMQ_URL is invalid.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pika
import yaml
from pika.exceptions import ChannelClosedByBroker, NackError, UnroutableError

from tests.private_broker import BrokerFailed, BrokerMissing, PrivateBroker, some_broker
from tests.rabbitmq import URL_VARIABLE, Broker
from tests.sidecar import PROGRAM, Sidecar, SidecarFailed

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "config" / "rules" / "documents.yaml"
OUTPUT = ROOT / "build" / "demo"
AUDIT, REPORT = OUTPUT / "audit", OUTPUT / "report"
#: Options for all Java programs, including the small one that starts Spark.
QUICK_JAVA = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}

#: Metrics that a few messages change.
SHOWN_METRICS = ("publishes_total", "binding_matches_total", "destination_publishes_total", "returns_total")

#: Environment variable that keeps the broker and the sidecar running at the end.
KEEP = "KEEP"

#: Seconds within which the consumers must have received all confirmed messages.
DELIVERY_SECONDS = 10.0

CONFIRMED, RETURNED, REFUSED = "confirmed", "returned", "refused"


@dataclass
class Message:
    """One message from the tests in the rules file, with the expected and the actual result.

    Args:
        name: description of the message.
        publish: exchange, routing_key, headers, properties and body_size.
        outcome: expected result for the producer: confirmed, returned or refused.
        queues: expected destination queues.
        error: expected text of the refusal.
    """

    name: str
    publish: dict[str, Any]  # Any: as in the YAML file
    outcome: str
    queues: list[str]
    error: str
    seen_outcome: str = ""
    seen_text: str = ""
    seen_queues: list[str] = field(default_factory=list)
    reason: str = ""
    explained: bool = False

    @property
    def right(self) -> bool:
        """True if the result is as expected."""
        same_queues = sorted(self.seen_queues) == sorted(self.queues)
        return same_queues and self.seen_outcome == self.outcome and self.error in self.seen_text and self.explained

    @property
    def facts(self) -> str:
        """The message's facts that rules can test, on one line."""
        publish = self.publish
        facts = {"key": publish.get("routing_key", ""), **publish.get("headers", {}), **publish.get("properties", {})}
        if "body_size" in publish:
            facts["size"] = publish["body_size"]
        return ", ".join(f"{name} {value}" for name, value in facts.items() if value != "")


def sample(rules: Path) -> list[Message]:
    """Return the messages of the tests in a rules file."""
    messages = []
    for test in yaml.safe_load(rules.read_text())["tests"]:
        expect = test["expect"]
        outcome = REFUSED if "error" in expect else CONFIRMED if "queues" in expect else RETURNED
        messages.append(
            Message(test["name"], test["publish"], outcome, expect.get("queues", []), expect.get("error", ""))
        )
    return messages


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

    def _receiver(self, queue: str) -> Any:  # pika has no types
        def receive(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            self._messages[int(properties.message_id)].seen_queues.append(queue)

        return receive

    def finish(self) -> None:
        """Receive all confirmed messages, then cancel the consumers. Unexpected messages are also received."""
        deadline = time.monotonic() + DELIVERY_SECONDS
        while time.monotonic() < deadline and any(
            len(message.seen_queues) < len(message.queues) for message in self._messages
        ):
            for connection in self._connections:
                connection.process_data_events(time_limit=0.01)
        for connection, channel in zip(self._connections, self._channels, strict=True):
            for tag in list(channel.consumer_tags):
                channel.basic_cancel(tag)
            connection.process_data_events(time_limit=0)

    def close(self) -> None:
        for connection in self._connections:
            if connection.is_open:
                connection.close()


def send(parameters: pika.URLParameters, messages: list[Message]) -> None:
    """Publish each message with a confirm, and record the result for the producer."""
    connection = pika.BlockingConnection(parameters)
    for number, message in enumerate(messages):
        channel = connection.channel()
        channel.confirm_delivery()
        publish = message.publish
        properties = pika.BasicProperties(
            headers=publish.get("headers"), message_id=str(number), **publish.get("properties", {})
        )
        body = b"x" * publish.get("body_size", 0)
        try:
            channel.basic_publish(publish["exchange"], publish.get("routing_key", ""), body, properties, mandatory=True)
            message.seen_outcome = CONFIRMED
        except UnroutableError as error:
            method = error.messages[0].method
            message.seen_outcome, message.seen_text = RETURNED, f"{method.reply_code} {method.reply_text}"
        except NackError:
            message.seen_outcome = "nacked"
        except ChannelClosedByBroker as error:
            message.seen_outcome, message.seen_text = REFUSED, f"{error.reply_code} {error.reply_text}"
    connection.close()


def explain(rules: Path, number: int, message: Message) -> None:
    """Record the reasons for the destinations of a message, as reported by ``oxproxy explain``."""
    described = OUTPUT / f"message-{number}.json"
    described.write_text(json.dumps(message.publish) + "\n")
    command = [str(PROGRAM), "explain", "--json", "--rules", str(rules), "--message", str(described)]
    for queue in message.queues:
        command += ["--expect", queue]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    message.explained = done.returncode == 0
    message.reason = (
        ("\n" + " " * 11).join(reasons(json.loads(done.stdout))) if message.explained else done.stderr.strip()
    )


def reasons(explanation: dict[str, Any]) -> Iterator[str]:
    """Return the short form of an explanation: violated filters, and bindings that matched."""
    breaches = [step for walk in explanation["walk"] for step in walk["filters"] if step["breach"]]
    taken = [step for walk in explanation["walk"] for step in walk["bindings"] if step["result"]]
    for step in breaches:
        yield f"the filter {step['filter']}"
    for step in taken:
        matches = [operator for operator in step["operators"] if operator["verdict"] == "match"]
        conditions = ", ".join(f"{operator['operator']}: {operator['expected']}" for operator in matches)
        yield f'binding "{step["binding"]}" ({conditions})'
    if not breaches and not taken:
        yield "no binding matches"


def describe(number: int, message: Message) -> str:
    """Return a readable description of a message, its result and the reason."""
    lines = [
        f"{number}. {message.name}",
        f"   sent    {message.facts}",
        f"   result  {message.seen_outcome} {message.seen_text}".rstrip(),
        f"   queues  {', '.join(sorted(message.seen_queues)) or 'none'}",
        f"   why     {message.reason}",
    ]
    if not message.right:
        lines.append(f"   WRONG   expected {message.outcome} {message.error} {', '.join(message.queues)}")
    return "\n".join(lines)


@contextlib.contextmanager
def virtual_host(broker: Broker) -> Iterator[str]:
    """Yield ``/`` on a private broker, or a temporary virtual host on a given broker, which is deleted afterwards."""
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
    """Return the sample rules or, for a virtual host other than ``/``, a copy that names the virtual host."""
    if vhost == "/":
        return RULES
    copy = OUTPUT / RULES.name
    copy.write_text(re.sub(r"(?m)^vhost:.*$", f"vhost: {vhost}", RULES.read_text()))
    return copy


def demonstrate(broker: Broker, vhost: str) -> bool:
    """Publish the messages, print the results, and return whether they are as the rules file expects."""
    rules = rules_for(vhost)
    messages = sample(rules)
    version = broker.api("GET", "overview")["rabbitmq_version"]
    kind = "private" if isinstance(broker, PrivateBroker) else f"given by {URL_VARIABLE}"
    print(f"broker   RabbitMQ {version} on {broker.address}, {kind}, without any plugin for routing", flush=True)
    AUDIT.mkdir()
    sidecar = Sidecar(broker, [rules], {"audit": {"directory": str(AUDIT), "instance": "demo"}}, folder=OUTPUT)
    with sidecar:
        print(f"sidecar  oxproxy on {sidecar.address} in front of it, rules from {shown(rules)}", flush=True)
        exchange_traffic(Broker("127.0.0.1", sidecar.port, "", broker.username, broker.password), vhost, messages)
        for number, message in enumerate(messages, 1):
            explain(rules, number, message)
        metrics = sidecar.get("/metrics")
        (OUTPUT / "metrics.txt").write_text(metrics)
        ended_well = sidecar.stop()
    print(
        "\nA pika producer publishes with confirms, and a pika consumer reads each queue, both through the sidecar:\n"
    )
    print("\n".join(describe(number, message) for number, message in enumerate(messages, 1)))
    print(f"\nFrom {sidecar.admin}/metrics, saved in {shown(OUTPUT / 'metrics.txt')}:\n")
    print(textwrap.indent("\n".join(changed_counters(metrics)), "   "))
    print(f"\nLog {shown(sidecar.log)}, settings {shown(sidecar.configuration)}. Each step of a decision:")
    print(f"\n   .venv/bin/oxproxy explain --rules {shown(rules)} --message {shown(OUTPUT)}/message-4.json")
    if not ended_well:
        print("WRONG: the exit status of the sidecar after SIGTERM was not 0")
    reported = report(rules, len(messages))
    if os.environ.get(KEEP):
        keep(broker, vhost, sidecar)
    return ended_well and reported and all(message.right for message in messages)


def keep(broker: Broker, vhost: str, sidecar: Sidecar) -> None:
    """Run the sidecar again until Ctrl-C or SIGTERM, and print how to use it."""
    with interrupted() as end, sidecar:
        producer = Broker("127.0.0.1", sidecar.port, "", broker.username, broker.password)
        print(f"\n{KEEP}=1: broker and sidecar run until Ctrl-C. From another terminal:\n")
        print(f"   producers     {producer.url(vhost)}")
        print(f"   consumers     {broker.url(vhost)}, or the same as producers")
        print(f"   management    {broker.management}, user {broker.username}")
        print(f"   console       {sidecar.admin}/")
        print(f"\n   .venv/bin/oxproxy status --admin {sidecar.admin}", flush=True)
        end.wait()


@contextlib.contextmanager
def interrupted() -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set while the context is active."""
    event = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: event.set()) for number in numbers]
    try:
        yield event
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def report(rules: Path, publishes: int) -> bool:
    """Create the report on the audit log, print its summary, and return whether it contains every publish."""
    print(
        f"\nThe audit log in {shown(AUDIT)} has a record of each publish. Spark creates a report from the records:\n",
        flush=True,
    )
    command = [str(PROGRAM), "report", "--input", str(AUDIT), "--output", str(REPORT), "--rules", str(rules)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **QUICK_JAVA})
    print(textwrap.indent(done.stdout.replace(f"file:{ROOT}/", "").rstrip(), "   "))
    if done.returncode or not done.stdout.startswith(f"{publishes} publishes "):
        print(f"WRONG: expected a report of {publishes} publishes\n{done.stderr}")
        return False
    print(f"\nOpen {shown(REPORT / 'report.html')} in a browser; the tables next to it are Parquet.")
    return True


def exchange_traffic(address: Broker, vhost: str, messages: list[Message]) -> None:
    """Publish and consume all messages through the sidecar."""
    parameters = pika.URLParameters(address.url(vhost))
    queues = sorted({queue for message in messages for queue in message.queues})
    consumers = Consumers(parameters, queues, messages)
    try:
        send(parameters, messages)
        consumers.finish()
    finally:
        consumers.close()


def changed_counters(metrics: str) -> list[str]:
    """Return the lines of ``/metrics`` that the traffic has changed."""
    names = "|".join(SHOWN_METRICS)
    return [line for line in metrics.splitlines() if re.match(rf"oxproxy_(?:{names})\b.* (?!0\.0$)", line)]


def shown(path: Path) -> str:
    """Return ``path`` relative to the project's directory."""
    return path.relative_to(ROOT).as_posix()


def main() -> int:
    """Run the demo and print whether the results are as expected."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(parents=True)
    try:
        with some_broker() as broker, virtual_host(broker) as vhost:
            well = demonstrate(broker, vhost)
    except (BrokerMissing, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    except (BrokerFailed, SidecarFailed) as error:
        print(error, file=sys.stderr)
        return 1
    print("\nAll results are as expected. Nothing is left running." if well else "\nNot as expected: see WRONG.")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
