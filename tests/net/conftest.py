"""Sockets behave a little differently on each event loop: what is tested here holds on both that may serve."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Mapping

import pytest

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, LoopFactory]:
    """The standard library's loop, and uvloop where it is installed."""
    loops: dict[str, LoopFactory] = {"asyncio": asyncio.new_event_loop}
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        loops["uvloop"] = uvloop.new_event_loop
    return loops
