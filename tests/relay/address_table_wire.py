"""A relay whose virtual host has an address table, and other brokers that record the messages sent to them."""

from __future__ import annotations

from oxproxy.addressing.table import AddressRule, AddressTable
from oxproxy.addressing.targets import AddressBook, Remote
from oxproxy.relay.connection_state import RemoteBrokers
from oxproxy.relay.remote_link import RemoteMessage, RemotePublisher, RemoteResult
from oxproxy.relay.vhost import VhostState
from tests.relay.wire import REPORT, Wire, publish

RULES = {
    b"out/*": b"archive/queue/$1",
    b"same/*": b"archive",
    b"two": b"other/queue/two",
    b"away": b"archive/queue/away",
    b"gone": b"missing.example/queue/q",
    b"bad": b"/exchange//x",
    b"here/*": b"/queue/$1",
    b"in/*": b"/exchange/xo/$1",
    b"carrier": b"/exchange/carried/k",
}


class RecordingRemotes(list[RemoteMessage]):
    """Other brokers that record messages instead of sending them."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 0
        self.woken = 0

    def publisher(self, remote: Remote, channel: int) -> RemotePublisher | str:
        return "unknown" if remote.host == b"missing.example" else self

    def send(self, message: RemoteMessage) -> None:
        self.append(message)

    def close(self) -> None:
        self.left += 1

    def wake(self) -> None:
        self.woken += 1

    def settle(self, result: RemoteResult = RemoteResult.ACKED) -> None:
        self.pop(0).settled(result)


class Linked(Wire):
    """A connection whose virtual host has an address table."""

    def __init__(self, of: VhostState | None = None, *, confirm: bool = True) -> None:
        super().__init__(of)
        table = AddressTable([AddressRule(*rule) for rule in RULES.items()])
        self.state.set_addresses(AddressBook(table, [b"archive", b"other"]))
        self.remotes = RecordingRemotes()
        self.relay.connection.remotes = RemoteBrokers(self.remotes.publisher, self.remotes.wake)
        self.open(confirm=confirm)


def to(key: str, body: bytes = b"body", *, mandatory: bool = False, **properties: bytes | int) -> bytes:
    """A publish to the default exchange, to which the address table applies."""
    return publish(key, REPORT, body, to="", mandatory=mandatory, **properties)  # type: ignore[arg-type]
