from __future__ import annotations

import struct

import pytest

from proxy.rules.field_values import read_table, zone
from proxy.values import Table, Value
from proxy.yamlfile.document import Faults, Mapping, read_document
from tests.rules.loading import by_line


def read(text: str) -> tuple[Table, list[str]]:
    faults = Faults()
    root = read_document(text, "f.yaml", faults)
    assert isinstance(root, Mapping)
    table = read_table(root, "arguments", faults)
    return table, [str(error) for error in faults.errors]


def single(written: str) -> Value:
    table, errors = read(f"a: {written}\n")
    assert errors == []
    return table[0][1]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("text", Value("S", b"text")),
        ("é", Value("S", b"\xc3\xa9")),
        ("no", Value("S", b"no")),
        ("2026-11-21", Value("S", b"2026-11-21")),
        ("1:30", Value("S", b"1:30")),
        ("'5'", Value("S", b"5")),
        ("''", Value("S", b"")),
        ("5", Value("I", 5)),
        ("010", Value("I", 10)),
        ("0x1F", Value("I", 31)),
        ("2147483647", Value("I", 2**31 - 1)),
        ("2147483648", Value("l", 2**31)),
        ("-2147483648", Value("I", -(2**31))),
        ("-2147483649", Value("l", -(2**31) - 1)),
        ("9223372036854775807", Value("l", 2**63 - 1)),
        ("1.0", Value("d", 1.0)),
        ("true", Value("t", True)),
        ("null", Value("V", None)),
        ("~", Value("V", None)),
        ("[1, a]", Value("A", (Value("I", 1), Value("S", b"a")))),
        ("[]", Value("A", ())),
        ("{b: 1, a: null}", Value("F", ((b"b", Value("I", 1)), (b"a", Value("V", None))))),
        ("!timestamp 2026-11-21T08:00:00Z", Value("T", 1795248000)),
        ("!timestamp 2026-11-21T09:00:00+01:00", Value("T", 1795248000)),
        ("!timestamp 5", Value("T", 5)),
        ("!bytes 0a0B", Value("x", b"\n\x0b")),
        ("!bytes '0a 0b'", Value("x", b"\n\x0b")),
        ("!bytes ''", Value("x", b"")),
        ("!int64 5", Value("l", 5)),
        ("!int8 -128", Value("b", -128)),
        ("!uint8 255", Value("B", 255)),
        ("!int16 5", Value("s", 5)),
        ("!uint16 65535", Value("u", 65535)),
        ("!int32 5", Value("I", 5)),
        ("!uint32 4294967295", Value("i", 4294967295)),
        ("!float32 0.1", Value("f", struct.unpack(">f", struct.pack(">f", 0.1))[0])),
        ("!float32 2", Value("f", 2.0)),
    ],
)
def test_values_are_converted_to_amqp_types(written: str, value: Value) -> None:
    result = single(written)
    assert result == value
    assert type(result.value) is type(value.value)


@pytest.mark.parametrize("key", ["x-?hkv= type", "x-?rkre", "plain"])
def test_a_key_without_a_value_is_an_error_that_suggests_quotes(key: str) -> None:
    table, errors = read(f"first: 1\n{key}: # not a value\n")
    assert [name for name, _ in table] == [b"first"]
    assert len(errors) == 1
    assert by_line(errors)[0].startswith("f.yaml:2: arguments")
    assert "no value" in errors[0]
    assert "in quotes" in errors[0]


def test_a_list_item_without_a_value_is_an_error_with_its_position() -> None:
    assert read("a:\n  - 1\n  -\n")[1][0].startswith("f.yaml:3:4: arguments.a[1]: no value")


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        (".nan", "got .nan, expected a finite number"),
        ("-.inf", "got -.inf, expected a finite number"),
        ("1e999", "got 1e999, expected a finite number"),
        (
            "9223372036854775808",
            "got the number 9223372036854775808, expected a signed 64-bit integer",
        ),
        ("!int8 128", "got !int8 128, expected an integer from -128 to 127"),
        ("!int64 x", "got !int64 x, expected an integer from -9223372036854775808 to 9223372036854775807"),
        ("!int64 true", "got !int64 true, expected an integer from -9223372036854775808 to 9223372036854775807"),
        ("!bytes 0", "got !bytes 0, expected pairs of hexadecimal digits"),
        ("!bytes 0g", "got !bytes 0g, expected pairs of hexadecimal digits"),
        ("!float32 1e39", "got !float32 1e39, expected a finite single-precision number"),
        ("!float32 .nan", "got !float32 .nan, expected a finite single-precision number"),
        ("!float32 x", "got !float32 x, expected a finite single-precision number"),
    ],
)
def test_a_value_without_an_amqp_encoding_is_an_error(written: str, seen: str) -> None:
    assert read(f"a: {written}\n") == ((), [f"f.yaml:1:4: arguments.a: {seen}"])


@pytest.mark.parametrize(
    "written", ["2026-11-21T08:00:00", "2026-11-21", "soon", "2026-11-21T08:00:00.5Z", "1.5", "true"]
)
def test_a_timestamp_is_whole_seconds_or_a_time_with_its_zone(written: str) -> None:
    assert (
        "expected a time such as 2026-11-21T08:00:00Z, or seconds since 1970"
        in read(f"a: !timestamp {written}\n")[1][0]
    )


def test_an_unknown_tag_is_an_error_that_lists_the_known_ones() -> None:
    error = read("a: !re x\n")[1][0]
    assert "got the tag !re, expected one of !bytes, " in error
    assert "quotes" in error


def test_an_error_in_a_nested_value_names_its_path() -> None:
    assert read("a:\n  b c:\n    - 1\n    - .nan\n")[1] == [
        'f.yaml:4:7: arguments.a["b c"][1]: got .nan, expected a finite number'
    ]
    assert read("a: {b: {c: [.nan]}}\n")[1] == ["f.yaml:1:13: arguments.a.b.c[0]: got .nan, expected a finite number"]


def test_a_key_longer_than_a_short_string_is_an_error() -> None:
    assert "got a key of 256 bytes, expected at most 255" in read(f"{'é' * 128}: 1\n")[1][0]


@pytest.mark.parametrize("name", ["Nowhere/City", "", "../etc/passwd", "/etc/localtime", "a\0b", "Europe"])
def test_an_unknown_zone_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="a name from the time zone database"):
        zone(name)
