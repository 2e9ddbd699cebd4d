from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest

from proxy.cli.main import main
from proxy.cli.schema import config_schema, rules_schema
from proxy.rules.schema import TOP_KEYS
from proxy.yamlfile.document import Faults, Mapping, Node, Scalar, read_document

CONFIG = Path(__file__).resolve().parents[2] / "config"
SCHEMAS = {"config": config_schema, "rules": rules_schema}
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


@pytest.mark.parametrize(("name", "file"), [("config", "oxproxy.schema.json"), ("rules", "rules.schema.json")])
def test_the_command_prints_the_published_schema(name: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Update it with ``oxproxy schema config > config/oxproxy.schema.json``, and likewise for rules."""
    assert main(["schema", name]) == 0
    assert capsys.readouterr() == ((CONFIG / file).read_text(), "")


@pytest.mark.parametrize("arguments", [["schema"], ["schema", "message"]])
def test_another_format_is_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2
    assert "usage: oxproxy schema" in capsys.readouterr().err


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_schema_is_one(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name]())


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.name)
def test_rules_files_of_the_project_are_valid(path: Path) -> None:
    jsonschema.Draft202012Validator(rules_schema()).validate(document(path.read_text()))


def test_the_configuration_of_the_project_is_valid() -> None:
    jsonschema.Draft202012Validator(config_schema()).validate(document((CONFIG / "oxproxy.yaml").read_text()))


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
    assert not good(config_schema(), text)
