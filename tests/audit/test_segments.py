from __future__ import annotations

import gzip
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from proxy.audit import segments
from proxy.audit.segments import (
    InstanceLock,
    OpenSegment,
    compress_segment,
    hour_directory,
    open_segments,
    orphaned_segments,
    safe_instance,
)

HOUR = "2026-11-21T07"
NAME = "audit-main-20261121T075959000000Z-000001"


def make(directory: Path, text: bytes = b"one\ntwo\n", name: str = NAME) -> OpenSegment:
    segment = OpenSegment.create(directory, HOUR, name, 0.0)
    segment.write(text)
    return segment


def visible(directory: Path) -> list[str]:
    """Return the file names that Spark reads, which do not begin with an underscore or a dot."""
    return sorted(path.name for path in directory.rglob("[!_.]*") if path.is_file())


def test_an_open_segment_is_hidden_and_not_world_readable(tmp_path: Path) -> None:
    segment = make(tmp_path)
    assert segment.path == tmp_path / "date=2026-11-21" / "hour=07" / f"_{NAME}.jsonl"
    assert segment.path.read_bytes() == b"one\ntwo\n"
    assert visible(tmp_path) == []
    assert not segment.path.stat().st_mode & stat.S_IRWXO
    segment.close()


@pytest.mark.parametrize("isal", [True, False])
def test_closing_leaves_one_visible_compressed_file(
    tmp_path: Path, isal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert segments.ISAL is not None, "make setup installs isal"
    if not isal:
        monkeypatch.setattr(segments, "ISAL", None)
    segment = make(tmp_path)
    segment.close()
    shown = compress_segment(segment.path)
    assert shown is not None
    assert visible(tmp_path) == [f"{NAME}.jsonl.gz"]
    assert gzip.decompress(shown.read_bytes()) == b"one\ntwo\n"
    assert [path.name for path in shown.parent.iterdir()] == [shown.name]
    assert not shown.stat().st_mode & stat.S_IRWXO


def test_a_torn_last_line_is_kept_unchanged(tmp_path: Path) -> None:
    segment = make(tmp_path, b'{"ts":"2026"}\n{"ts":"20')
    segment.close()
    shown = compress_segment(segment.path)
    assert shown is not None
    assert gzip.decompress(shown.read_bytes()) == b'{"ts":"2026"}\n{"ts":"20'


def test_an_empty_segment_is_removed(tmp_path: Path) -> None:
    segment = make(tmp_path, b"")
    segment.close()
    assert compress_segment(segment.path) is None
    assert list(segment.path.parent.iterdir()) == []


@pytest.mark.parametrize("step", ["_gzip", "Path.rename", "sync_directory", "Path.unlink"])
def test_after_a_crash_at_any_step_a_retry_leaves_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    class Crash(BaseException):
        pass

    def crash(*args: object, **options: object) -> None:
        raise Crash

    segment = make(tmp_path)
    segment.close()
    with monkeypatch.context() as patch:
        patch.setattr(Path if step.startswith("Path") else segments, step.removeprefix("Path."), crash)
        with pytest.raises(Crash):
            compress_segment(segment.path)
    assert segment.path.exists()
    compress_segment(segment.path)
    assert visible(tmp_path) == [f"{NAME}.jsonl.gz"]
    assert len(list(segment.path.parent.iterdir())) == 1


def test_a_full_disk_during_compression_leaves_the_segment_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, target: Path) -> None:
        target.write_bytes(b"partial")
        raise OSError(28, "No space left on device")

    segment = make(tmp_path)
    segment.close()
    monkeypatch.setattr(segments, "_gzip", full)
    with pytest.raises(OSError, match="No space"):
        compress_segment(segment.path)
    assert [path.name for path in segment.path.parent.iterdir()] == [segment.path.name]
    assert segment.path.read_bytes() == b"one\ntwo\n"


def test_a_write_to_a_removed_file_is_an_error(tmp_path: Path) -> None:
    segment = make(tmp_path)
    segment.path.unlink()
    with pytest.raises(FileNotFoundError, match="has been removed"):
        segment.write(b"three\n")
    segment.close()


def test_restore_truncates_a_partial_write(tmp_path: Path) -> None:
    segment = make(tmp_path)
    os.write(segment.descriptor, b"thr")
    assert segment.restore(segment.size)
    segment.write(b"four\n")
    assert segment.path.read_bytes() == b"one\ntwo\nfour\n"
    segment.close()
    assert not segment.restore(0), "a closed file can't be truncated"


def test_a_duplicate_segment_name_is_refused(tmp_path: Path) -> None:
    make(tmp_path).close()
    with pytest.raises(FileExistsError):
        make(tmp_path)


def test_a_directory_removed_by_retention_is_created_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open
    removed: list[Path] = []

    def removing(path: Path, flags: int, mode: int = 0o777) -> int:
        if not removed and str(path).endswith(".jsonl"):
            removed.append(path)
            Path(path).parent.rmdir()
            Path(path).parent.parent.rmdir()
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", removing)
    segment = make(tmp_path)
    assert removed
    assert segment.path.exists()
    segment.close()


def test_an_invalid_hour_creates_no_directory(tmp_path: Path) -> None:
    for wrong in ("../../../x", "2026-11-21", "2026-11-21T07:00", ""):
        with pytest.raises(ValueError, match="is not an hour"):
            hour_directory(tmp_path, wrong)


def test_instance_names_are_safe_in_paths() -> None:
    assert safe_instance("pod-1.ns/ä b") == "pod-1.ns___b"
    assert safe_instance("") == "_"
    assert len(safe_instance("x" * 1000)) == 100


def test_open_segments_are_grouped_by_instance_with_dashes_in_its_name(tmp_path: Path) -> None:
    first = make(tmp_path, name="audit-pod-a-1-20261121T075959000000Z-000001")
    second = make(tmp_path, name="audit-pod-a-1-20261121T075959000000Z-000002")
    closed = make(tmp_path, name="audit-pod-a-1-20261121T075959000000Z-000003")
    of_other_instance = make(tmp_path, name="audit-b-20261121T075959000000Z-000001")
    for segment in (first, second, closed, of_other_instance):
        segment.close()
    compress_segment(closed.path)
    assert open_segments(tmp_path) == {"pod-a-1": [first.path, second.path], "b": [of_other_instance.path]}


def test_an_instance_lock_is_exclusive_until_its_release(tmp_path: Path) -> None:
    claim = InstanceLock.acquire(tmp_path, "main")
    assert claim is not None
    assert InstanceLock.acquire(tmp_path, "main") is None
    second = InstanceLock.acquire(tmp_path, "other")
    assert second is not None
    second.release()
    claim.release()
    again = InstanceLock.acquire(tmp_path, "main")
    assert again is not None
    again.release()
    assert list(tmp_path.iterdir()) == []


CLAIM_AND_WAIT = """
import sys
from pathlib import Path
from proxy.audit.segments import InstanceLock
claim = InstanceLock.acquire(Path(sys.argv[1]), "main")
print(claim is not None, flush=True)
sys.stdin.read()
"""


def test_an_instance_lock_ends_with_its_process(tmp_path: Path) -> None:
    make(tmp_path).close()
    command = [sys.executable, "-c", CLAIM_AND_WAIT, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        assert list(orphaned_segments(tmp_path, "me")) == []
        holder.kill()
        holder.wait()
    assert [[path.name for path in paths] for paths in orphaned_segments(tmp_path, "me")] == [[f"_{NAME}.jsonl"]]
    assert list(orphaned_segments(tmp_path, "main")) == [], "an instance's own segments are not orphaned"
