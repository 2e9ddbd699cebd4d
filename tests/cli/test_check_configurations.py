from __future__ import annotations

from pathlib import Path

import pytest

from proxy.cli.check import check_files
from proxy.cli.main import main

RULES = """\
exchanges: [{name: e, bindings: [{queue: q}]}]
tests: [{name: t, publish: {exchange: e}, expect: {queues: [q]}}]
"""


def test_rules_of_two_configurations_are_checked_with_each(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(RULES)
    (tmp_path / "b.yaml").write_text("exchanges: [{name: e}]\n")
    first, second = tmp_path / "one.yaml", tmp_path / "two.yaml"
    first.write_text("rules: a.yaml\n")
    second.write_text("rules: [a.yaml, b.yaml]\n")
    (alone,) = check_files([second], {}).errors
    findings = check_files([first, second], {})
    assert [str(error) for error in findings.errors] == [str(alone)]
    second.write_text("rules: a.yaml\n")
    findings = check_files([first, second], {})
    assert (findings.errors, findings.warnings, findings.failures) == ([], [], [])
    assert [len(loaded.tests) for loaded in findings.sets] == [1, 1]


def test_a_configuration_whose_rules_are_in_the_environment_is_recognized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.yaml").write_text(RULES)
    config = tmp_path / "oxproxy.yaml"
    config.write_text("log: {level: debug}\n")
    monkeypatch.setenv("OXPROXY_RULES", "a.yaml")
    assert main(["check", str(config)]) == 0
    assert main(["routes", str(config)]) == 0
    assert main(["explain", "--rules", str(config), "--exchange", "e", "--expect", "q"]) == 0
    assert capsys.readouterr().err == ""
