"""The other broker: a private RabbitMQ with TLS, a separate user, and a virtual host for messages of the sidecar."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.broker.observed import Outside
from tests.certificates import Authority
from tests.private_broker import PrivateBroker, free_port
from tests.producer import Producer

#: The password of the user ``mover``, and the same password as quoted in an address.
SECRET = "s3cret-w0rd/of@mover"
QUOTED = "s3cret-w0rd%2Fof%40mover"
VHOST = "far side"


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
    outside = Outside(broker, VHOST)
    outside.make_queues("one", "away", "load")
    outside.make_exchange("same", "fanout")
    outside.bind("same", "one", "")
