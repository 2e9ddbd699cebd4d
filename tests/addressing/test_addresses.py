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
from proxy.addressing.table import AddressRule, AddressTable
from proxy.addressing.targets import (
    AddressBook,
    FailedTranslation,
    Publication,
    Remote,
    Target,
    address_of,
    publication_at,
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


ORIGINAL = Publication(b"logs", b"a.b")


def leads(result: bytes, hosts: tuple[bytes, ...] | None = None, brokers: tuple[bytes, ...] = ()) -> object:
    book = AddressBook(AddressTable([AddressRule(b"*", result, hosts=hosts)]), brokers)
    return book.resolve(0, result, ORIGINAL)


def publication(name: bytes) -> Publication | None:
    target = leads(name)
    return target.publication if isinstance(target, Target) else None


@pytest.mark.parametrize(
    ("exchange", "key", "address"),
    [
        (b"", b"COLOSSUS", b"COLOSSUS"),
        (b"", b"bar/x", b"bar/x"),
        (b"", b"/exchange/x/y", b"/queue//exchange/x/y"),
        (b"", b"", b""),
        (b"logs", b"a.error", b"/exchange/logs/a.error"),
        (b"a/b%c", b"x/y", b"/exchange/a%2Fb%25c/x/y"),
        (b"e", b"", b"/exchange/e/"),
    ],
)
def test_a_publish_has_one_address(exchange: bytes, key: bytes, address: bytes) -> None:
    assert address_of(Publication(exchange, key)) == address
    assert publication_at(address) == (exchange, key)


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_the_address_of_a_publish_identifies_it(exchange: bytes, key: bytes) -> None:
    assert publication_at(address_of(Publication(exchange, key))) == (exchange, key)


@given(st.text("/aequ%25F", max_size=12), st.text("/aequ%25F", max_size=12))
def test_an_address_identifies_one_publish_or_none(exchange: str, key: str) -> None:
    address = f"{exchange}{key}".encode()
    publish = publication_at(address)
    assert publish is None or address_of(publish) == address


@pytest.mark.parametrize("address", [b"/x", b"/queue/x", b"/exchange/e", b"/exchange//k", b"/exchange/a%41/k", b"/"])
def test_other_addresses_identify_no_publish(address: bytes) -> None:
    assert publication_at(address) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (b"/", ORIGINAL),
        (b"//", ORIGINAL),
        (b"/exchange/e/k/l", (b"e", b"k/l")),
        (b"//exchange/e/k", (b"e", b"k")),
        (b"/exchange/e", (b"e", b"a.b")),
        (b"/exchange/e/", (b"e", b"")),
        (b"/exchange/a%2Fb%25c%41/k%20", (b"a/b%c%41", b"k%20")),
        (b"/exchanges/e%41/k%2Fl", (b"eA", b"k/l")),
        (b"/exchanges/e", (b"e", b"")),
        (b"/queue/q/r", (b"", b"q/r")),
        (b"//queue/q", (b"", b"q")),
        (b"/queue//exchange/x/y", (b"", b"/exchange/x/y")),
        (b"/amq/queue/q", (b"", b"q")),
        (b"/queues/q%2Fr", (b"", b"q/r")),
        (b"/topic/a.b", (b"amq.topic", b"a.b")),
        (b"/outgoing", (b"", b"outgoing")),
        (b"/exchange", (b"", b"exchange")),
        (b"//outgoing/x", (b"", b"/outgoing/x")),
    ],
)
def test_a_name_is_parsed_into_exchange_and_key(name: bytes, expected: Publication) -> None:
    assert publication(name) == expected


@pytest.mark.parametrize(
    "result",
    [
        *b"/exchange//k /exchanges//k /exchanges/e%4/k /exchanges/e/k/l /queues/a%zz /queue/".split(),
        *b"amqp:///q u:p@/q :5672/q http://h/q ~h/q a@b@c/q []/q".split(),
        b"/exchange/" + b"e" * 256 + b"/k",
        b"/queue/" + b"q" * 256,
    ],
)
def test_invalid_addresses_are_failed_translations(result: bytes) -> None:
    assert isinstance(leads(result), FailedTranslation)


