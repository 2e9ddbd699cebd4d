from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from oxproxy.cli.check import check_files
from oxproxy.cli.findings import Findings
from oxproxy.cli.main import main
from oxproxy.config.loader import load_settings, rules_files
from oxproxy.rules.loader import load_rules
from oxproxy.rules.watch import FileWatch

GOOD = """
exchanges: [{name: e, bindings: [{queue: q}]}]
tests: [{name: t, publish: {exchange: e}, expect: {queues: [q]}}]
"""
WITH_CONFIGURATION = {"config": "rules: [rules.yaml]", "rules": GOOD}


def write(folder: Path, **files: str) -> dict[str, Path]:
    paths = {}
    for name, text in files.items():
        paths[name] = folder / f"{name}.yaml"
        paths[name].write_text(text)
    return paths


def errors(findings: Findings, folder: Path) -> list[str]:
    return [str(error).replace(f"{folder}/", "") for error in findings.errors]


@pytest.mark.parametrize(
    ("files", "checked", "summary"),
    [
        (
            {"rules": GOOD, "more": "exchanges: [{name: f}, {name: g}]"},
            ["rules", "more"],
            "2 files, 3 exchanges, 1 binding, 1 test; rules VERSION",
        ),
        (WITH_CONFIGURATION, ["config"], "2 files, 1 exchange, 1 binding, 1 test; rules VERSION"),
        (WITH_CONFIGURATION, ["rules", "config", "rules"], "2 files, 1 exchange, 1 binding, 1 test; rules VERSION"),
        ({"config": "log: {level: debug}"}, ["config"], "1 file, 0 exchanges, 0 bindings, 0 tests"),
    ],
    ids=["rules files", "rules of a configuration", "each file only once", "configuration without rules"],
)
def test_valid_files_are_summarized(tmp_path: Path, files: dict[str, str], checked: list[str], summary: str) -> None:
    paths = write(tmp_path, **files)
    findings = check_files([paths[name] for name in checked], {})
    assert (findings.errors, findings.warnings, findings.failures) == ([], [], [])
    version = findings.sets[0].rules.version if findings.sets else ""
    assert findings.summary == summary.replace("VERSION", version)


