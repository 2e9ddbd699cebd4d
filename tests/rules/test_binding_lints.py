from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxproxy.cli.check import check_files
from oxproxy.cli.findings import Findings
from oxproxy.routing.bindings.binding import Binding
from oxproxy.routing.bindings.compiled import CompiledBinding
from oxproxy.routing.decision import ExchangeStep, Facts
from oxproxy.routing.exchange import Exchange
from oxproxy.rules.lint.bindings import invalid_gotos, lint_bindings, never_visited, redundant
from oxproxy.rules.lint.satisfiability import always_true, unsatisfiable_reason
from oxproxy.rules.loader import compile_rules
from oxproxy.values import Value
from tests.routing.building import Plain, draw_last, message, to_queue
from tests.routing.random_rules import BINDINGS, QUEUES, bind_valid, messages
from tests.rules.loading import binding, warnings

STOP: dict[str, Plain] = {"x-stop-ontrue": ""}


def entries(*tables: dict[str, Plain], kind: str = "x-open", queue: str = "q{0}") -> list[CompiledBinding]:
    """Compiled bindings to q0, q1 and so on, in visiting order."""
    exchange = Exchange(b"xo", kind)
    for index, table in enumerate(tables):
        exchange.bind(to_queue(queue.format(index), table, sequence=-index))
    return exchange.entries


def queue(compiled: CompiledBinding) -> str:
    return compiled.binding.destination.decode()


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        pytest.param([STOP, {}, {"a": 1}], [("q1", "q0"), ("q2", "q0")], id="unconditional stop"),
        pytest.param([{"a": 1, **STOP, "x-stop-onfalse": ""}, {}], [("q1", "q0")], id="stop for both results"),
        pytest.param([{"a": 1, **STOP}, {}], [], id="conditional stop"),
        pytest.param([{"x-match": "any", **STOP}, {}], [], id="stop that never matches"),
        pytest.param(
            [{"x-order": 100, "x-goto-ontrue": 3000}, {"x-order": 2000}, {"x-order": 3000}],
            [("q1", "q0")],
            id="unconditional goto",
        ),
        pytest.param(
            [
                {"x-order": 100, "a": 1, "x-goto-ontrue": 3000},
                {"x-order": 2000, **STOP},
                {"x-order": 2500},
                {"x-order": 3000},
            ],
            [("q2", "q1")],
            id="conditional goto over a stop",
        ),
    ],
)
def test_bindings_that_are_never_visited_are_unreachable(
    tables: list[dict[str, Plain]], expected: list[tuple[str, str]]
) -> None:
    assert [(queue(skipped), queue(cause)) for skipped, cause in never_visited(entries(*tables))] == expected


@pytest.mark.parametrize(
    ("goto", "expected"),
    [
        (3000, []),
        (2500, []),
        (3100, [("q0", "x-goto-ontrue")]),
        (500, [("q0", "x-goto-ontrue")]),
        (1000, [("q0", "x-goto-ontrue")]),
    ],
)
def test_invalid_gotos_are_found(goto: int, expected: list[tuple[str, str]]) -> None:
    bindings = entries({"x-order": 1000, "a": 1, "x-goto-ontrue": goto}, {"x-order": 3000})
    assert [(queue(binding), key) for binding, key, _ in invalid_gotos(bindings)] == expected


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        pytest.param(
            [{"a": 1, "x-order": 100}, {"a": 1, "x-order": 200}, {"a": 2, "x-order": 300}],
            [(200, 100)],
            id="same condition",
        ),
        pytest.param([{"a": 1, "x-order": 100}, {"x-order": 200}], [(100, 200)], id="unconditional binding"),
        pytest.param(
            [{"x-order": 100}, {"x-order": 200, "x-delq-ontrue": "q"}, {"x-order": 300}], [], id="deleted destination"
        ),
    ],
)
def test_redundant_bindings_of_a_queue(tables: list[dict[str, Plain]], expected: list[tuple[int, int]]) -> None:
    bindings = entries(*tables, queue="q")
    assert [(binding.order, cause.order) for binding, cause in redundant(bindings)] == expected


