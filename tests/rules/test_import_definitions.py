from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxproxy.errors import ConfigErrors
from oxproxy.rules.import_definitions import import_definitions
from oxproxy.rules.loader import compile_rules
from oxproxy.rules.ruleset import ExchangeRule
from oxproxy.values import Value


def binding(
    source: str, destination: str, arguments: Mapping[str, object] | None = None, key: str = ""
) -> dict[str, object]:
    return {
        "source": source,
        "vhost": "/",
        "destination": destination,
        "destination_type": "queue",
        "routing_key": key,
        "arguments": arguments or {},
    }


def definitions(kind: str, *bindings: dict[str, object], **arguments: object) -> bytes:
    table = {name.replace("_", "-"): value for name, value in arguments.items()}
    exchange = {"name": "e", "vhost": "/", "type": kind, "durable": True, "arguments": table}
    return json.dumps({"exchanges": [exchange], "bindings": bindings}).encode()


def imported(data: bytes) -> ExchangeRule:
    text, _ = import_definitions(data, "definitions.json", "/")
    (exchange,) = compile_rules([("imported.yaml", text.encode())]).rules.vhosts["/"].exchanges
    return exchange


def warnings(data: bytes, *only: str) -> list[str]:
    return [str(warning) for warning in import_definitions(data, "definitions.json", "/", only)[1]]


def test_an_open_exchange_is_imported_with_filters_and_bindings() -> None:
    data = definitions(
        "x-open", binding("e", "q", {"x-match": "any", "x-?hkv= a": 1, "x-?rkre": "^a|b"}), alternate_exchange="alt"
    )
    exchange = imported(data)
    assert (exchange.name, exchange.type, exchange.carrier, exchange.alternate) == (b"e", "x-open", b"e", b"alt")
    assert exchange.bindings[0].arguments == (
        (b"x-match", Value("S", b"any")),
        (b"x-?hkv= a", Value("I", 1)),
        (b"x-?rkre", Value("S", b"^a|b")),
    )


@pytest.mark.parametrize("kind", ["topic", "direct"])
def test_other_types_are_imported_with_their_keys_and_another_carrier(kind: str) -> None:
    exchange = imported(definitions(kind, binding("e", "q", key="a.#"), binding("e", "q", key="b")))
    assert (exchange.type, exchange.carrier) == (kind, b"e.oxproxy")
    assert [rule.routing_key for rule in exchange.bindings] == [b"a.#", b"b"]


def test_arguments_that_a_type_ignores_are_omitted() -> None:
    exchange = imported(
        definitions("fanout", binding("e", "q", {"a": 1}, "one"), binding("e", "q", key="two"), binding("e", "r"))
    )
    assert [(rule.destination, rule.routing_key, rule.arguments) for rule in exchange.bindings] == [
        (b"q", b"", ()),
        (b"r", b"", ()),
    ]


def test_predeclared_exchanges_and_other_types_are_not_imported() -> None:
    exchanges = [
        {"name": name, "vhost": vhost, "type": kind, "arguments": {}}
        for name, vhost, kind in (("amq.topic", "/", "topic"), ("h", "/", "x-hash"), ("o", "other", "x-open"))
    ]
    data = json.dumps({"exchanges": exchanges, "bindings": []}).encode()
    text, _ = import_definitions(data, "definitions.json", "/")
    assert compile_rules([("i.yaml", text.encode())]).rules.vhosts["/"].exchanges == ()
    omitted = "definitions.json: exchange h: warning: omitted: the type x-hash is not supported"
    assert omitted in warnings(data)
    assert warnings(data, "h") == [omitted]


def test_exchanges_declared_by_sidecars_are_not_imported() -> None:
    carrier = definitions("direct", binding("e", "q", key="x.o.p.e.n.x.q.0"))
    for data in (carrier, definitions("fanout").replace(b'"e"', b'"x.o.p.e.n.x.announce"')):
        text, _ = import_definitions(data, "definitions.json", "/")
        assert "name:" not in text


