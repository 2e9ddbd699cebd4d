from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from oxproxy.broker.declared.store import BindingListings, DeclarationStore
from oxproxy.broker.management_api import BindingInfo
from oxproxy.relay.declare.storage import pack
from oxproxy.relay.vhost import OwnedExchange, StoredBinding, VhostState
from oxproxy.routing.router import Router
from tests.broker.clients import declare_here, stored
from tests.broker.observed import until

A, B, C = (stored("ox", name, (), number) for number, name in enumerate("abc", 1))


@pytest.fixture
def known() -> VhostState:
    return VhostState("/", Router(()))


@pytest.fixture
def ox(known: VhostState) -> OwnedExchange:
    return declare_here(known, "ox")


@pytest.fixture
def listings(known: VhostState, ox: OwnedExchange) -> BindingListings:
    return DeclarationStore(known).listings


def row(binding: StoredBinding) -> BindingInfo:
    copy = binding.copies[0]
    kept = pack(copy.sequence, copy.entries, binding.binding.routing_key, copy.client).decode()
    return BindingInfo(binding.destination, binding.key, "", kept, copy.signature.decode())


def rows(*bindings: StoredBinding) -> list[BindingInfo]:
    return [row(binding) for binding in bindings]


async def take(listings: BindingListings, ox: OwnedExchange, *bindings: StoredBinding) -> None:
    await listings.take(ox, listings.before(ox), rows(*bindings))


def there(ox: OwnedExchange) -> list[bytes]:
    return sorted(stored_binding.binding.destination for stored_binding in ox.clients.values())


AGAIN = stored("ox", "a", (), 50)


@pytest.mark.parametrize(
    ("earlier", "removed", "made", "listed", "expected"),
    [
        ([A, B], [A], [C], [A, B], [B, C]),
        ([A], [A], [AGAIN], [], [AGAIN]),
        ([AGAIN], [AGAIN], [A], [AGAIN], [A]),
        ([A], [], [A], [], [A]),
    ],
    ids=["other changes", "made again", "an earlier copy made again", "made again without an unbind"],
)
async def test_changes_through_relays_since_the_request_take_precedence_over_a_listing(
    listings: BindingListings,
    ox: OwnedExchange,
    known: VhostState,
    earlier: list[StoredBinding],
    removed: list[StoredBinding],
    made: list[StoredBinding],
    listed: list[StoredBinding],
    expected: list[StoredBinding],
) -> None:
    await take(listings, ox, *earlier)
    before = listings.before(ox)
    for binding in removed:
        known.remove_binding(binding)
    for binding in made:
        known.add_binding(binding)
    await listings.take(ox, before, rows(*listed))
    assert list(ox.clients.values()) == expected
    assert not listings.unchanged(ox), "an equal listing after a later change must be applied"
    await take(listings, ox)
    assert there(ox) == []


async def test_a_binding_made_and_removed_during_a_listing_stays_removed(
    listings: BindingListings, ox: OwnedExchange, known: VhostState
) -> None:
    before = listings.before(ox)
    known.add_binding(A)
    known.remove_binding(A)
    await listings.take(ox, before, rows(A, B))
    assert (there(ox), listings.has_unverified) == ([], True)
    await take(listings, ox, B)
    assert (there(ox), listings.has_unverified) == ([b"b"], False)
    assert listings.unchanged(ox)


async def test_a_row_in_two_listings_is_added_even_if_clients_bind_all_the_time(
    listings: BindingListings, ox: OwnedExchange, known: VhostState
) -> None:
    for _ in range(2):
        before = listings.before(ox)
        known.add_binding(A)
        known.remove_binding(A)
        await listings.take(ox, before, rows(B))
    assert there(ox) == [b"b"]


async def test_relays_run_between_the_steps_of_a_long_listing(
    listings: BindingListings, ox: OwnedExchange, known: VhostState
) -> None:
    many = [stored("ox", f"q{number}", (), number) for number in range(1000)]
    before = listings.before(ox)
    taking = asyncio.ensure_future(listings.take(ox, before, rows(*many)))
    await until(lambda: bool(ox.clients))
    assert len(ox.clients) < 1000
    known.remove_binding(many[0])
    await taking
    assert b"q0" not in there(ox)
    await take(listings, ox, *many[1:])
    assert len(ox.clients) == 999


@pytest.mark.parametrize("replace", [lambda known: declare_here(known, "ox"), lambda known: None])
async def test_a_listing_of_an_exchange_deleted_meanwhile_is_ignored(
    listings: BindingListings,
    ox: OwnedExchange,
    known: VhostState,
    replace: Callable[[VhostState], OwnedExchange | None],
) -> None:
    before = listings.before(ox)
    known.remove_exchange(b"ox")
    now = replace(known)
    await listings.take(ox, before, rows(A))
    assert now is None or now.clients == {}
    assert not listings.unchanged(ox)
    assert listings.before(ox) is None


async def test_only_new_rows_are_decoded(
    listings: BindingListings, ox: OwnedExchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    await take(listings, ox, A, B)
    decoded: list[bytes] = []
    decode = listings._decode

    def counting(exchange: OwnedExchange, info: BindingInfo) -> object:
        decoded.append(info.destination[1])
        return decode(exchange, info)

    monkeypatch.setattr(listings, "_decode", counting)
    await take(listings, ox, A, B, C)
    assert decoded == [b"c"]
    await take(listings, ox, A)
    await take(listings, ox, A, B)
    assert decoded == [b"c", b"b"]
