from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from oxproxy.broker.task_supervisor import Supervisor

PROXY = Path(__file__).resolve().parents[2] / "proxy/oxproxy"
STARTED = re.compile(r'keep\(\s*"(\w+)"')
TASKS = sorted({name for path in PROXY.rglob("*.py") for name in STARTED.findall(path.read_text())})


async def test_a_task_ends_even_if_a_library_swallows_its_cancellation() -> None:
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


@pytest.mark.parametrize("task", TASKS)
async def test_every_supervised_task_is_counted_and_restarted_when_it_fails(task: str) -> None:
    supervisor, attempts = Supervisor(retry_seconds=0.0), 0

    async def work() -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise ZeroDivisionError

    await supervisor.keep(task, work)
    assert attempts == 2
    assert supervisor.failures[task] == 1
