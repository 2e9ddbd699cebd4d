from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from oxproxy.errors import UpstreamError, UpstreamFailure
from oxproxy.net.upstream import Upstream
from tests.private_broker import free_port


class Connected(asyncio.Protocol):
    """Records the addresses of connection attempts."""

    def __init__(self) -> None:
        self.peer: tuple[str, int] | None = None
        self.transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.peer = transport.get_extra_info("peername")[:2]
        self.transport = transport


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def closed() -> tuple[str, int]:
    return ("127.0.0.1", free_port())


async def connect(upstream: Upstream) -> Connected:
    made = Connected()
    await upstream.connect(lambda: made)
    assert made.transport is not None
    made.transport.close()
    return made


async def test_an_address_that_does_not_answer_is_abandoned_after_its_deadline(
    server: socket.socket, deaf: tuple[str, int]
) -> None:
    address = server.getsockname()
    assert (await connect(Upstream([deaf, address], connect_seconds=0.05))).peer == address


async def test_if_no_address_answers_each_is_named_with_its_cause(deaf: tuple[str, int]) -> None:
    refused = closed()
    with pytest.raises(UpstreamError) as caught:
        await connect(Upstream([refused, deaf], connect_seconds=0.05))
    assert caught.value.failure is UpstreamFailure.TIMEOUT
    assert f"127.0.0.1:{refused[1]}: " in caught.value.message
    assert f"127.0.0.1:{deaf[1]}: no response within 0.05 s" in caught.value.message


@pytest.mark.asyncio(loop_factories=["asyncio"])  # a slow resolver would keep uvloop from ending
async def test_an_unknown_host_name_is_unavailable() -> None:
    with pytest.raises(UpstreamError) as caught:
        await connect(Upstream([("no-such-host.invalid", 5672)]))
    assert caught.value.failure is UpstreamFailure.UNAVAILABLE
    assert "no-such-host.invalid:5672: " in caught.value.message


@pytest.mark.asyncio(loop_factories=["asyncio"])  # uvloop queries the system without the loop's method
async def test_a_name_is_resolved_at_each_connect(server: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    port = server.getsockname()[1]
    loop = asyncio.get_running_loop()
    asked = []
    real = loop.getaddrinfo

    async def getaddrinfo(host: str, *arguments: object, **more: object) -> object:
        asked.append(host)
        return await real("127.0.0.1", *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    upstream = Upstream([("broker.example", port)])
    for _ in range(2):
        await connect(upstream)
    assert asked == ["broker.example"] * 2
