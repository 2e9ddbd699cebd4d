from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from oxproxy.cli.check import check_files
from oxproxy.cli.main import main
from oxproxy.cli.schema import json_schema
from oxproxy.config.settings import Settings
from oxproxy.rules.operator_reference import OPERATORS
from oxproxy.rules.schema import TOP_KEYS, RulesModel
from oxproxy.yamlfile.document import Faults, read_document
from tests.yamlfile.test_document import plain

CONFIG = Path(__file__).resolve().parents[2] / "config"
SCHEMAS: dict[str, Any] = {"config": json_schema(Settings, "config"), "rules": json_schema(RulesModel, "rules")}
RULES = sorted([*CONFIG.glob("rules/*.yaml"), *CONFIG.glob("examples/*.yaml")])


def document(text: str) -> object:
    return plain(read_document(text, "file", Faults()))


def is_valid(schema: dict[str, object], text: str) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(document(text))


@pytest.mark.parametrize(("name", "file"), [("config", "oxproxy.schema.json"), ("rules", "rules.schema.json")])
def test_the_command_prints_the_published_schema(name: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """To update it, run ``oxproxy schema config > config/oxproxy.schema.json``; the same applies to rules."""
    assert main(["schema", name]) == 0
    assert capsys.readouterr() == ((CONFIG / file).read_text(), "")


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_schema_is_valid(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name])


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.name)
def test_rules_files_of_the_project_are_valid(path: Path) -> None:
    jsonschema.Draft202012Validator(SCHEMAS["rules"]).validate(document(path.read_text()))


def test_the_configuration_of_the_project_is_valid() -> None:
    jsonschema.Draft202012Validator(SCHEMAS["config"]).validate(document((CONFIG / "oxproxy.yaml").read_text()))


def test_every_key_of_a_rules_file_is_in_the_schema() -> None:
    properties = SCHEMAS["rules"]["properties"]
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
def test_invalid_rules_are_rejected(text: str) -> None:
    assert not is_valid(SCHEMAS["rules"], text)


@pytest.mark.parametrize("text", ["listen: []", "limits: {connections: 0}", "lsten: []", "log: {level: loud}"])
def test_an_invalid_configuration_is_rejected(text: str) -> None:
    assert not is_valid(SCHEMAS["config"], text)


@pytest.mark.parametrize("path", sorted(CONFIG.rglob("*.yaml")), ids=lambda path: path.name)
def test_every_example_names_its_schema_for_editors(path: Path) -> None:
    kind = "oxproxy" if path.name == "oxproxy.yaml" else "rules"
    first, _, _ = path.read_text().partition("\n")
    schema = first.removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / schema).resolve() == CONFIG / f"{kind}.schema.json"


def argument_schemas() -> dict[str, object]:
    arguments = SCHEMAS["rules"]["$defs"]["BindingModel"]["properties"]["arguments"]
    plain = dict(arguments["properties"])
    for pattern, schema in arguments["patternProperties"].items():
        (name,) = [name for name in OPERATORS if re.fullmatch(pattern + "*", f"{name} header")]
        plain[name] = schema
    return plain


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_has_a_description(operator: str) -> None:
    schema = argument_schemas()[operator]
    assert isinstance(schema, dict)
    assert len(schema["description"]) > 10


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        ("x-order: 500", True),
        ("x-order: 5", False),
        ("x-stop-ontrue: ''", True),
        ("x-stop-ontrue: yes please", False),
        ('"x-?hkv>= amount": 5', True),
        ('"x-?hkv>= amount": true', False),
        ("x-addq-ontrue: [a, b]", True),
        ("x-addq-ontrue: 5", False),
        ("x-?prex: message_id", True),
        ("x-?prex: message-id", False),
        ("any header: [1, {a: b}]", True),
    ],
)
def test_values_of_operators_are_checked(arguments: str, right: bool) -> None:
    rules = f"exchanges: [{{name: e, bindings: [{{queue: q, arguments: {{{arguments}}}}}]}}]"
    assert is_valid(SCHEMAS["rules"], rules) is right


@pytest.mark.parametrize(
    "arguments",
    [
        "x-?rk!=: [a, b]",
        "x-match: any, x-?rk=: [a, b]",
        "x-match: any, x-?rkta: [a.#, b.#]",
        "x-?rk!taci: [a, b]",
        "x-?hkex: [a, b]",
        "x-?hk!ex: [a, b]",
        "x-?hkexn: [a, b]",
        "x-?prex: [type, app_id]",
        "x-?pr!ex: [type, app_id]",
    ],
)
def test_the_schema_accepts_lists_of_values(arguments: str, tmp_path: Path) -> None:
    text = f"exchanges: [{{name: e, bindings: [{{queue: q, arguments: {{{arguments}}}}}]}}]"
    (tmp_path / "rules.yaml").write_text(text)
    assert check_files([tmp_path / "rules.yaml"], {}).errors == []
    assert is_valid(SCHEMAS["rules"], text)


@pytest.mark.parametrize("url", ["HTTP://127.0.0.1:15672", "Https://h", "' http://h'"])
def test_the_schema_accepts_every_accepted_url(url: str, tmp_path: Path) -> None:
    text = f"upstream: {{management: {url}}}"
    (tmp_path / "oxproxy.yaml").write_text(text)
    assert check_files([tmp_path / "oxproxy.yaml"], {}).errors == []
    assert is_valid(SCHEMAS["config"], text)