@settings(max_examples=200)
@given(data=st.data())
def test_unreachable_and_redundant_bindings_have_no_effect(data: st.DataObject) -> None:
    exchange = Exchange(b"xo", "x-open")
    bind_valid(exchange, data.draw(BINDINGS["x-open"]))
    compiled = exchange.entries
    never = {binding.label for binding, _ in never_visited(compiled)}
    superfluous = {binding.arrival for binding, _ in redundant(compiled)}
    without = Exchange(b"xo", "x-open")
    for entry in compiled:
        if entry.arrival not in superfluous:
            without.bind(entry.binding)
    for facts in data.draw(st.lists(messages, min_size=1, max_size=6)):
        step = ExchangeStep(b"xo", "x-open")
        routed = exchange.route(message(facts, QUEUES, draw_last), [], step)
        assert not never & {(b"xo", visit.id) for visit in step.visits}
        if superfluous:
            assert without.route(message(facts), []) == routed


@pytest.fixture
def findings(tmp_path: Path) -> Findings:
    (tmp_path / "r.yaml").write_text(
        """\
queues: [made]
exchanges:
  - name: e
    bindings:
      - queue: never
        arguments: {"x-order": 100, "x-?hkv= a": 1, "x-?hkv> a": 5}
      - queue: jumps
        arguments: {"x-order": 200, "x-?hkv= a": 1, x-goto-ontrue: 900}
      - queue: hard
        arguments: {"x-order": 300, "x-?rkre": "^(a+)+$"}
      - queue: made
        arguments: {"x-order": 400, x-stop-ontrue: "", x-addq-ontrue: added}
      - exchange: f
        arguments: {"x-order": 500}
  - name: f
    bindings:
      - queue: made
      - {queue: made, name: twice, arguments: {b: 1}}
tests:
  - {name: one, publish: {exchange: e, headers: {a: 1}}, expect: {queues: [jumps]}}
"""
    )
    return check_files([tmp_path / "r.yaml"], {})


def test_bindings_without_effect_are_reported_with_their_lines(findings: Findings) -> None:
    assert findings.errors == []
    assert findings.failures == []
    assert [(*warning.place[1:], warning.message.split(":")[0]) for warning in findings.warnings] == [
        (5, 9, "this binding never matches"),
        (8, 53, "this goto has no effect"),
        (10, 37, "this pattern reaches the match limit on aaaaaaaaaaaa... (201 bytes), which counts as no match"),
        (13, 9, "this binding is never visited"),
        (18, 9, "this binding is redundant"),
    ]
    assert findings.warnings[-1].message.endswith(
        "redundant: the binding on line 17 already sends these messages to the same destination"
    )


