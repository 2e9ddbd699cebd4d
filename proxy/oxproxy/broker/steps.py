"""Runs long work in steps, between which relays and other tasks run."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from typing import TypeVar

from oxproxy.garbage import exclude_from_collection, without_collection
from oxproxy.relay.vhost import OwnedExchange, VhostState
from oxproxy.routing.router import Router

T = TypeVar("T")


async def in_steps(steps: Generator[None, None, T]) -> T:
    """Return the result of a generator; other tasks run between its steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)


async def compile_again(state: VhostState, exchanges: Mapping[bytes, OwnedExchange], router: Router) -> None:
    """Compile clients' bindings where new rules change the type of an exchange, before `VhostState.overlay`."""
    with without_collection():
        for recompilation in state.recompilations(exchanges, router):
            await in_steps(recompilation.steps())
            exclude_from_collection(len(recompilation.layer))
