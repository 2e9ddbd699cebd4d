"""Follows "Deleting personal data" in docs/reference/audit.md."""

from __future__ import annotations

import re
import subprocess
import textwrap
from pathlib import Path

import pytest

from oxproxy.cli.main import main
from tests.docs.test_report_recipes import ROOT
from tests.report.lines import publish, segment, settle

PAGE = (ROOT / "docs/reference/audit.md").read_text()
AUDIT = "/var/lib/oxproxy/audit"


def records(made: list[str]) -> list[str]:
    """Return the records as the sidecar writes them, without spaces."""
    return [line.replace('": ', '":') for line in made]


def report(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Run the report with a table of all messages; return its rows of messages and users."""
    output = ["--output", str(folder / "report")]
    assert main(["report", "--input", str(folder / "audit"), *output, "--trace"]) == 0
    capsys.readouterr()
    query = 'SELECT message_id, "user" FROM trace FULL JOIN producers ON false ORDER BY ALL'
    assert main(["report", *output, "--query", query]) == 0
    return capsys.readouterr().out


def test_the_records_of_a_user_are_deleted_from_the_log_and_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    audit = tmp_path / "audit"
    alice = [
        publish(user="alice", conn="a1", message_id="secret", rk="alice"),
        settle(conn="a1", message_id="secret", rk="alice"),
    ]
    bob = [publish(user="bob", conn="b1", message_id="other")]
    both = segment(audit, records(alice + bob))
    segment(audit, records(alice), hour=8, name="p-1-2")
    untouched = segment(audit, records([publish(user="bob", conn="b1", seq=2, message_id="more")]), name="p-1-3")
    before = both.read_bytes(), untouched.read_bytes()
    assert {"secret", "alice"} <= set(report(tmp_path, capsys).split())
    [commands] = re.findall(rf"^ {{4}}cd {AUDIT}\n(?: {{4}}.*\n)+", PAGE, re.MULTILINE)
    done = subprocess.run(
        ["bash", "-e", "-c", textwrap.dedent(commands).replace(AUDIT, str(audit))], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [both.read_bytes() == before[0], untouched.read_bytes() == before[1]] == [False, True]
    assert sorted(path.name for path in audit.iterdir()) == ["date=2026-11-20"]
    after = set(report(tmp_path, capsys).split())
    assert {"other", "more", "bob"} <= after
    assert not {"secret", "alice"} & after
