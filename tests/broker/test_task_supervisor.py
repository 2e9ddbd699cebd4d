from __future__ import annotations

import asyncio

import pytest

from proxy.broker.task_supervisor import Supervisor


async def test_a_task_whose_cancellation_is_swallowed_by_a_library_ends_all_the_same() -> None:
    waiting, attempts = asyncio.Event(), 0

    async def work() -> None:
        nonlocal attempts
        attempts += 1
        try:
            waiting.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise OSError("connection lost") from None

    task = asyncio.get_running_loop().create_task(Supervisor(retry_seconds=0.0).keep("vhost", work))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert attempts == 1
