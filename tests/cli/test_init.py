"""Tests ``oxproxy init``: the written files are valid, and no file is overwritten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from proxy.cli import main as cli
from proxy.config.loader import load_settings


def test_the_written_files_pass_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "new" / "here"
    assert cli.main(["init", str(directory)]) == 0
    written = {"oxproxy.yaml", "rules/orders.yaml", "secrets/current"}
    assert {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()} == written
    assert str(directory / "secrets" / "current") in capsys.readouterr().out
    assert cli.main(["check", str(directory / "oxproxy.yaml")]) == 0
    answer = capsys.readouterr()
    assert "1 test" in answer.out
    assert answer.err == ""


def test_the_names_of_the_files_are_printed_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["init", str(tmp_path), "--json"]) == 0
    written = ["oxproxy.yaml", "rules/orders.yaml", "secrets/current"]
    assert json.loads(capsys.readouterr().out) == {"files": [str(tmp_path / name) for name in written]}


def test_the_secret_is_random_and_readable_only_by_its_owner(tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert cli.main(["init", str(tmp_path / name)]) == 0
    first, second = (tmp_path / name / "secrets" / "current" for name in ("a", "b"))
    assert first.stat().st_mode & 0o777 == 0o600
    assert first.parent.stat().st_mode & 0o777 == 0o700
    assert len(first.read_bytes()) == 32
    assert first.read_bytes() != second.read_bytes()
    settings, _ = load_settings(tmp_path / "a" / "oxproxy.yaml", {})
    assert [source.value for source in settings.declared.secrets] == [first.read_bytes()]


@pytest.mark.parametrize("name", ["oxproxy.yaml", "rules/orders.yaml", "secrets/current"])
def test_nothing_is_overwritten(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    existing = tmp_path / name
    existing.parent.mkdir(exist_ok=True)
    existing.write_text("mine")
    assert cli.main(["init", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"{existing}: already exists; nothing was written\n"
    assert existing.read_text() == "mine"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [existing]


def test_an_unwritable_directory_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert cli.main(["init", str(tmp_path / "file" / "below")]) == 2
    assert "can't be written: " in capsys.readouterr().err
