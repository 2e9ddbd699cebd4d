from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.broker.management_api import (
    BindingInfo,
    ExchangeInfo,
    QueueInfo,
    binding_info,
    exchange_info,
    items,
    queue_info,
)

SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
VALUES = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.text(max_size=5), SCALARS, max_size=3)


@given(st.lists(VALUES, max_size=5), st.sampled_from([None, 1]))
def test_the_items_of_a_list_are_read(values: list[object], indent: int | None) -> None:
    assert list(items(json.dumps(values, indent=indent))) == values


@pytest.mark.parametrize("text", ["", "{}", "[1 2]", "[1,]", "[1", "[1]]", "1", "[,1]", "[1] x"])
def test_an_answer_other_than_a_list_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each case has another message
        list(items(text))


def test_rows_are_read_into_infos() -> None:
    assert queue_info({"name": "q", "exclusive": True, "arguments": {"a": 1}}) == QueueInfo(b"q", True, {"a": 1})
    flags = {"internal": True, "durable": False, "auto_delete": True}
    exchange = exchange_info({"name": "x", "type": "topic", **flags})
    assert exchange == ExchangeInfo(b"x", "topic", True, {}, False, True)
    binding = {"destination_type": "queue", "destination": "q", "routing_key": "k", "properties_key": "p"}
    assert binding_info(binding) == BindingInfo(("queue", b"q"), b"k", "p")
    assert binding_info({**binding, "arguments": {"x-oxproxy": "kept"}}).kept == "kept"
    assert binding_info({**binding, "arguments": {"x-oxproxy": 5}}).kept == ""


@pytest.mark.parametrize(
    ("kind", "arguments", "kept"),
    [
        ("direct", {"x-open-exchange": True, "x-oxproxy": "kept"}, "kept"),
        ("direct", {"x-open-exchange": True}, ""),
        ("direct", {"x-open-exchange": "true", "x-oxproxy": "kept"}, ""),
        ("direct", {"x-oxproxy": "kept"}, ""),
        ("topic", {"x-open-exchange": True, "x-oxproxy": "kept"}, "kept"),
        ("topic", {"x-oxproxy": "kept"}, ""),
        ("fanout", {"x-open-exchange": True, "x-oxproxy": "kept"}, ""),
        ("direct", {"x-open-exchange": True, "x-oxproxy": 5}, ""),
    ],
)
def test_only_marked_carriers_have_stored_arguments(kind: str, arguments: dict[str, object], kept: str) -> None:
    assert ExchangeInfo(b"x", kind, arguments=arguments).kept == kept
