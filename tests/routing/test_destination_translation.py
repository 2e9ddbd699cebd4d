from __future__ import annotations

import pytest

from oxproxy.addressing.table import AddressRule, AddressTable
from oxproxy.addressing.targets import AddressBook, Publication
from oxproxy.routing.destination_translation import (
    EVALUATED_HERE,
    TranslatedDestinations,
    static_translation,
    static_translations,
    translate_destinations,
)
from oxproxy.routing.router import Router
from oxproxy.values import EXCHANGE, QUEUE
from tests.routing.building import exchange, to_queue

RULES = {
    b"moved": b"/queue/new",
    b"twin": b"/queue/new",
    b"far": b"archive/queue/far",
    b"same": b"archive/queue/far",
    b"lost": b"/exchange//x",
    b"keyed": b"/exchange/outside/other",
    b"plain": b"/exchange/outside",
    b"/exchange/e/*": b"/exchange/f/$1",
    b"/exchange/q/*": b"/queue/$1",
    b"loop": b"/exchange/open/k",
}
BOOK = AddressBook(AddressTable([AddressRule(*rule) for rule in RULES.items()]), [b"archive"])


def leaves(*queues: bytes, exchanges: tuple[bytes, ...] = (), key: bytes = b"k") -> TranslatedDestinations:
    return translate_destinations(BOOK, queues, exchanges, key, {b"open"})


def test_queues_translated_to_the_same_queue_are_merged() -> None:
    output = leaves(b"moved", b"twin", b"new")
    assert (output.queues, output.rule) == ((b"new",), 0)


@pytest.mark.parametrize(
    ("queue", "key", "exchanges", "publications"),
    [
        (b"keyed", b"k", (), (Publication(b"outside", b"other"),)),
        (b"keyed", b"other", (b"outside",), ()),
        (b"plain", b"plain", (b"outside",), ()),
    ],
)
def test_an_exchange_with_the_key_of_the_message_is_an_ordinary_destination(
    queue: bytes, key: bytes, exchanges: tuple[bytes, ...], publications: tuple[Publication, ...]
) -> None:
    output = leaves(queue, key=key)
    assert (output.exchanges, output.publications) == (exchanges, publications)


def test_failed_translations_are_reported_and_the_rest_is_delivered() -> None:
    output = leaves(b"lost", b"a")
    assert (output.queues, [failure.rule for failure in output.failed]) == ((b"a",), [4])


def test_no_exchange_is_evaluated_after_a_decision() -> None:
    assert [failure.reason for failure in leaves(b"loop").failed] == [EVALUATED_HERE]


def test_static_destinations_are_translated_without_a_message() -> None:
    table = {
        b"moved": b"/queue/new",
        b"far": b"archive/queue/far",
        b"lost": b"/exchange//x",
        b"loop": b"/exchange/open/k",
        b"/exchange/whole/*": b"archive/exchange/there/$1",
        b"/exchange/kept/*": b"archive",
        b"/exchange/keyed/*": b"/queue/$1",
        b"/exchange/part/a.*": b"/queue/$1",
        b"/exchange/plain/*": b"/exchange/other",
    }
    book = AddressBook(AddressTable([AddressRule(*rule) for rule in table.items()]), [b"archive"])

    def found(kind: str, name: bytes) -> tuple[object, ...] | None:
        moved = static_translation(book, (kind, name), {b"open"})
        if moved is None:
            return None
        return moved.here, None if moved.remote is None else moved.remote[1], moved.failure

    assert found("queue", b"plain") is None
    assert found("queue", b"moved") == (("queue", b"new"), None, "")
    assert found("queue", b"far") == (None, ("queue", b"far"), "")
    assert found("queue", b"lost") == (None, None, "the exchange or queue name is empty")
    assert found("queue", b"loop") == (None, None, EVALUATED_HERE)
    assert found("exchange", b"whole") == (None, ("exchange", b"there"), "")
    assert found("exchange", b"kept") == (None, ("exchange", b"kept"), "")
    assert found("exchange", b"keyed") == (None, None, "")  # a different queue for each routing key
    assert found("exchange", b"part") is None
    assert found("exchange", b"plain") == (("exchange", b"other"), None, "")


