from __future__ import annotations

import pytest

from proxy.rules.loader import compile_rules
from proxy.yamlfile.masking import masked


@pytest.mark.parametrize(
    "translation",
    [
        "amqp://user:se'cret@host/q",
        'amqp://user:se"cret@host/q',
        "amqp://user:'secret@host/q",
        '"amqp://user: secret@host/q"',
        '"amqp://user:se\\"cret@host/q"',
        "'amqp://user:se''cret@host/q'",
        '"amqp://user:secret\\x40host/q"',
        '"amqp://user:secret\\\n  more@host/q"',
        ">-\n    amqp://user:secret\n    more@host/q",
    ],
)
def test_every_password_in_an_address_is_masked(translation: str) -> None:
    text = masked(f"addresses:\n- pattern: a\n  translation: {translation}\n- {{pattern: b, translation: /queue/q}}\n")
    assert "cret" not in text
    assert text.endswith("- {pattern: b, translation: /queue/q}\n")


@pytest.mark.parametrize("text", ["# was amqp://u:se'cret@h/q\na: 1\n", "a: [amqp://u:se'cret@h/q"])
def test_a_password_with_a_quote_is_masked_in_comments_and_lines(text: str) -> None:
    assert "cret" not in masked(text)


@pytest.mark.parametrize("text", ['password: secret\na: "\\U00110000"\n', "password: secret\na: " + "[" * 3000])
def test_text_that_the_parser_cannot_read_is_masked_by_lines(text: str) -> None:
    assert "secret" not in masked(text)


@pytest.mark.parametrize("arguments", ["{x-?hkex: a}", "{type: report,\tb: c}"])
def test_a_password_in_lines_of_its_own_is_masked_in_every_valid_file(arguments: str) -> None:
    text = f"""
brokers:
  b: {{}}
  c:
    address: 127.0.0.1:5671
    username: u
    password: |
      secret
exchanges: [{{name: e, bindings: [{{queue: q, arguments: {arguments}}}]}}]
"""
    compile_rules([("a.yaml", text.replace("  b: {}\n", "").encode())])
    assert "secret" not in masked(text)


def test_a_byte_order_mark_does_not_move_the_masks() -> None:
    assert masked("\ufeffpassword: secret\na: 1\n") == "\ufeffpassword: ***\na: 1\n"
