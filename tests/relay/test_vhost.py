from __future__ import annotations

from dataclasses import replace

import pytest

from proxy.amqp.tables import encode_table
from proxy.relay.vhost import BindingCopy, DeclaredExchange, Delivery, OwnedExchange, StoredBinding, VhostState
from proxy.routing.bindings.binding import NO_REACH, Binding
from proxy.routing.decision import QueueNames
from proxy.routing.exchange import Exchange
from proxy.routing.router import Router
from tests.relay.wire import owned, routed, state
from tests.routing.building import decide, exchange, to_exchange, to_queue


def stored(binding: Binding, *sequences: int) -> StoredBinding:
    entries = encode_table(binding.arguments)
    copies = tuple(BindingCopy(sequence, "", b"key") for sequence in sequences)
    return StoredBinding(replace(binding, sequence=sequences[0]), entries, b"key", copies)


def bound_queues(of: VhostState) -> list[bytes]:
    return [one.destination for one in of.router.exchanges[b"xo"].bindings]


def test_an_empty_virtual_host_evaluates_and_restores_nothing() -> None:
    empty = VhostState("/", Router(()))
    assert (empty.carriers, empty.restores, empty.carried(), empty.epoch) == (frozenset(), False, [], 0)


@pytest.mark.parametrize(
    ("name", "of", "restores"),
    [
        ("carrier of its own name", routed("q"), False),
        ("carrier of another name", routed("q", carrier="carried"), True),
        ("queue delivery", routed("q", delivery=Delivery.QUEUE), True),
        ("an alternate exchange", state((made := exchange(alternate="ae"), owned(made))), True),
    ],
)
def test_originals_are_put_back_where_publishes_may_move(name: str, of: VhostState, restores: bool) -> None:
    assert of.restores == restores


def test_carriers_are_those_of_carrier_delivery_only() -> None:
    one, other = exchange(name="one"), exchange(name="other")
    of = state((one, owned(one, carrier="c1")), (other, owned(other, Delivery.QUEUE)))
    assert of.carriers == {b"c1"}
    assert [each.name for each in of.carried()] == [b"one"]


def test_an_exchange_that_comes_is_evaluated_and_one_that_goes_is_not() -> None:
    of = VhostState("/", Router(()))
    made = exchange(to_queue("q"))
    of.add_exchange(owned(made, carrier="c"), made)
    assert (of.carriers, of.restores, of.epoch) == (frozenset((b"c",)), True, 1)
    assert decide(of.router).queues == (b"q",)
    of.remove_exchange(b"xo")
    assert (of.carriers, of.restores, of.epoch) == (frozenset(), False, 2)
    assert b"xo" not in of.router.exchanges


def test_a_change_makes_what_was_derived_stale() -> None:
    of = routed("q")
    of.changed()
    assert of.epoch == 1


def test_queues_are_found_among_the_sorted_names() -> None:
    of = VhostState("/", Router(()), queues=QueueNames((b"a", b"b", b"d"), 1))
    assert [of.has_queue(name) for name in (b"", b"a", b"c", b"d", b"e")] == [False, True, False, True, False]


def client_exchange() -> VhostState:
    made = Exchange(b"xo", "x-open")
    return state((made, OwnedExchange(b"xo", "x-open", Delivery.CARRIER, b"xo")))


def test_a_clients_binding_comes_and_goes() -> None:
    of = client_exchange()
    binding = stored(to_queue("q"), 5)
    assert of.add_binding(binding)
    assert bound_queues(of) == [b"q"]
    of.remove_binding(binding)
    assert bound_queues(of) == []
    assert of.epoch == 2
    of.remove_binding(binding)
    assert of.epoch == 2


def test_a_second_copy_of_a_binding_counts_as_the_same() -> None:
    of = client_exchange()
    assert of.add_binding(stored(to_queue("q"), 5))
    assert not of.add_binding(stored(to_queue("q"), 7))
    (kept,) = of.exchanges[b"xo"].clients.values()
    assert kept.sequences == (5, 7)
    assert [one.sequence for one in of.router.exchanges[b"xo"].bindings] == [5]


def test_the_lowest_sequence_of_all_copies_is_the_one_that_counts() -> None:
    of = client_exchange()
    of.add_binding(stored(to_queue("q"), 5))
    of.add_binding(stored(to_queue("q"), 3))
    assert [one.sequence for one in of.router.exchanges[b"xo"].bindings] == [3]


def test_a_copy_that_is_known_changes_nothing() -> None:
    of = client_exchange()
    of.add_binding(stored(to_queue("q"), 5))
    epoch = of.epoch
    assert not of.add_binding(stored(to_queue("q"), 5))
    assert of.epoch == epoch


def test_bindings_of_one_destination_are_found_together() -> None:
    of = client_exchange()
    first, second = stored(to_queue("q"), 1), stored(to_queue("q", {"x-order": 500}), 2)
    of.add_binding(first)
    of.add_binding(second)
    receivers = of.exchanges[b"xo"].receivers
    assert len(receivers["queue", b"q"]) == 2
    of.remove_binding(first)
    assert list(receivers["queue", b"q"]) == [second.binding.identity]
    of.remove_binding(second)
    assert receivers == {}


def declared_by_client(name: str, *, auto_delete: bool, delivery: Delivery) -> tuple[Exchange, OwnedExchange]:
    made = exchange(name=name)
    return made, owned(made, delivery, declared=DeclaredExchange(True, auto_delete, False, b"", 1))


@pytest.mark.parametrize("delivery", Delivery)
@pytest.mark.parametrize("auto_delete", [True, False])
def test_with_its_last_binding_goes_what_is_auto_delete_and_not_on_the_broker(
    delivery: Delivery, auto_delete: bool
) -> None:
    of = state(declared_by_client("xo", auto_delete=auto_delete, delivery=delivery))
    first, second = stored(to_queue("p"), 1), stored(to_queue("q"), 2)
    of.add_binding(first)
    of.add_binding(second)
    of.remove_binding(first)
    assert b"xo" in of.exchanges
    of.remove_binding(second)
    assert (b"xo" not in of.exchanges) == (auto_delete and delivery is Delivery.QUEUE)


def test_an_exchange_takes_the_bindings_to_it_along_and_whatever_goes_with_those() -> None:
    names = ("first", "xo", "last")
    of = state(*(declared_by_client(name, auto_delete=True, delivery=Delivery.QUEUE) for name in names))
    of.add_binding(stored(replace(to_exchange("xo"), exchange=b"first"), 1))
    of.add_binding(stored(to_exchange("last"), 2))
    of.remove_exchange(b"last")
    assert of.exchanges == {}


def test_a_signed_copy_takes_the_place_of_an_unsigned_one() -> None:
    of = client_exchange()
    unsigned = stored(to_queue("q"), 5)
    unsigned = unsigned._replace(copies=(unsigned.copies[0]._replace(secret=None),))
    assert of.add_binding(unsigned)
    (before,) = of.exchanges[b"xo"].clients.values()
    assert (before.binding.last, before.binding.reach) == (True, NO_REACH)
    assert of.add_binding(stored(to_queue("q"), 9))
    (after,) = of.exchanges[b"xo"].clients.values()
    assert (after.sequences, after.binding.sequence, after.binding.last) == ((9, 5), 9, False)
    assert not of.add_binding(unsigned)
