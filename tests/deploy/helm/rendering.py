"""What the real Helm engine makes of the chart, and what Kubernetes' own schemas say of that."""

from __future__ import annotations

import functools
import json
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import helm_python
import jsonschema
import kubernetes_validate
import yaml

from deploy.chart.readme import CHART

#: Any JSON object.
JSON: TypeAlias = dict[str, Any]

RELEASE, NAMESPACE = "router", "messaging"

#: The oldest Kubernetes that the chart is for, and the newest that there are schemas for.
VERSIONS = ("1.28", kubernetes_validate.latest_version())

MONITORING: JSON = json.loads(Path(__file__).with_name("monitoring.jsonschema.json").read_text())


class StrictLoader(yaml.SafeLoader):
    """YAML in which a key may stand once only: Kubernetes would take the last one without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a key stands twice: {sorted(keys)}"
        return super().construct_mapping(node, deep)


def variants() -> list[str]:
    """Return the names of the variants in ci/."""
    return sorted(path.stem.removesuffix("-values") for path in (CHART / "ci").glob("*-values.yaml"))


def variant(name: str) -> JSON:
    """Return the values of a variant in ci/."""
    found: JSON = yaml.safe_load((CHART / "ci" / f"{name}-values.yaml").read_text())
    return found


@functools.cache
def _rendered(values: str, chart: Path) -> dict[str, str]:
    with helm_python.Chart.load(chart) as loaded:
        return loaded.render(values=json.loads(values), name=RELEASE, namespace=NAMESPACE)


#: Without a password of the control user the chart renders nothing.
CONTROL = {"control": {"password": "not-a-secret"}}


def rendered(values: Mapping[str, Any], chart: Path = CHART) -> dict[str, str]:
    """Return the text that each template gives; the password of the control user is there unless values say where."""
    complete = {**CONTROL, **values} if chart == CHART else values
    return _rendered(json.dumps(complete, sort_keys=True), chart)


def objects(values: Mapping[str, Any], chart: Path = CHART) -> list[JSON]:
    """Return every object that a release with these values has."""
    texts = [text for path, text in rendered(values, chart).items() if not path.endswith("NOTES.txt")]
    documents = (yaml.load_all(text, StrictLoader) for text in texts)  # SafeLoader's child
    return [document for found in documents for document in found if document]


def of_kind(kind: str, values: Mapping[str, Any], chart: Path = CHART) -> list[JSON]:
    """Return the objects of one kind."""
    return [document for document in objects(values, chart) if document["kind"] == kind]


def the(kind: str, values: Mapping[str, Any], chart: Path = CHART) -> JSON:
    """Return the only object of a kind."""
    (found,) = of_kind(kind, values, chart)
    return found


def validate(document: JSON, version: str) -> None:
    """Check one object strictly: a key that its kind does not have is a fault too.

    Raises:
        jsonschema.ValidationError: it is wrong.
    """
    if document["kind"] in MONITORING:
        jsonschema.Draft7Validator(MONITORING[document["kind"]]).validate(document)
    else:
        _validate(json.dumps(document, sort_keys=True), version)


@functools.cache
def _validate(text: str, version: str) -> None:
    kubernetes_validate.validate(json.loads(text), version, strict=True)


def pod_templates(values: Mapping[str, Any], chart: Path = CHART) -> Iterator[JSON]:
    """Yield the template of every pod that a release starts."""
    for document in objects(values, chart):
        if document["kind"] == "Deployment":
            yield document["spec"]["template"]
        if document["kind"] == "CronJob":
            yield document["spec"]["jobTemplate"]["spec"]["template"]
        if document["kind"] == "Pod":
            yield document


def containers(template: JSON) -> list[JSON]:
    """Return all containers of a pod, native sidecars included."""
    spec = template["spec"]
    return [*spec.get("initContainers", ()), *spec["containers"]]


def configuration(values: Mapping[str, Any]) -> JSON:
    """Return the sidecar's configuration that the chart writes."""
    name = "settings.yaml" if "key" in values.get("existingConfig", {}) else "oxproxy.yaml"
    (text,) = (document["data"][name] for document in of_kind("ConfigMap", values) if name in document.get("data", {}))
    found: JSON = yaml.safe_load(text)
    return found
