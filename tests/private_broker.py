"""Starts and stops a private RabbitMQ that shares nothing with other nodes on the machine.

It has its own node name, epmd, loopback ports, configuration, plugins, data, log and cookie, in one temporary
directory. It is stopped by process id through ``watched``, even if this process fails or is killed. Sources: RabbitMQ's
guides on configuration and on environment variables.

As a script, ``python -m tests.private_broker [--config LINE]... [-- COMMAND...]`` runs COMMAND with RABBITMQ_URL and
RABBITMQ_MANAGEMENT_URL set and exits with its status. Without a command it prints both variables and runs until Ctrl-C
or the end of standard input; in the background, redirect standard input from a pipe that stays open.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import itertools
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

#: Timeout of a start in seconds; a start takes 4 to 8 s on two idle cores.
START_SECONDS = 90.0

#: Timeout of a rabbitmqctl command in seconds.
CTL_SECONDS = 60.0

#: Part of the error message of rabbitmqctl on a node that has not started completely.
_STARTING = "requires the 'rabbit' app to be running"

#: Attempts to start: another program may take a port between the check and the broker's bind.
ATTEMPTS = 3

#: Ports below the range of ephemeral ports, so that no outgoing connection uses any of them.
ALL_PORTS = range(20000, 32000)


def own_ports(environ: Mapping[str, str]) -> range:
    """Return the ports of ``ALL_PORTS`` that this worker of pytest-xdist uses; all of them without workers.

    A port is chosen before it is bound, so workers that chose from the same ports would sometimes choose the same one.
    """
    workers = int(environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    number = int(environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return ALL_PORTS[number % workers :: workers]


PORTS = own_ports(os.environ)

#: The ports in an order of the system's random numbers, because Hypothesis seeds Python's generator.
_IN_TURN = itertools.cycle(random.SystemRandom().sample(PORTS, len(PORTS)))

CONFIG = """\
listeners.tcp.private = 127.0.0.1:{amqp}
management.tcp.ip = 127.0.0.1
management.tcp.port = {http}
disk_free_limit.absolute = 50MB
max_message_size = 134217728
log.file.level = info
"""

#: Permits queues that are neither durable nor exclusive, which many clients declare. RabbitMQ 4.3 refuses them by
#: default (541), though not on every start of a new node. Versions that do not know the setting ignore it.
ADVANCED = "[{rabbit, [{permit_deprecated_features, #{transient_nonexcl_queues => true}}]}].\n"


class BrokerMissing(Exception):  # noqa: N818 - nothing is installed, which is not an error
    """RabbitMQ is not installed, and RABBITMQ_URL is not set."""


class BrokerFailed(Exception):  # noqa: N818 - reads as the fact it states
    """The broker did not start. The message contains the end of its log."""


def free_port() -> int:
    """Return a loopback port that is free, and that this process has not chosen while it chose all others.

    A program may take a port much later than it is chosen, so the same port must not be chosen for two programs.
    """
    while True:
        port = next(_IN_TURN)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def program(name: str, root: Path = Path("/")) -> list[str]:
    """Return the command that runs one of RabbitMQ's programs; empty if it is not installed.

    Args:
        name: name of the program.
        root: root file system in which the program is installed and runs.

    The scripts that Debian and Ubuntu install in PATH switch to the user rabbitmq. The scripts in
    ``/usr/lib/rabbitmq/bin``, which they call, run as the current user and are therefore preferred.
    """
    for folder in ("usr/lib/rabbitmq/bin", "usr/bin"):
        path = root / folder / name
        if path.exists():
            return [str(path)] if root == Path("/") else inside(root, f"/{folder}/{name}")
    path_of_command = shutil.which(name) if root == Path("/") else None
    return [path_of_command] if path_of_command else []


class PrivateBroker(Broker):
    """A RabbitMQ that runs while this context is active.

    Args:
        config: lines added to rabbitmq.conf, e.g. ``vm_memory_high_watermark.absolute = 100MB``. Use ``free_port`` for
            further listeners.
        plugins: plugins enabled in addition to rabbitmq_management.
        root: root file system from which RabbitMQ runs (see ``other_rabbitmq``); by default RABBITMQ_ROOT or ``/``.
        epmd_port: port of an epmd that already runs; 0 to start one for this broker.
        cookie: Erlang cookie, the same for all nodes of a cluster; by default, Erlang chooses one.
    """

    def __init__(
        self,
        config: Sequence[str] = (),
        plugins: Sequence[str] = (),
        root: Path | None = None,
        epmd_port: int = 0,
        cookie: str = "",
    ) -> None:
        super().__init__("127.0.0.1", 0, "")
        self._root = (root or Path(os.environ.get(ROOT_VARIABLE) or "/")).resolve()
        self.config = tuple(config)
        self.plugins = ("rabbitmq_management", *plugins)
        self.node = ""
        self.folder = Path()
        self._shared_epmd_port = self._epmd_port = epmd_port
        self._cookie = cookie
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
        """The broker's log file; removed by ``stop``."""
        return self.folder / "log" / "broker.log"

    @property
    def process_id(self) -> int:
        """Process id of the Erlang virtual machine."""
        return int((self.folder / "pid").read_text())

    def start(self) -> None:
        """Start the broker and return when AMQP and the management API respond. Data is preserved after ``kill``.

        Raises:
            BrokerMissing: RabbitMQ or epmd is not installed.
            BrokerFailed: the broker did not respond in time, or exited.
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
        """Stop the broker and remove its files. Does nothing if the broker is not running."""
        self._end(keep=False)
        atexit.unregister(self.stop)
        if self.node:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.node = ""

    def kill(self) -> None:
        """Stop the broker without a shutdown. ``start`` starts it again with the same ports and data."""
        self._end(keep=True)

    def erase(self) -> None:
        """Remove the data of a killed broker."""
        shutil.rmtree(self.folder / "data")
        (self.folder / "data").mkdir()

    def rabbitmqctl(self, *arguments: str) -> str:
        """Run a rabbitmqctl command on this node and return its output."""
        command = [*self._program("rabbitmqctl"), "-n", self.node, *arguments]
        deadline = time.monotonic() + START_SECONDS
        while True:
            done = subprocess.run(
                command, env=self._environment(), capture_output=True, text=True, timeout=CTL_SECONDS, check=False
            )
            if not done.returncode:
                return done.stdout
            # RabbitMQ 3.8 accepts connections before it has started.
            if _STARTING not in done.stdout + done.stderr or time.monotonic() > deadline:
                raise BrokerFailed(f"rabbitmqctl {' '.join(arguments)}: {done.stdout}{done.stderr}")

    def _program(self, name: str) -> list[str]:
        return program(name, self._root)

    def _choose_places(self) -> None:
        self.port, http, epmd_port, self._dist_port = (free_port() for _ in range(4))
        self._epmd_port = self._shared_epmd_port or epmd_port
        self.management = f"http://127.0.0.1:{http}"
        self.node = f"oxproxy-{secrets.token_hex(4)}@localhost"
        self.folder = Path(tempfile.mkdtemp(prefix="oxproxy-broker-"))
        for name in ("log", "data", "home"):
            (self.folder / name).mkdir()
        if self._cookie:
            cookie = self.folder / "home" / ".erlang.cookie"
            cookie.write_text(self._cookie)
            cookie.chmod(0o400)
        lines = [CONFIG.format(amqp=self.port, http=http), *self.config, ""]
        (self.folder / "rabbitmq.conf").write_text("\n".join(lines))
        (self.folder / "advanced.config").write_text(ADVANCED)
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
        # epmd is started here, because an epmd started by Erlang would keep running as a daemon.
        epmd = [*self._program("epmd"), "-address", "127.0.0.1", "-port", str(self._epmd_port)]
        commands = [*([] if self._shared_epmd_port else [epmd]), self._program("rabbitmq-server")]
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
                raise BrokerFailed(f"RabbitMQ ended at its start:\n{self._end_of_log()}")
            if time.monotonic() > deadline:
                raise BrokerFailed(f"RabbitMQ did not respond for {START_SECONDS:g} s:\n{self._end_of_log()}")
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            self.api("GET", "overview")
            with socket.create_connection((self.host, self.port), timeout=5) as link:
                link.sendall(b"AMQP\x00\x00\x09\x01")
                return link.recv(1) == b"\x01"  # a method frame: Connection.Start
        except (OSError, urllib.error.URLError):
            return False

    def _end_of_log(self) -> str:
        # The first errors contain the cause. Later errors only report that supervisors terminate.
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
    """Yield the broker in RABBITMQ_URL, or a private one if the variable is not set.

    Raises:
        BrokerMissing: the variable is not set and RabbitMQ is not installed.
        BrokerFailed: the private broker did not start.
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
