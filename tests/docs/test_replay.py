"""Follows docs/how-to/replay.md with a real broker."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.place import Place, run
from tests.producer import Producer, headers, until
from tests.rabbitmq import Broker

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "replay.md").read_text()
PARKING, MENDED = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [shlex.split(line) for line in re.findall(r"^    (oxproxy .*)$", PAGE, re.MULTILINE)]
DRY_RUN, EXPLAIN, CHECK, DRY_RUN_NEXT, REPLAY_ONE, REPLAY = COMMANDS

pytestmark = pytest.mark.broker


@pytest.fixture
def reader(broker: Broker, vhost: str, tmp_path: Path) -> Iterator[Place]:
    assert run(tmp_path, ["oxproxy", "init", "orders"]).returncode == 0
    files = tmp_path / "orders"
    (files / "rules" / "orders.yaml").write_text(PARKING)
    reader = Place(broker, vhost, files, files)
    with reader.serving(["oxproxy", "serve", "--config", "oxproxy.yaml"]):
        yield reader


def here(reader: Place, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command in the virtual host of the test."""
    more = ["--vhost", reader.vhost] if "replay" in command else []
    return reader.run([*command, *more])


def rows(output: str) -> list[list[str]]:
    """Return the cells of a table."""
    return [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in output.splitlines()]


def test_parked_messages_are_replayed_after_the_rule_was_corrected(reader: Place) -> None:
    with Producer(reader.port, reader.vhost) as producer:
        producer.open(confirm=True)
        for _ in range(3):
            assert producer.send_settled("orders", "a.b", headers({"amount": 500})).acked

    done = here(reader, DRY_RUN)
    assert done.returncode == 1
    assert ["3", "orders", "a.b", "stays", "it would return to this queue"] in rows(done.stdout)
    done = here(reader, EXPLAIN)
    assert "mismatch  amount >=: 1000, got 500" in done.stdout

    next_rules = MENDED.replace("vhost: /", f"vhost: {reader.vhost}")
    (reader.directory / "next.yaml").write_text(next_rules)
    assert here(reader, CHECK).returncode == 0
    done = here(reader, DRY_RUN_NEXT)
    assert done.returncode == 0
    assert ["3", "orders", "a.b", "would be replayed", "queue orders.small"] in rows(done.stdout)

    (reader.directory / "next.yaml").rename(reader.rules)
    until(lambda: here(reader, DRY_RUN).returncode == 0)
    done = here(reader, REPLAY_ONE)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (
        0,
        "1 message replayed, 0 stay in queue orders.parked, 2 not taken",
    )
    assert here(reader, REPLAY).returncode == 0
    assert reader.taken("orders.small", "orders.parked") == [3, 0]
