"""The test bed of the delivery tests: a virtual host of a real RabbitMQ, and a sidecar with rules in front of it.

All tests of a module share one site. Each test uses its own queues, or empties those that it used.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from oxproxy.values import Table
from tests.broker.observed import Outside
from tests.producer import Message, Producer, stored_by_4, until
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar, merged
from tests.tap import Connection, Tap


def vhost_status(sidecar: Sidecar, vhost: str) -> dict[str, Any]:  # Any: JSON
    """What /status shows of a virtual host; empty if the sidecar does not manage it."""
    vhosts = json.loads(sidecar.get("/status"))["vhosts"]
    return next((status for status in vhosts if status["vhost"] == vhost), {})


class Site(Outside):
    """A running sidecar and its virtual host.

    Args:
        broker: the broker.
        vhost: virtual host that the rules name.
        sidecar: the running sidecar.
        tap: between sidecar and broker.
    """

    def __init__(self, broker: Broker, vhost: str, sidecar: Sidecar, tap: Tap) -> None:
        super().__init__(broker, vhost)
        self.sidecar = sidecar
        self.tap = tap
        self._beside: Producer | None = None
        self._open: list[Producer] = []

    def producer(self, username: str = "guest", *, confirm: bool = True, frame_max: int = 0) -> Producer:
        """A producer that connects through the sidecar, with channel 1 open; closed at the end of the test."""
        made = Producer(self.sidecar.port, self.vhost, username, frame_max=frame_max).open(confirm=confirm)
        self._open.append(made)
        return made

    def stored(self, table: Table) -> Table:
        """A header table as this broker returns it to the client that sent it."""
        return table if self.broker.version < (4,) else stored_by_4(table)

    def upstream(self) -> Connection:
        """The wire between sidecar and broker of the most recent producer."""
        return self.tap.last

    @property
    def direct(self) -> Producer:
        """A connection directly to the broker, with channel 1 open."""
        if self._beside is None:
            self._beside = Producer(self.broker.port, self.vhost).open()
        return self._beside

    def take(self, queue: str) -> list[Message]:
        """Take all messages from a queue, directly from the broker."""
        return self.direct.take(queue)

    def next(self, queue: str, through: Producer | None = None) -> Message:
        """Wait for a message in a queue and take it, directly from the broker or through a producer's connection."""
        messages: list[Message] = []

        def there() -> bool:
            message = (through or self.direct).get(queue)
            messages.extend([message] if message is not None else [])
            return bool(messages)

        until(there)
        return messages[0]

    def bodies(self, *queues: str) -> list[list[bytes]]:
        """Take all messages from queues and return their bodies."""
        return [[message.body for message in self.take(queue)] for queue in queues]

    def metric(self, name: str, **labels: str) -> float:
        return self.sidecar.metric(name, **labels)

    def logged(self, event: str) -> list[str]:
        return self.sidecar.logged(event)

    @property
    def status(self) -> dict[str, Any]:
        """What /status shows of the virtual host."""
        return vhost_status(self.sidecar, self.vhost)

    def reload(self, rules: str) -> None:
        """Replace the rules, and wait until the new ones are in force."""
        before = self.metric("rules_reload_total", result="ok")
        (self.sidecar.folder / "rules.yaml").write_text(f"vhost: {self.vhost}\n{rules}")
        os.kill(self.sidecar.process_id, signal.SIGHUP)
        until(lambda: self.metric("rules_reload_total", result="ok") > before)

    def tidy(self) -> None:
        """Close the connections that a test has opened."""
        while self._open:
            self._open.pop().disconnect()

    def leave(self) -> None:
        self.tidy()
        if self._beside is not None:
            self._beside.disconnect()


def only(messages: list[Message]) -> Message:
    [message] = messages
    return message


@contextlib.contextmanager
def standing(
    broker: Broker,
    folder: Path,
    rules: str,
    settings: Mapping[str, object] | None = None,
    prepare: Callable[[Outside], None] | None = None,
) -> Iterator[Site]:
    """A site, for the duration of the context.

    Args:
        broker: the broker.
        folder: directory for rules, configuration and log.
        rules: a rules file without its first line, the virtual host.
        settings: configuration in addition to the minimum.
        prepare: called before the sidecar starts, for example to declare objects on the broker.
    """
    vhost = f"site-{secrets.token_hex(6)}"
    broker.create_vhost(vhost)
    with ExitStack() as stack:
        stack.callback(broker.delete_vhost, vhost)
        if prepare is not None:
            prepare(Outside(broker, vhost))
        tap = stack.enter_context(Tap(broker.host, broker.port))
        file = folder / "rules.yaml"
        file.write_text(f"vhost: {vhost}\n{rules}")
        more = merged({"upstream": {"address": tap.address}}, settings or {})
        sidecar = stack.enter_context(Sidecar(broker, [file], more, folder))
        site = Site(broker, vhost, sidecar, tap)
        stack.callback(site.leave)
        yield site
