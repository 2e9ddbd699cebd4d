from __future__ import annotations

import pytest

from proxy.config.keys import override
from proxy.yamlfile.document import Faults, Mapping, Node, Scalar, Sequence, read_document

Shape = str | list["Shape"] | dict[str, "Shape"]

FILE = "log: {level: info}\nlisten:\n  - address: a:1\nupstream:\n"


def shape(node: Node) -> Shape:
    match node:
        case Scalar():
            return node.text
        case Sequence():
            return [shape(item) for item in node.items]
        case Mapping():
            return {key.text: shape(child) for key, child in node.entries}


def overridden(**environ: str) -> tuple[Shape, list[str]]:
    faults = Faults()
    root = read_document(FILE, "f.yaml", faults)
    assert root is not None
    result = override(root, environ, faults)
    return shape(result), [str(error) for error in faults.errors]


@pytest.mark.parametrize(
    ("environ", "changed"),
    [
        pytest.param({"OXPROXY_LOG__LEVEL": "debug"}, {"log": {"level": "debug"}}, id="replaced value"),
        pytest.param(
            {"OXPROXY_ADMIN__ADDRESS": "b:2", "OXPROXY_UPSTREAM__CONTROL__USERNAME": "me"},
            {"admin": {"address": "b:2"}, "upstream": {"control": {"username": "me"}}},
            id="added values",
        ),
        pytest.param(
            {"OXPROXY_LISTEN__0__ADDRESS": "b:2", "OXPROXY_LISTEN__1__ADDRESS": "c:3"},
            {"listen": [{"address": "b:2"}, {"address": "c:3"}]},
            id="items of a list",
        ),
        pytest.param({"OXPROXY_BROKERS__0__ADDRESS": "b:2"}, {"brokers": [{"address": "b:2"}]}, id="new list"),
        pytest.param(
            {"OXPROXY_UPSTREAM": "{address: a:1, management: b}", "OXPROXY_UPSTREAM__ADDRESS": "c:3"},
            {"upstream": {"address": "c:3", "management": "b"}},
            id="nested variable in addition to a shorter one",
        ),
    ],
)
def test_variables_replace_and_add_values(environ: dict[str, str], changed: dict[str, Shape]) -> None:
    unchanged, _ = overridden()
    assert isinstance(unchanged, dict)
    assert overridden(**environ) == (unchanged | changed, [])


@pytest.mark.parametrize("name", ["OXPROXY_LISTEN__2__ADDRESS", "OXPROXY_LISTEN__ADDRESS", "OXPROXY_LOG__LEVEL__X"])
def test_an_invalid_variable_is_an_error_with_its_name(name: str) -> None:
    errors = overridden(**{name: "x"})[1]
    key = name.removeprefix("OXPROXY_").lower().replace("__", ".")
    assert errors == [f"{name}: {key}: there is no such key"]


@pytest.mark.parametrize(
    "name",
    [
        "OXPROXY_PORT",
        "OXPROXY_SERVICE_HOST",
        "OXPROXY_SERVICE_PORT",
        "OXPROXY_SERVICE_PORT_AMQP",
        "OXPROXY_PORT_5672_TCP_ADDR",
        "OXPROXY_ADMIN_SERVICE_HOST",
        "OTHER_LOG__LEVEL",
    ],
)
def test_other_variables_are_ignored(name: str) -> None:
    assert overridden(**{name: "tcp://10.0.0.1:5672"}) == overridden()


def test_an_empty_variable_counts_as_not_set() -> None:
    assert overridden(OXPROXY_LOG__LEVEL="") == overridden()


@pytest.mark.parametrize(
    "environ", [{}, {"OXPROXY_UPSTREAM__CONTROL__PASSWORD_ENV": "OXPROXY_SECRET"}], ids=["file", "variable"]
)
def test_a_variable_named_as_a_password_source_is_not_a_key(environ: dict[str, str]) -> None:
    faults = Faults()
    text = "{}" if environ else "upstream: {control: [{password_env: OXPROXY_SECRET}]}"
    root = read_document(text, "f.yaml", faults)
    assert root is not None
    result = shape(override(root, {**environ, "OXPROXY_SECRET": "x"}, faults))
    assert "x" not in str(result).split("'")
    assert faults.errors == []
