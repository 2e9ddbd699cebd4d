from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from proxy.cli.schema import rules_schema, settings_schema
from proxy.rules.schema import TOP_KEYS
from proxy.yamlfile.document import read_document
from proxy.yamlfile.nodes import Faults, Mapping, Node, Scalar

CONFIG = Path(__file__).resolve().parents[2] / "config"
SCHEMAS = {"oxproxy.schema.json": settings_schema, "rules.schema.json": rules_schema}
RULES = sorted([*CONFIG.glob("rules/*.yaml"), *CONFIG.glob("examples/*.yaml")])


def plain(node: Node | None) -> object:
    """The document as JSON has it; a tagged scalar as its text."""
    match node:
        case None:
            return None
        case Scalar():
            return node.value
        case Mapping():
            return {key.text: plain(child) for key, child in node.entries}
    return [plain(item) for item in node.items]


def document(text: str) -> object:
    return plain(read_document(text, "file", Faults()))


def good(schema: dict[str, object], text: str) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(document(text))


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_published_schema_is_up_to_date(name: str) -> None:
    """Write it anew with ``python -m tests.cli.test_schema``."""
    assert json.loads((CONFIG / name).read_text()) == SCHEMAS[name]()


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_schema_is_one(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name]())


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.name)
def test_rules_files_of_the_project_are_valid(path: Path) -> None:
    jsonschema.Draft202012Validator(rules_schema()).validate(document(path.read_text()))


def test_the_configuration_of_the_project_is_valid() -> None:
    jsonschema.Draft202012Validator(settings_schema()).validate(document((CONFIG / "oxproxy.yaml").read_text()))


def test_every_key_of_a_rules_file_is_in_the_schema() -> None:
    properties = rules_schema()["properties"]
    assert isinstance(properties, dict)
    assert list(properties) == list(TOP_KEYS)


@pytest.mark.parametrize(
    "text",
    [
        "exchange: []",
        "exchanges: [{type: topic}]",
        "exchanges: [{name: e, type: hash}]",
        "exchanges: [{name: e, bindings: [{queue: q, exchange: f}]}]",
        "exchanges: [{name: e, bindings: [{}]}]",
        "queues: [1]",
        "tests: [{name: t, publish: {exchange: e}, expect: {outcome: lost}}]",
    ],
)
def test_what_is_wrong_in_rules_is_marked(text: str) -> None:
    assert not good(rules_schema(), text)


@pytest.mark.parametrize("text", ["listen: []", "limits: {connections: 0}", "lsten: []", "log: {level: loud}"])
def test_what_is_wrong_in_a_configuration_is_marked(text: str) -> None:
    assert not good(settings_schema(), text)


if __name__ == "__main__":
    for file, make in SCHEMAS.items():
        (CONFIG / file).write_text(json.dumps(make(), indent=2, ensure_ascii=False) + "\n")
