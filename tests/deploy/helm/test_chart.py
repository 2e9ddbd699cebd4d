"""Tests the chart's README, schema, copied files, lint results, named templates and monitoring objects."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from deploy.chart.build import made
from deploy.chart.readme import CHART, ROOT, at, documented, parent_with_dependency
from deploy.grafana.build import DASHBOARDS
from tests.deploy.helm.rendering import JSON, VERSIONS, containers, objects, of_kind, the, validate, variant, variants
from tests.deploy.helm.test_rendering import SWITCHES, assert_restricted
from tests.deploy.prometheus import program, rules
from tests.sidecar import oxproxy

VALUES = (CHART / "values.yaml").read_text()
SCHEMA: JSON = json.loads((CHART / "values.schema.json").read_text())
MONITORED = {"prometheusRule": {"enabled": True}, "dashboards": {"enabled": True}}


def keys(tree: Any, before: str = "") -> Iterator[str]:  # YAML of any shape
    """Yield the dotted path of every key in a tree."""
    if isinstance(tree, dict):
        for name, child in tree.items():
            yield before + name
            yield from keys(child, f"{before}{name}.")


def test_generated_files_are_up_to_date() -> None:
    stale = [path.name for path, text in made().items() if not path.exists() or path.read_text() != text]
    assert stale == [], "run python -m deploy.chart.build"


def test_every_value_or_its_parent_is_documented() -> None:
    about = {key for key, _ in documented(VALUES)}
    sections = {key.rsplit(".", 1)[0] for key in about if "." in key}
    bare = [key for key in keys(yaml.safe_load(VALUES)) if not {key, *parents(key)} & about and key not in sections]
    assert bare == []


def parents(key: str) -> set[str]:
    parts = key.split(".")
    return {".".join(parts[:length]) for length in range(1, len(parts))}


def test_every_documented_value_exists() -> None:
    tree = yaml.safe_load(VALUES)
    for key, about in documented(VALUES):
        at(tree, key)
        assert about[0].isupper() or about[0] == "`"


def test_the_schema_contains_exactly_the_existing_values() -> None:
    def known(schema: JSON, before: str = "") -> Iterator[str]:
        for name, child in schema.get("properties", {}).items():
            yield before + name
            yield from known(child, f"{before}{name}.") if name != "config" else ()

    given = set(keys(yaml.safe_load(VALUES)))
    closed = set(known(SCHEMA)) - {"global"}
    optional = re.compile(r"\w+Probe\.|(report\.)?resources\.")
    assert sorted(key for key in closed - given if not optional.match(key)) == []
    assert sorted({key.split(".")[0] for key in given - closed}) == sorted(
        {key.split(".")[0] for key in given - closed} & FREE
    )


#: Values that the chart passes to Kubernetes or to the sidecar unchanged.
FREE = {
    "admin",
    "affinity",
    "audit",
    "autoscaling",
    "config",
    "dashboards",
    "podMonitor",
    "podSecurityContext",
    "report",
    "resources",
    "securityContext",
    "updateStrategy",
}


def test_the_chart_has_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)


@pytest.mark.parametrize("name", variants())
def test_lint_reports_nothing(name: str) -> None:
    report = helm_python.lint(CHART, variant(name), strict=True, kube_version="v1.28.0")
    # The icon is optional.
    messages = [message for message in report["messages"] if "icon is recommended" not in message["error"]]
    assert (messages, report["errors"]) == ([], [])


def test_the_packaged_chart_excludes_files_for_development(tmp_path: Path) -> None:
    archive = helm_python.package(CHART, destination=tmp_path)
    with helm_python.Chart.load(archive) as chart:
        names = {file["name"] for file in chart.files}
    assert "README.md" in names
    assert not [name for name in names if name.startswith("ci/") or name == "README.in.md"]


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chart that has this chart as a dependency."""
    return parent_with_dependency(tmp_path_factory.mktemp("charts") / "shop")


@pytest.mark.parametrize("version", VERSIONS)
def test_named_templates_add_a_native_sidecar_to_pods_of_another_chart(parent: Path, version: str) -> None:
    for document in objects({}, parent):
        validate(document, version)
    template = the("Deployment", {}, parent)["spec"]["template"]
    (sidecar,) = template["spec"]["initContainers"]
    assert (sidecar["name"], sidecar["restartPolicy"]) == ("oxproxy", "Always")
    assert_restricted(sidecar)


def test_volumes_of_a_sidecar_refer_to_objects_of_its_release(parent: Path) -> None:
    template = the("Deployment", {}, parent)["spec"]["template"]
    volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
    made_here = {document["metadata"]["name"] for document in of_kind("ConfigMap", {}, parent)}
    assert volumes["oxproxy-config"]["configMap"]["name"] in made_here
    assert volumes["oxproxy-rules"]["projected"]["sources"][0]["configMap"]["name"] in made_here
    mounted = {mount["name"] for container in containers(template) for mount in container.get("volumeMounts", ())}
    assert mounted == set(volumes)


def test_changed_rules_restart_a_pod_with_a_sidecar(parent: Path) -> None:
    def annotations(values: JSON) -> dict[str, str]:
        result: dict[str, str] = the("Deployment", values, parent)["spec"]["template"]["metadata"]["annotations"]
        return result

    changed = {"oxproxy": {"rules": {"files": {"documents.yaml": "exchanges: []"}}}}
    assert annotations({})["checksum/rules"] != annotations(changed)["checksum/rules"]


