from __future__ import annotations

from proxy.broker.reconcile.desired import DesiredState, desired_state
from proxy.broker.reconcile.diff import needed_again, retired_tokens, share_tables
from proxy.relay.vhost import Delivery
from tests.broker.world import owned, queues, router


def carried(name: str, *destinations: str, carrier: str = "c") -> DesiredState:
    exchange = owned(name, carrier=carrier.encode(), bound=queues(*destinations))
    return desired_state({exchange.name: exchange}, router({name: queues(*destinations)}))


def test_only_what_is_no_longer_needed_goes() -> None:
    old = carried("x", "a", "b")
    assert retired_tokens(old, carried("x", "b", "c")) == ((old.carriers[0], ("queue", b"a")),)


def test_the_carrier_counts_not_the_exchange() -> None:
    assert retired_tokens(carried("x", "a"), carried("renamed", "a")) == ()
    assert len(retired_tokens(carried("x", "a"), carried("x", "a", carrier="other"))) == 1


def test_a_dropped_exchange_gives_up_all_its_tokens() -> None:
    assert len(retired_tokens(carried("x", "a", "b"), desired_state({}, router({})))) == 2


def test_tokens_that_stand_are_carried_over_to_the_new_exchange() -> None:
    fresh = {b"x": owned("x", carrier=b"c"), b"y": owned("y"), b"z": owned("z", Delivery.QUEUE, carrier=b"c")}
    share_tables(carried("x", "a"), fresh)
    assert [exchange.bound for exchange in fresh.values()] == [queues("a"), set(), set()]


def test_what_the_newest_rules_need_again_stays() -> None:
    [token] = retired_tokens(carried("x", "a", "b"), carried("x", "b"))
    assert needed_again(carried("x", "a"), token)
    assert not needed_again(carried("x", "b"), token)
    assert not needed_again(carried("x", "a", carrier="other"), token)