def test_an_invalid_pattern_without_effect_is_only_reported_as_such(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text('exchanges: [{name: e, type: fanout, bindings: [{queue: a, arguments: {"x-?rkre": "("}}]}]')
    found = check_files([file], {})
    assert found.errors == []
    assert [warning.message for warning in found.warnings] == ["arguments have no effect for type fanout"]


def test_bindings_without_a_matching_test_are_reported(findings: Findings) -> None:
    assert [binding.place.line for binding in findings.uncovered] == [5, 9, 11, 13, 17, 18]


def test_destinations_that_the_rules_do_not_declare_are_reported(findings: Findings) -> None:
    assert [(destination.kind, destination.name, destination.place.line) for destination in findings.destinations] == [
        ("queue", b"never", 5),
        ("queue", b"jumps", 7),
        ("queue", b"hard", 9),
        ("queue", b"added", 12),
    ]


def lints(text: str) -> list[str]:
    found: list[str] = []
    contents = [("a.yaml", text.encode())]
    compile_rules(contents, None, lambda files, loaded: found.extend(map(str, lint_bindings(files, loaded))))
    return found


def test_slow_patterns_of_other_bindings_do_not_make_a_binding_impossible() -> None:
    slow = "".join(
        f'      - {{queue: q, arguments: {{"x-?hkv= a": "{"a" * 40}{number}!", "x-?hkvre a": "^(a|aa)+$"}}}}\n'
        for number in range(60)
    )
    good = '      - {queue: good, arguments: {"x-?hkv= a": abc, "x-?hkvre a": "^a"}}\n'
    test = "tests: [{name: t, publish: {exchange: e, headers: {a: abc}}, expect: {queues: [good]}}]\n"
    text = f"exchanges:\n  - name: e\n    bindings:\n{slow}{good}{test}"
    assert compile_rules([("a.yaml", text.encode())]).failures() == []
    assert [line for line in lints(text) if "bindings[60]" in line] == []


def test_bindings_that_test_different_values_of_the_header_x_order_are_not_redundant() -> None:
    text = """
exchanges:
  - name: h
    type: headers
    bindings:
      - {queue: q, arguments: {x-match: all-with-x, x-order: 1}}
      - {queue: q, arguments: {x-match: all-with-x, x-order: 2}}
tests:
  - {name: the second binding is necessary, publish: {exchange: h, headers: {x-order: 2}}, expect: {queues: [q]}}
"""
    assert compile_rules([("a.yaml", text.encode())]).failures() == []
    assert lints(text) == []


@pytest.mark.parametrize(
    "pattern",
    [
        r"^\pN{8} ",
        r"^\PL",
        r"^2026\x31\x31",
        r"^2026\x3a?",
        r"(?<y>\d)\k<y>",
        r"(?<y>\d)(?P>y)",
        "(?x) 2026 # the year",
        r"\cA|2026",
    ],
)
def test_escapes_in_clock_patterns_are_not_literal_characters(pattern: str) -> None:
    assert warnings(binding("{x-?dture: '" + pattern + "'}")) == []


def test_gotos_do_not_skip_bindings_that_are_visited_last() -> None:
    exchange = Exchange(b"xo", "x-open")
    goto = ((b"x-match", Value("S", b"any")), (b"x-goto-onfalse", Value("I", 10001)))
    exchange.bind(Binding(b"xo", "queue", b"first", b"", goto, sequence=1))
    exchange.bind(Binding(b"xo", "queue", b"last", b"", (), last=True))
    assert list(never_visited(exchange.entries)) == []


def compiled(arguments: dict[str, Plain], kind: str = "x-open", key: str = "") -> CompiledBinding:
    exchange = Exchange(b"xo", kind)
    exchange.bind(to_queue("q", arguments, key))
    (entry,) = exchange.entries
    return entry


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"x-?hkv= a": 1, "x-?hkv> a": 5}, "x-?hkv= a and x-?hkv> a contradict each other"),
        ({"x-?hkv= a": 1, "a": "1"}, "a and x-?hkv= a contradict each other"),
        ({"x-?hkv= a": "x", "x-?hkv!= a": "x"}, "x-?hkv!= a and x-?hkv= a contradict each other"),
        ({"x-?hkv= a": "abc", "x-?hkvre a": "^b"}, "x-?hkv= a and x-?hkvre a contradict each other"),
        ({"x-?hkv= a": 1, "x-?hkexs": "a"}, "x-?hkexs and x-?hkv= a contradict each other"),
        ({"x-?hkv= a": 1, "x-?hk!ex": "a"}, "x-?hk!ex and x-?hkv= a contradict each other"),
        ({"x-?hkv> a": 5, "x-?hkv< a": 3}, "x-?hkv< a and x-?hkv> a contradict each other"),
        ({"x-?hkv>= a": 5, "x-?hkv< a": 5}, "x-?hkv< a and x-?hkv>= a contradict each other"),
        ({"x-?hkv> a": 5, "x-?hkvre a": "5"}, "x-?hkv> a and x-?hkvre a contradict each other"),
        ({"x-?hkexb": "a", "x-?hkexn": "a"}, "x-?hkexb and x-?hkexn contradict each other"),
        ({"x-?hkexn": "a", "x-?hkex!n": "a"}, "x-?hkex!n and x-?hkexn contradict each other"),
        ({"x-?hkv= a": 1, "x-?hk?v= a": 2}, "x-?hk?v= a and x-?hkv= a contradict each other"),
        ({"x-?rk=": "a.b", "x-?rkta": "b.#"}, "x-?rk= and x-?rkta contradict each other"),
        ({"x-?rkta": "a.#", "x-?rk!ta": "a.#"}, "x-?rk!ta and x-?rkta contradict each other"),
        ({"x-?dture": "^2", "x-?dtu!re": "^2"}, "x-?dtu!re and x-?dture contradict each other"),
        ({"x-?prex": "type", "x-?pr!ex": "type"}, "x-?pr!ex and x-?prex contradict each other"),
        ({"x-?pr= type": "a", "x-?prre type": "b"}, "x-?pr= type and x-?prre type contradict each other"),
        ({"x-?pr> priority": 4, "x-?pr< priority": 5}, "x-?pr< priority and x-?pr> priority contradict each other"),
        ({"x-?pr> priority": 255}, "no value satisfies x-?pr> priority"),
        ({"x-match": "set 2", "a": 1}, "2 header operators must match, but there are only 1"),
        ({"x-match": "eq", "a": 1, "x-?rk=": "a", "x-?rk!=": "a"}, "x-?rk!= and x-?rk= contradict each other"),
        ({"x-match": "any"}, "x-match: any requires at least one operator"),
        ({"x-match": "any", "x-?pr> priority": 255}, "no operator can match"),
    ],
)
def test_a_contradiction_is_reported(arguments: dict[str, Plain], reason: str) -> None:
    assert unsatisfiable_reason(compiled(arguments)) == reason


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"x-?hkv= a": 1, "x-?hkv= b": 2},
        {"x-?hkv= a": 1, "x-?hkv>= a": 1, "x-?hkexi": "a"},
        {"x-?hkv> a": 5, "x-?hkv< a": 6},
        {"x-?hkv>= a": 5, "x-?hkv<= a": 5},
        {"x-?hk?v= a": 1, "x-?hk!ex": "a"},
        {"x-?hk?v> a": 5, "x-?hk?v< a": 3},
        {"x-?hkv= a": 1.0, "x-?hkexi": "a"},
        {"x-match": "any", "x-?hkv> a": 5, "x-?hkv< a": 3},
        {"x-match": "set 2", "x-?hkv> a": 5, "x-?hkv< a": 3},
        {"x-match": "eq", "x-?hkv> a": 5, "x-?hkv< a": 3},
        {"x-match": "set 1", "a": 1},
        {"x-?rk!=": "a", "x-?rkta": "#"},
        {"x-?pr> priority": 254},
        {"x-?pr> expiration": 255},
    ],
)
def test_satisfiable_conditions_are_not_reported(arguments: dict[str, Plain]) -> None:
    assert unsatisfiable_reason(compiled(arguments)) is None


