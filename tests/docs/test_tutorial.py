"""The tutorial, followed step by step against a real broker; only addresses, login and virtual host are replaced."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
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

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "first-message.md").read_text()
(RULES,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
(PYTHON,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(JAVA,) = re.findall(r"```java\n(.*?)```", PAGE, re.DOTALL)
(JAVA_COMMAND,) = re.findall(r"^    (java .*)$", PAGE, re.MULTILINE)
COMMANDS = [shlex.split(line) for line in re.findall(r"^    (oxproxy .*)$", PAGE, re.MULTILINE)]
INIT, CHECK, SERVE, ROUTES, EXPLAIN, EXPLAIN_STRING = COMMANDS
#: The address to which the producers of the page connect.
PRODUCER_ADDRESS = "amqp://guest:guest@127.0.0.1:5673/%2F"

pytestmark = pytest.mark.broker


class Reader(NamedTuple):
    """What a reader has after step 3: a directory and a running sidecar."""

    directory: Path
    broker: Broker
    vhost: str
    port: int

    @property
    def rules(self) -> Path:
        return self.directory / "orders" / "rules" / "orders.yaml"

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(PROGRAM), *command[1:]], cwd=self.directory, capture_output=True, text=True, check=False
        )

    def received(self) -> int:
        """Empty the queue of the page; return how many messages were in it."""
        with pika.BlockingConnection(pika.URLParameters(self.broker.url(self.vhost))) as connection:
            count: int = connection.channel().queue_purge("orders.large").method.message_count
            return count

    def producer(self, program: str) -> str:
        """Return a producer of the page with the address of this sidecar."""
        changed = program.replace(PRODUCER_ADDRESS, Broker("127.0.0.1", self.port, "").url(self.vhost))
        assert changed != program
        return changed


def without_comments(text: str) -> str:
    lines = [re.sub(r"\s+#.*$|^#.*$", "", line) for line in text.splitlines()]
    return "\n".join(line for line in lines if line) + "\n"


@pytest.fixture(scope="module")
def reader(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    directory = tmp_path_factory.mktemp("tutorial")
    vhost = "tutorial"
    broker.create_vhost(vhost)
    port = free_port()
    reader = Reader(directory, broker, vhost, port)
    assert reader.run(INIT).returncode == 0
    assert without_comments(reader.rules.read_text()) == RULES
    configuration = directory / "orders" / "oxproxy.yaml"
    replaced = {
        "127.0.0.1:5673": f"127.0.0.1:{port}",
        "127.0.0.1:5672": broker.address,
        "http://127.0.0.1:15672": broker.management,
        "username: guest": f"username: {broker.username}",
        "password: guest": f"password: {broker.password}",
        "127.0.0.1:15693": f"127.0.0.1:{free_port(port)}",
    }
    text = configuration.read_text()
    for written, here in replaced.items():
        assert written in text
        text = text.replace(written, here)
    configuration.write_text(text)
    admin = replaced["127.0.0.1:15693"]
    reader.rules.write_text(reader.rules.read_text().replace("vhost: /", f"vhost: {vhost}"))
    command = [str(PROGRAM), *SERVE[1:-1], str(directory / SERVE[-1])]
    process = Watched(directory, [command], os.environ, directory / "log", DRAIN_SECONDS)
    try:
        until(lambda: ready(admin), READY_SECONDS)
        yield reader
    finally:
        process.end(keep=True)
        broker.delete_vhost(vhost)


def ready(admin: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{admin}/readyz", timeout=10) as answer:
        return bool(answer.status == 200)
    return False


def test_the_check_finds_the_files_valid(reader: Reader) -> None:
    done = reader.run(CHECK)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_python_producer_publishes_a_message_that_arrives(reader: Reader) -> None:
    done = subprocess.run(
        [sys.executable, "-c", reader.producer(PYTHON)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "confirmed\n")
    assert reader.received() == 1


def test_the_java_producer_publishes_a_message_that_arrives(reader: Reader) -> None:
    (reader.directory / "Producer.java").write_text(reader.producer(JAVA))
    done = subprocess.run(
        shlex.split(JAVA_COMMAND), cwd=reader.directory, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "confirmed\n"), done.stderr
    assert reader.received() == 1


def test_the_commands_show_where_the_message_goes_and_why(reader: Reader) -> None:
    routes = reader.run(ROUTES)
    assert (routes.returncode, "orders.large" in routes.stdout, "large orders" in routes.stdout) == (0, True, True)
    explained = reader.run([*EXPLAIN, "--vhost", reader.vhost])
    assert (explained.returncode, "large orders" in explained.stdout) == (0, True)
    (promised,) = re.findall(r"contains `(mismatch[^`]*)`", PAGE)
    assert promised in reader.run([*EXPLAIN_STRING, "--vhost", reader.vhost]).stdout


def test_a_changed_rule_is_reloaded_and_an_invalid_one_is_refused(reader: Reader) -> None:
    valid = reader.rules.read_text()
    reader.rules.write_text(valid.replace("1000", "5000").replace("2500", "6000"))
    until(lambda: "event=reloaded" in reader.log, 20)
    reader.rules.write_text(valid.replace("x-?hkv>=", "x-?hkw>="))
    until(lambda: "reload failed" in reader.log, 20)
    assert re.search(r"rules/orders\.yaml:\d+:\d+: ", reader.log)
