from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxproxy.errors import Scope
from oxproxy.routing.error_texts import decode_text, encode_error_text, format_binary, format_term, precondition_failed
from oxproxy.values import Value
from tests.routing.building import many, table

_COLUMN = len("Unknown or invalid argument's key '")


@pytest.mark.parametrize(
    ("content", "printed"),
    [
        (b"", "<<>>"),
        (b"x-foo", '<<"x-foo">>'),
        (b'x-"q"\\', r'<<"x-\"q\"\\">>'),
        (b"\t\n\r\v\b\f\x1b", r'<<"\t\n\r\v\b\f\e">>'),
        (b"x-\xe9", '<<"x-\xe9">>'),
        (b"x-nul\0", "<<120,45,110,117,108,0>>"),
        (b"\x7f", "<<127>>"),
        (b"\x80", "<<128>>"),
        (b"x" * 200, '<<"' + "x" * 200 + '">>'),
    ],
)
def test_a_printable_binary_is_printed_as_text(content: bytes, printed: str) -> None:
    assert format_binary(content, _COLUMN) == printed


@pytest.mark.parametrize(("column", "most"), [(0, 19), (1, 18), (35, 10)])
def test_a_list_of_bytes_that_fits_its_line_is_not_wrapped(column: int, most: int) -> None:
    # As io_lib:format("~p", [Key]) in Erlang/OTP 25 after this many characters.
    printed = [format_binary(bytes([128] * count + [1]), column) for count in range(8, 21)]
    assert ["\n" in text for text in printed] == [count > most for count in range(8, 21)]


def test_a_long_list_of_bytes_is_wrapped_and_indented() -> None:
    # The result of io_lib:format("Unknown or invalid argument's key '~p'", [Key]) in Erlang/OTP 25.
    indent = "\n" + " " * (_COLUMN + 2)
    assert format_binary(bytes([128] * 24), _COLUMN) == (
        "<<" + "128," * 10 + indent + "128," * 10 + indent + "128,128,128,128>>"
    )


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (Value("I", -5), "-5"),
        (Value("t", True), "true"),
        (Value("t", False), "false"),
        (Value("V", None), "undefined"),
        (Value("D", (1, 5)), "{1,5}"),
        (Value("S", b"any"), '<<"any">>'),
        (many("any", 1), '[{longstr,<<"any">>},{signedint,1}]'),
        (table(k=1, l=many(True)), '[{<<"k">>,signedint,1},{<<"l">>,array,[{bool,true}]}]'),
        (Value("d", 1.0), "1.0"),
        (Value("d", -0.5), "-0.5"),
        (Value("d", 100.0), "100.0"),
        (Value("d", 1000.0), "1.0e3"),
        (Value("d", 1234.5), "1234.5"),
        (Value("d", -1200000.0), "-1.2e6"),
        (Value("d", 0.0123), "0.0123"),
        (Value("d", 0.00012), "1.2e-4"),
        (Value("d", 0.00001), "1.0e-5"),
        (Value("d", 1e22), "1.0e22"),
        (Value("d", 1.5e-7), "1.5e-7"),
        (Value("d", 2.0**53), "9.007199254740992e15"),
    ],
)
def test_values_are_printed_as_erlang_terms(value: Value, printed: str) -> None:
    assert format_term(value) == printed


def test_text_is_decoded_as_utf8_or_else_as_latin1() -> None:
    assert decode_text("é€".encode()) == "é€"
    assert decode_text(b"\xff(") == "ÿ("


def test_a_reply_text_is_encoded_as_latin1_or_else_as_utf8() -> None:
    assert encode_error_text("é") == b"\xe9"
    assert encode_error_text("é€") == "é€".encode()


@pytest.mark.parametrize("letter", ["a", "é", "€"])
@pytest.mark.parametrize("length", [232, 233, 234, 400])
def test_a_reply_text_with_its_prefix_fits_a_short_string(letter: str, length: int) -> None:
    whole = letter * length
    cut = encode_error_text(whole)
    assert len(cut) <= 255 - len("PRECONDITION_FAILED - ")
    encoded = whole.encode("latin-1") if letter != "€" else whole.encode()
    if len(encoded) <= 233:
        assert cut == encoded
    else:
        assert cut.endswith(b"...")
        assert encoded.startswith(cut[:-3])
        assert 228 <= len(cut[:-3]) <= 230


@given(st.text(max_size=300))
def test_reply_text_is_never_cut_inside_a_character(text: str) -> None:
    cut = encode_error_text(text)
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        cut.decode()
    assert len(cut) <= 233


def test_a_refusal_closes_the_channel_with_406() -> None:
    error = precondition_failed("No.")
    assert (error.reply_code, error.text, error.scope) == (406, b"No.", Scope.CHANNEL)
