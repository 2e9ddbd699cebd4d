from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from proxy.broker.declared.snapshot import Recorder, SnapshotRecords, records_of, save_snapshot
from proxy.broker.task_supervisor import Supervisor
from proxy.relay.vhost import Delivery, VhostState
from proxy.routing.router import Router
from tests.broker.clients import declare_here, stored
from tests.broker.observed import has, queues, state


@pytest.fixture
def known() -> VhostState:
    return VhostState("/", Router(()))


@pytest.fixture
def recorder(tmp_path: Path, known: VhostState) -> Recorder:
    return Recorder(tmp_path / "kept", lambda: [known], Supervisor())


def test_records_contain_declarations_of_clients_but_not_of_files(known: VhostState) -> None:
    declare_here(known, "ox", stored("ox", "q", (), 4, key=""), delivery=Delivery.QUEUE, sequence=3)
    ruled = state("ruled", {"documents": queues("a")})
    ruled.add_binding(stored("documents", "b", (), 5))
    records = records_of([known, ruled])
    [exchange] = records.exchanges
    assert (exchange.vhost, exchange.name, exchange.delivery, exchange.declared.sequence) == (
        "/",
        b"ox",
        Delivery.QUEUE,
        3,
    )
    assert [
        (binding.vhost, binding.exchange, binding.destination, [copy.sequence for copy in binding.copies])
        for binding in records.bindings
    ] == [
        ("/", b"ox", ("queue", b"q"), [4]),
        ("ruled", b"documents", ("queue", b"b"), [5]),
    ]


async def test_all_declarations_are_written_at_the_end(recorder: Recorder, known: VhostState) -> None:
    declare_here(known, "first")
    recorder.record()
    declare_here(known, "second")
    recorder.record()
    await recorder.close()
    assert await recorder.load() == records_of([known])
    assert recorder.fault == ""


async def test_many_changes_need_few_writes(
    recorder: Recorder, known: VhostState, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[SnapshotRecords] = []
    go_on = threading.Event()

    def save(path: Path, records: SnapshotRecords) -> None:
        writes.append(records)
        assert go_on.wait(30)

    monkeypatch.setattr("proxy.broker.declared.snapshot.save_snapshot", save)
    for number in range(1000):
        declare_here(known, f"ox{number}")
        recorder.record()
    go_on.set()
    await recorder.close()
    assert len(writes) <= 2
    assert len(writes[-1].exchanges) == 1000


async def test_without_changes_nothing_is_written(recorder: Recorder, tmp_path: Path) -> None:
    await recorder.close()
    assert os.listdir(tmp_path) == []


async def test_a_failed_write_is_logged_once_and_retried(
    recorder: Recorder, known: VhostState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.broker.declared.snapshot._RETRY_SECONDS", 0.001)
    failures = 3

    def failing(path: Path, records: SnapshotRecords) -> None:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise OSError(28, "No space left on device")
        save_snapshot(path, records)

    monkeypatch.setattr("proxy.broker.declared.snapshot.save_snapshot", failing)
    declare_here(known, "ox")
    with capture_logs() as events:
        recorder.record()
        assert recorder._writing is not None
        await recorder._writing
    assert len(has(events, "snapshot not written")) == 1
    assert len(has(events, "snapshot can be written again")) == 1
    assert recorder.fault == ""
    assert await recorder.load() == records_of([known])


async def test_a_full_disk_does_not_delay_the_end(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, records: SnapshotRecords) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("proxy.broker.declared.snapshot.save_snapshot", full)
    recorder.record()
    await recorder.close()
    assert "No space left" in recorder.fault


async def test_an_unreadable_snapshot_is_not_overwritten(
    recorder: Recorder, known: VhostState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: Path) -> SnapshotRecords:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("proxy.broker.declared.snapshot.load_snapshot", denied)
    with capture_logs() as events:
        assert await recorder.load() == SnapshotRecords()
    assert len(has(events, "snapshot not used: client declarations may be lost")) == 1
    assert "Permission denied" in recorder.fault
    declare_here(known, "ox")
    recorder.record()
    await recorder.close()
    assert os.listdir(tmp_path) == []
