from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from oxproxy.net.link import Link, ReadPauses
from tests.net.stage import eventually


class Ends:
    """A link, the socket at its other end, and the calls that the link made."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.lost: list[Exception | None] = []
        self.writable: list[bool] = []
        self.made = 0
        self.link = Link(self.received.extend, self.lost.append, self.writable.append, self._made)
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    def _made(self) -> None:
        self.made += 1


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    made = Ends()
    server = await asyncio.get_running_loop().create_server(lambda: made.link, "127.0.0.1", 0)
    made.reader, made.writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    await eventually(lambda: made.link.connected)
    yield made
    made.link.abort()
    made.writer.close()
    server.close()
    await eventually(lambda: not made.link.connected)


async def test_small_writes_leave_at_once(ends: Ends) -> None:
    assert ends.link.transport is not None
    inner = ends.link.transport.get_extra_info("socket")
    assert inner.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_reading_resumes_when_no_reason_to_pause_is_left(ends: Ends) -> None:
    ends.link.pause("first", True)
    ends.link.pause("second", True)
    ends.link.pause("second", True)
    assert ends.link.paused_for("first")
    ends.writer.write(b"x")
    await ends.writer.drain()
    ends.link.pause("first", False)
    assert ends.link.paused
    assert ends.received == b""
    ends.link.pause("second", False)
    await eventually(lambda: ends.received == b"x")


async def test_the_end_of_a_rest_leaves_other_pauses_in_force(ends: Ends) -> None:
    pauses = ReadPauses()
    ends.link.pause("other", True)
    pauses.begin(ends.link, 1)
    pauses.end()
    assert ends.link.transport is not None
    assert not ends.link.transport.is_reading()
    pauses.begin(ends.link, 1)
    ends.link.pause("other", False)
    assert not ends.link.transport.is_reading()
    pauses.end()
    assert ends.link.transport.is_reading()


async def test_data_sent_after_the_end_is_dropped(ends: Ends) -> None:
    ends.writer.close()
    await eventually(lambda: ends.lost)
    pieces = [b"x"]
    ends.link.send(pieces)
    assert pieces == []
    ends.link.pause("late", True)
    ends.link.close()


class Named(asyncio.Transport):
    """A transport that has only a peer name."""

    def __init__(self, name: object) -> None:
        super().__init__({"peername": name})


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (("::ffff:10.1.2.3", 5, 0, 0), "10.1.2.3:5"),
        (("fe80::1", 5, 0, 0), "[fe80::1]:5"),
        (("10.1.2.3", 5), "10.1.2.3:5"),
        ("", "unknown"),
        (None, "unknown"),
    ],
)
def test_names_of_peers_are_shown_as_addresses(name: object, shown: str) -> None:
    link = Link(lambda data: None, lambda error: None, lambda writable: None, lambda: None)
    assert link.peer_name == "unknown"
    link.transport = Named(name)
    assert link.peer_name == shown
