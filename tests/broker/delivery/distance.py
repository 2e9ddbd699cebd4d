"""The other broker: a private RabbitMQ with TLS, a separate user, and a virtual host for messages of the sidecar."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.certificates import Authority
from tests.private_broker import PrivateBroker, free_port
from tests.producer import Producer
from tests.rabbitmq import quoted

#: The password of the user ``mover``, and the same password percent-encoded for addresses.
SECRET = "s3cret-w0rd/of@mover"
QUOTED = "s3cret-w0rd%2Fof%40mover"
VHOST = "far side"
QUEUES = ("one", "away", "load")


@dataclass
class Far:
    """The other broker."""

    broker: PrivateBroker
    tls_port: int
    authority: Authority

    def rules(self, text: str) -> str:
        """A rules file with the addresses and the login of this broker, and the address of an unreachable one."""
        return text.format(
            port=self.broker.port,
            tls=self.tls_port,
            ca=self.authority.ca,
            secret=json.dumps(SECRET),
            quoted=QUOTED,
            vhost=json.dumps(VHOST),
            nobody=free_port(),
        )

    def reader(self) -> Producer:
        return Producer(self.broker.port, VHOST).open()

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """A memory alarm, for the duration of the context."""
        self.broker.rabbitmqctl("set_vm_memory_high_watermark", "absolute", "1MB")
        try:
            yield
        finally:
            self.broker.rabbitmqctl("set_vm_memory_high_watermark", "0.4")

    def empty(self) -> None:
        """Remove all messages."""
        for queue in QUEUES:
            self.take(queue)

    def take(self, queue: str) -> list[bytes]:
        with self.reader() as reader:
            return [message.body for message in reader.take(queue)]


@contextmanager
def distant(folder: Path) -> Iterator[Far]:
    """The other broker, for the duration of the context.

    Args:
        folder: directory for its certificates.
    """
    authority = Authority(folder)
    certificate, key = authority.certificate("localhost")
    tls = free_port()
    config = [
        f"listeners.ssl.private = 127.0.0.1:{tls}",
        f"ssl_options.cacertfile = {authority.ca}",
        f"ssl_options.certfile = {certificate}",
        f"ssl_options.keyfile = {key}",
        "ssl_options.verify = verify_none",
    ]
    with PrivateBroker(config) as broker:
        _prepare(broker)
        yield Far(broker, tls, authority)


def _prepare(broker: PrivateBroker) -> None:
    broker.create_vhost(VHOST)
    broker.create_user("mover", SECRET)
    broker.grant("mover", VHOST)
    for queue in QUEUES:
        broker.create_queue(VHOST, queue)
    broker.api("PUT", f"exchanges/{quoted(VHOST)}/same", {"type": "fanout"})
    broker.api("POST", f"bindings/{quoted(VHOST)}/e/same/q/one", {})
