"""Runs the commands of docs/how-to/night-shift.md in the situation that the page describes, and compares the output."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pika
import pika.exceptions
import pytest

from tests.docs.place import Place, run
from tests.producer import until
from tests.rabbitmq import Broker
from tests.sidecar import pika_channel

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "how-to" / "night-shift.md").read_text()
#: The active rules, and the change to them that is invalid.
ACTIVE, CHANGE = re.findall(r"```(?:yaml|diff)\n(.*?)```", PAGE, re.DOTALL)
#: Each command with the lines that it prints.
STEPS = re.findall(r"^    (oxproxy [^\n]*)\n\n((?:    [^\n]*\n|\n(?=    ))+)", PAGE, re.MULTILINE)
#: What differs between runs, and what replaces it.
VARIABLE = {
    r"\b[0-9a-f]{12}\b": "RULES",
    r"\b20\d\d-\d\d-\d\dT[\d:.]+Z": "TIME",
    r"\b\d\d:\d\d:\d\d\b": "TIME",
    r"127\.0\.0\.1:\d+": "ADDRESS",
    r"oxproxy \d[\w.+]*": "oxproxy VERSION",
    r"RabbitMQ \d+\.\d+\.\d+": "RabbitMQ VERSION",
}


def removed_and_added(change: str) -> tuple[str, str]:
    """Return the line that a change removes, and the line that it adds."""
    lines = {line[0]: line[1:] for line in change.splitlines() if line[:1] in "+-"}
    return lines["-"], lines["+"]


def comparable(text: str) -> list[str]:
    """Return the lines of an output, without what differs between runs."""
    for pattern, name in VARIABLE.items():
        text = re.sub(pattern, name, text)
    return [" ".join(line.split()) for line in text.strip().splitlines()]


def publish_to_a_misspelt_exchange(place: Place) -> None:
    with pika_channel(place.port, place.vhost) as channel:
        channel.confirm_delivery()
        channel.basic_publish("order", "new", b"")


@pytest.fixture
def night(broker: Broker, vhost: str, tmp_path: Path) -> Iterator[Place]:
    """A sidecar in the situation that the page describes."""
    assert run(tmp_path, ["oxproxy", "init", "orders"]).returncode == 0
    files = tmp_path / "orders"
    (files / "rules" / "orders.yaml").write_text(ACTIVE)
    place = Place(broker, vhost, files, files)
    with place.serving(["oxproxy", "serve", "--config", "oxproxy.yaml"]):
        place.run(["oxproxy", "tail"])  # from now on, unroutable publishes are recorded
        with pika_channel(place.port, vhost) as channel:
            for amount in (2000, 3000, "2000"):
                channel.basic_publish("orders", "new", b"", pika.BasicProperties(headers={"amount": amount}))
        with pytest.raises(pika.exceptions.ChannelClosedByBroker):
            publish_to_a_misspelt_exchange(place)
        removed, added = removed_and_added(CHANGE)
        text = place.rules.read_text()
        assert removed in text
        place.rules.write_text(text.replace(removed, added))
        until(lambda: "reload failed" in place.log, 30)
        until(lambda: "missing" in place.run(["oxproxy", "status"]).stdout, 30)
        yield place


@pytest.mark.broker
def test_each_command_prints_what_the_page_shows(night: Place) -> None:
    assert len(STEPS) == 6
    for command, expected in STEPS:
        done = night.run(shlex.split(command))
        printed = (done.stdout + done.stderr).replace(night.vhost, "/").replace(str(night.directory), "/etc/oxproxy")
        assert comparable(printed) == comparable(expected), command


def test_runbooks_on_the_page_are_those_of_alerts() -> None:
    linked = set(re.findall(r"\(\.\./runbooks/(\w+)\.md\)", PAGE))
    assert len(linked) > 6
    assert linked <= {path.stem for path in (ROOT / "docs" / "runbooks").glob("*.md")}
