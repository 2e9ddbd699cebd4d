"""Follows "With your own broker" in README.md."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from tests.docs.place import Place
from tests.producer import until
from tests.rabbitmq import Broker
from tests.sidecar import PROGRAM, pika_channel

ROOT = Path(__file__).resolve().parents[2]
(PART,) = re.findall(r"^## With your own broker$(.*?)^## ", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
(FAILURES,) = re.findall(
    r"^## What happens if something fails$(.*?)^## ", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
)
CONFIGURATION, RULES = re.findall(r"```yaml\n(.*?)```", PART, re.DOTALL)
CHECK, SERVE, PLAN, EXPLAIN = (
    shlex.split(line, comments=True) for line in re.findall(r"^    (oxproxy .*)$", PART, re.MULTILINE)
)
(PRODUCER,) = re.findall(r"```python\n(.*?)```", PART, re.DOTALL)

pytestmark = pytest.mark.broker


@pytest.fixture
def place(tmp_path: Path, broker: Broker, vhost: str) -> Place:
    (tmp_path / "rules").mkdir()
    (tmp_path / "oxproxy.yaml").write_text(CONFIGURATION + "admin: {address: 127.0.0.1:15693}\n")
    (tmp_path / "rules" / "orders.yaml").write_text(RULES)
    return Place(broker, vhost, tmp_path, tmp_path)


@pytest.fixture
def serving(place: Place) -> Iterator[Place]:
    with place.serving(SERVE):
        yield place


def publish(place: Place, amount: object) -> None:
    with pika_channel(place.port, place.vhost) as channel:
        channel.basic_publish("orders", "", b"", pika.BasicProperties(headers={"amount": amount}), mandatory=True)


def taken(place: Place) -> list[int]:
    return place.taken("orders.all", "orders.large")


def test_each_failure_in_the_table_names_a_test_that_exists() -> None:
    rows = re.findall(r"^\| (?!what fails|---)([^|]+) \|.*\[`(test_\w+)`\]\((\S+)\) \|$", FAILURES, re.MULTILINE)
    assert [len(FAILURES.strip().splitlines()[2:8]), len(rows)] == [6, 6]
    for fault, name, file in rows:
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), fault


def test_the_check_accepts_both_files_and_runs_the_test(place: Place) -> None:
    done = place.run(CHECK)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ok: 2 files, 1 exchange, 2 bindings, 1 test;")


def test_the_list_of_declarations_is_that_of_the_page_and_empty_after_a_start(place: Place) -> None:
    command = [place.broker.management.replace("://", "://guest:guest@") if "://" in word else word for word in PLAN]
    shown = re.findall(r"^    (plan: .*)$", PART, re.MULTILINE)

    def listed() -> list[str]:
        done = place.run(command)
        assert (done.returncode, done.stderr) == (0, "")
        return [line.replace(f"vhost {place.vhost}:", "vhost /:") for line in done.stdout.splitlines()[:-1]]

    assert listed() == shown
    with place.serving(SERVE):
        assert listed() == ["plan: nothing to declare or bind"]


def test_messages_are_routed_by_amount_and_changed_rules_are_reloaded(serving: Place) -> None:
    publish(serving, 2000)
    assert taken(serving) == [1, 1]
    publish(serving, "2000")
    assert taken(serving) == [1, 0]
    good = serving.rules.read_text()
    serving.rules.write_text(good.replace("amount >=", "amount >>"))
    until(lambda: "reload failed" in serving.log, 20)
    assert re.search(r"rules/orders\.yaml:8:\d+: exchanges\[0\]\.bindings\[1\]\.when", serving.log)
    publish(serving, 2000)
    assert taken(serving) == [1, 1]
    serving.rules.write_text(good.replace("amount: 2000", "amount: 6000").replace("1000", "5000"))
    until(lambda: "event=reloaded" in serving.log, 20)
    publish(serving, 2000)
    assert taken(serving) == [1, 0]


def test_explain_shows_why_a_message_did_not_arrive(serving: Place) -> None:
    done = serving.run([*EXPLAIN, "--vhost", serving.vhost])  # the sidecar's address comes from the configuration
    assert (done.returncode, done.stderr) == (0, "")
    (promised,) = re.findall(r"it contains\s+`([^`]*)`", PART)
    assert promised in done.stdout
    (typed,) = re.findall(r"`(amount:int=[^`]*)`", PART)
    done = serving.run([*EXPLAIN[:-1], typed, "--vhost", serving.vhost, "--expect", "orders.large"])
    assert done.returncode == 0


def test_the_producer_of_the_page_reaches_both_queues_and_reads_one(serving: Place) -> None:
    taken(serving)
    program, changes = re.subn(r'"amqp://[^"]*"', repr(serving.url), PRODUCER)
    assert changes == 1
    done = subprocess.run([sys.executable, "-c", program], check=True, timeout=60, capture_output=True, text=True)
    (shown,) = re.findall(r"# (b'.*')$", PRODUCER, re.MULTILINE)
    assert done.stdout == f"{shown}\n"
    assert taken(serving) == [1, 0]


def test_the_path_on_the_page_contains_the_command() -> None:
    (line,) = re.findall(r"^    (export PATH=.*)$", PART, re.MULTILINE)
    done = subprocess.run(["bash", "-c", f"{line}; command -v oxproxy"], cwd=ROOT, capture_output=True, check=True)
    assert Path(done.stdout.decode().strip()).samefile(PROGRAM)


def test_a_message_published_in_the_management_ui_is_not_routed(serving: Place) -> None:
    """The UI shows this text if the management API returns `routed: false`."""
    (shown,) = re.findall(r"`(Message published[^`]*)`", PART)
    assert shown == "Message published, but not routed."
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
    assert {binding["destination"] for binding in bindings} == {"orders.all", "orders.large"}
    assert all(binding["routing_key"].startswith("x.o.p.e.n.x.") for binding in bindings)
