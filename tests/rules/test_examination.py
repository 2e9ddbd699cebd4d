from __future__ import annotations

from pathlib import Path

import pytest

from proxy.cli.check import Findings, check_files
from proxy.rules.lint.bindings import exceeds_match_limit


@pytest.fixture
def found(tmp_path: Path) -> Findings:
    (tmp_path / "r.yaml").write_text(
        """\
queues: [made]
exchanges:
  - name: e
    bindings:
      - queue: never
        arguments: {"x-order": 100, "x-?hkv= a": 1, "x-?hkv> a": 5}
      - queue: jumps
        arguments: {"x-order": 200, "x-?hkv= a": 1, x-goto-ontrue: 900}
      - queue: hard
        arguments: {"x-order": 300, "x-?rkre": "^(a+)+$"}
      - queue: made
        arguments: {"x-order": 400, x-stop-ontrue: "", x-addq-ontrue: added}
      - exchange: f
        arguments: {"x-order": 500}
  - name: f
    bindings:
      - queue: made
      - {queue: made, name: twice, arguments: {b: 1}}
tests:
  - {name: one, publish: {exchange: e, headers: {a: 1}}, expect: {queues: [jumps]}}
"""
    )
    return check_files([tmp_path / "r.yaml"], {})


def test_everything_in_vain_is_found_at_its_line(found: Findings) -> None:
    assert found.errors == []
    assert found.failures == []
    assert [(*each.place[1:], each.message.split(":")[0]) for each in found.warnings] == [
        (5, 9, "this binding never matches"),
        (8, 53, "this goto leads nowhere"),
        (10, 37, "this pattern runs into the match limit on aaaaaaaaaaaa... (201 bytes), which counts as no match"),
        (13, 9, "this binding is never visited"),
        (18, 9, "this binding adds nothing to the one in line 17"),
    ]


def test_bindings_that_no_test_makes_true_are_known(found: Findings) -> None:
    assert [each.place.line for each in found.uncovered] == [5, 9, 11, 13, 17, 18]


def test_destinations_that_the_rules_do_not_make_are_known(found: Findings) -> None:
    assert [(each.kind, each.name, each.place.line) for each in found.destinations] == [
        ("queue", b"never", 5),
        ("queue", b"jumps", 7),
        ("queue", b"hard", 9),
        ("queue", b"added", 12),
    ]


def test_findings_as_json(found: Findings) -> None:
    data = found.as_json()
    assert data["ok"] is True
    warnings = data["warnings"]
    assert isinstance(warnings, list)
    assert set(warnings[0]) == {"file", "line", "column", "key", "message"}


@pytest.mark.parametrize("pattern", [b"^abc$", b"^[a-z]+\\.[0-9]+$", b"(?i)^doc", b"a.*b", b"("])
def test_usual_patterns_have_an_answer(pattern: bytes) -> None:
    assert exceeds_match_limit(pattern) is None


@pytest.mark.parametrize("pattern", [b"^(a+)+$", b"^(z|z)*$", b"^(\\d+)*$"])
def test_patterns_that_explode_give_up(pattern: bytes) -> None:
    assert exceeds_match_limit(pattern) is not None
