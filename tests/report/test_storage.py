from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from proxy.report.storage import Storage, StorageError, literal

ODD = "a*b?[c]{d},e f"


@pytest.fixture(scope="module")
def storage(spark: SparkSession) -> Storage:
    return Storage(spark)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_paths_with_and_without_a_scheme_are_the_same_files(storage: Storage, tmp_path: Path, scheme: str) -> None:
    folder = f"{scheme}{tmp_path}/x/y"
    storage.make(folder)
    storage.write(f"{folder}/page", "text ü")
    assert (tmp_path / "x/y/page").read_text() == "text ü"
    assert storage.read(f"{folder}/page") == "text ü"
    assert storage.whole(folder) == f"file:{tmp_path}/x/y"


def test_entries_come_by_name_and_say_what_they_are(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a").write_text("")
    found = [(entry.name, entry.is_folder) for entry in storage.entries(str(tmp_path))]
    assert found == [("a", False), ("b", True)]
    assert [entry.path for entry in storage.entries(str(tmp_path))] == [f"file:{tmp_path}/a", f"file:{tmp_path}/b"]
    assert list(storage.entries(str(tmp_path / "nowhere"))) == []


def test_what_is_there_and_what_is_a_folder(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    names = ("", "file", "nowhere")
    assert [storage.exists(f"{tmp_path}/{name}") for name in names] == [True, True, False]
    assert [storage.is_folder(f"{tmp_path}/{name}") for name in names] == [True, False, False]


def test_removing_takes_all_that_is_in_a_folder(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/c").write_text("")
    assert storage.remove(f"{tmp_path}/a")
    assert not storage.remove(f"{tmp_path}/a")
    assert list(tmp_path.iterdir()) == []


def test_a_text_takes_the_place_of_an_earlier_one_and_leaves_nothing_beside_it(
    storage: Storage, tmp_path: Path
) -> None:
    for text in ("one", "two"):
        storage.write(f"{tmp_path}/page", text)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("page", "two")]


def test_a_folder_is_never_moved_into_one_that_is_there(storage: Storage, tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    with pytest.raises(StorageError, match="can't be moved"):
        storage.move(f"{tmp_path}/new", f"{tmp_path}/old")
    storage.move(f"{tmp_path}/new", f"{tmp_path}/other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old", "other"]


def test_a_copy_leaves_what_was_copied(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x").write_text("x")
    storage.copy(f"{tmp_path}/a", f"{tmp_path}/b")
    assert [(tmp_path / name / "x").read_text() for name in "ab"] == ["x", "x"]


def test_a_place_that_refuses_is_told_in_a_sentence(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        storage.make(f"{tmp_path}/file/below")


def test_a_file_system_that_nobody_knows_is_told_in_a_sentence(storage: Storage) -> None:
    with pytest.raises(StorageError, match="nosuch"):
        storage.whole("nosuch://host/folder")


def test_text_is_measured_as_it_reads_packed_or_not(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"x" * 1000)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"x" * 70_000) + gzip.compress(b"y" * 5))
    assert storage.text_bytes(f"{tmp_path}/a.jsonl") == 1000
    assert storage.text_bytes(f"{tmp_path}/a.jsonl.gz") == 70_005


def test_a_file_that_breaks_off_has_no_measure(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"x" * 70_000)[:-20])
    with pytest.raises(Py4JJavaError):
        storage.text_bytes(f"{tmp_path}/a.jsonl.gz")


def test_a_literal_path_is_no_pattern(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / ODD
    folder.mkdir()
    (folder / "t.txt").write_text("line\n")
    assert [row.value for row in spark.read.text(literal(str(folder))).collect()] == ["line"]
