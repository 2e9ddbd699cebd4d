"""README, "With your own broker", followed by somebody who has read nothing else: each step does what it says."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pika
import pytest

from tests.private_broker import free_port
from tests.producer import until
from tests.rabbitmq import Broker
from tests.sidecar import DRAIN_SECONDS, PROGRAM, READY_SECONDS
from tests.watched import Watched

ROOT = Path(__file__).resolve().parents[2]
(PART,) = re.findall(r"^## With your own broker$(.*?)^## ", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
CONFIGURATION, RULES = re.findall(r"```yaml\n(.*?)```", PART, re.DOTALL)
CHECK, SERVE, EXPLAIN = (
    shlex.split(line, comments=True) for line in re.findall(r"^    (oxproxy .*)$", PART, re.MULTILINE)
)
(PRODUCER,) = re.findall(r"```python\n(.*?)```", PART, re.DOTALL)

pytestmark = pytest.mark.broker


class Place(NamedTuple):
    """A folder made as README says, but for addresses and virtual host."""

    folder: Path
    port: int
    admin: str
    vhost: str
    broker: Broker

    @property
    def rules(self) -> Path:
        return self.folder / "rules" / "orders.yaml"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def publish(self, amount: object) -> None:
        address = Broker("127.0.0.1", self.port, "").url(self.vhost)
        with pika.BlockingConnection(pika.URLParameters(address)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish("orders", "", b"", pika.BasicProperties(headers={"amount": amount}), mandatory=True)

    def taken(self) -> list[int]:
        """Empty both queues; how many messages were in each."""
        with pika.BlockingConnection(pika.URLParameters(self.broker.url(self.vhost))) as connection:
            channel = connection.channel()
            return [channel.queue_purge(queue).method.message_count for queue in ("orders.all", "orders.big")]


def run(place: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(PROGRAM), *command[1:]], cwd=place, capture_output=True, text=True, check=False)


@pytest.fixture
def place(tmp_path: Path, broker: Broker, vhost: str) -> Place:
    port = free_port()
    admin = f"127.0.0.1:{free_port(port)}"
    text = CONFIGURATION.replace("127.0.0.1:5673", f"127.0.0.1:{port}").replace("127.0.0.1:5672", broker.address)
    text = text.replace("http://127.0.0.1:15672", broker.management)
    text = text.replace("username: guest, password: guest", f"username: {broker.username}, password: {broker.password}")
    (tmp_path / "oxproxy.yaml").write_text(f"{text}admin: {{address: {admin}}}\n")
    (tmp_path / "rules").mkdir()
    made = Place(tmp_path, port, admin, vhost, broker)
    made.rules.write_text(RULES.replace("vhost: /", f"vhost: {vhost}"))
    return made


@pytest.fixture
def serving(place: Place) -> Iterator[Place]:
    command = [str(PROGRAM), *SERVE[1:-1], str(place.folder / SERVE[-1])]
    process = Watched(place.folder, [command], os.environ, place.folder / "log", DRAIN_SECONDS)
    try:
        until(lambda: ready(place), READY_SECONDS)
        yield place
    finally:
        process.end(keep=True)


def ready(place: Place) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{place.admin}/readyz", timeout=10) as answer:
        return bool(answer.status == 200)
    return False


def test_the_check_finds_both_files_good_and_runs_the_test(place: Place) -> None:
    done = run(place.folder, *CHECK)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ok: 2 files, 1 exchange, 2 bindings, 1 test;")


def test_a_producer_s_message_goes_where_its_amount_says_and_a_changed_rule_holds_at_once(serving: Place) -> None:
    serving.publish(2000)
    assert serving.taken() == [1, 1]
    serving.publish("2000")
    assert serving.taken() == [1, 0]
    good = serving.rules.read_text()
    serving.rules.write_text(good.replace("x-?hkv>=", "x-?hkw>="))
    until(lambda: "reload failed" in serving.log, 20)
    assert re.search(r"rules/orders\.yaml:8:\d+: exchanges\[0\]\.bindings\[1\]\.arguments", serving.log)
    serving.publish(2000)
    assert serving.taken() == [1, 1]
    serving.rules.write_text(good.replace("amount: 2000", "amount: 6000").replace("1000", "5000"))
    until(lambda: "event=reloaded" in serving.log, 20)
    serving.publish(2000)
    assert serving.taken() == [1, 0]


def test_the_running_sidecar_says_why_a_message_did_not_arrive(serving: Place) -> None:
    done = run(serving.folder, *EXPLAIN, "--vhost", serving.vhost)  # it finds the sidecar by the configuration
    assert (done.returncode, done.stderr) == (0, "")
    (promised,) = re.findall(r"here `([^`]*)`", PART)
    assert promised in done.stdout
    (typed,) = re.findall(r"`(amount:int=[^`]*)`", PART)
    done = run(serving.folder, *EXPLAIN[:-1], typed, "--vhost", serving.vhost, "--expect", "orders.big")
    assert done.returncode == 0


def test_the_producer_of_the_page_gets_its_message_into_both_queues(serving: Place) -> None:
    serving.taken()
    url = Broker("127.0.0.1", serving.port, "").url(serving.vhost)
    program, changes = re.subn(r'"amqp://[^"]*"', repr(url), PRODUCER)
    assert changes == 1
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert serving.taken() == [1, 1]


def test_the_path_that_the_page_sets_has_the_command() -> None:
    (line,) = re.findall(r"^    (export PATH=.*)$", PART, re.MULTILINE)
    done = subprocess.run(["bash", "-c", f"{line}; command -v oxproxy"], cwd=ROOT, capture_output=True, check=True)
    assert Path(done.stdout.decode().strip()).samefile(PROGRAM)


def test_a_message_that_the_management_ui_publishes_is_not_routed(serving: Place) -> None:
    """The UI shows this text where the management API answers `routed: false`."""
    (told,) = re.findall(r"`(Message published[^`]*)`", PART)
    assert told == "Message published, but not routed."
    message = {
        "properties": {"headers": {"amount": 2000}},
        "routing_key": "",
        "payload": "",
        "payload_encoding": "string",
    }
    vhost = urllib.parse.quote(serving.vhost, safe="")
    answer = serving.broker.api("POST", f"exchanges/{vhost}/orders/publish", message)
    assert answer == {"routed": False}
    carrier = serving.broker.api("GET", f"exchanges/{vhost}/orders")
    bindings = serving.broker.api("GET", f"exchanges/{vhost}/orders/bindings/source")
    assert carrier["type"] == "direct"
    assert {binding["destination"] for binding in bindings} == {"orders.all", "orders.big"}
    assert all(binding["routing_key"].startswith("x.o.p.e.n.x.") for binding in bindings)
