from __future__ import annotations

import pytest

from proxy.routing.bindings.binding import Binding
from proxy.routing.exchange import Exchange
from proxy.rules.lint.bindings import lint_bindings, unreachable
from proxy.rules.loader import compile_rules
from proxy.values import Value
from tests.rules.loading import binding, warnings


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
    assert list(unreachable(exchange.entries)) == []
