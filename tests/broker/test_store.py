from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from proxy.amqp.tables import encode_table
from proxy.broker.declared.snapshot import BindingRecord, ExchangeRecord, SnapshotRecords
from proxy.broker.declared.store import DeclarationStore
from proxy.broker.management_api import ExchangeInfo
from proxy.relay.declare.storage import pack
from proxy.relay.tokens import token
from proxy.relay.vhost import BindingCopy, DeclaredExchange, Delivery, VhostState
from proxy.routing.router import Router
from proxy.values import Table, Value
from tests.broker.clients import declare_here, stored, text
from tests.broker.observed import has, owned, queues, state


@pytest.fixture
def known() -> VhostState:
    return VhostState("/", Router(()))


@pytest.fixture
def store(known: VhostState) -> DeclarationStore:
    return DeclarationStore(known)


def listed(*names: str, sequence: int = 1, arguments: Table = ()) -> dict[bytes, ExchangeInfo]:
    kept = pack(sequence, encode_table(arguments)).decode()
    stored_arguments = {"x-open-exchange": True, "x-oxproxy": kept}
    return {name.encode(): ExchangeInfo(name.encode(), "direct", arguments=stored_arguments) for name in names}


def test_a_listing_adds_and_removes_exchanges(store: DeclarationStore, known: VhostState) -> None:
    store.exchanges_listed(store.exchanges_before(), listed("a", "b", sequence=8))
    assert set(known.exchanges) == set(known.router.exchanges) == {b"a", b"b"}
    assert known.carriers == {b"a", b"b"}
    assert known.last_sequence == 0
    first, changes, epoch = known.exchanges[b"a"], store.changes, known.epoch
    store.exchanges_listed(store.exchanges_before(), listed("a", "b", sequence=8))
    assert known.exchanges[b"a"] is first
    assert (store.changes, known.epoch) == (changes, epoch)
    store.exchanges_listed(store.exchanges_before(), listed("b", sequence=8))
    assert set(known.exchanges) == {b"b"}
    assert not store.has_unverified


@pytest.mark.parametrize("single", [False, True], ids=["of all exchanges", "of one exchange"])
def test_a_listing_older_than_a_declare_does_not_remove_the_exchange(
    store: DeclarationStore, known: VhostState, single: bool
) -> None:
    store.exchanges_listed(store.exchanges_before(), listed("a"))
    before = store.exchanges_before()
    known.exchanges[b"a"].declares += 1
    if single:
        store.exchange_found(before, b"a", None)
    else:
        store.exchanges_listed(before, listed())
    assert set(known.exchanges) == {b"a"}


def test_an_exchange_with_other_arguments_or_another_sequence_is_a_new_one(
    store: DeclarationStore, known: VhostState
) -> None:
    store.exchanges_listed(store.exchanges_before(), listed("a", sequence=1))
    first = known.exchanges[b"a"]
    store.exchanges_listed(store.exchanges_before(), listed("a", sequence=2))
    second = known.exchanges[b"a"]
    assert second is not first
    limit: Table = ((b"max-payload-size", Value("l", 5)),)
    store.exchanges_listed(store.exchanges_before(), listed("a", sequence=2, arguments=limit))
    assert known.exchanges[b"a"].arguments == limit


def test_an_exchange_declared_through_us_is_the_one_on_the_broker(store: DeclarationStore, known: VhostState) -> None:
    mine = declare_here(known, "a", stored("a", "q"), sequence=5)
    store.exchanges_listed(store.exchanges_before(), listed("a", sequence=5))
    assert known.exchanges[b"a"] is mine
    assert store.changes == 0


NEGATIVE: Table = ((b"max-payload-size", Value("l", -1)),)


def test_an_argument_without_effect_is_accepted_with_a_warning(store: DeclarationStore, known: VhostState) -> None:
    misspelt: Table = ((b"max-payload-sise", Value("l", 5)), (b"x-owner", Value("S", b"billing")))
    with capture_logs() as events:
        store.exchanges_listed(store.exchanges_before(), listed("a", arguments=misspelt))
        store.exchanges_listed(store.exchanges_before(), listed("a", arguments=misspelt))
    assert known.exchanges[b"a"].arguments == misspelt
    warnings = has(events, "an argument of a declared exchange has no effect")
    assert [(event["argument"], event["reason"]) for event in warnings] == [
        ("max-payload-sise", "unknown argument; did you mean max-payload-size?")
    ]


