"""Are the dashboards what Grafana can read, what the code says, and clear about their questions?

The schemas are Grafana's own, from grafana-foundation-sdk; Grafana itself is not run here.
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
# Grafana's own model has any value here; the schema made from it has an object. A regular expression is a string.
SCHEMAS["dashboard"]["definitions"]["MatcherConfig"]["properties"]["options"] = {}
PROVISIONING = DIRECTORY.parent / "provisioning"
PANELS = [
    pytest.param(panel, id=f"{dashboard.uid}: {panel['title']}")
    for dashboard in DASHBOARDS
    for panel in dashboard.json()["panels"]
    if panel["type"] != "row"
]

every_dashboard = pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.uid)
every_panel = pytest.mark.parametrize("panel", PANELS)


def faults(value: object, schema: dict[str, Any]) -> list[str]:
    found = jsonschema.Draft7Validator(schema).iter_errors(value)
    return [f"{list(error.absolute_path)}: {error.message}" for error in found]


def part(kind: str, name: str) -> dict[str, Any]:
    return {**SCHEMAS[kind], "$ref": f"#/definitions/{name}"}


@every_dashboard
def test_a_file_is_what_the_code_makes(dashboard: Any) -> None:
    assert (DIRECTORY / f"{dashboard.uid}.json").read_text() == text(dashboard), "run python -m deploy.grafana.build"


def test_there_is_no_file_without_code() -> None:
    assert {path.stem for path in DIRECTORY.glob("*")} == {dashboard.uid for dashboard in DASHBOARDS}


@every_dashboard
def test_a_dashboard_fits_grafanas_schema(dashboard: Any) -> None:
    assert faults(dashboard.json(), SCHEMAS["dashboard"]) == []


def test_the_schema_does_refuse_what_grafana_would_not_know() -> None:
    wrong = DASHBOARDS[0].json()
    wrong["panels"][1]["gridPos"] = {"h": "high"}
    assert faults(wrong, SCHEMAS["dashboard"]) != []
    assert faults({"colorMode": "value"}, part("stat", "Options")) != []


@every_panel
def test_a_panel_fits_the_schema_of_its_kind(panel: dict[str, Any]) -> None:
    kind = panel["type"]
    assert faults(panel["options"], part(kind, "Options")) == []
    if panel["fieldConfig"]["defaults"]["custom"]:
        assert faults(panel["fieldConfig"]["defaults"]["custom"], part(kind, "FieldConfig")) == []
    assert [fault for target in panel["targets"] for fault in faults(target, SCHEMAS["prometheus"])] == []


@every_panel
def test_a_panel_says_which_question_it_answers(panel: dict[str, Any]) -> None:
    assert len(panel["title"]) <= 50
    assert re.search(r"[.?]$", panel["description"])
    assert panel["targets"]


@every_panel
def test_a_panel_asks_only_for_metrics_that_the_sidecar_has(panel: dict[str, Any]) -> None:
    names = {name for target in panel["targets"] for name in metric_names(target["expr"])}
    assert names <= exposed_names()


@every_panel
def test_a_panel_asks_only_for_the_chosen_jobs(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        selectors = re.findall(r"\w+\{([^}]*)\}", target["expr"])
        assert selectors
        assert all('job=~"$job"' in selector or 'job=~"$rabbitmq"' in selector for selector in selectors)


@every_dashboard
def test_panels_lie_beside_one_another_and_within_the_grid(dashboard: Any) -> None:
    places = [panel["gridPos"] for panel in dashboard.json()["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart_x or apart_y


@every_dashboard
def test_numbers_of_panels_are_unique(dashboard: Any) -> None:
    numbers = [panel["id"] for panel in dashboard.json()["panels"]]
    assert len(numbers) == len(set(numbers))


def test_every_metric_is_shown_somewhere() -> None:
    expressions = [target["expr"] for dashboard in DASHBOARDS for target in targets(dashboard.json())]
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for each in expressions for name in metric_names(each)}
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in exposed_names()} - shown == set()


def targets(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [target for panel in dashboard["panels"] for target in panel.get("targets", ())]


def test_provisioning_looks_for_dashboards_where_compose_puts_them() -> None:
    provider = yaml.safe_load((PROVISIONING / "dashboards" / "oxproxy.yaml").read_text())["providers"][0]
    compose = (DIRECTORY.parents[1] / "docker" / "compose.yaml").read_text()
    assert f":{provider['options']['path']}:ro" in compose


def test_provisioning_names_one_data_source_that_is_a_prometheus() -> None:
    sources = yaml.safe_load((PROVISIONING / "datasources" / "oxproxy.yaml").read_text())["datasources"]
    assert [(source["type"], source["isDefault"]) for source in sources] == [("prometheus", True)]


@every_dashboard
def test_there_is_a_small_picture_of_each_dashboard_with_the_panels_that_it_has(dashboard: Any) -> None:
    path = ROOT / "docs" / "dashboards" / f"{dashboard.uid}.png"
    assert path.stat().st_size < 100_000
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        assert picture.info[TITLES] == titles(dashboard.json()), "run python -m tests.deploy.preview"


def test_a_panel_of_every_kind_can_be_drawn() -> None:
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
