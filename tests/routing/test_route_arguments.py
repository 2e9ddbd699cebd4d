from __future__ import annotations

import pytest

from proxy.routing.bindings.arguments import ROUTE_KEYS
from proxy.values import Value
from tests.routing.building import (
    VOID,
    Plain,
    decide,
    exchange,
    facts,
    many,
    queue_names,
    queues,
    refusal,
    to_exchange,
    to_queue,
)

_ALL = queue_names("alpha", "alpha.1", "beta", "gamma")


def _unknown(key: str) -> str:
    return f"Unknown or invalid argument's key '<<\"{key}\">>'"


_ROUTES: list[tuple[str, Plain, list[str]]] = [
    # key, value, queues when true on top of alpha and beta (gamma is the destination)
    ("x-addq-ontrue", "new", ["alpha", "beta", "gamma", "new"]),
    ("x-addq-ontrue", many("new", "more"), ["alpha", "beta", "gamma", "more", "new"]),
    ("x-addq-onfalse", "new", ["alpha", "beta", "gamma"]),
    ("x-delq-ontrue", "alpha", ["beta", "gamma"]),
    ("x-delq-ontrue", many("alpha", "gamma"), ["beta"]),
    ("x-dele-ontrue", "alpha", ["alpha", "beta", "gamma"]),
    ("x-addqre-ontrue", "^alpha", ["alpha", "alpha.1", "beta", "gamma"]),
    ("x-addq!re-ontrue", "^[bg]", ["alpha", "alpha.1", "beta", "gamma"]),
    ("x-delqre-ontrue", ".", ["gamma"]),
    ("x-delq!re-ontrue", "^a", ["alpha", "gamma"]),
    ("x-del-dest", "", ["alpha", "beta"]),
    ("x-msg-destq-rk", "", ["alpha", "beta", "key"]),
]


@pytest.mark.parametrize(("key", "plain", "expected"), _ROUTES)
def test_routes_of_a_binding(key: str, plain: Plain, expected: list[str]) -> None:
    before = [to_queue(name, {"x-order": 100}) for name in ("alpha", "beta")]
    assert queues(exchange(*before, to_queue("gamma", {key: plain})), facts("key"), _ALL) == expected


@pytest.mark.parametrize("result", ["true", "false"])
def test_routes_of_each_result_are_apart(result: str) -> None:
    entries: dict[str, Plain] = {"x-?hkex": "a", "x-addq-ontrue": "yes", "x-addq-onfalse": "no"}
    seen = facts(headers={"a": 1} if result == "true" else {})
    expected = ["gamma", "yes"] if result == "true" else ["no"]
    assert queues(exchange(to_queue("gamma", entries)), seen) == expected


def test_exchanges_are_added_by_name() -> None:
    assert decide(exchange(to_queue("q", {"x-adde-ontrue": "out"}))).exchanges == (b"out",)


def test_adding_all_wins_over_adding_one() -> None:
    made = exchange(to_queue("beta", {"x-add1qre-ontrue": "^alpha", "x-addqre-ontrue": "^alpha"}))
    assert queues(made, names=_ALL) == ["alpha", "alpha.1", "beta"]


def test_plain_and_negated_regexes_are_two_routes() -> None:
    made = exchange(to_queue("beta", {"x-addqre-ontrue": "^alpha$", "x-addq!re-ontrue": "^alpha"}))
    assert queues(made, names=_ALL) == ["alpha", "beta", "gamma"]


@pytest.mark.parametrize(("drawn", "expected"), [(0, "alpha"), (1, "alpha.1")])
def test_one_queue_is_picked_at_random(drawn: int, expected: str) -> None:
    made = exchange(to_queue("q", {"x-add1qre-ontrue": "^alpha", "x-del-dest": ""}))
    decision = decide(made, names=_ALL, draw=lambda _count: drawn)
    assert decision.queues == (expected.encode(),)
    assert not decision.keep


def test_deleting_the_destination_takes_what_others_routed_there() -> None:
    first = to_queue("q", {"x-order": 100})
    last = to_queue("q", {"x-del-dest": "", "x-addq-ontrue": "q"})
    assert queues(exchange(first, last)) == []


def test_deleting_the_destination_means_the_declared_one() -> None:
    made = exchange(to_queue("q", {"x-del-dest": "", "x-msg-destq-rk": ""}))
    assert queues(made, facts("key")) == ["key"]
    assert queues(made, facts("q")) == []


def test_destination_by_routing_key_is_a_queue_whatever_was_declared() -> None:
    decision = decide(exchange(to_exchange("e", {"x-msg-destq-rk": ""})), facts("key"))
    assert (decision.queues, decision.exchanges) == ((b"key",), ())