def test_an_argument_without_effect_of_an_exchange_declared_through_us_causes_one_warning(
    store: DeclarationStore, known: VhostState
) -> None:
    declare_here(known, "a", sequence=5, arguments=NEGATIVE)
    with capture_logs() as events:
        store.exchanges_listed(store.exchanges_before(), listed("a", sequence=5, arguments=NEGATIVE))
        store.exchanges_listed(store.exchanges_before(), listed("a", sequence=5, arguments=NEGATIVE))
    assert len(has(events, "an argument of a declared exchange has no effect")) == 1


def test_an_exchange_without_stored_arguments_is_removed(store: DeclarationStore, known: VhostState) -> None:
    declare_here(known, "a", sequence=5)
    replaced = {b"a": ExchangeInfo(b"a", "direct")}
    store.exchanges_listed(store.exchanges_before(), replaced)
    assert known.exchanges == {}


def test_declares_and_deletes_through_us_take_precedence_over_an_older_listing(
    store: DeclarationStore, known: VhostState
) -> None:
    declare_here(known, "deleted")
    before = store.exchanges_before()
    known.remove_exchange(b"deleted")
    mine = declare_here(known, "declared", sequence=9)
    store.exchanges_listed(before, listed("deleted"))
    assert known.exchanges == {b"declared": mine}


def test_an_unknown_exchange_is_added_if_nothing_changed_meanwhile_or_if_listed_twice(
    store: DeclarationStore, known: VhostState
) -> None:
    before = store.exchanges_before()
    known.changed()
    store.exchanges_listed(before, listed("a"))
    assert known.exchanges == {}
    assert store.has_unverified
    before = store.exchanges_before()
    known.changed()
    store.exchanges_listed(before, listed("a"))
    assert set(known.exchanges) == {b"a"}
    assert not store.has_unverified


def test_an_unverified_exchange_is_dropped_if_the_next_listing_lacks_it(
    store: DeclarationStore, known: VhostState
) -> None:
    before = store.exchanges_before()
    known.changed()
    store.exchanges_listed(before, listed("a"))
    store.exchanges_listed(store.exchanges_before(), {})
    assert not store.has_unverified
    assert known.exchanges == {}


def test_the_file_owns_its_exchanges_and_carriers() -> None:
    shaped = owned("renamed", carrier=b"carrier")
    known = state("/", {"documents": queues("a"), "renamed": queues("a")}, shaped)
    before = dict(known.exchanges)
    store = DeclarationStore(known)
    store.exchanges_listed(store.exchanges_before(), listed("documents", "carrier"))
    assert known.exchanges == before


def test_two_deliveries_of_one_name_are_logged_once(store: DeclarationStore, known: VhostState) -> None:
    mine = declare_here(known, "a", delivery=Delivery.QUEUE)
    with capture_logs() as events:
        for _ in range(2):
            store.exchanges_listed(store.exchanges_before(), listed("a"))
    assert known.exchanges == {b"a": mine}
    assert len(has(events, "a client declaration can't be used")) == 1


def test_a_single_exchange_is_added_and_removed(store: DeclarationStore, known: VhostState) -> None:
    store.exchange_found(store.exchanges_before(), b"a", listed("a")[b"a"])
    assert set(known.exchanges) == {b"a"}
    store.exchange_found(store.exchanges_before(), b"a", None)
    assert known.exchanges == {}


def test_a_missing_carrier_of_the_file_keeps_its_rules() -> None:
    known = state("/", {"ruled": queues("a")})
    store = DeclarationStore(known)
    store.exchange_found(store.exchanges_before(), b"ruled", None)
    assert set(known.exchanges) == {b"ruled"}


