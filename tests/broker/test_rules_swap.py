from __future__ import annotations

from proxy.broker.reconcile.desired import DesiredState, desired_state
from proxy.broker.reconcile.reconciler import carry_over_tokens, retirement_of
from proxy.relay.vhost import Delivery
from tests.broker.world import owned, queues, router


def carried(name: str, *destinations: str, carrier: str = "c") -> DesiredState:
    exchange = owned(name, carrier=carrier.encode(), bound=queues(*destinations))
    return desired_state({exchange.name: exchange}, router({name: queues(*destinations)}))


def test_only_what_is_no_longer_needed_goes() -> None:
    old = carried("x", "a", "b")
    retirement = retirement_of(old, carried("x", "b", "c"))
    assert retirement.tokens == ((old.carriers[0], ("queue", b"a")),)


def test_the_carrier_counts_not_the_exchange() -> None:
    assert retirement_of(carried("x", "a"), carried("renamed", "a")).tokens == ()
    assert len(retirement_of(carried("x", "a"), carried("x", "a", carrier="other")).tokens) == 1


def test_a_dropped_exchange_gives_up_all_its_tokens() -> None:
    assert len(retirement_of(carried("x", "a", "b"), desired_state({}, router({}))).tokens) == 2


def test_tokens_that_stand_are_carried_over_to_the_new_exchange() -> None:
    fresh = {b"x": owned("x", carrier=b"c"), b"y": owned("y"), b"z": owned("z", Delivery.QUEUE, carrier=b"c")}
    carry_over_tokens(carried("x", "a"), fresh)
    assert [exchange.bound for exchange in fresh.values()] == [queues("a"), set(), set()]


def test_released_tokens_are_not_relied_on_until_they_are_bound_again() -> None:
    old, new = carried("x", "a", "b"), carried("x", "b")
    [exchange] = new.carriers
    carry_over_tokens(old, {exchange.name: exchange})
    retirement = retirement_of(old, new)
    retirement.release(new)
    assert exchange.bound == queues("b")
    assert exchange.tokens.is_unbinding(("queue", b"a"))
    exchange.tokens.bind_ok(("queue", b"a"))
    assert not exchange.tokens.is_unbinding(("queue", b"a"))


def test_what_newest_rules_need_again_is_not_released() -> None:
    old, new = carried("x", "a"), carried("x", "b")
    retirement = retirement_of(old, new)
    retirement.release(carried("x", "a"))
    assert old.carriers[0].bound == queues("a")
