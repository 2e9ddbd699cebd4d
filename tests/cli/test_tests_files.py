"""Tests test files that rules files name: ``tests: orders_test.yaml``."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from proxy.cli.main import main
from proxy.config.loader import load_settings, rules_files
from proxy.rules.loader import load_rules
from proxy.rules.watch import FileWatch

RULES = "vhost: shop\nexchanges: [{name: e, bindings: [{queue: q}]}]\ntests: orders_test.yaml\n"
TESTS = "tests: [{name: t, publish: {exchange: e}, expect: {queues: [q]}}]\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "oxproxy.yaml").write_text("rules: [rules/*.yaml]\n")
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "orders.yaml").write_text(RULES)
    (tmp_path / "rules" / "orders_test.yaml").write_text(TESTS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["check", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize(
    ("files", "count"),
    [
        (["oxproxy.yaml"], 3),
        (["rules/orders.yaml"], 2),
        (["rules/orders.yaml", "rules/orders_test.yaml"], 2),
        (["rules/orders_test.yaml", "oxproxy.yaml"], 3),
    ],
)
def test_check_runs_the_tests_of_a_test_file(
    folder: Path, files: list[str], count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = check(capsys, "--fail-under", "100", *files)
    assert (status, err) == (0, "")
    assert out.startswith(f"ok: {count} files, 1 exchange, 1 binding, 1 test; ")


def test_each_rules_file_that_names_a_test_file_has_its_own_result(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "rules" / "other.yaml").write_text(RULES.replace("shop", "other").replace("queue: q", "queue: r"))
    (folder / "rules" / "orders_test.yaml").write_text(TESTS.replace("[q]", "[r]"))
    status, _, err = check(capsys, "oxproxy.yaml")
    assert (status, err.count("message   to exchange e in vhost shop"), err.count("in vhost other")) == (1, 1, 0)
    (suite,) = ET.fromstring(check(capsys, "--format", "junit", "oxproxy.yaml")[1])
    assert suite.attrib["failures"] == "1"
    assert [len(case) for case in suite] == [1, 0]
    (folder / "rules" / "orders_test.yaml").write_text(TESTS.replace("[q]", "[s]"))
    _, _, err = check(capsys, "oxproxy.yaml")
    assert (err.count("message   to exchange e in vhost shop"), err.count("in vhost other")) == (1, 1)


@pytest.mark.parametrize(
    ("file", "text", "status", "line"),
    [
        ("orders_test.yaml", TESTS.replace("[q]", "[r]"), 1, "rules/orders_test.yaml:1:9: tests[0]: t: queues: "),
        ("orders_test.yaml", TESTS.replace("name", "nmae"), 2, "rules/orders_test.yaml:1:10: tests[0].nmae: unknown"),
        ("orders_test.yaml", TESTS + "queues: [q]\n", 2, "rules/orders_test.yaml:2:1: queues: unknown key"),
        ("orders_test.yaml", "tests: [\n", 2, "rules/orders_test.yaml:2:1: YAML syntax"),
        (
            "orders_test.yaml",
            "",
            2,
            "rules/orders_test.yaml:1:1: the file is empty, expected a mapping with the key tests",
        ),
        ("orders.yaml", RULES.replace("orders_t", "no_t"), 2, "rules/orders.yaml:3:8: tests: rules/no_test.yaml can't"),
        ("orders.yaml", RULES.replace("_test", ""), 2, 'rules/orders.yaml:3:8: tests: got the string "orders.yaml"'),
        ("orders.yaml", RULES.replace("orders_test.yaml", "5"), 2, "rules/orders.yaml:3:8: tests: got the number 5"),
        ("spare_test.yaml", TESTS, 0, "rules/spare_test.yaml: warning: this test file is not run: no rules file names"),
    ],
)
def test_errors_are_reported_at_their_position_in_the_test_file(
    folder: Path, file: str, text: str, status: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "rules" / file).write_text(text)
    exit_status, _, err = check(capsys, "oxproxy.yaml")
    assert exit_status == status
    assert any(message.startswith(line) for message in err.splitlines()), err


def test_a_test_file_is_not_a_rules_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = check(capsys, "rules/orders_test.yaml")
    assert (status, out) == (2, "")
    assert "got a test file, expected the rules file that names it" in err
    assert main(["routes", "rules/orders_test.yaml"]) == 2
    assert main(["routes", "rules/orders_test.yaml", "rules/orders.yaml"]) == 0
    (folder / "oxproxy.yaml").write_text("rules: rules/orders_test.yaml\n")
    assert "expected a rules file that names it under tests" in check(capsys, "oxproxy.yaml")[2]


def test_a_sidecar_does_not_read_test_files(folder: Path) -> None:
    # Given
    settings, _ = load_settings(folder / "oxproxy.yaml", {})
    loaded = load_rules(rules_files(settings))
    now = [0.0]
    watch = FileWatch(lambda: rules_files(settings), loaded.rules.version, lambda: now[0])
    assert not any(watch.look() for _ in range(2))
    # When
    (folder / "rules" / "orders_test.yaml").write_text("tests: [\n")
    # Then
    assert not any(watch.look() for _ in range(3))
    assert load_rules(rules_files(settings)).rules.version == loaded.rules.version
    assert loaded.tests == ()