def test_a_directory_stands_for_its_yaml_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, rules=GOOD, more="exchanges: [{name: f}, {name: g}]")
    (tmp_path / "notes.txt").write_text("not: [a, rules, file")
    assert main(["check", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("ok: 2 files, 3 exchanges, 1 binding, 1 test;")


def test_a_directory_without_yaml_files_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"{tmp_path}: got a directory without *.yaml, expected rules files\n"


def test_errors_of_all_files_are_reported_together(tmp_path: Path) -> None:
    paths = write(
        tmp_path,
        config="log: {level: loud}\n",
        rules="exchanges: [{name: 5}]\n",
        neither="a: b\n",
        both="log: {}\nexchanges: []\n",
        plain="just a text\n",
        broken="a: [\n",
    )
    messages = errors(check_files([*paths.values(), tmp_path / "none.yaml"], {}), tmp_path)
    assert [line.split(": ")[0] for line in messages] == [
        "both.yaml:1:1",
        "broken.yaml:2:1",
        "config.yaml:1:14",
        "neither.yaml:1:1",
        "none.yaml",
        "plain.yaml:1:1",
        "rules.yaml:1:20",
    ]
    assert "got keys of both a configuration and a rules file" in messages[0]
    assert "got the keys a, expected those of a configuration" in messages[3]


def test_rules_files_in_addition_to_a_configuration_are_a_separate_set(tmp_path: Path) -> None:
    paths = write(tmp_path, config="rules: [a.yaml]", a="exchanges: [{name: e}]", b="exchanges: [{name: e}]")
    findings = check_files([paths["config"], paths["b"]], {})
    assert errors(findings, tmp_path) == []
    assert len(findings.sets) == 2


@pytest.mark.parametrize(
    ("written", "error"),
    [
        ("[none/*.yaml]", "config.yaml:1:9: rules[0]: none/*.yaml: pattern matches no file"),
        ("none.yaml", "config.yaml:1:1: rules[0]: none.yaml: file does not exist"),
        ("[s]", "config.yaml:1:9: rules[0]: s: got a directory, expected a file, or a pattern such as rules/*.yaml"),
    ],
)
def test_a_name_or_pattern_without_a_file_is_an_error(tmp_path: Path, written: str, error: str) -> None:
    (tmp_path / "s").mkdir()
    paths = write(tmp_path, config=f"rules: {written}")
    assert errors(check_files([paths["config"]], {}), tmp_path) == [error]


def test_a_missing_file_in_a_variable_is_an_error_that_names_the_variable(tmp_path: Path) -> None:
    findings = check_files([write(tmp_path, config="log: {}")["config"]], {"OXPROXY_RULES": "none.yaml"})
    assert errors(findings, tmp_path) == ["OXPROXY_RULES: rules[0]: none.yaml: file does not exist"]


@pytest.mark.parametrize("way", ["password_env: NONE", "password_file: none"])
def test_a_missing_password_is_a_warning(tmp_path: Path, way: str) -> None:
    paths = write(tmp_path, config=f"upstream: {{control: {{{way}}}}}")
    findings = check_files([paths["config"]], {})
    assert (findings.errors, len(findings.warnings)) == ([], 1)


@pytest.mark.parametrize(("way", "line"), [("password_env: NONE", 6), ("password_file: none", 6)])
def test_a_missing_password_of_another_broker_is_a_warning(tmp_path: Path, way: str, line: int) -> None:
    broker = f"brokers:\n  far:\n    address: far.example:5671\n    tls: {{}}\n    username: u\n    {way}\n"
    findings = check_files([write(tmp_path, rules=broker)["rules"]], {})
    assert findings.errors == []
    assert [(warning.place.line, warning.key) for warning in findings.warnings] == [
        (line, f"brokers.far.{way.split(':')[0]}")
    ]


def test_another_broker_at_the_own_listen_address_is_an_error(tmp_path: Path) -> None:
    rules = (
        "brokers:\n  near: {address: '127.0.0.1:7001'}\naddresses:\n  - {pattern: a, translation: 'localhost:7002/q'}\n"
    )
    config = "listen: [{address: 127.0.0.1:7001}, {address: 0.0.0.0:7002}]\nrules: [rules.yaml]\n"
    paths = write(tmp_path, rules=rules, config=config)
    assert errors(check_files([paths["config"]], {}), tmp_path) == [
        "rules.yaml:2:10: brokers.near.address: leads back to this sidecar",
        "rules.yaml:4:18: addresses[0].translation: leads back to this sidecar",
    ]
    assert check_files([paths["rules"]], {}).errors == []


ONE_EXCHANGE = """\
exchanges: [{name: e, bindings: [{queue: q}]}]
tests: [{name: t, publish: {exchange: e}, expect: {queues: [q]}}]
"""


def test_rules_of_two_configurations_are_checked_with_each(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(ONE_EXCHANGE)
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
    (tmp_path / "a.yaml").write_text(ONE_EXCHANGE)
    config = tmp_path / "oxproxy.yaml"
    config.write_text("log: {level: debug}\n")
    monkeypatch.setenv("OXPROXY_RULES", "a.yaml")
    assert main(["check", str(config)]) == 0
    assert main(["routes", str(config)]) == 0
    assert main(["explain", "--rules", str(config), "--exchange", "e", "--expect", "q"]) == 0
    assert capsys.readouterr().err == ""


WITH_TEST_FILE = "vhost: shop\nexchanges: [{name: e, bindings: [{queue: q}]}]\ntests: orders_test.yaml\n"
TESTS = "tests: [{name: t, publish: {exchange: e}, expect: {queues: [q]}}]\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "oxproxy.yaml").write_text("rules: [rules/*.yaml]\n")
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "orders.yaml").write_text(WITH_TEST_FILE)
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
    (folder / "rules" / "other.yaml").write_text(
        WITH_TEST_FILE.replace("shop", "other").replace("queue: q", "queue: r")
    )
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
        (
            "orders.yaml",
            WITH_TEST_FILE.replace("orders_t", "no_t"),
            2,
            "rules/orders.yaml:3:8: tests: rules/no_test.yaml can't",
        ),
        (
            "orders.yaml",
            WITH_TEST_FILE.replace("_test", ""),
            2,
            'rules/orders.yaml:3:8: tests: got the string "orders.yaml"',
        ),
        (
            "orders.yaml",
            WITH_TEST_FILE.replace("orders_test.yaml", "5"),
            2,
            "rules/orders.yaml:3:8: tests: got the number 5",
        ),
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
    assert not any(watch.check() for _ in range(2))
    # When
    (folder / "rules" / "orders_test.yaml").write_text("tests: [\n")
    # Then
    assert not any(watch.check() for _ in range(3))
    assert load_rules(rules_files(settings)).rules.version == loaded.rules.version
    assert loaded.tests == ()
