"""Measures the time in which a new user has a routed message: ``python -m tests.stranger [DIST]``.

The user has a directory with the files of a release (by default ``dist``, from `make dist`), Python, and a RabbitMQ,
here a private one. The script follows "With your own broker" in README.md in an empty directory: it writes both files,
installs oxproxy with pip, without pip's cache, checks the files, starts the sidecar and runs the producer, which
publishes a message and reads it from its queue. Only addresses and the login are replaced. The package index must be
reachable. The CPU time of a step is the part that does not depend on the network and on other programs.

Exit status: 0 if the message was routed within ``LIMIT_SECONDS``, otherwise 1.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.private_broker import free_port, some_broker
from tests.rabbitmq import Broker
from tests.sidecar import is_ready
from tests.watched import Watched

ROOT = Path(__file__).resolve().parents[1]
#: Limit for everything after the start of the broker.
LIMIT_SECONDS = 60.0


class Failed(Exception):  # noqa: N818 - reads as the fact it states
    """A command of the page failed. The message contains its output."""


class Page:
    """The instructions in README.md, with the addresses and the login of a broker.

    Args:
        broker: the broker.
    """

    def __init__(self, broker: Broker) -> None:
        text = (ROOT / "README.md").read_text()
        part = text[text.index("## With your own broker") :]
        part = part[: part.index("\n## ")]
        listener, admin = free_port(), free_port()
        self.admin = f"127.0.0.1:{admin}"
        replaced = {
            "127.0.0.1:5673": f"127.0.0.1:{listener}",
            "127.0.0.1:5672": broker.address,
            "http://127.0.0.1:15672": broker.management,
            "username: guest, password: guest": f"username: {broker.username}, password: {broker.password}",
            "guest:guest@": f"{broker.username}:{broker.password}@",
        }
        for written, replacement in replaced.items():
            part = part.replace(written, replacement)
        self.configuration, self.rules = re.findall(r"```yaml\n(.*?)```", part, re.DOTALL)
        # The default port of the admin address may be in use on this machine.
        self.configuration += f"admin: {{address: '{self.admin}'}}\n"
        (self.producer,) = re.findall(r"```python\n(.*?)```", part, re.DOTALL)
        commands = re.findall(r"^    ((?:python3 |\.venv/|export |oxproxy ).*)$", part, re.MULTILINE)
        (self.serve,) = (command for command in commands if command.startswith("oxproxy serve"))
        #: The commands before the sidecar is started.
        self.commands = commands[: commands.index(self.serve)]
        (self.expected,) = re.findall(r"# (b'.*')$", self.producer, re.MULTILINE)


def follow(page: Page, dist: Path, folder: Path) -> Iterator[str]:
    """Follow the page in an empty directory, and yield each step after it is done.

    Args:
        page: the instructions.
        dist: directory with the files of a release.
        folder: the empty directory.

    Raises:
        Failed: a command failed, or the producer printed something else than the page.
    """
    environment = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment["PIP_NO_CACHE_DIR"] = "1"
    exports = [command for command in page.commands if command.startswith("export ")]
    shutil.copytree(dist, folder / "dist")
    (folder / "rules").mkdir()
    (folder / "oxproxy.yaml").write_text(page.configuration)
    (folder / "rules" / "orders.yaml").write_text(page.rules)
    (folder / "producer.py").write_text(page.producer)

    def run(command: str) -> str:
        # Each command runs in a separate shell, so the page's variables are set again.
        arguments = ["bash", "-c", "\n".join([*exports, command])]
        done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failed(f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    for command in page.commands:
        if command not in exports:
            run(command)
            yield command
    serve = [str(folder / ".venv" / "bin" / "oxproxy"), *shlex.split(page.serve, comments=True)[1:]]
    log = folder / "sidecar.log"
    process = Watched(folder, [serve], environment, log, 15.0)
    try:
        while not is_ready(f"http://{page.admin}/readyz"):
            if not process.running:
                raise Failed(f"{page.serve} ended\n{log.read_text()}")
            time.sleep(0.05)
        yield page.serve
        printed = run(".venv/bin/python producer.py").strip()
        if printed != page.expected:
            raise Failed(f"the producer printed {printed!r}, expected {page.expected!r}")
        yield "producer"
    finally:
        process.end(keep=True)


def measure(dist: Path, broker: Broker) -> float:
    """Follow the page, print the time of each step, and return the seconds until the message was read.

    Args:
        dist: directory with the files of a release.
        broker: the broker, which is running.
    """
    with tempfile.TemporaryDirectory(prefix="oxproxy-stranger-") as place:
        page = Page(broker)
        begin = now = times()
        for step in follow(page, dist, Path(place)):
            before, now = now, times()
            print(f"{spent(before, now)}  {step}", flush=True)
    print(f"{spent(begin, now)}  in total, until the message was read from its queue")
    return now.elapsed - begin.elapsed


class Times(NamedTuple):
    """Elapsed time, and CPU time of the commands that have ended, in seconds."""

    elapsed: float
    cpu: float


def times() -> Times:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Times(time.monotonic(), children.ru_utime + children.ru_stime)


def spent(before: Times, now: Times) -> str:
    return f"{now.elapsed - before.elapsed:6.1f} s {now.cpu - before.cpu:6.1f} s CPU"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stranger")
    parser.add_argument("dist", metavar="DIST", nargs="?", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    with some_broker() as broker:
        return 0 if measure(options.dist.resolve(), broker) <= LIMIT_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
