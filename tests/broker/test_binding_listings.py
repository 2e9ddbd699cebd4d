from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from proxy.broker.declared.store import BindingListings, DeclarationStore
from proxy.broker.management_api import BindingInfo
from proxy.relay.declare.storage import STORAGE, pack
from proxy.relay.vhost import OwnedExchange, StoredBinding, VhostState
from proxy.routing.router import Router
from proxy.values import Value
from tests.broker.clients import copied, declare_here, stored
from tests.broker.observed import has, queues, state, until

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
    kept = pack(copy.sequence, binding.entries, binding.binding.routing_key, copy.client).decode()
    return BindingInfo(binding.destination, copy.key, "", kept, copy.signature.decode())


def rows(*bindings: StoredBinding) -> list[BindingInfo]:
    return [row(binding) for binding in bindings]


async def take(listings: BindingListings, ox: OwnedExchange, *bindings: StoredBinding) -> None:
    await listings.take(ox, listings.before(ox), rows(*bindings))


def there(ox: OwnedExchange) -> list[bytes]:
    return sorted(stored_binding.binding.destination for stored_binding in ox.clients.values())


async def test_a_listing_adds_and_removes_bindings(
    listings: BindingListings, ox: OwnedExchange, known: VhostState
) -> None:
    await take(listings, ox, A, B)
    assert there(ox) == [b"a", b"b"]
    assert known.last_sequence == 2
    assert listings.settled(ox)
    await take(listings, ox, B, C)
    assert there(ox) == [b"b", b"c"]
    assert [binding.destination for binding in known.router.exchanges[b"ox"].bindings] == [b"b", b"c"]


async def test_tokens_and_foreign_bindings_are_not_taken_for_stored_ones(
    listings: BindingListings, ox: OwnedExchange
) -> None:
    others = [BindingInfo(("queue", b"q"), key, "", row(A).kept) for key in (b"", b"key", b"x.o.p.e.n.x.q.0123")]
    with capture_logs() as events:
        await listings.take(ox, listings.before(ox), others)
    assert ox.clients == {}
    assert events == []


async def test_copies_count_as_one_and_the_lowest_sequence_wins(
    listings: BindingListings, ox: OwnedExchange, known: VhostState
) -> None:
    later, earlier = stored("ox", "a", (), 30), stored("ox", "a", (), 10)
    await take(listings, ox, later, earlier)
    [binding] = ox.clients.values()
    assert (binding.sequences, binding.binding.sequence) == ((10, 30), 10)
    await take(listings, ox, later)
    [binding] = ox.clients.values()
    assert (binding.sequences, binding.binding.sequence) == ((30,), 30)
    [rule] = known.router.exchanges[b"ox"].bindings
    assert rule.sequence == 30
    assert listings.settled(ox)


async def test_copies_that_an_unbind_would_not_find_are_superfluous(
    listings: BindingListings, ox: OwnedExchange
) -> None:
    a, b = (b"x-?hkv= a", Value("I", 1)), (b"x-?hkv= b", Value("I", 2))
    first, second = stored("ox", "a", (a, b), 10), stored("ox", "a", (b, a), 20)
    for order in ((first, second), (second, first)):
        superfluous = await listings.take(ox, listings.before(ox), rows(*order))
        assert superfluous == [row(second)]
        assert list(ox.clients.values()) == [first]


async def test_a_copy_by_which_messages_find_the_destination_is_not_superfluous(
    listings: BindingListings, ox: OwnedExchange
) -> None:
    a, b = (b"x-?hkv= a", Value("I", 1)), (b"x-?hkv= b", Value("I", 2))
    first, second = stored("ox", "a", (a, b), 10), stored("ox", "a", (b, a), 20)
    mark = copied(second, 20, mark=True)
    for order in ((first, mark), (mark, first)):
        superfluous = await listings.take(ox, listings.before(ox), rows(*order))
        assert superfluous == [row(first)]
        assert list(ox.clients.values()) == [mark]


async def test_the_key_of_a_known_copy_is_read_from_the_listing(
    listings: BindingListings, ox: OwnedExchange, known: VhostState
) -> None:
    known.add_binding(A)
    await take(listings, ox, copied(A, 1, mark=True))
    (binding,) = ox.clients.values()
    assert binding.is_mark


async def test_changes_through_relays_take_precedence_over_an_older_listing(
    listings: BindingListings, ox: OwnedExchange, known: VhostState
) -> None:
    await take(listings, ox, A, B)
    before = listings.before(ox)
    known.remove_binding(A)
    known.add_binding(C)
    await listings.take(ox, before, rows(A, B))
    assert there(ox) == [b"b", b"c"]
    assert not listings.settled(ox)


async def test_a_binding_made_again_during_a_listing_replaces_the_old_one(
    listings: BindingListings, ox: OwnedExchange, known: VhostState
) -> None:
    await take(listings, ox, A)
    before = listings.before(ox)
    known.remove_binding(A)
    again = stored("ox", "a", (), 50)
    known.add_binding(again)
    await listings.take(ox, before, [])
    assert list(ox.clients.values()) == [again]
    before = listings.before(ox)
    known.remove_binding(again)
    known.add_binding(A)
    await listings.take(ox, before, rows(again))
    assert list(ox.clients.values()) == [A]


async def test_a_binding_made_again_since_the_request_is_not_removed_by_a_listing_without_it(
    listings: BindingListings, ox: OwnedExchange, known: VhostState
) -> None:
    """The queue was deleted on the broker before the request, and declared and bound again before the response."""
    await take(listings, ox, A)
    before = listings.before(ox)
    known.add_binding(A)
    await listings.take(ox, before, [])
    assert there(ox) == [b"a"]
    assert not listings.settled(ox), "an equal listing after the next deletion must be applied"
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
    assert listings.settled(ox)


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
    assert not listings.settled(ox)
    assert listings.before(ox) is None


async def test_damaged_rows_are_logged_once_and_ignored(listings: BindingListings, ox: OwnedExchange) -> None:
    damaged = [
        BindingInfo(("queue", b"a"), STORAGE + b"by.hand", "", ""),
        row(A)._replace(routing_key=B.key),
        row(A)._replace(kept=row(A).kept[:-4] + "!!!!"),
    ]
    with capture_logs() as events:
        for _ in range(2):
            await listings.take(ox, listings.before(ox), [*damaged, row(C)])
    assert there(ox) == [b"c"]
    assert len(has(events, "a client declaration can't be used")) == 3


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


async def test_a_binding_that_the_file_has_belongs_to_the_file() -> None:
    known = state("/", {"ox": queues("a")})
    listings, ox = DeclarationStore(known).listings, known.exchanges[b"ox"]
    await take(listings, ox, A, B)
    assert there(ox) == [b"b"]
    await take(listings, ox)
    assert there(ox) == []
    assert [binding.destination for binding in known.router.exchanges[b"ox"].bindings] == [b"a"]


async def test_bindings_that_differ_only_in_types_are_separate(listings: BindingListings, ox: OwnedExchange) -> None:
    values = Value("I", 1), Value("l", 1), Value("d", 1.0)
    several = [stored("ox", "a", ((b"x-?hkv= n", value),), number) for number, value in enumerate(values)]
    await take(listings, ox, *several)
    assert len(ox.clients) == 3
    assert set(ox.receivers) == queues("a")
