"""Follows the tutorial with a real broker. Only addresses, login and virtual host are replaced."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.place import Place, run
from tests.producer import until
from tests.rabbitmq import Broker

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


def without_comments(text: str) -> str:
    lines = [re.sub(r"\s+#.*$|^#.*$", "", line) for line in text.splitlines()]
    return "\n".join(line for line in lines if line) + "\n"


@pytest.fixture(scope="module")
def reader(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The directory and the running sidecar after step 3."""
    directory = tmp_path_factory.mktemp("tutorial")
    vhost = "tutorial"
    broker.create_vhost(vhost)
    assert run(directory, INIT).returncode == 0
    files = directory / "orders"
    assert without_comments((files / "rules" / "orders.yaml").read_text()) == RULES
    reader = Place(broker, vhost, directory, files)
    with reader.serving(SERVE):
        yield reader
    broker.delete_vhost(vhost)


def producer(reader: Place, program: str) -> str:
    """Return a producer program of the page in which the address is that of this sidecar."""
    changed = program.replace(PRODUCER_ADDRESS, reader.url)
    assert changed != program
    return changed


def test_the_check_finds_the_files_valid(reader: Place) -> None:
    done = reader.run(CHECK)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_python_producer_publishes_a_message_that_arrives(reader: Place) -> None:
    done = subprocess.run(
        [sys.executable, "-c", producer(reader, PYTHON)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "confirmed\n")
    assert reader.taken("orders.large") == [1]


def test_the_java_producer_publishes_a_message_that_arrives(reader: Place) -> None:
    (reader.directory / "Producer.java").write_text(producer(reader, JAVA))
    done = subprocess.run(
        shlex.split(JAVA_COMMAND), cwd=reader.directory, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "confirmed\n"), done.stderr
    assert reader.taken("orders.large") == [1]


def test_the_commands_show_where_the_message_goes_and_why(reader: Place) -> None:
    routes = reader.run(ROUTES)
    assert (routes.returncode, "orders.large" in routes.stdout, "large orders" in routes.stdout) == (0, True, True)
    explained = reader.run([*EXPLAIN, "--vhost", reader.vhost])
    assert (explained.returncode, "large orders" in explained.stdout) == (0, True)
    (promised,) = re.findall(r"contains `(mismatch[^`]*)`", PAGE)
    assert promised in reader.run([*EXPLAIN_STRING, "--vhost", reader.vhost]).stdout


def test_a_changed_rule_is_reloaded_and_an_invalid_one_is_refused(reader: Place) -> None:
    valid = reader.rules.read_text()
    reader.rules.write_text(valid.replace("1000", "5000").replace("2500", "6000"))
    until(lambda: "event=reloaded" in reader.log, 20)
    reader.rules.write_text(valid.replace("amount >=", "amount >>"))
    until(lambda: "reload failed" in reader.log, 20)
    assert re.search(r"rules/orders\.yaml:\d+:\d+: ", reader.log)