def test_a_significant_order_of_declaration_is_a_warning() -> None:
    stops = binding("e", "q", {"x-stop-ontrue": "", "x-?hkv= a": 1})
    (warning,) = warnings(definitions("x-open", stops, binding("e", "r")))
    assert "exchange e" in warning
    assert "2 bindings have order 10000, and the bindings to q" in warning
    assert warnings(definitions("x-open", stops, binding("e", "r", {"x-order": 20000}))) == []
    assert warnings(definitions("x-open", binding("e", "q", {"a": 1}), binding("e", "r"))) == []


def test_definitions_that_a_rules_file_refuses_are_a_warning() -> None:
    assert any(
        "imported unchanged" in warning for warning in warnings(definitions("x-open", binding("e", "q", key="key")))
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("order", 'got "order"; did you mean orders?'),
        ("nope", 'got "nope", expected one of log, orders'),
        ("carrier", 'got "carrier", which a sidecar created, expected another exchange'),
    ],
)
def test_a_requested_exchange_that_is_not_in_the_definitions_is_an_error(name: str, message: str) -> None:
    names = ("orders", "log", "carrier", "amq.topic", "x.o.p.e.n.x.announce", "")
    data = {
        "exchanges": [{"name": exchange, "vhost": "/", "type": "direct", "arguments": {}} for exchange in names],
        "bindings": [binding("carrier", "q", key="x.o.p.e.n.x.q.0")],
    }
    with pytest.raises(ConfigErrors) as caught:
        warnings(json.dumps(data).encode(), "log", name)
    assert str(caught.value) == f"definitions.json: --exchange: {message}"


def test_a_virtual_host_without_exchanges_to_import_is_reported() -> None:
    with pytest.raises(ConfigErrors, match="but the virtual host has no exchanges to import"):
        warnings(json.dumps({"exchanges": [], "bindings": [], "vhosts": [{"name": "/"}]}).encode(), "orders")


def test_every_invalid_value_of_the_definitions_is_reported_with_its_path() -> None:
    """A password is not shown, even if it is in the wrong place."""
    data: dict[str, list[dict[str, object]]] = json.loads(definitions("topic", binding("e", "q"), binding("e", "r")))
    data["exchanges"][0]["arguments"] = 5
    data["bindings"][0] |= {"destination_type": "hunter2", "arguments": None}
    del data["bindings"][1]["source"]
    with pytest.raises(ConfigErrors) as caught:
        import_definitions(json.dumps(data).encode(), "d.json", "/")
    ending = "as in the output of rabbitmqctl export_definitions"
    assert str(caught.value).splitlines() == [
        f"d.json: exchanges[0].arguments: got a number, expected an object, {ending}",
        f"d.json: bindings[0].destination_type: got a string, expected queue or exchange, {ending}",
        "d.json: bindings[1].source: missing, expected the output of rabbitmqctl export_definitions",
    ]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "got a file that is not JSON"),
        (b"[" * 100_000, "got a file that is not JSON"),
        (b"\xff", "got a file that is not JSON"),
        (b"[]", "got a list, expected an object"),
        (b"{}", "exchanges: missing"),
        (b'{"exchanges": 1, "bindings": []}', "exchanges: got a number, expected a list"),
        (b'{"exchanges": [], "bindings": [null]}', r"bindings\[0\]: got null, expected an object"),
    ],
)
def test_other_input_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ConfigErrors, match=f"^definitions.json: {message}.*export_definitions"):
        import_definitions(data, "definitions.json", "/")


plain = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
)


@given(plain, st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5))
def test_values_and_names_are_imported_unchanged(value: object, name: str) -> None:
    ((key, read),) = imported(definitions("headers", binding("e", "q", {f"n{name}": value}))).bindings[0].arguments
    assert key == f"n{name}".encode()
    assert read.value == (value.encode() if isinstance(value, str) else value)
    assert isinstance(read.value, bool) == isinstance(value, bool)


