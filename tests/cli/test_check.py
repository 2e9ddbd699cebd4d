from __future__ import annotations

from pathlib import Path

import pytest

from proxy.cli.check import check_files
from proxy.cli.findings import Findings

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
    findings = check_files([write(tmp_path, config="workers: 1")["config"]], {"OXPROXY_RULES": "none.yaml"})
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
