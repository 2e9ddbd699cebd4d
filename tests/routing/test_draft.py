from __future__ import annotations

import pytest

from proxy.errors import ProtocolError
from proxy.routing.bindings.compiled import Draft, name_of, pattern_of, text_of, unknown_key
from proxy.values import QUEUE, Value
from tests.routing.building import Plain, value


def test_key_is_printed_as_the_broker_prints_it() -> None:
    assert unknown_key(b'x-"q"').text == rb"""Unknown or invalid argument's key '<<"x-\"q\"">>'"""
    assert unknown_key(b"x-\0").text == b"Unknown or invalid argument's key '<<120,45,0>>'"


def test_long_key_is_cut_like_every_text() -> None:
    text = unknown_key(b"x-" + b"a" * 250).text
    assert len(text) == 233
    assert text.endswith(b"aaa...")


@pytest.mark.parametrize("odd", [1, True, 1.0, Value("x", b"a"), Value("V", None)])
def test_text_is_a_long_string(odd: Plain) -> None:
    with pytest.raises(ProtocolError, match="Unknown or invalid"):
        text_of(b"x-key", value(odd))
    assert text_of(b"x-key", value("")) == b""


@pytest.mark.parametrize("odd", ["", Value("S", b"\xff"), 1])
def test_name_has_a_character(odd: Plain) -> None:
    with pytest.raises(ProtocolError, match="Unknown or invalid"):
        name_of(b"x-key", value(odd))
    assert name_of(b"x-key", value("é")) == "é".encode()


@pytest.mark.parametrize("source", ["", "(", "[z-a]"])
def test_regex_that_does_not_compile_is_named(source: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        pattern_of(b"x-key", value(source))
    assert caught.value.text.startswith(f"Invalid regex '{source}': ".encode())


def test_regex_of_another_type_is_an_unknown_key() -> None:
    with pytest.raises(ProtocolError, match="Unknown or invalid"):
        pattern_of(b"x-key", value(1))


def test_effects_of_a_result_come_into_being_with_their_first_route() -> None:
    draft = Draft((QUEUE, b"q"))
    assert draft.effects == {}
    draft.on(True).goto = 200
    assert draft.on(True).goto == 200
    assert list(draft.effects) == [True]
