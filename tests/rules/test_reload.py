from __future__ import annotations

import os
from pathlib import Path

from oxproxy.errors import ConfigError, ConfigErrors
from oxproxy.rules.loader import rules_version
from oxproxy.rules.watch import FileWatch, lone_mounts

OLD = 1_000_000_000.0


class Folder:
    """A directory of rules files, and a watch on it with a clock that the test controls."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = OLD + 1000
        self.write("a.yaml", "one")
        self.watch = FileWatch(self.files, self.version, lambda: self.now)

    def files(self) -> list[Path]:
        paths = sorted(self.path.glob("*.yaml"))
        if not paths:
            raise ConfigErrors([ConfigError("rules", 0, "", "no file")])
        return paths

    @property
    def version(self) -> str:
        return rules_version([(str(path), path.read_bytes()) for path in self.files()])

    def write(self, name: str, text: str, at: float = OLD) -> Path:
        path = self.path / name
        path.write_text(text)
        os.utime(path, (at, at))
        return path

    def looks(self, count: int) -> list[bool]:
        return [self.watch.check() for _ in range(count)]


def test_a_change_is_reported_once(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("a.yaml", "another")
    assert folder.looks(2) == [False, True]
    folder.watch.take()
    assert not any(folder.looks(3))


def test_a_growing_file_is_not_reported(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for length in range(1, 5):
        folder.write("a.yaml", "x" * 10 * length)
        assert not folder.watch.check()
    assert folder.watch.check()


def test_a_touched_file_is_not_reported(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.looks(2)
    folder.write("a.yaml", "one", OLD + 5)
    assert not any(folder.looks(3))


def test_a_second_write_with_the_same_size_and_timestamp_is_reported(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.now = OLD + 0.5
    assert not any(folder.looks(3))
    folder.write("a.yaml", "two")
    assert folder.watch.check()


def test_a_changed_symbolic_link_is_reported(tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    for number, text in enumerate(("one", "two")):
        (mount / f"..{number}").mkdir(parents=True)
        path = mount / f"..{number}" / "a.yaml"
        path.write_text(text)
        os.utime(path, (OLD, OLD))
    (mount / "..data").symlink_to("..0")
    (mount / "a.yaml").symlink_to("..data/a.yaml")
    files = [mount / "a.yaml"]
    watch = FileWatch(lambda: files, rules_version([("", b"one")]), lambda: OLD + 1000)
    assert not any(watch.check() for _ in range(3))
    (mount / "..new").symlink_to("..1")
    (mount / "..new").rename(mount / "..data")
    assert [watch.check(), watch.check()] == [False, True]


def test_removed_files_are_reported(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    (tmp_path / "a.yaml").unlink()
    assert folder.looks(2) == [False, True]
    folder.watch.take()
    assert not any(folder.looks(2))


def test_a_directory_in_place_of_a_file_does_not_end_the_watch(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    (tmp_path / "b.yaml").mkdir()
    assert folder.looks(2) == [False, True]


def test_a_change_to_be_retried_is_reported_again(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert not any(folder.looks(3))
    folder.watch.again()
    assert folder.watch.check()


def test_a_file_that_is_a_mount_point_is_recognized(tmp_path: Path) -> None:
    lone, usual = tmp_path / "lone file.yaml", tmp_path / "usual.yaml"
    lone.touch()
    usual.touch()
    written = str(lone).replace(" ", "\\040")
    mountinfo = f"36 35 98:0 / {tmp_path} rw - ext4 /dev/a rw\n37 36 98:0 /x {written} rw - ext4 /dev/a rw\n"
    assert lone_mounts([lone, usual], mountinfo) == [lone]
