from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from oxproxy.net.tasks import Tasks
from tests.net.stage import eventually


async def test_a_failure_is_logged_with_the_name_and_the_trace() -> None:
    async def work() -> None:
        raise ValueError("broken")

    tasks = Tasks()
    with capture_logs() as logged:
        tasks.start(work(), "work")
        await eventually(lambda: logged)
    [entry] = logged
    assert (entry["event"], entry["task"]) == ("task failed", "work")
    assert isinstance(entry["exc_info"], ValueError)


async def test_cancelled_tasks_are_gone_when_ended_returns_and_no_failure() -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    tasks = Tasks()
    with capture_logs() as logged:
        for _ in range(3):
            tasks.start(work(), "work")
        await asyncio.sleep(0)
        await tasks.ended()
    assert ended == [True] * 3
    assert logged == []
