"""Runs the commands of a page in a directory. Only addresses, login and virtual host are replaced."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pika

from tests.private_broker import free_port
from tests.producer import until
from tests.rabbitmq import Broker
from tests.sidecar import DRAIN_SECONDS, PROGRAM, READY_SECONDS, is_ready, oxproxy
from tests.watched import Watched


class Place:
    """A directory in which the commands of a page are run.

    Args:
        broker: the broker.
        vhost: virtual host of the rules.
        directory: working directory of commands.
        files: directory with the configuration and rules of the page, which are adapted.
    """

    def __init__(self, broker: Broker, vhost: str, directory: Path, files: Path) -> None:
        self.broker = broker
        self.vhost = vhost
        self.directory = directory
        self.rules = files / "rules" / "orders.yaml"
        self.port = free_port()
        self.admin = f"127.0.0.1:{free_port()}"
        replaced = {
            "127.0.0.1:5673": f"127.0.0.1:{self.port}",
            "127.0.0.1:5672": broker.address,
            "http://127.0.0.1:15672": broker.management,
            "username: guest": f"username: {broker.username}",
            "password: guest": f"password: {broker.password}",
            "127.0.0.1:15693": self.admin,
        }
        configuration = files / "oxproxy.yaml"
        text = configuration.read_text()
        for written, replacement in replaced.items():
            assert written in text
            text = text.replace(written, replacement)
        configuration.write_text(text)
        self.rules.write_text(self.rules.read_text().replace("vhost: /", f"vhost: {vhost}"))

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()

    @property
    def url(self) -> str:
        """URL for producers."""
        return Broker("127.0.0.1", self.port, "").url(self.vhost)

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return run(self.directory, command)

    def taken(self, *queues: str) -> list[int]:
        """Remove the messages from queues, and return the number of messages in each."""
        with pika.BlockingConnection(pika.URLParameters(self.broker.url(self.vhost))) as connection:
            channel = connection.channel()
            return [channel.queue_purge(queue).method.message_count for queue in queues]

    @contextlib.contextmanager
    def serving(self, command: Sequence[str]) -> Iterator[None]:
        """Run the page's `oxproxy serve` command, whose last argument is the configuration."""
        arguments = [str(PROGRAM), *command[1:-1], str(self.directory / command[-1])]
        process = Watched(self.directory, [arguments], os.environ, self.directory / "log", DRAIN_SECONDS)
        try:
            until(lambda: is_ready(f"http://{self.admin}/readyz"), READY_SECONDS)
            yield
        finally:
            process.end(keep=True)


def run(directory: Path, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command of a page in a directory."""
    return oxproxy(*command[1:], cwd=directory)
