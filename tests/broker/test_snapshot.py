from __future__ import annotations

import json
import os
import threading
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from proxy.broker.declared.snapshot import (
    BindingRecord,
    ExchangeRecord,
    Recorder,
    SnapshotRecords,
    decode,
    encode,
    load_snapshot,
    records_of,
    save_snapshot,
)
from proxy.broker.task_supervisor import Supervisor
from proxy.relay.tokens import token
from proxy.relay.vhost import BindingCopy, DeclaredExchange, Delivery, VhostState
from proxy.routing.router import Router
from tests.broker.clients import declare_here
from tests.broker.observed import has

NAMES = st.binary(max_size=20)
NUMBERS = st.integers(0, 2**64 - 1)
EXCHANGES = st.builds(
    ExchangeRecord,
    st.text(max_size=10),
    NAMES,
    st.sampled_from(Delivery),
    st.builds(DeclaredExchange, st.booleans(), st.booleans(), st.booleans(), NAMES, NUMBERS),
)
COPIES = st.builds(
    BindingCopy,
    NUMBERS,
    st.text(max_size=5),
    st.binary(min_size=1, max_size=255),
    st.binary(max_size=64),
    st.just(0),  # not in the file
)
BINDINGS = st.builds(
    BindingRecord,
    st.text(max_size=10),
    NAMES,
    st.tuples(st.sampled_from(["queue", "exchange"]), NAMES),
    NAMES,
    NAMES,
    st.lists(COPIES, min_size=1, max_size=3).map(tuple),
    st.frozensets(NUMBERS, max_size=3),
)
RECORDS = st.builds(SnapshotRecords, st.lists(EXCHANGES).map(tuple), st.lists(BINDINGS).map(tuple))
ONE = SnapshotRecords((ExchangeRecord("/", b"ox", Delivery.QUEUE, DeclaredExchange(True, False, False, b"\xff", 1)),))


@settings(max_examples=30)
@given(RECORDS)
def test_what_is_written_is_read_back(records: SnapshotRecords) -> None:
    assert decode(encode(records)) == records


def decoded(*lists: list[Any]) -> tuple[BindingCopy, ...]:
    """The copies in a file whose only line is a binding with these lists."""
    line = json.dumps(["binding", "/", "ox", "queue", "q", "", "", *lists]).encode() + b"\n"
    checksum = blake2b(line, digest_size=16).hexdigest().encode()
    [record] = decode(b"oxproxy-snapshot 1 " + checksum + b"\n" + line).bindings
    return record.copies


def test_a_file_of_a_version_without_marks_is_read() -> None:
    assert decoded([4, 6], ["guest"]) == (BindingCopy(4, "guest", b""), BindingCopy(6, "", b""))


def test_marks_in_a_file_of_a_version_without_keys_have_the_token_as_key() -> None:
    assert decoded([4, 6], [], [4]) == (BindingCopy(4, "", token("queue", b"q")), BindingCopy(6, "", b""))


def test_version_0_1_reads_the_file() -> None:
    """Version 0.1 reads every list after the clients as sequences."""
    copies = BindingCopy(4, "me", b"k", b"00ab"), BindingCopy(6, "you", b"l")
    record = BindingRecord("/", b"ox", ("queue", b"q"), b"", b"", copies, frozenset({4}))
    _, *values = json.loads(encode(SnapshotRecords((), (record,))).partition(b"\n")[2])
    *_, sequences, clients, marks, signatures, keys = values
    assert (sequences, clients, marks) == ([4, 6], ["me", "you"], [4])
    assert not {int(number) for more in (signatures, keys) for number in more} & set(sequences)


@settings(max_examples=30)
@given(RECORDS, st.data())
def test_a_changed_byte_is_detected(records: SnapshotRecords, data: st.DataObject) -> None:
    whole = encode(records)
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    with pytest.raises(ValueError):  # noqa: PT011 - each case has another message
        decode(changed)


@given(st.binary(max_size=100))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each case has another message
        decode(data)


def test_a_later_version_is_refused_by_its_number() -> None:
    with pytest.raises(ValueError, match="version is 2, expected 1"):
        decode(encode(ONE).replace(b"snapshot 1 ", b"snapshot 2 "))


def test_a_snapshot_atomically_replaces_the_previous_one(tmp_path: Path) -> None:
    file = tmp_path / "kept"
    save_snapshot(file, SnapshotRecords())
    save_snapshot(file, ONE)
    assert load_snapshot(file) == ONE
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_failed_write_leaves_the_previous_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "kept"
    save_snapshot(file, ONE)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save_snapshot(file, SnapshotRecords())
    assert load_snapshot(file) == ONE


def test_a_damaged_snapshot_is_set_aside(tmp_path: Path) -> None:
    file = tmp_path / "kept"
    damaged = encode(ONE)[:-3]
    file.write_bytes(damaged)
    with pytest.raises(ValueError, match="checksum") as caught:
        load_snapshot(file)
    [aside] = tmp_path.iterdir()
    assert aside.name.startswith("kept.damaged-")
    assert aside.read_bytes() == damaged
    assert str(aside) in str(caught.value)
    assert load_snapshot(file) == SnapshotRecords()


# -- when the file is written ------------------------------------------------------------------------------------------


@pytest.fixture
def known() -> VhostState:
    return VhostState("/", Router(()))


@pytest.fixture
def recorder(tmp_path: Path, known: VhostState) -> Recorder:
    return Recorder(tmp_path / "kept", lambda: [known], Supervisor())


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
