from __future__ import annotations

import time

import pytest

from proxy.yamlfile.masking import masked

TEXT = """\
# password: secret-in-a-comment
brokers:
  a: {address: a:5671, username: mover, password: secret-flow, vhost: x}   # moves
  b:
    address: b:5671    # was amqp://mover:secret-old@b
    password: >-
      secret-block
      secret-more
    username: mover
  c:
    "password": 'secret-quoted'
  d:
    password: [secret-list, {deep: secret-deep}]
    username: mover
  e:
    password_env: NAME
    password_file: path
    ? password
    : secret-complex
addresses:
  - {pattern: "a/%", translation: "amqps://mover:secret-url@archive/queue/$1"}
  - {pattern: "b/%", translation: "mover:secret without scheme@archive/queue/$1"}
exchanges:
  - {name: password, bindings: [{queue: password, name: "a password: of no use", arguments: {user: "a@b"}}]}
"""


def test_secrets_are_masked_and_the_rest_is_unchanged() -> None:
    text = masked(TEXT)
    assert "secret" not in text
    assert text.count("***") == 10
    kept = [line for line in TEXT.splitlines() if "secret" not in line and ">-" not in line]
    assert [line for line in kept if line not in text.splitlines()] == []
    assert "  a: {address: a:5671, username: mover, password: ***, vhost: x}   # moves\n" in text
    assert '"amqps://mover:***@archive/queue/$1"' in text
    assert "    password: ***\n    username: mover\n" in text


@pytest.mark.parametrize(
    "text",
    ["brokers: {a: {password: secret", "a: [\n  password: secret\n", "a: 'amqp://u:secret@h\n", "\tpassword: 'secret"],
)
def test_text_that_is_not_yaml_is_masked_by_lines(text: str) -> None:
    assert "secret" not in masked(text)
    assert "***" in masked(text)


@pytest.mark.parametrize("text", ["", "# nothing\n", "exchanges: []\n", "a: ü\r\nb: 😀\r\n"])
def test_a_text_without_secrets_is_unchanged(text: str) -> None:
    assert masked(text) == text


def test_secrets_after_multi_byte_characters_are_masked() -> None:
    assert masked("a: 😀ü\nbrokers: {a: {password: secret}}\n") == "a: 😀ü\nbrokers: {a: {password: ***}}\n"


@pytest.mark.parametrize("text", ["a: x{}\n# password\n", "a: 'x{} password'", "# {} password\n", "[{}\n password: x"])
def test_a_long_string_of_colons_is_masked_in_a_short_time(text: str) -> None:
    began_at = time.process_time()
    masked(text.format(":x" * 20_000))
    assert time.process_time() - began_at < 2.0
