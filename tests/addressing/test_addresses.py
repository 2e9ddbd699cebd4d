from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.addressing.address import (
    Address,
    InvalidAddress,
    parse_address,
    without_password,
)


def test_an_address_is_split_into_its_parts() -> None:
    assert parse_address(b"AMQPS://a%40b:c%3Ad:e@mq1.example.com:5673/a/b@c") == Address(
        b"amqps", b"a@b", b"c:d:e", b"mq1.example.com", 5673, b"a/b@c", passive=False, local=False
    )


@pytest.mark.parametrize(
    ("address", "host", "port", "name"),
    [
        (b"example.org", b"example.org", None, None),
        (b"example.org/", b"example.org", None, b""),
        (b"example.org:05672", b"example.org", 5672, None),
        (b"example.org:", b"example.org", None, None),
        (b"[::1]:5672/q", b"::1", 5672, b"q"),
        (b"amqp//x", b"amqp", None, b"/x"),
        (b"amqp:/x", b"amqp", None, b"x"),
        (b"x/y://z", b"x", None, b"y://z"),
    ],
)
def test_an_address_has_host_port_and_name(address: bytes, host: bytes, port: int | None, name: bytes | None) -> None:
    parsed = parse_address(address)
    assert (parsed.host, parsed.port, parsed.name) == (host, port, name)


@pytest.mark.parametrize("address", [b"~h", b"~[::1]:1", b"[~::1]:1", b"amqp://u@~h"])
def test_a_tilde_before_the_host_means_passive(address: bytes) -> None:
    assert parse_address(address).passive


@pytest.mark.parametrize(
    ("address", "local"), [(b"/q", True), (b"", True), (b"amqp:///q", False), (b"u@/q", False), (b":1/q", False)]
)
def test_only_an_empty_domain_without_anything_is_local(address: bytes, local: bool) -> None:
    assert parse_address(address).local is local


@pytest.mark.parametrize(
    ("address", "port", "tls"),
    [(b"h", 5672, False), (b"amqp://h", 5672, False), (b"Amqps://h", 5671, True), (b"amqps://h:1", 1, True)],
)
def test_scheme_decides_tls_and_the_default_port(address: bytes, port: int, tls: bool) -> None:
    parsed = parse_address(address)
    assert (parsed.effective_port, parsed.tls) == (port, tls)


@pytest.mark.parametrize(
    "address",
    b"http://h ://h a@b@c [::1 [::1]x:1 ::1 h:0 h:65536 h:x u%00:p@h u:p\0@h h:1:2 amqp:h u:p/w@h".split(),
)
def test_ambiguous_addresses_are_refused(address: bytes) -> None:
    with pytest.raises(InvalidAddress):
        parse_address(address)


def test_a_percent_sign_without_two_hex_digits_is_kept() -> None:
    assert parse_address(b"u%zz%4:p%@h").user == b"u%zz%4"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (b"amqp://fred:pw@h/q", b"amqp://fred:***@h/q"),
        (b"fred:p:w@h", b"fred:***@h"),
        (b"amqp://u:p@w@h/x", b"amqp://u:***@h/x"),
        (b"amqp://u:p/w@h/x", b"amqp://u:***@h/x"),
        (b"http://u[:p@h", b"http://u[:***@h"),
        (b"h:5672/q@r", b"h:5672/q@r"),
        (b"amqp://[::1]:5672/a@b", b"amqp://[::1]:5672/a@b"),
        (b"/x:y@z", b"/x:y@z"),
        (b"amqp://$1:pw@$2/x", b"amqp://$1:***@$2/x"),
    ],
)
def test_passwords_are_masked(address: bytes, shown: bytes) -> None:
    assert without_password(address) == shown


@given(st.text("ab:@/[]~%.", max_size=20))
def test_parsed_addresses_are_shown_without_passwords(text: str) -> None:
    try:
        parsed = parse_address(f"amqp://u:SECRET@{text}".encode())
    except InvalidAddress:
        return
    assert parsed.password == b"SECRET"
    assert b"SECRET" not in without_password(f"amqp://u:SECRET@{text}".encode())
    assert "SECRET" not in repr(parsed)
