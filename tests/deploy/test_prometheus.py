"""Are rules and alerts right on paper: promtool's checks, their tests with series, their runbook pages?"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.runbooks import point
from proxy.observe.metrics import METRICS, MetricKind
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
    """Return the names in an expression that are ours, without those of recorded series."""
    return set(re.findall(r"(?<![:\w])oxproxy_\w+(?![:\w])", expression))


def exposed_names() -> set[str]:
    names = {metric.name for metric in METRICS}
    histograms = {metric.name for metric in METRICS if metric.kind is MetricKind.HISTOGRAM}
    return names | {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}


def test_prometheus_can_read_the_configuration_and_all_that_it_names() -> None:
    promtool("check", "config", FOLDER / "prometheus.yaml")


def test_the_configuration_names_every_rule_file() -> None:
    patterns = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())["rule_files"]
    assert sorted(path for pattern in patterns for path in FOLDER.glob(pattern)) == rule_files()


def test_rules_pass_every_lint() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", *rule_files())


@pytest.mark.parametrize("path", sorted(SERIES.glob("*.yaml")), ids=lambda path: path.stem)
def test_series_make_the_alerts_that_they_should(path: Path) -> None:
    promtool("test", "rules", path)


@pytest.mark.parametrize("path", sorted((FOLDER / "alerts").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_file_holds_one_group_that_bears_its_name(path: Path) -> None:
    groups = yaml.safe_load(path.read_text())["groups"]
    assert [group["name"] for group in groups] == [f"oxproxy.{path.stem}"]


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_how_bad_it_is_and_what_to_do(name: str) -> None:
    alert = ALERTS[name]
    assert re.fullmatch(r"Oxproxy([A-Z][a-z]+)+", name)
    assert alert["labels"]["severity"] in {"critical", "warning", "info"}
    assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
    assert alert["annotations"]["runbook_url"] == f"https://oxproxy.example/docs/runbooks/{name}.md"
    assert alert["annotations"]["description"].endswith(".")


def test_a_command_points_every_alert_at_the_place_where_runbooks_are_served(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("name", ALERTS)
def test_a_runbook_has_the_four_sections_in_order_and_none_is_empty(name: str) -> None:
    page = (RUNBOOKS / f"{name}.md").read_text()
    assert page.startswith(f"# {name}\n")
    heads = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert heads == SECTIONS
    assert all(len(body.strip()) > 40 for body in re.split(r"^## .*$", page, flags=re.MULTILINE)[1:])


def test_there_is_no_runbook_without_its_alert() -> None:
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == set(ALERTS)


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_is_seen_to_fire_and_to_keep_quiet(name: str) -> None:
    checks = [check for test in UNIT_TESTS for check in test.get("alert_rule_test", ()) if check["alertname"] == name]
    assert any(check["exp_alerts"] for check in checks), "no series that make it fire"
    assert any(not check["exp_alerts"] for check in checks), "no series that leave it quiet"


def test_every_recorded_series_is_compared_with_numbers() -> None:
    compared = {check["expr"] for test in UNIT_TESTS for check in test.get("promql_expr_test", ())}
    assert compared == {rule["record"] for rule in RULES if "record" in rule}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_asks_only_for_metrics_that_the_sidecar_has(rule: dict[str, Any]) -> None:
    assert metric_names(rule["expr"]) <= exposed_names()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_asks_only_for_series_that_are_recorded(rule: dict[str, Any]) -> None:
    recorded = {other["record"] for other in RULES if "record" in other}
    assert set(re.findall(r"\w+:oxproxy_\w+:\w+", rule["expr"])) <= recorded