@pytest.mark.parametrize(
    ("kind", "key", "arguments", "expected"),
    [
        ("x-open", "", {}, True),
        ("x-open", "", {"x-?rkta": "#"}, True),
        ("x-open", "", {"x-match": "any"}, False),
        ("x-open", "", {"x-?hk?v= a": 1}, False),
        ("fanout", "k", {}, True),
        ("topic", "#", {}, True),
        ("topic", "a.#", {}, False),
        ("direct", "#", {}, False),
    ],
)
def test_bindings_that_always_match_are_recognized(
    kind: str, key: str, arguments: dict[str, Plain], expected: bool
) -> None:
    assert always_true(compiled(arguments, kind, key)) is expected


@pytest.mark.parametrize("kind", sorted(BINDINGS))
@settings(max_examples=150)
@given(data=st.data())
def test_predictions_of_never_and_always_matching_hold(kind: str, data: st.DataObject) -> None:
    exchange = Exchange(b"xo", kind)
    bind_valid(exchange, data.draw(BINDINGS[kind]))
    facts: list[Facts] = data.draw(st.lists(messages, min_size=1, max_size=6))
    for entry in exchange.entries:
        truths = {entry.truth(message(seen)) for seen in facts}
        assert unsatisfiable_reason(entry) is None or truths == {False}
        assert not always_true(entry) or truths == {True}
