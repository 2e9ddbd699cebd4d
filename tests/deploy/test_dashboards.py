"""Tests the dashboards: Grafana's schemas, generated files, layout and descriptions.

The schemas come from grafana-foundation-sdk. Grafana itself is not run.
"""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from PIL import Image

from deploy.grafana.build import DASHBOARDS, DIRECTORY, text
from tests.deploy.drawing import KINDS, TITLES, titles
from tests.deploy.prometheus import ROOT
from tests.deploy.test_prometheus import exposed_names, metric_names

SCHEMAS: dict[str, Any] = json.loads(Path(__file__).with_name("grafana.jsonschema.json").read_text())
# Grafana's model allows any value here, such as a string with a regular expression. The generated schema allows only an
# object.
SCHEMAS["dashboard"]["definitions"]["MatcherConfig"]["properties"]["options"] = {}
PROVISIONING = ROOT / "deploy" / "grafana" / "provisioning"
PANELS = [
    pytest.param(panel, id=f"{dashboard.uid}: {panel['title']}")
    for dashboard in DASHBOARDS
    for panel in dashboard.json()["panels"]
    if panel["type"] != "row"
]

every_dashboard = pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.uid)
every_panel = pytest.mark.parametrize("panel", PANELS)


def faults(value: object, schema: dict[str, Any]) -> list[str]:
    errors = jsonschema.Draft7Validator(schema).iter_errors(value)
    return [f"{list(error.absolute_path)}: {error.message}" for error in errors]


def part(kind: str, name: str) -> dict[str, Any]:
    return {**SCHEMAS[kind], "$ref": f"#/definitions/{name}"}


@every_dashboard
def test_a_dashboard_file_equals_its_generated_content(dashboard: Any) -> None:
    assert (DIRECTORY / f"{dashboard.uid}.json").read_text() == text(dashboard), "run python -m deploy.grafana.build"


def test_every_dashboard_file_is_generated() -> None:
    assert {path.stem for path in DIRECTORY.glob("*")} == {dashboard.uid for dashboard in DASHBOARDS}


@every_dashboard
def test_a_dashboard_is_valid_for_grafanas_schema(dashboard: Any) -> None:
    assert faults(dashboard.json(), SCHEMAS["dashboard"]) == []


def test_the_schemas_reject_invalid_dashboards() -> None:
    wrong = DASHBOARDS[0].json()
    wrong["panels"][1]["gridPos"] = {"h": "high"}
    assert faults(wrong, SCHEMAS["dashboard"]) != []
    assert faults({"colorMode": "value"}, part("stat", "Options")) != []


@every_panel
def test_a_panel_is_valid_for_the_schema_of_its_kind(panel: dict[str, Any]) -> None:
    kind = panel["type"]
    assert faults(panel["options"], part(kind, "Options")) == []
    if panel["fieldConfig"]["defaults"]["custom"]:
        assert faults(panel["fieldConfig"]["defaults"]["custom"], part(kind, "FieldConfig")) == []
    assert [fault for target in panel["targets"] for fault in faults(target, SCHEMAS["prometheus"])] == []


@every_panel
def test_a_panel_has_a_title_a_description_and_a_query(panel: dict[str, Any]) -> None:
    assert len(panel["title"]) <= 50
    assert re.search(r"[.?]$", panel["description"])
    assert panel["targets"]


@every_panel
def test_a_panel_uses_only_existing_metrics(panel: dict[str, Any]) -> None:
    names = {name for target in panel["targets"] for name in metric_names(target["expr"])}
    assert names <= exposed_names()


@every_panel
def test_a_panel_selects_only_the_chosen_jobs(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        selectors = re.findall(r"\w+\{([^}]*)\}", target["expr"])
        assert selectors
        assert all('job=~"$job"' in selector or 'job=~"$rabbitmq"' in selector for selector in selectors)


@every_dashboard
def test_panels_do_not_overlap_and_are_within_the_grid(dashboard: Any) -> None:
    places = [panel["gridPos"] for panel in dashboard.json()["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for first, second in combinations(places, 2):
        apart_x = first["x"] + first["w"] <= second["x"] or second["x"] + second["w"] <= first["x"]
        apart_y = first["y"] + first["h"] <= second["y"] or second["y"] + second["h"] <= first["y"]
        assert apart_x or apart_y


@every_dashboard
def test_numbers_of_panels_are_unique(dashboard: Any) -> None:
    numbers = [panel["id"] for panel in dashboard.json()["panels"]]
    assert len(numbers) == len(set(numbers))


def test_every_metric_is_in_a_dashboard() -> None:
    expressions = [target["expr"] for dashboard in DASHBOARDS for target in targets(dashboard.json())]
    shown = {
        re.sub(r"_(bucket|sum|count)$", "", name) for expression in expressions for name in metric_names(expression)
    }
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in exposed_names()} - shown == set()


def targets(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [target for panel in dashboard["panels"] for target in panel.get("targets", ())]


def test_provisioning_and_compose_use_the_same_directory() -> None:
    provider = yaml.safe_load((PROVISIONING / "dashboards" / "oxproxy.yaml").read_text())["providers"][0]
    compose = (ROOT / "deploy" / "docker" / "compose.yaml").read_text()
    assert f"../../{DIRECTORY.relative_to(ROOT)}:{provider['options']['path']}:ro" in compose


def test_provisioning_has_one_default_data_source_of_type_prometheus() -> None:
    sources = yaml.safe_load((PROVISIONING / "datasources" / "oxproxy.yaml").read_text())["datasources"]
    assert [(source["type"], source["isDefault"]) for source in sources] == [("prometheus", True)]


@every_dashboard
def test_each_dashboard_has_a_small_up_to_date_picture(dashboard: Any) -> None:
    path = ROOT / "docs" / "dashboards" / f"{dashboard.uid}.png"
    assert path.stat().st_size < 100_000
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        assert picture.info[TITLES] == titles(dashboard.json()), "run python -m tests.deploy.preview"


def test_every_kind_of_panel_can_be_drawn() -> None:
    kinds = {panel["type"] for dashboard in DASHBOARDS for panel in dashboard.json()["panels"]}
    assert set(KINDS) == kinds - {"row"}


def test_an_outcome_has_the_same_color_in_every_panel_of_series() -> None:
    colors: dict[str, set[str]] = {}
    for dashboard in DASHBOARDS:
        for panel in dashboard.json()["panels"]:
            if panel["type"] == "timeseries":
                for override in panel["fieldConfig"]["overrides"]:
                    value = override["properties"][0]["value"]["fixedColor"]
                    colors.setdefault(override["matcher"]["options"], set()).add(value)
    assert {pattern: len(used) for pattern, used in colors.items()} == dict.fromkeys(colors, 1)
    expected = {"routed": {"green"}, "unrouted": {"orange"}, "rejected": {"red"}}
    assert {outcome: colors[rf"/\b{outcome}$/"] for outcome in expected} == expected
