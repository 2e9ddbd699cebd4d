"""Renders the chart with the Helm engine, and validates the result against Kubernetes' schemas."""

from __future__ import annotations

import copy
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

#: The oldest version of Kubernetes that the chart supports, and the newest with schemas.
VERSIONS = ("1.28", kubernetes_validate.latest_version())

MONITORING: JSON = json.loads(Path(__file__).with_name("monitoring.jsonschema.json").read_text())


class StrictLoader(yaml.CSafeLoader):
    """A YAML loader that rejects duplicate keys. Kubernetes silently uses the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"duplicate key: {sorted(keys)}"
        return super().construct_mapping(node, deep)


def variants() -> list[str]:
    """Return the names of the variants in ci/."""
    return sorted(path.stem.removesuffix("-values") for path in (CHART / "ci").glob("*-values.yaml"))


def variant(name: str) -> JSON:
    """Return the values of a variant in ci/."""
    values: JSON = yaml.safe_load((CHART / "ci" / f"{name}-values.yaml").read_text())
    return values


@functools.cache
def _rendered(values: str, chart: Path) -> dict[str, str]:
    with helm_python.Chart.load(chart) as loaded:
        return loaded.render(values=json.loads(values), name=RELEASE, namespace=NAMESPACE)


#: The chart requires a password of the control user.
CONTROL = {"control": {"password": "not-a-secret"}}


@functools.cache
def _objects(values: str, chart: Path) -> list[JSON]:
    texts = [text for path, text in _rendered(values, chart).items() if not path.endswith("NOTES.txt")]
    documents = (yaml.load_all(text, StrictLoader) for text in texts)  # SafeLoader's child
    return [document for texts_of_file in documents for document in texts_of_file if document]


def _complete(values: Mapping[str, Any], chart: Path) -> str:
    return json.dumps({**CONTROL, **values} if chart == CHART else values, sort_keys=True)


def rendered(values: Mapping[str, Any], chart: Path = CHART) -> dict[str, str]:
    """Return the text of each rendered template. A password is added unless the values specify one."""
    return _rendered(_complete(values, chart), chart)


def objects(values: Mapping[str, Any], chart: Path = CHART) -> list[JSON]:
    """Return every object of a release with these values, as new copies."""
    return copy.deepcopy(_objects(_complete(values, chart), chart))


def of_kind(kind: str, values: Mapping[str, Any], chart: Path = CHART) -> list[JSON]:
    """Return the objects of one kind."""
    return [document for document in objects(values, chart) if document["kind"] == kind]


def the(kind: str, values: Mapping[str, Any], chart: Path = CHART) -> JSON:
    """Return the only object of a kind."""
    (document,) = of_kind(kind, values, chart)
    return document


def validate(document: JSON, version: str) -> None:
    """Validate an object strictly: unknown keys are errors.

    Raises:
        jsonschema.ValidationError: the object is invalid.
    """
    if document["kind"] in MONITORING:
        jsonschema.Draft7Validator(MONITORING[document["kind"]]).validate(document)
    else:
        _validate(json.dumps(document, sort_keys=True), version)


@functools.cache
def _validate(text: str, version: str) -> None:
    kubernetes_validate.validate(json.loads(text), version, strict=True)


def pod_templates(values: Mapping[str, Any], chart: Path = CHART) -> Iterator[JSON]:
    """Yield the pod template of every workload of a release."""
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
    """Return the configuration of the sidecar that the chart generates."""
    name = "settings.yaml" if "key" in values.get("existingConfig", {}) else "oxproxy.yaml"
    (text,) = (document["data"][name] for document in of_kind("ConfigMap", values) if name in document.get("data", {}))
    settings: JSON = yaml.safe_load(text)
    return settings