def test_the_grace_period_of_a_pod_with_a_sidecar_exceeds_the_drain(parent: Path) -> None:
    spec = the("Deployment", {}, parent)["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] > 25 + 5


def test_the_pod_monitor_selects_pods_with_a_sidecar(parent: Path) -> None:
    monitor = the("PodMonitor", {"oxproxy": {"podMonitor": {"enabled": True}}}, parent)
    labels = the("Deployment", {}, parent)["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_pod_in_the_readme_is_valid(version: str) -> None:
    text = re.findall(r"```yaml\n(metadata:.*?)```", (CHART / "README.md").read_text(), re.DOTALL)[0]
    pod = yaml.safe_load(text)
    pod |= {"apiVersion": "v1", "kind": "Pod"}
    pod["metadata"]["name"] = "producer"
    pod["spec"]["containers"] = [{"name": "producer", "image": "producer"}]
    validate(pod, version)


@pytest.mark.parametrize("values", [{"serviceMonitor": {"enabled": True}}, {"podMonitor": {"enabled": True}}], ids=str)
@pytest.mark.parametrize("name", ["", "messaging", "my-oxproxy"])
def test_job_names_match_the_selectors_of_alerts_and_dashboards(values: JSON, name: str) -> None:
    monitor = of_kind("ServiceMonitor", values) or of_kind("PodMonitor", values)
    monitor = [
        document for document in objects(values | {"fullnameOverride": name}) if document["kind"] == monitor[0]["kind"]
    ]
    spec = monitor[0]["spec"]
    (endpoint,) = spec.get("endpoints") or spec["podMetricsEndpoints"]
    assert [
        re.fullmatch(".*oxproxy.*", relabeling["replacement"]) is not None for relabeling in endpoint["relabelings"]
    ] == [True]


def test_the_service_monitor_selects_the_admin_service() -> None:
    values = {"serviceMonitor": {"enabled": True}}
    monitor = the("ServiceMonitor", values)
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    (service,) = [
        document for document in of_kind("Service", values) if wanted <= document["metadata"]["labels"].items()
    ]
    assert monitor["spec"]["endpoints"][0]["port"] in [port["name"] for port in service["spec"]["ports"]]


def test_the_prometheus_rule_contains_every_rule_and_promtool_accepts_it(tmp_path: Path) -> None:
    spec = the("PrometheusRule", MONITORED)["spec"]
    names = [rule.get("alert") or rule["record"] for group in spec["groups"] for rule in group["rules"]]
    assert sorted(names) == sorted(rule.get("alert") or rule["record"] for rule in rules())
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(spec))
    done = subprocess.run(
        [program("promtool"), "check", "rules", "--lint=all", "--lint-fatal", str(tmp_path / "rules.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_can_be_disabled_and_the_url_of_runbooks_changed() -> None:
    chosen = {"enabled": True, "disabled": ["OxproxyAbsent"], "runbookBase": "https://wiki.example/oxproxy/"}
    spec = the("PrometheusRule", {"prometheusRule": chosen})["spec"]
    alerts = {rule["alert"]: rule for group in spec["groups"] for rule in group["rules"] if "alert" in rule}
    assert "OxproxyAbsent" not in alerts
    assert alerts["OxproxyDown"]["annotations"]["runbook_url"] == "https://wiki.example/oxproxy/OxproxyDown.md"


def test_templates_in_alerts_are_not_rendered_by_helm() -> None:
    spec = the("PrometheusRule", MONITORED)["spec"]
    expected = {rule["alert"]: rule["annotations"]["summary"] for rule in rules() if "alert" in rule}
    made_of = {rule["alert"]: rule for group in spec["groups"] for rule in group["rules"] if "alert" in rule}
    assert {name: rule["annotations"]["summary"] for name, rule in made_of.items()} == expected


def test_dashboards_equal_those_for_grafana_and_fit_into_a_config_map() -> None:
    maps = [
        document
        for document in of_kind("ConfigMap", MONITORED)
        if "grafana_dashboard" in document["metadata"]["labels"]
    ]
    dashboards = {name: text for document in maps for name, text in document["data"].items()}
    assert {name: json.loads(text) for name, text in dashboards.items()} == {
        f"{dashboard.uid}.json": dashboard.json() for dashboard in DASHBOARDS
    }
    assert all(len(text) < 1_000_000 for text in dashboards.values())


def test_the_report_mounts_the_audit_log_read_only_and_another_volume_for_output() -> None:
    spec = the("CronJob", SWITCHES["report"])["spec"]
    assert spec["concurrencyPolicy"] == "Forbid"
    pod = spec["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"][:4] == ["--input", "/audit", "--output", "/report"]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts["/audit"]["readOnly"] is True
    assert "readOnly" not in mounts["/report"]
    flags = {argument for argument in container["args"] if argument.startswith("--")}
    assert flags <= set(re.findall(r"--[a-z]+", oxproxy("report", "--help", check=True).stdout))
    claims = {volume["name"]: volume.get("persistentVolumeClaim", {}).get("claimName") for volume in pod["volumes"]}
    assert claims[mounts["/audit"]["name"]] == "audit"
