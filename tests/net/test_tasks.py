from __future__ import annotations

import asyncio
import gc

import pytest
from structlog.testing import capture_logs

from proxy.net.tasks import Tasks
from tests.net.stage import eventually


async def test_a_task_that_nobody_else_holds_is_not_collected() -> None:
    done = asyncio.Event()
    go = asyncio.Event()

    async def work() -> None:
        await go.wait()
        done.set()

    tasks = Tasks()
    tasks.start(work(), "work")
    await asyncio.sleep(0)
    gc.collect()
    go.set()
    await done.wait()


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


async def test_a_task_started_while_others_end_is_ended_too() -> None:
    tasks, ended = Tasks(), asyncio.Event()

    async def late() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            tasks.start(late(), "late")

    tasks.start(work(), "work")
    await asyncio.sleep(0)
    await tasks.ended()
    assert ended.is_set()


async def test_a_task_that_swallows_a_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.net.tasks._CANCEL_AGAIN_SECONDS", 0.01)
    swallowed = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            swallowed.set()
        await asyncio.Event().wait()

    tasks = Tasks()
    tasks.start(work(), "work")
    await asyncio.sleep(0)
    await tasks.ended()
    assert swallowed.is_set()
