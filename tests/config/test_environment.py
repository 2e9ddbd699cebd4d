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


def test_a_variable_replaces_a_value_of_the_file() -> None:
    result = overridden(OXPROXY_LOG__LEVEL="debug")
    assert result == ({"log": {"level": "debug"}, "listen": [{"address": "a:1"}], "upstream": ""}, [])


def test_a_variable_adds_a_value_missing_in_the_file() -> None:
    result, errors = overridden(OXPROXY_ADMIN__ADDRESS="b:2", OXPROXY_UPSTREAM__CONTROL__USERNAME="me")
    assert isinstance(result, dict)
    assert (result["admin"], result["upstream"], errors) == ({"address": "b:2"}, {"control": {"username": "me"}}, [])


def test_an_item_of_a_list_is_set_by_its_index() -> None:
    result, errors = overridden(OXPROXY_LISTEN__0__ADDRESS="b:2", OXPROXY_LISTEN__1__ADDRESS="c:3")
    assert isinstance(result, dict)
    assert (result["listen"], errors) == ([{"address": "b:2"}, {"address": "c:3"}], [])


def test_a_new_list_begins_with_item_0() -> None:
    result, errors = overridden(OXPROXY_BROKERS__0__ADDRESS="b:2")
    assert isinstance(result, dict)
    assert (result["brokers"], errors) == ([{"address": "b:2"}], [])


def test_a_nested_variable_overrides_part_of_a_shorter_one() -> None:
    result, errors = overridden(OXPROXY_UPSTREAM="{address: a:1, management: b}", OXPROXY_UPSTREAM__ADDRESS="c:3")
    assert isinstance(result, dict)
    assert (result["upstream"], errors) == ({"address": "c:3", "management": "b"}, [])


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
