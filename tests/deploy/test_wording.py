"""Tests the check of wording, and runs it on the project."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy import wording
from deploy.commits import fault


def test_the_project_has_no_findings() -> None:
    assert wording.findings() == []


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("docs/page.md", "A page.\n\n    nobody is code\n\nBut nobody is a word.\n", [5]),
        ("docs/page.md", "`nobody`, [link](nobody.md)\n\n```\nnobody\n```\n", []),
        (
            "proxy/oxproxy/a.py",
            '"""Does it.\n\n    Args:\n        name: nobody has one.\n\nAfterwards nobody does.\n"""\n',
            [4, 6],
        ),
        (
            "proxy/oxproxy/a.py",
            'def f() -> None:\n    """Do it.\n\n    Then nobody does.\n\n    For nobody.\n    """\n',
            [4, 6],
        ),
        ("proxy/oxproxy/a.py", 'def f() -> None:\n    """Do `nobody`."""\n    # for nobody\n', [3]),
    ],
)
def test_findings_have_line_numbers_and_exclude_code(
    name: str, text: str, lines: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    monkeypatch.setattr(wording, "ROOT", tmp_path)
    assert [line.partition(": ")[0] for line in wording.findings()] == [f"{name}:{line}" for line in lines]


@pytest.mark.parametrize(
    "subject", ["relay: park publishes in the channel", "docs, cli: name PCRE2", "tests/broker: wait for `ready`"]
)
def test_a_subject_that_follows_the_convention_is_accepted(subject: str) -> None:
    assert fault(subject) is None


@pytest.mark.parametrize(
    ("subject", "reason"),
    [
        ("Fix things", "expected 'area: what changes'"),
        ("relay: Park publishes", "expected 'area: what changes'"),
        ("relay: park publishes.", "expected 'area: what changes'"),
        ("relay: " + "x" * 66, "73 characters, expected at most 72"),
    ],
)
def test_any_other_subject_is_rejected_with_the_reason(subject: str, reason: str) -> None:
    assert str(fault(subject)).startswith(reason)
