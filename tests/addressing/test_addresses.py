from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxproxy.addressing.address import (
    InvalidAddress,
    parse_address,
    without_password,
)
from oxproxy.addressing.table import AddressRule, AddressTable
from oxproxy.addressing.targets import (
    AddressBook,
    FailedTranslation,
    Publication,
    Remote,
    Target,
    address_of,
    publication_at,
)


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
    monkeypatch.setattr("oxproxy.addressing.targets._KEPT_TARGETS", 2)
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