def test_a_virtual_host_that_is_not_in_the_definitions_is_an_error() -> None:
    data = json.loads(definitions("topic")) | {"vhosts": [{"name": "/"}, {"name": "empty"}]}
    with pytest.raises(ConfigErrors) as caught:
        import_definitions(json.dumps(data).encode(), "definitions.json", "nope")
    message = 'got "nope", expected a virtual host defined in this file: /, empty'
    assert str(caught.value) == f"definitions.json: --vhost: {message}"
    text, messages = import_definitions(json.dumps(data).encode(), "definitions.json", "empty")
    assert "exchanges" not in text or "exchanges: []" in text
    assert "no exchange of a supported type" in str(messages[0])


def test_definitions_of_one_virtual_host_need_not_name_it() -> None:
    data = json.dumps({"exchanges": [{"name": "e", "type": "x-open", "arguments": {}}], "bindings": []}).encode()
    assert import_definitions(data, "definitions.json", "/")[0]
    with pytest.raises(ConfigErrors):
        import_definitions(data, "definitions.json", "nope")


def exported(name: str, **more: object) -> dict[str, object]:
    return {"name": name, "vhost": "/", "type": "topic", "arguments": {}, **more}


def policy_warnings(*exchanges: dict[str, object], policies: list[dict[str, object]] | None = None) -> list[str]:
    definitions = {"exchanges": exchanges, "bindings": [], "policies": policies or []}
    return [str(warning) for warning in import_definitions(json.dumps(definitions).encode(), "d.json", "/")[1]]


POLICY = {"vhost": "/", "name": "ae", "pattern": "^orders", "apply-to": "exchanges", "priority": 0}
POLICY |= {"definition": {"alternate-exchange": "unrouted"}}


def test_an_alternate_exchange_of_a_policy_is_not_lost_silently() -> None:
    (warning,) = policy_warnings(exported("orders.new"), exported("mail"), policies=[POLICY])
    assert warning == (
        "d.json: exchange orders.new: warning: the policy ae sets an alternate exchange, which is not imported: "
        "add alternate-exchange to the arguments"
    )


@pytest.mark.parametrize(
    ("name", "more", "policy"),
    [
        ("orders", {"arguments": {"alternate-exchange": "own"}}, {}),
        ("orders", {}, {"vhost": "other"}),
        ("orders", {}, {"apply-to": "queues"}),
        ("orders", {}, {"definition": {"max-length": 5}}),
        ("orders", {}, {"pattern": "("}),
    ],
)
def test_other_policies_have_no_warning(name: str, more: dict[str, object], policy: dict[str, object]) -> None:
    assert policy_warnings(exported(name, **more), policies=[{**POLICY, **policy}]) == []


def test_an_internal_exchange_has_a_warning() -> None:
    (warning,) = policy_warnings(exported("inner", internal=True), exported("outer", internal=False))
    assert "exchange inner: warning: producers can publish to it through the sidecar" in warning


@pytest.mark.parametrize("kind", ["direct", "topic"])
def test_an_empty_carrier_is_not_imported(kind: str) -> None:
    exchange = {"vhost": "/", "type": kind, "durable": True, "arguments": {}}
    data = json.dumps({"exchanges": [{"name": "e.oxproxy", **exchange}], "bindings": []}).encode()
    text, warned = import_definitions(data, "d.json", "/")
    assert "e.oxproxy" not in text
    assert [str(warning) for warning in warned] == ["d.json: vhost /: warning: no exchange of a supported type"]
    with pytest.raises(ConfigErrors, match="which a sidecar created"):
        import_definitions(data, "d.json", "/", ["e.oxproxy"])


def test_an_exchange_without_bindings_may_be_a_carrier() -> None:
    comment = "    bindings: []  # none; remove this exchange if a sidecar declared it as a carrier\n"
    assert comment in import_definitions(definitions("direct"), "d.json", "/")[0]
    assert "remove this" not in import_definitions(definitions("x-open"), "d.json", "/")[0]
    assert imported(definitions("direct")).bindings == ()
