"""Runs the steps of docs/how-to/change-rules-safely.md that need no running sidecar."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from oxproxy.cli.main import main
from oxproxy.relay.records.privacy import Privacy
from oxproxy.values import Value
from tests.docs.test_report_recipes import ROOT
from tests.report import lines
from tests.report.test_backtest import message, recorded

PAGE = (ROOT / "docs/how-to/change-rules-safely.md").read_text()
_, ACTIVE, NEXT = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [textwrap.dedent(block).strip() for block in re.findall(r"(?:^ {4}oxproxy.*\n)+", PAGE, re.MULTILINE)]
AUDIT = "/var/lib/oxproxy/audit"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the files of the page and the log of the active rules."""
    amounts = [message("k", (b"amount", Value("I", amount))) for amount in (100, 500, 2000)]
    privacy = Privacy(frozenset((b"region", b"amount")))
    rules = ACTIVE.replace("  - name: orders", "  - name: x\n    delivery: queue")
    made = [line.replace('"exchange":"x"', '"exchange":"orders"') for line in recorded(rules, amounts, privacy)]
    lines.segment(tmp_path / "audit", made, "2026-11-21")
    (tmp_path / "next.yaml").write_text(NEXT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(name: str, number: int = 0) -> int:
    """Run a command of the page; return its exit status."""
    command = [command for command in COMMANDS if command.startswith(f"oxproxy {name}")][number]
    return main(command.replace(AUDIT, "audit").split()[1:])


def test_the_next_rules_are_checked_and_back_tested(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check") == 0
    capsys.readouterr()
    assert run("backtest") == 0
    text = capsys.readouterr().out
    assert "exchange orders: judged 3, equal 2, different 1, unroutable 0, not judged 0" in text
    assert "queue large in vhost /: +1 -0" in text
    assert (folder / "report/backtest.html").exists()
    assert run("backtest", 1) == 0
    assert "| `/` | `orders` | 3 | 2 | 1 | 0 | 0 |" in capsys.readouterr().out


def test_a_condition_on_a_new_header_is_reported_as_not_recorded(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "next.yaml").write_text(NEXT.replace("region: eu", "tier: gold"))
    assert run("backtest") == 0
    assert "3 publishes: header tier is not recorded" in capsys.readouterr().out
    assert "`header tier is not recorded`" in PAGE


def test_all_commands_of_the_page_exist() -> None:
    named = {command.split()[1] for command in COMMANDS}
    assert named == {"check", "backtest", "shadow", "rules"}
