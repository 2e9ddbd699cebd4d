"""Fixtures for the socket tests. Sockets differ between event loops, so the tests run on each supported loop."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.certificates import Authority

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, LoopFactory]:
    """The standard library's loop, and uvloop if it is installed."""
    loops: dict[str, LoopFactory] = {"asyncio": asyncio.new_event_loop}
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        loops["uvloop"] = uvloop.new_event_loop
    return loops


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command")
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def pair(authority: Authority) -> tuple[Path, Path]:
    """A certificate and its key."""
    return authority.certificate("localhost")


@pytest.fixture
def deaf() -> Iterator[tuple[str, int]]:
    """An address that does not respond, because its queue of connections is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as made, socket.socket() as first:
        address = made.getsockname()
        first.connect(address)
        yield address
