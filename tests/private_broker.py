"""How a RabbitMQ of our own is started and ended, without touching any other on the machine.

Everything it has is its own: node name, Erlang port mapper, ports (all on loopback), configuration, plugins,
data, log and cookie, under one temporary folder. It is ended by process id, through ``watched``, also when
this process fails or is killed. Sources: RabbitMQ's guides on configuration and on the server's environment.

As a script, ``python -m tests.private_broker [--config LINE]... [-- COMMAND...]`` runs COMMAND with
RABBITMQ_URL and RABBITMQ_MANAGEMENT_URL set and exits with its status; without a command it prints both and
waits for Ctrl-C.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import random
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.other_rabbitmq import ROOT_VARIABLE, inside
from tests.rabbitmq import Broker, broker_of_environment
from tests.watched import Watched

#: Seconds for the broker to answer; a start takes 4 to 8 on two idle cores.
START_SECONDS = 90.0

#: Seconds for one rabbitmqctl command.
CTL_SECONDS = 60.0

#: Starts tried before giving up: another program may take a port between our look and the broker's bind.
ATTEMPTS = 3

#: Below the range that systems take outgoing ports from, so that no connection occupies one by chance.
ALL_PORTS = range(20000, 32000)


def own_ports(environ: Mapping[str, str]) -> range:
    """Return the part of ``ALL_PORTS`` that is this process's own among the workers of pytest-xdist; all without them.

    A port is chosen some time before it is bound: two workers that chose from the same ports would now and then choose
    the same.
    """
    workers = int(environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    number = int(environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return ALL_PORTS[number % workers :: workers]


PORTS = own_ports(os.environ)

CONFIG = """\
listeners.tcp.private = 127.0.0.1:{amqp}
management.tcp.ip = 127.0.0.1
management.tcp.port = {http}
disk_free_limit.absolute = 50MB
max_message_size = 134217728
log.file.level = info
"""


class BrokerMissing(Exception):  # noqa: N818 - says that nothing is installed, not that something went wrong
    """No RabbitMQ is installed here, and RABBITMQ_URL names none."""


class BrokerFailed(Exception):  # noqa: N818 - reads as the fact it states
    """The broker did not start, with the end of its log."""


def free_port(*taken: int) -> int:
    """Return a loopback port that nobody listens on now, and that is none of those given.

    Not from the seeded generator: Hypothesis seeds it anew, and two calls would give one port.
    """
    while True:
        port = random.SystemRandom().choice(PORTS)
        if port in taken:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def free_ports(count: int, *taken: int) -> int:
    """Return the first of so many free loopback ports in a row, none of them one of those given."""
    while True:
        first = free_port(*taken)
        wanted = range(first, first + count)
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for port in wanted:
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            if not set(wanted).intersection(taken):
                return first


def program(name: str, root: Path = Path("/")) -> list[str]:
    """Return the command that runs one of RabbitMQ's programs; empty where it is not installed.

    Args:
        name: of the program.
        root: of the file system in which it is installed, and runs.

    The scripts that Debian and Ubuntu put on PATH change to the user rabbitmq and its home; the ones that
    they wrap run as whoever calls them.
    """
    for folder in ("usr/lib/rabbitmq/bin", "usr/bin"):
        path = root / folder / name
        if path.exists():
            return [str(path)] if root == Path("/") else inside(root, f"/{folder}/{name}")
    found = shutil.which(name) if root == Path("/") else None
    return [found] if found else []


class PrivateBroker(Broker):
    """A RabbitMQ that lives as long as this object's context.

    Args:
        config: lines added to rabbitmq.conf, e.g. ``vm_memory_high_watermark.absolute = 100MB``; take ports
            for further listeners from ``free_port``.
        plugins: enabled besides rabbitmq_management.
        root: of the file system whose RabbitMQ is run (see ``other_rabbitmq``); None is what RABBITMQ_ROOT says, and
            where it says nothing, this machine's own.
    """

    def __init__(self, config: Sequence[str] = (), plugins: Sequence[str] = (), root: Path | None = None) -> None:
        super().__init__("127.0.0.1", 0, "")
        self._root = (root or Path(os.environ.get(ROOT_VARIABLE) or "/")).resolve()
        self.config = tuple(config)
        self.plugins = ("rabbitmq_management", *plugins)
        self.node = ""
        self.folder = Path()
        self._epmd_port = 0
        self._dist_port = 0
        self._processes: Watched | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def log(self) -> Path:
        """The broker's log file; gone after ``stop``."""
        return self.folder / "log" / "broker.log"

    @property
    def process_id(self) -> int:
        """Of the Erlang virtual machine."""
        return int((self.folder / "pid").read_text())

    def start(self) -> None:
        """Start it and return when it serves AMQP and its management API; after ``kill``, with what it had.

        Raises:
            BrokerMissing: RabbitMQ or Erlang's epmd is not installed.
            BrokerFailed: it did not answer in time, or ended.
        """
        for name in ("rabbitmq-server", "epmd"):
            if not self._program(name):
                raise BrokerMissing(f"{name} is not installed (run `make setup`) and RABBITMQ_URL is not set")
        if self.node:
            self._launch()
            return
        atexit.register(self.stop)
        for attempt in range(1, ATTEMPTS + 1):
            self._choose_places()
            try:
                self._launch()
                return
            except BrokerFailed as error:
                if attempt == ATTEMPTS or "eaddrinuse" not in str(error).lower():
                    raise

    def stop(self) -> None:
        """End it and remove everything it left; nothing happens where it does not run."""
        self._end(keep=False)
        atexit.unregister(self.stop)
        if self.node:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.node = ""

    def kill(self) -> None:
        """End it as a power cut would; ``start`` brings it back on the same ports with its data."""
        self._end(keep=True)

    def rabbitmqctl(self, *arguments: str) -> str:
        """Run one rabbitmqctl command on this node and return what it printed."""
        command = [*self._program("rabbitmqctl"), "-n", self.node, *arguments]
        done = subprocess.run(
            command, env=self._environment(), capture_output=True, text=True, timeout=CTL_SECONDS, check=False
        )
        if done.returncode:
            raise BrokerFailed(f"rabbitmqctl {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def _program(self, name: str) -> list[str]:
        return program(name, self._root)

    def _choose_places(self) -> None:
        self.port, http, self._epmd_port, self._dist_port = (free_port() for _ in range(4))
        self.management = f"http://127.0.0.1:{http}"
        self.node = f"oxproxy-{secrets.token_hex(4)}@localhost"
        self.folder = Path(tempfile.mkdtemp(prefix="oxproxy-broker-"))
        for name in ("log", "data", "home"):
            (self.folder / name).mkdir()
        lines = [CONFIG.format(amqp=self.port, http=http), *self.config, ""]
        (self.folder / "rabbitmq.conf").write_text("\n".join(lines))
        (self.folder / "advanced.config").write_text("[].\n")
        (self.folder / "rabbitmq-env.conf").write_text("")
        (self.folder / "enabled_plugins").write_text(f"[{','.join(self.plugins)}].\n")

    def _environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("RABBITMQ_", "ERL_"))}
        folder = self.folder
        return kept | {
            "HOME": str(folder / "home"),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CTL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CONF_ENV_FILE": str(folder / "rabbitmq-env.conf"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_LOGS": str(self.log),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
        }

    def _launch(self) -> None:
        # epmd by ourselves: the one that Erlang starts on its own would be a daemon that outlives us.
        epmd = [*self._program("epmd"), "-address", "127.0.0.1", "-port", str(self._epmd_port)]
        commands = [epmd, self._program("rabbitmq-server")]
        output = self.folder / "log" / "start.log"
        self._processes = Watched(self.folder, commands, self._environment(), output)
        try:
            self._await_answer()
        except BaseException:
            self.stop()
            raise

    def _await_answer(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._processes is None or not self._processes.running:
                raise BrokerFailed(f"RabbitMQ ended at its start:\n{self._last_words()}")
            if time.monotonic() > deadline:
                raise BrokerFailed(f"RabbitMQ gave no answer for {START_SECONDS:g} s:\n{self._last_words()}")
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            self.api("GET", "overview")
            with socket.create_connection((self.host, self.port), timeout=5) as link:
                link.sendall(b"AMQP\x00\x00\x09\x01")
                return link.recv(1) == b"\x01"  # a method frame: Connection.Start
        except (OSError, urllib.error.URLError):
            return False

    def _last_words(self) -> str:
        # The cause stands in the first errors; what follows them is supervisors giving up one after another.
        logs = (self.log, self.folder / "log" / "start.log")
        lines = [line for log in logs if log.exists() for line in log.read_text(errors="replace").splitlines()]
        errors = [line for line in lines if "[error]" in line]
        return "\n".join(errors[:20] or lines[-20:])

    def _end(self, keep: bool) -> None:
        processes, self._processes = self._processes, None
        if processes is not None:
            processes.end(keep)


@contextlib.contextmanager
def some_broker(config: Sequence[str] = ()) -> Iterator[Broker]:
    """The broker that RABBITMQ_URL names, else a private one for as long as the context lasts.

    Raises:
        BrokerMissing: neither is there.
        BrokerFailed: the private one did not start.
    """
    named = broker_of_environment()
    if named is not None:
        yield named
        return
    with PrivateBroker(config) as broker:
        yield broker


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.private_broker", description=__doc__)
    parser.add_argument("--config", action="append", default=[], metavar="LINE", help="added to rabbitmq.conf")
    parser.add_argument("command", nargs="*")
    options = parser.parse_args()
    with PrivateBroker(options.config) as broker:
        addresses = {"RABBITMQ_URL": broker.url(), "RABBITMQ_MANAGEMENT_URL": broker.management}
        if options.command:
            return subprocess.run(options.command, env=os.environ | addresses, check=False).returncode
        for name, value in addresses.items():
            print(f"export {name}={value}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            while sys.stdin.read(1):
                pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
