"""Tests rules and alerts with promtool, and their runbook pages."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.runbooks import point
from oxproxy.observe.metrics import METRICS
from tests.deploy.prometheus import FOLDER, ROOT, program, rule_files, rules

SERIES = Path(__file__).with_name("series")
RUNBOOKS = ROOT / "docs" / "runbooks"
RULES = rules()
ALERTS: dict[str, dict[str, Any]] = {rule["alert"]: rule for rule in RULES if "alert" in rule}
UNIT_TESTS: list[dict[str, Any]] = [
    test for path in SERIES.glob("*.yaml") for test in yaml.safe_load(path.read_text())["tests"]
]
SECTIONS = ["Meaning", "Impact", "Diagnosis", "Mitigation"]


def promtool(*arguments: str | Path) -> None:
    command = [program("promtool"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def metric_names(expression: str) -> set[str]:
    """Return the sidecar's metrics in an expression, without recorded series."""
    return set(re.findall(r"(?<![:\w])oxproxy_\w+(?![:\w])", expression))


def exposed_names() -> set[str]:
    names = {metric.name for metric in METRICS}
    histograms = {metric.name for metric in METRICS if metric.kind == "histogram"}
    return names | {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}


def test_promtool_accepts_the_configuration_and_its_rule_files() -> None:
    promtool("check", "config", FOLDER / "prometheus.yaml")


def test_the_configuration_names_every_rule_file() -> None:
    patterns = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())["rule_files"]
    assert sorted(path for pattern in patterns for path in FOLDER.glob(pattern)) == rule_files()


def test_promtool_lint_accepts_the_rules() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", *rule_files())


@pytest.mark.parametrize("path", sorted(SERIES.glob("*.yaml")), ids=lambda path: path.stem)
def test_unit_tests_of_alerts_pass(path: Path) -> None:
    promtool("test", "rules", path)


@pytest.mark.parametrize("path", sorted((FOLDER / "alerts").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_file_contains_one_group_with_its_name(path: Path) -> None:
    groups = yaml.safe_load(path.read_text())["groups"]
    assert [group["name"] for group in groups] == [f"oxproxy.{path.stem}"]


def page_name(alert: dict[str, Any]) -> str:
    base, _, name = str(alert["annotations"]["runbook_url"]).rpartition("/")
    assert base == "https://oxproxy.example/docs/runbooks"
    return name


def page_of(alert: dict[str, Any]) -> str:
    """Return the runbook of an alert, which alerts with the same steps share."""
    return (RUNBOOKS / page_name(alert)).read_text()


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_has_severity_summary_description_and_runbook(name: str) -> None:
    alert = ALERTS[name]
    assert re.fullmatch(r"Oxproxy([A-Z][a-z]+)+", name)
    assert alert["labels"]["severity"] in {"critical", "warning", "info"}
    assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
    assert f"`{name}`" in page_of(alert) or page_of(alert).startswith(f"# {name}\n")
    assert alert["annotations"]["description"].endswith(".")


def test_a_command_sets_the_url_of_every_runbook(tmp_path: Path) -> None:
    for path in (*rule_files(), *SERIES.glob("*.yaml"), ROOT / "helm" / "oxproxy" / "values.yaml"):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())
    point("https://wiki.corp.example/oxproxy/", tmp_path)
    texts = [path.read_text() for path in tmp_path.rglob("*.yaml")]
    named = [url for text in texts for url in re.findall(r"runbook_url: (\S+)/Oxproxy\w+\.md", text)]
    assert len(named) > len(ALERTS)
    assert set(named) == {"https://wiki.corp.example/oxproxy"}
    assert "runbookBase: https://wiki.corp.example/oxproxy/\n" in "".join(texts)
    promtool("test", "rules", tmp_path / "tests/deploy/series/remotes.yaml")


@pytest.mark.parametrize("path", sorted(RUNBOOKS.glob("*.md")), ids=lambda path: path.stem)
def test_a_runbook_has_four_sections_in_order_with_content(path: Path) -> None:
    page = path.read_text()
    assert page.startswith(f"# {path.stem}\n")
    heads = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert heads == SECTIONS
    assert all(len(body.strip()) > 40 for body in re.split(r"^## .*$", page, flags=re.MULTILINE)[1:])


def test_every_runbook_has_an_alert() -> None:
    assert {path.name for path in RUNBOOKS.glob("*.md")} == {page_name(alert) for alert in ALERTS.values()}


@pytest.mark.parametrize("name", ALERTS)
def test_unit_tests_let_an_alert_fire_and_stay_inactive(name: str) -> None:
    checks = [check for test in UNIT_TESTS for check in test.get("alert_rule_test", ()) if check["alertname"] == name]
    assert any(check["exp_alerts"] for check in checks), "no series for which the alert fires"
    assert any(not check["exp_alerts"] for check in checks), "no series for which the alert is inactive"


def test_every_recorded_series_has_a_unit_test() -> None:
    compared = {check["expr"] for test in UNIT_TESTS for check in test.get("promql_expr_test", ())}
    assert compared == {rule["record"] for rule in RULES if "record" in rule}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_uses_only_existing_metrics(rule: dict[str, Any]) -> None:
    assert metric_names(rule["expr"]) <= exposed_names()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_uses_only_recorded_series(rule: dict[str, Any]) -> None:
    recorded = {recording["record"] for recording in RULES if "record" in recording}
    assert set(re.findall(r"\w+:oxproxy_\w+:\w+", rule["expr"])) <= recorded
