from __future__ import annotations

import io

import pytest
from rich.console import Console

from proxy.cli.explain_tree import print_tree
from proxy.rules.explain import as_text, explain
from tests.routing.building import NOW
from tests.rules.loading import load, message_request

RULES = """\
exchanges:
  - name: e
    arguments: {max-payload-size: 10}
    bindings:
      - {queue: q, name: first, arguments: {x-order: 100, "x-?hkv= a": 1, "x-?hkex": b, x-goto-ontrue: 900}}
      - {queue: r, name: last, arguments: {x-order: 900, x-delq-ontrue: q, x-stop-ontrue: ""}}
"""


def shown(message: bytes, terminal: bool = True) -> str:
    written = io.StringIO()
    console = Console(file=written, force_terminal=terminal, width=100, highlight=False, color_system=None)
    print_tree(explain(load(RULES), message_request(message, "m"), NOW), console)
    return written.getvalue()


def test_the_tree_contains_every_step() -> None:
    text = shown(b'{"exchange": "e", "headers": {"a": 1, "b": "x"}}')
    for line in (
        "filter max-payload-size: passed",
        "✓ 100 first → queue q (all)",
        "✓  x-?hkv= a  1  got 1",
        "+ queue q",
        "continues at order 900",
        "- queue q",
        "stops here",
        "outcome  routed",
        "queues   r",
    ):
        assert line in text


def test_a_rejected_message_shows_the_error() -> None:
    text = shown(b"{exchange: e, body_size: 11}")
    assert "channel closed" in text
    assert "rejected" in text


def test_the_tree_names_the_exchange_that_may_be_meant() -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=200, highlight=False, color_system=None)
    loaded = load("exchanges: [{name: orders}]")
    print_tree(explain(loaded, message_request(b"exchange: order", "m"), NOW), console)
    assert "no rules file names order: the message is passed to the broker unchanged; did you mean orders?" in (
        written.getvalue()
    )


@pytest.mark.parametrize("escape", ["\\e[31m", "\\u009b1m", "\\r", "\\x07"])
def test_control_characters_in_a_message_are_escaped(escape: str) -> None:
    text = shown(f'{{exchange: e, headers: {{a: "x{escape}y"}}}}'.encode())
    assert "x\\" in text
    assert not any(ord(character) in (7, 13, 27, 0x9B) for character in text)


def test_without_a_terminal_the_output_is_plain_text() -> None:
    explanation = explain(load(RULES), message_request(b"exchange: e", "m"), NOW)
    assert shown(b"exchange: e", terminal=False) == as_text(explanation) + "\n"