@pytest.mark.parametrize(
    ("translation", "exchange", "leads"),
    [
        (b"/exchange/open", "open", True),
        (b"/exchange/open/k", "open", True),
        (b"/exchange/open/$1", "open", True),
        (b"//exchange/open/k", "open", True),
        (b"/exchanges/open/k", "open", True),
        (b"/exchange/$1", "open", True),
        (b"/exchange/op$1", "open", True),
        (b"$1", "open", True),
        (b"/$1/open", "open", True),
        (b"/exchange/opened", "open", False),
        (b"/exchange/other/$1", "open", False),
        (b"/queue/open", "open", False),
        (b"archive/exchange/open", "open", False),
        (b"archive/$1", "open", False),
        (b"/exchange", "open", False),
        (None, "open", False),
        (b"/exchanges/auftr%C3%A4ge/k", "aufträge", True),
        (b"/exchanges/auftr%C3%A4ge/$1", "aufträge", True),
        (b"/exchanges/auftr%C3%$1", "aufträge", True),
        (b"/exchanges/auftr%C$1", "aufträge", True),
        (b"/exchanges/%6fpen", "open", True),
        (b"/exchange/a%2fb/$1", "a/b", True),
        (b"/exchange/a%2Fb", "a/b", True),
        (b"/exchange/a%2$1", "a/b", True),
        (b"/exchange/a%25b", "a%b", True),
        (b"/exchange/a%b/$1", "a%b", True),
        (b"/top$1", "amq.topic", True),
        (b"/topic/k", "amq.topic", True),
        (b"/exchange/%6fpen", "open", False),
        (b"/exchanges/auftr%C3%B6ge/$1", "aufträge", False),
        (b"/top$1", "open", False),
        (b"/top", "amq.topic", False),
    ],
)
def test_a_rule_may_translate_to_an_exchange_of_this_broker(
    translation: bytes | None, exchange: str, leads: bool
) -> None:
    """The exchange may be named with variables, with escapes, or as a topic."""
    book = AddressBook(AddressTable([AddressRule(b"*", translation)]), [b"archive"])
    assert book.may_lead_to(exchange.encode()) is leads


def test_destinations_of_an_exchange_that_the_table_names_with_an_escape_must_exist() -> None:
    router = Router([exchange(to_queue("q1"), name="aufträge")])
    rules = [AddressRule(b"in/*", b"/exchanges/auftr%C3%A4ge/$1"), AddressRule(b"q1", b"/queue/q2")]
    assert static_translations(AddressBook(AddressTable(rules)), [(QUEUE, b"q1")], router, ()).away == {}


def test_a_translation_to_a_carrier_fails_for_every_message() -> None:
    book = AddressBook(AddressTable([AddressRule(b"q", b"/exchange/stored/k")]))
    (moved,) = static_translations(book, [(QUEUE, b"q")], Router([]), {b"stored"}).found
    assert (moved.here, moved.failure) == (None, EVALUATED_HERE)


@pytest.mark.parametrize(
    ("earlier", "translation", "away"),
    [
        (b"/exchange/events/keep.*", b"/exchange/events/keep.$1", False),
        (b"/exchange/events/keep.*", b"/", False),
        (b"/exchange/events/keep", b"/exchanges/%65vents/other", False),
        (b"/exchange/%/keep", b"/exchange/$1/other", False),
        (b"/exchange/events/keep.*", b"/queue/kept", True),
        (b"/exchange/events2/*", b"/exchange/events/$1", True),
    ],
)
def test_an_exchange_that_keeps_messages_with_some_routing_keys_must_exist(
    earlier: bytes, translation: bytes, away: bool
) -> None:
    rules = [AddressRule(earlier, translation), AddressRule(b"/exchange/events/*", b"/exchange/events2/$1")]
    named = (EXCHANGE, b"events")
    moved = static_translations(AddressBook(AddressTable(rules)), [named], Router([]), ())
    assert [target.here for target in moved.found] == [(EXCHANGE, b"events2")]
    assert (named in moved.away) is away