@pytest.mark.parametrize(
    ("grant", "header", "plain", "allowed"),
    [
        ("x-msg-addq-ontrue", "x-addq-ontrue", "new", True),
        ("x-msg-addq-ontrue", "x-addqre-ontrue", "^alpha", False),
        ("x-msg-addq-ontrue", "x-addq-onfalse", "new", False),
        ("x-msg-adde-ontrue", "x-addq-ontrue", "new", False),
        ("x-msg-addqre-ontrue", "x-addq-ontrue", "new", True),
        ("x-msg-addqre-ontrue", "x-addqre-ontrue", "^alpha", True),
        ("x-msg-addqre-ontrue", "x-addq!re-ontrue", "^q", True),
        ("x-msg-addqre-ontrue", "x-delqre-ontrue", ".", False),
        ("x-msg-delq-ontrue", "x-delq-ontrue", "q", True),
        ("x-msg-delqre-ontrue", "x-delqre-ontrue", "q|a", False),
        ("x-msg-delqre-ontrue", "x-delq-ontrue", "q", True),
    ],
)
def test_producers_may_do_what_the_binding_grants(grant: str, header: str, plain: str, allowed: bool) -> None:
    made = exchange(to_queue("q", {grant: ""}))
    changed = queues(made, facts(headers={header: plain}), _ALL) != ["q"]
    assert changed is allowed


@pytest.mark.parametrize(
    ("key", "plain"),
    [
        *((f"x-addq-on{end}", "a") for end in ("", "True", "true ")),
        *((key, "a") for key in ("x-addq", "x-addere-ontrue", "x-dele!re-ontrue", "x-add1q-ontrue")),
        *((key, "") for key in ("x-del-dest-ontrue", "x-msg-addq", "x-msg-addq!re-ontrue", "x-msg-addere-ontrue")),
        *((key, "") for key in ("x-msg-add1qre-ontrue", "x-msg-del-dest", "x-stop", "x-msg-destq")),
        *((key, odd) for key in ("x-addq-ontrue", "x-dele-onfalse") for odd in ("", 1, VOID, Value("x", b"a"))),
        *((key, odd) for key in ("x-addqre-ontrue", "x-delq!re-onfalse") for odd in (1, VOID, Value("x", b"a"))),
        *(
            (key, odd)
            for key in ("x-stop-ontrue", "x-del-dest", "x-msg-destq-rk", "x-msg-delqre-onfalse")
            for odd in ("1", " ", 1, True, VOID, Value("x", b""))
        ),
        *(
            (key, odd)
            for key in ("x-order", "x-goto-ontrue", "x-goto-onfalse")
            for odd in (0, -5, 150.0, "150", "", True, VOID, many(150))
        ),
    ],
)
def test_unknown_routes_and_values_of_a_wrong_type_are_refused(key: str, plain: Plain) -> None:
    assert refusal(to_queue("q", {key: plain})) == _unknown(key)


@pytest.mark.parametrize("key", ["x-addqre-ontrue", "x-add1q!re-onfalse", "x-delqre-onfalse"])
@pytest.mark.parametrize("source", ["", "(", "[z-a]"])
def test_invalid_regex_of_a_route_is_named(key: str, source: str) -> None:
    assert refusal(to_queue("q", {key: source})).startswith(f"Invalid regex '{source}': ")


@pytest.mark.parametrize(("key", "what"), [("x-order", "order"), ("x-goto-ontrue", "goto"), ("x-goto-onfalse", "goto")])
@pytest.mark.parametrize("number", [1, 99, 1_000_000, Value("l", 2**40)])
def test_orders_have_bounds(key: str, what: str, number: Plain) -> None:
    text = f"Binding's {what} must be an integer between 100 and 999999"
    assert refusal(to_queue("q", {key: number})) == text


@pytest.mark.parametrize("number", [100, 999_999, Value("T", 150), Value("u", 150), Value("l", 150)])
@pytest.mark.parametrize("key", ["x-order", "x-goto-ontrue"])
def test_orders_are_of_any_integer_type(key: str, number: Plain) -> None:
    assert queues(exchange(to_queue("q", {key: number}))) == ["q"]


@pytest.mark.parametrize("key", ["x-stop-ontrue", "x-msg-addq-ontrue", "x-msg-destq-rk"])
def test_flags_take_lists_of_empty_strings(key: str) -> None:
    assert exchange(to_queue("q", {key: many("", "")}))


def test_table_holds_every_route_of_the_specification() -> None:
    assert len(ROUTE_KEYS) == 3 + 2 * 18
