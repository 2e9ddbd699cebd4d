from __future__ import annotations

import time

import pytest

from oxproxy.rules.loader import compile_rules
from oxproxy.yamlfile.document import Faults, Scalar, describe, read_document
from oxproxy.yamlfile.masking import masked
from oxproxy.yamlfile.secret_sources import read_password_source

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
    assert text.count("***") == 11
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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("brokers: {far: {passwort: hunter2, passwd: hunter2}}", "brokers: {far: {passwort: ***, passwd: ***}}"),
        ("a: {pwd: hunter2, secret: hunter2}", "a: {pwd: ***, secret: ***}"),
        ("a: {password: hunter2, hunter2: b}", "a: {password: ***, ***: b}"),
        ("a: {password: {hunter2: b}}", "a: {password: {***: ***}}"),
        ("queues: [hunter2]\npassword: hunter2\n", "queues: [***]\npassword: ***\n"),
        ("a: {username: 'u:hunter2'}", "a: {username: 'u:***'}"),
        ("a: {username: u:hunter2}", "a: {username: u:***}"),
        ("a: amqp://u:hunter2/x@h/q", "a: amqp://u:***@h/q"),
        ("a: u:hunter2/x@h:5672", "a: u:***@h:5672"),
        ("'u:hunter2@h': a", "'u:***@h': a"),
        ("a: [amqp://u:hunter2/x@h", "a: [amqp://u:***@h"),
        ("a: [\n  passwort: hunter2\n", "a: [\n  passwort: ***\n"),
        ("a: b  # passwort: hunter2\n", "a: b  # passwort: ***\n"),
        (
            "a: {password_env: NAME, passenger: hunter, user: me}",
            "a: {password_env: NAME, passenger: hunter, user: me}",
        ),
        ("a: {passport: hunter2}", "a: {passport: hunter2}"),
        ("a: {password: true, b: true}", "a: {password: ***, b: true}"),
        ("a: {password: null, b: null}", "a: {password: ***, b: null}"),
    ],
)
def test_a_secret_in_an_unusual_place_is_masked(text: str, shown: str) -> None:
    assert masked(text) == shown


def test_a_secret_from_a_variable_is_masked_in_rules() -> None:
    read_password_source("VARIABLE", {"VARIABLE": "hunter2"})
    assert masked("queues: [hunter2]  # not hunter2\n") == "queues: [***]  # not ***\n"


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


@pytest.mark.parametrize(
    "value", ["|\n      secret", "\n      secret", '"first\n      secret"', ">-\n      first\n      secret"]
)
def test_a_password_on_several_lines_is_masked_in_text_that_is_not_yaml(value: str) -> None:
    text = masked(f"brokers:\n  b:\n    password: {value}\n    username: me\n  bad: [\n")
    assert "secret" not in text
    assert "    username: me\n  bad: [\n" in text


@pytest.mark.parametrize("password", ["&hunter2 x", "*hunter2", "!!hunter2 x", "!hunter2 [x]"])
def test_no_error_shows_a_password_without_quotes(password: str) -> None:
    faults = Faults()
    read_document(f"upstream:\n  control:\n    password: {password}\n", "f.yaml", faults)
    assert faults.errors
    assert "hunter2" not in "\n".join(map(str, faults.errors))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("u:p@h", "u:***@h"),
        ("amqp://u:p@h", "amqp://u:***@h"),
        ("amqp://u@h", "amqp:***@h"),
        ("a:b", "a:b"),
        ("a@b:c", "a@b:c"),
        ("://u:p@x:y@z", "://u:***@z"),
    ],
)
def test_a_possible_password_is_masked(text: str, shown: str) -> None:
    node = read_document(f'"{text}"', "f.yaml", Faults())
    assert describe(node) == f'the string "{shown}"'


@pytest.mark.parametrize("text", [":" * 100_000, "a:b@" + ":" * 100_000, "://" * 50_000 + "@"])
def test_a_long_value_is_described_quickly(text: str) -> None:
    node = read_document(f'"{text}"', "f.yaml", Faults())
    assert isinstance(node, Scalar)
    begin = time.process_time()
    describe(node)
    assert time.process_time() - begin < 0.5
