"""Rules as a library: `load_rules` and what it returns."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import oxproxy
from oxproxy import ConfigErrors, RuleSet, load_rules
from oxproxy.cli.main import main

RULES = """\
queues: [all, large, late, team.a]
exchanges:
  - name: orders
    bindings:
      - {queue: large, name: large orders, when: {amount >=: 1000}}
      - {queue: all, name: all orders}
      - {queue: late, name: at night, when: {utc matches: ' 2[23]'}}
  - {name: small, arguments: {max-payload-size: 10}, bindings: [{queue: all}]}
  - {name: teams, bindings: [{queue: all, then: {add queues matching: '^team'}}]}
  - name: typed
    bindings:
      - {queue: all, when: {a: !timestamp 2026-11-21T08:00:00Z, b: !bytes 6162, c: 1.5, d: {x: "1"}, e: true, f: null}}
tests:
  - name: a large order
    publish: {exchange: orders, headers: {amount: 2000}}
    at: 2026-11-21T08:00:00Z
    expect: {queues: [all]}
"""
DAY = "2026-11-21T08:00:00Z"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "orders.yaml").write_text(RULES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def rules(directory: Path) -> RuleSet:
    return load_rules("*.yaml")


def test_a_message_is_explained_with_its_destinations_and_the_reason(rules: RuleSet) -> None:
    message = rules.explain(exchange="orders", headers={"amount": 2000}, at=DAY)
    assert message.queues == ["all", "large"]
    assert (message.outcome, message.vhost, message.error) == ("routed", "/", None)
    assert message.bindings == ["large orders", "all orders"]
    assert "match     amount >=: 1000, got 2000" in message.walk
    assert message.as_json()["queues"] == ["large", "all"] or message.as_json()["queues"] == ["all", "large"]


def test_the_walk_is_what_the_command_prints(rules: RuleSet, capsys: pytest.CaptureFixture[str]) -> None:
    walk = rules.explain("orders", "a.b", {"amount": "2000"}, {"priority": 5}, body_size=7, at=DAY).walk
    command = ["explain", "--rules", "orders.yaml", "--exchange", "orders", "--key", "a.b", "--header", "amount=2000"]
    main([*command, "--property", "priority=5", "--size", "7", "--at", DAY])
    assert capsys.readouterr().out == walk + "\n"


def test_every_python_type_has_the_type_of_the_same_value_in_a_file(rules: RuleSet) -> None:
    headers: dict[str, Any] = {"b": b"ab", "c": 1.5, "d": {"x": "1"}, "e": True, "f": None}
    headers["a"] = datetime(2026, 11, 21, 9, 0, 0, 5, timezone(timedelta(hours=1)))
    assert rules.explain("typed", headers=headers).queues == ["all"]
    for name, other in {"a": 1, "b": b"ac", "c": "1.5", "d": {"x": 1}, "e": 1, "f": ""}.items():
        assert rules.explain("typed", headers=headers | {name: other}).queues == [], name


@pytest.mark.parametrize("at", ["2026-11-21T22:30:00Z", datetime(2026, 11, 21, 22, 30, tzinfo=UTC)])
def test_the_time_of_the_publish_can_be_given(rules: RuleSet, at: str | datetime) -> None:
    assert rules.explain("orders", at=at).queues == ["all", "late"]


def test_a_rejected_message_and_one_to_an_unknown_exchange(rules: RuleSet) -> None:
    rejected = rules.explain("small", body_size=11)
    assert (rejected.outcome, rejected.error, rejected.queues) == ("rejected", "Max size payload hit.", [])
    passed = rules.explain("order")
    assert (passed.outcome, passed.exchanges) == ("passed", ["order"])
    assert "did you mean orders?" in passed.walk


def test_regex_routes_choose_among_the_queues_of_the_rules_and_the_caller(rules: RuleSet) -> None:
    assert rules.explain("teams").queues == ["all", "team.a"]
    assert rules.explain("teams", queues=["team.b"]).queues == ["all", "team.a", "team.b"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"exchange": 5}, "message: exchange: got the number 5, expected the name of the exchange"),
        (
            {"headers": {"a": object()}},
            "message: headers.a: got an object of the type object, expected None, a boolean",
        ),
        ({"headers": {5: 1}}, "message: headers: got the key 5, expected a string"),
        ({"headers": {"a": {"b": [float("nan")]}}}, "message: headers.a.b[0]: got nan, expected a finite number"),
        ({"headers": {"a": 2**70}}, "message: headers.a: got the number 1180591620717411303424, expected a signed 64-"),
        ({"headers": {"a": datetime(2026, 1, 1)}}, "got 2026-01-01T00:00:00 without a time zone"),  # noqa: DTZ001
        ({"properties": {"typ": "a"}}, "message: properties.typ: unknown key; did you mean type?"),
        ({"body_size": -1}, "message: body_size: got the number -1, expected an integer from 0"),
        ({"at": "now"}, 'message: at: got the string "now", expected a time with its zone'),
    ],
)
def test_an_invalid_message_is_an_error_with_its_key(rules: RuleSet, arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigErrors) as raised:
        rules.explain(**{"exchange": "orders", **arguments})
    assert error in str(raised.value)


def test_several_errors_of_a_message_are_reported_together(rules: RuleSet) -> None:
    headers: dict[str, Any] = {"a": object(), "b": float("inf")}
    with pytest.raises(ConfigErrors) as raised:
        rules.explain("orders", headers=headers, body_size=-1)
    assert len(str(raised.value).splitlines()) == 3


def test_the_tests_in_the_files_are_run(rules: RuleSet) -> None:
    (failure,) = rules.failures()
    assert (failure.name, failure.place) == ("a large order", "orders.yaml:14:5")
    assert failure.differences == ["queues: got large, which was not expected"]
    assert "match     amount >=: 1000, got 2000" in failure.walk
    assert str(failure).startswith("orders.yaml:14:5: a large order: queues: got large")


def test_tests_in_other_files_are_run_too(directory: Path) -> None:
    (directory / "a.yaml").write_text("exchanges: [{name: a, bindings: [{queue: q}]}]\ntests: a_test.yaml\n")
    (directory / "a_test.yaml").write_text("tests: [{name: t, publish: {exchange: a}, expect: {queues: [r]}}]\n")
    assert [failure.name for failure in load_rules("*.yaml").failures()] == ["a large order", "t"]


def test_warnings_and_version_are_those_of_the_commands(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = directory / "doubtful.yaml"
    path.write_text('exchanges: [{name: a, bindings: [{queue: q, when: {a: ">= 5", b <: 3, b >: 4}}]}]\n')
    rules = load_rules(path)
    main(["check", str(path)])
    out, err = capsys.readouterr()
    assert rules.warnings == err.splitlines()
    assert len(rules.warnings) == 2
    assert rules.version in out


@pytest.mark.parametrize(
    ("names", "error"),
    [
        ((), "load_rules: got no file, expected names or patterns of rules files"),
        (("none.yaml",), "none.yaml: there is no such rules file"),
        (("none/*.yaml", "orders.yaml"), "none/*.yaml: this pattern matches no rules file"),
        (("wrong.yaml",), 'wrong.yaml:1:52: exchanges[0].bindings[0].when["a>="]: got "a>=", did you mean "a >="?'),
    ],
)
def test_files_that_cannot_be_loaded_are_errors(directory: Path, names: tuple[str, ...], error: str) -> None:
    (directory / "wrong.yaml").write_text("exchanges: [{name: a, bindings: [{queue: q, when: {a>=: 5}}]}]\n")
    with pytest.raises(ConfigErrors) as raised:
        load_rules(*names)
    assert str(raised.value).startswith(error)


def test_an_unknown_name_of_the_package() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'load_rule'"):
        oxproxy.load_rule  # type: ignore[attr-defined]  # noqa: B018


def test_importing_the_package_does_not_import_the_library() -> None:
    code = "import sys, oxproxy; sys.exit(any(name in sys.modules for name in ('pydantic', 'yaml', 'oxproxy.rules')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_library_imports_no_network_libraries() -> None:
    code = (
        "import sys; from oxproxy import load_rules; sys.exit(any(n in sys.modules for n in ('aiohttp', 'aio_pika')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
