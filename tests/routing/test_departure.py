from __future__ import annotations

import pytest

from proxy.routing.address_table import AddressRule, AddressTable
from proxy.routing.address_targets import AddressBook, Publication
from proxy.routing.departure import EVALUATED_HERE, Departure, departure

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


def leaves(*queues: bytes, exchanges: tuple[bytes, ...] = (), key: bytes = b"k") -> Departure:
    return departure(BOOK, queues, exchanges, key, {b"open"})


def test_what_no_rule_is_for_stays() -> None:
    assert leaves(b"a", b"b", exchanges=(b"x",)) == Departure((b"a", b"b"), (b"x",))


def test_queues_that_become_the_same_one_are_one() -> None:
    found = leaves(b"moved", b"twin", b"new")
    assert (found.queues, found.rule) == ((b"new",), 0)


def test_a_result_is_not_looked_up_again() -> None:
    assert leaves(exchanges=(b"q",), key=b"moved").queues == (b"moved",)


def test_two_ways_to_one_place_elsewhere_are_one() -> None:
    found = leaves(b"far", b"same")
    assert [target.publication for target in found.remotes] == [(b"", b"far")]


@pytest.mark.parametrize(
    ("queue", "key", "exchanges", "publications"),
    [
        (b"keyed", b"k", (), (Publication(b"outside", b"other"),)),
        (b"keyed", b"other", (b"outside",), ()),
        (b"plain", b"plain", (b"outside",), ()),
    ],
)
def test_an_exchange_under_the_message_s_key_is_one_like_others(
    queue: bytes, key: bytes, exchanges: tuple[bytes, ...], publications: tuple[Publication, ...]
) -> None:
    found = leaves(queue, key=key)
    assert (found.exchanges, found.publications) == (exchanges, publications)


def test_an_exchange_is_looked_up_with_the_message_s_key() -> None:
    assert leaves(exchanges=(b"e",), key=b"k").exchanges == (b"f",)


def test_what_leads_nowhere_is_told_and_the_rest_goes_on() -> None:
    found = leaves(b"lost", b"a")
    assert (found.queues, [each.rule for each in found.failed]) == ((b"a",), [4])


def test_nothing_is_evaluated_behind_a_decision() -> None:
    assert [each.reason for each in leaves(b"loop").failed] == [EVALUATED_HERE]
