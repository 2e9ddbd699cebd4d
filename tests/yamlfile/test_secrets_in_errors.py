from __future__ import annotations

import time

import pytest

from proxy.yamlfile.document import Faults, Scalar, describe, read_document


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
