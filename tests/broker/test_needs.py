from __future__ import annotations

from proxy.amqp.vhost import Delivery
from proxy.broker.needs import needs_of
from tests.broker.world import exchanges, owned, queues, router


def test_a_carried_exchange_needs_a_token_for_each_destination() -> None:
    documents = owned("documents")
    needs = needs_of({b"documents": documents}, router({"documents": queues("a") | exchanges("x")}))
    assert needs.carriers == (documents,)
    assert needs.of(documents) == queues("a") | exchanges("x")
    assert needs.holders == {("queue", b"a"): (documents,), ("exchange", b"x"): (documents,)}
    assert needs.existing == {}


def test_one_destination_of_two_exchanges_has_two_holders() -> None:
    first, second = owned("first"), owned("second")
    rules = router({"first": queues("a"), "second": queues("a")})
    needs = needs_of({b"first": first, b"second": second}, rules)
    assert set(needs.holders["queue", b"a"]) == {first, second}


def test_queue_delivery_needs_no_carrier_but_its_destinations() -> None:
    direct = owned("direct", Delivery.QUEUE, alternate=b"ae")
    needs = needs_of({b"direct": direct}, router({"direct": queues("a") | exchanges("x")}))
    assert needs.carriers == ()
    assert needs.of(direct) == frozenset()
    assert needs.existing == {
        ("queue", b"a"): "",
        ("exchange", b"x"): "",
        ("exchange", b"ae"): "alternate exchange of direct",
    }
    assert needs.published == {b"x": b"direct", b"ae": b"direct"}


def test_the_alternate_exchange_of_a_carrier_must_exist_unless_it_is_evaluated_here() -> None:
    named = {"first": queues("a"), "second": queues("b")}
    known = {b"first": owned("first", alternate=b"second"), b"second": owned("second", alternate=b"elsewhere")}
    needs = needs_of(known, router(named))
    assert needs.existing == {("exchange", b"elsewhere"): "alternate exchange of second"}


def test_passing_unmatched_messages_on_needs_the_brokers_own_exchange() -> None:
    taken = owned("legacy", carrier=b"legacy.oxproxy", unmatched_pass=True)
    needs = needs_of({b"legacy": taken}, router({"legacy": queues("a")}))
    assert ("exchange", b"legacy") in needs.existing


def test_a_regex_route_anywhere_looks_at_all_queues() -> None:
    assert needs_of({b"x": owned("x")}, router({"x": queues("a")}, regex=True)).regex
    assert not needs_of({b"x": owned("x")}, router({"x": set()})).regex


def test_names_knows_what_any_rule_names() -> None:
    known = {b"c": owned("c"), b"d": owned("d", Delivery.QUEUE)}
    needs = needs_of(known, router({"c": queues("a"), "d": queues("b")}))
    assert [needs.names(("queue", name)) for name in (b"a", b"b", b"c")] == [True, True, False]
