"""An application that declares open exchanges and binds to them, as any client library does."""

from __future__ import annotations

from collections.abc import Mapping

from pamqp import commands

from oxproxy.amqp import method_frames
from oxproxy.amqp.tables import encode_table
from oxproxy.values import Table
from tests import client
from tests.broker.delivery.site import vhost_status
from tests.client import method
from tests.producer import Closed, Producer, headers
from tests.sidecar import Sidecar

#: None, a table with default types, or a table with explicit types.
Arguments = Mapping[str, object] | Table


def entries(arguments: Arguments) -> bytes:
    return encode_table(headers(arguments) if isinstance(arguments, Mapping) else arguments)


def declared(sidecar: Sidecar, vhost: str) -> dict[str, int]:
    """Number of clients' bindings in /status, by exchange."""
    counts: dict[str, int] = vhost_status(sidecar, vhost).get("declared", {})
    return counts


class Application(Producer):
    """A client with channel 1 open in confirm mode.

    Args:
        port: port on loopback.
        vhost: virtual host.
        username: user, whose password is the same.
    """

    def __init__(self, port: int, vhost: str, username: str = "guest") -> None:
        super().__init__(port, vhost, username, username)
        self.open(confirm=True)
        self.username = username

    # -- frames ------------------------------------------------------------------------------------------------------

    def declaring(self, name: str, arguments: Arguments = (), kind: str = "x-open", **bits: bool) -> bytes:
        """The frame that declares an exchange; durable by default."""
        return method_frames.exchange_declare(1, name.encode(), kind.encode(), entries(arguments), **bits)

    @staticmethod
    def binding(to: str, exchange: str, arguments: Arguments = (), key: str = "", nowait: bool = False) -> bytes:
        """The frame that binds a queue."""
        names = (to.encode(), exchange.encode(), key.encode())
        return client.queue_bind(1, *names, entries(arguments), nowait=nowait)

    @staticmethod
    def unbinding(to: str, exchange: str, arguments: Arguments = (), key: str = "") -> bytes:
        """The frame that unbinds a queue."""
        return client.queue_unbind(1, to.encode(), exchange.encode(), key.encode(), entries(arguments))

    @staticmethod
    def chaining(to: str, exchange: str, arguments: Arguments = (), key: str = "") -> bytes:
        """The frame that binds an exchange."""
        return client.exchange_bind(1, to.encode(), exchange.encode(), key.encode(), entries(arguments))

    @staticmethod
    def unchaining(to: str, exchange: str, arguments: Arguments = (), key: str = "") -> bytes:
        """The frame that unbinds an exchange."""
        return client.exchange_unbind(1, to.encode(), exchange.encode(), key.encode(), entries(arguments))

    @staticmethod
    def deleting(name: str, *, if_unused: bool = False) -> bytes:
        """The frame that deletes an exchange."""
        return method_frames.exchange_delete(1, name.encode(), if_unused=if_unused)

    @staticmethod
    def deleting_queue(name: str) -> bytes:
        """The frame that deletes a queue."""
        return method(1, commands.Queue.Delete(queue=name))

    # -- methods with their replies ----------------------------------------------------------------------------------

    def exchange(self, name: str, arguments: Arguments = (), kind: str = "x-open", **bits: bool) -> None:
        self.send(self.declaring(name, arguments, kind=kind, **bits))
        self.expect("Exchange.DeclareOk")

    def bind(self, to: str, exchange: str, arguments: Arguments = (), key: str = "") -> None:
        self.send(self.binding(to, exchange, arguments, key))
        self.expect("Queue.BindOk")

    def unbind(self, to: str, exchange: str, arguments: Arguments = (), key: str = "") -> None:
        self.send(self.unbinding(to, exchange, arguments, key))
        self.expect("Queue.UnbindOk")

    def chain(self, to: str, exchange: str, arguments: Arguments = (), key: str = "") -> None:
        self.send(self.chaining(to, exchange, arguments, key))
        self.expect("Exchange.BindOk")

    def unchain(self, to: str, exchange: str, arguments: Arguments = (), key: str = "") -> None:
        self.send(self.unchaining(to, exchange, arguments, key))
        self.expect("Exchange.UnbindOk")

    def delete(self, name: str, *, if_unused: bool = False) -> None:
        self.send(self.deleting(name, if_unused=if_unused))
        self.expect("Exchange.DeleteOk")

    def queues(self, *names: str) -> None:
        for name in names:
            self.declare(name, durable=True)

    def refused(self, *frames: bytes) -> Closed:
        """Send a frame for which the channel is closed, and open the channel again; return the close."""
        self.send(*frames)
        close = self.closed()
        self.open(confirm=True)
        return close

    def reached(self, exchange: str, table: Arguments | None = None, *queues: str, key: str = "k") -> list[str]:
        """Publish one message that is acked; return the queues that received it, one name for each copy."""
        typed = table if table is None or isinstance(table, Mapping) else tuple(table)
        assert self.send_settled(exchange, key, typed).acked
        return [queue for queue in queues for _ in self.take(queue)]
