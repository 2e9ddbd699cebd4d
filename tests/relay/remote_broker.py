"""Another broker, simulated without sockets, and messages that record their results."""

from __future__ import annotations

from pamqp import base, commands
from pamqp.common import FieldTable

from oxproxy.relay.remote_link import Credentials, Lane, RemoteLink, RemoteMessage, RemoteResult
from tests import client
from tests.client import method

CREDENTIALS = Credentials(b"mover", b"s3cret", b"far side")


class Told(RemoteMessage):
    """A message that records its results."""

    def __init__(self, body: bytes = b"body", key: bytes = b"k", mandatory: bool = False, since: float = 0.0) -> None:
        header = client.content_header(0, len(body))[7:-1]
        self.results: list[RemoteResult] = []
        super().__init__(b"e", key, mandatory, header, body, since, self.results.append)


class RemoteBroker:
    """The broker at the remote end of a link."""

    def __init__(self) -> None:
        self.link = RemoteLink(CREDENTIALS, "1.0")
        self.reasons: list[str] = []

    def lane(self) -> Lane:
        return Lane(lambda message, result, reason: self.reasons.append(reason))

    def sent(self) -> bytes:
        """Return everything that the link has sent since the last call."""
        data = b"".join(self.link.to_send)
        self.link.to_send.clear()
        return data

    def names(self) -> list[str]:
        return client.names(self.sent())

    def say(self, *commanded: base.Frame, channel: int = 1) -> None:
        self.link.receive(b"".join(method(channel, command) for command in commanded))

    def start(self, mechanisms: str = "PLAIN AMQPLAIN") -> None:
        properties: FieldTable = {"product": "RabbitMQ"}
        self.say(commands.Connection.Start(0, 9, properties, mechanisms, "en_US"), channel=0)

    def open(self, channels: int = 2047, frame_max: int = 131072) -> RemoteBroker:
        self.start()
        self.say(commands.Connection.Tune(channels, frame_max, 60), commands.Connection.OpenOk(), channel=0)
        self.sent()
        return self

    def ready(self, lane: Lane, channel: int = 1) -> Lane:
        """Attach a lane and open its channel."""
        assert self.link.attach(lane)
        self.say(commands.Channel.OpenOk(), commands.Confirm.SelectOk(), channel=channel)
        self.sent()
        return lane

    def ack(self, tag: int, multiple: bool = False, channel: int = 1) -> None:
        self.say(commands.Basic.Ack(tag, multiple), channel=channel)