def test_a_removed_exchange_removes_the_bindings_to_it(store: DeclarationStore, known: VhostState) -> None:
    declare_here(known, "inner")
    declare_here(known, "outer", stored("outer", "inner", kind="exchange"), stored("outer", "inner"))
    store.exchange_gone(b"inner")
    [left] = known.exchanges[b"outer"].clients.values()
    assert left.binding.destination_type == "queue"
    assert len(list(known.router.exchanges[b"outer"].bindings)) == 1


def test_the_end_of_a_binding_does_not_remove_its_successor(store: DeclarationStore, known: VhostState) -> None:
    old = stored("ox", "q", (), 1)
    declare_here(known, "ox", old)
    before = store.bindings()
    known.remove_binding(old)
    known.add_binding(stored("ox", "q", (), 2))
    assert not store.binding_gone(before[0])
    assert store.binding_gone(store.bindings()[0])
    assert known.exchanges[b"ox"].clients == {}
    assert not store.binding_gone(before[0])


def test_the_number_of_logged_errors_is_limited(store: DeclarationStore) -> None:
    with capture_logs() as events:
        for number in range(2000):
            store.log_fault(b"ox", str(number))
    assert len(events) == 1000


def records(delivery: Delivery, *more: BindingRecord) -> SnapshotRecords:
    exchange = ExchangeRecord("/", b"ox", delivery, DeclaredExchange(True, False, False, b"", 3))
    copies = BindingCopy(4, "", token("queue", b"q")), BindingCopy(6, "", b"")
    binding = BindingRecord("/", b"ox", ("queue", b"q"), b"", b"", copies, frozenset({4}))
    return SnapshotRecords((exchange,), (binding, *more))


def record(vhost: str, queue: bytes, entries: bytes = b"") -> BindingRecord:
    return BindingRecord(vhost, b"ox", ("queue", queue), b"", entries, (BindingCopy(1, "", b""),))


@pytest.mark.parametrize("carriers", [True, False])
async def test_a_snapshot_is_loaded_into_the_state(store: DeclarationStore, known: VhostState, carriers: bool) -> None:
    await store.remember(records(Delivery.QUEUE), carriers=carriers)
    back = known.exchanges[b"ox"]
    assert back.delivery is Delivery.QUEUE
    [binding] = back.clients.values()
    assert [(copy.sequence, copy.key == binding.key) for copy in binding.copies] == [(4, False), (6, True)]
    assert (binding.signed, known.last_sequence) == (True, 6)


@pytest.mark.parametrize(("carriers", "expected"), [(True, {b"ox"}), (False, set())])
async def test_exchanges_with_a_carrier_are_loaded_from_a_snapshot_only_without_listings(
    store: DeclarationStore, known: VhostState, carriers: bool, expected: set[bytes]
) -> None:
    await store.remember(records(Delivery.CARRIER), carriers=carriers)
    assert set(known.exchanges) == expected


async def test_a_snapshot_restores_clients_bindings_of_a_files_exchange() -> None:
    known = state("/", {"ox": queues("a")}, owned("ox", Delivery.QUEUE))
    store = DeclarationStore(known)
    elsewhere = record("elsewhere", b"other")
    await store.remember(records(Delivery.CARRIER, elsewhere), carriers=False)
    assert known.exchanges[b"ox"].declared is None
    assert [client.binding.destination for client in known.exchanges[b"ox"].clients.values()] == [b"q"]


async def test_an_invalid_record_is_logged_and_the_others_are_loaded(
    store: DeclarationStore, known: VhostState
) -> None:
    odd = record("/", b"odd", b"\x01a?")
    invalid = record("/", b"invalid", encode_table(((b"x-no", text("")),)))
    broken = ExchangeRecord("/", b"broken", Delivery.QUEUE, DeclaredExchange(True, False, False, b"\x01a?", 3))
    snapshot = records(Delivery.QUEUE, odd, invalid)
    with capture_logs() as events:
        await store.remember(snapshot._replace(exchanges=(*snapshot.exchanges, broken)), carriers=False)
    assert len(has(events, "a client declaration can't be used")) == 3
    assert set(known.exchanges) == {b"ox"}
    assert len(known.exchanges[b"ox"].clients) == 1