def test_a_failed_translation_does_not_contain_the_address() -> None:
    failure = leads(b"amqp://fred:trustno1@a@b/x")
    assert isinstance(failure, FailedTranslation)
    assert "trustno1" not in repr(failure)


def test_an_address_with_a_domain_is_on_another_broker() -> None:
    assert leads(b"amqps://fred:p%40ss@mq1.example.com/queue/q") == Target(
        0, Remote(b"", b"mq1.example.com", 5671, True, b"fred", b"p@ss"), Publication(b"", b"q")
    )
    assert leads(b"127.0.0.1:1234") == Target(0, Remote(b"", b"127.0.0.1", 1234, False), ORIGINAL)


def test_a_configured_broker_is_found_by_its_name() -> None:
    assert leads(b"COLOSSUS", brokers=(b"COLOSSUS",)) == Target(
        0, Remote(b"COLOSSUS", b"COLOSSUS", None, None), ORIGINAL
    )
    assert leads(b"amqps://archive/queue/q", brokers=(b"archive",)) == Target(
        0, Remote(b"archive", b"archive", None, True), Publication(b"", b"q")
    )
    assert leads(b"archive:1/q", brokers=(b"archive",)) == Target(
        0, Remote(b"", b"archive", 1, False), Publication(b"", b"q")
    )


@pytest.mark.parametrize(
    ("hosts", "permitted"),
    [
        (None, True),
        ((b"*",), True),
        ((b"Example.ORG",), True),
        ((b"other", b"example.org:5672"), True),
        ((b"example.org:5671",), False),
        ((b"org",), False),
        ((), False),
    ],
)
def test_a_rule_can_list_the_hosts_that_it_may_lead_to(hosts: tuple[bytes, ...] | None, permitted: bool) -> None:
    assert isinstance(leads(b"amqp://example.org/q", hosts), Target) is permitted


def test_passwords_are_not_shown() -> None:
    target = leads(b"amqp://fred:trustno1@h/q")
    assert "trustno1" not in repr(target) + str(target)


def test_a_publish_without_a_rule_is_unchanged() -> None:
    book = AddressBook(AddressTable([AddressRule(b"/exchange/logs/*.error", b"/queue/errors.$1")]))
    assert book.look_up(b"logs", b"x.info") is None
    assert book.look_up(b"", b"logs") is None
    target = book.look_up(b"logs", b"x.error")
    assert target == Target(0, None, Publication(b"", b"errors.x"))
    assert book.look_up(b"logs", b"x.error") is target


def test_cached_translations_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.addressing.targets._KEPT_TARGETS", 2)
    book = AddressBook(AddressTable([AddressRule(b"*", b"/$1")]))
    first = book.look_up(b"", b"a")
    book.look_up(b"", b"b")
    book.look_up(b"", b"c")
    assert book.look_up(b"", b"a") == first
    assert book.look_up(b"", b"a") is not first


@given(st.binary(max_size=40))
def test_any_result_is_a_target_or_a_failed_translation(result: bytes) -> None:
    assert isinstance(leads(result), Target | FailedTranslation)


def test_a_rule_warns_once_of_an_address_with_a_password() -> None:
    rules = [AddressRule(b"amqp://*", b"/queue/q"), AddressRule(b"*", b"/queue/r")]
    book = AddressBook(AddressTable(rules))
    for key in (b"amqp://h/x", b"user@h", b"a:b"):
        book.look_up(b"", key)
    assert book.rules_exposing_passwords() == []
    for key in (b"amqp://u:word@h/x", b"amqp://u:word@h/y"):
        book.look_up(b"", key)
    assert (book.rules_exposing_passwords(), book.rules_exposing_passwords()) == ([0], [])
