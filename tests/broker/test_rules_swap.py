from __future__ import annotations

from proxy.broker.reconcile.desired import DesiredState, desired_state
from proxy.broker.reconcile.diff import needed_again, retired_tokens, share_tables
from proxy.relay.vhost import Delivery
from tests.broker.observed import owned, queues, router


def carried(name: str, *destinations: str, carrier: str = "c") -> DesiredState:
    exchange = owned(name, carrier=carrier.encode(), bound=queues(*destinations))
    return desired_state({exchange.name: exchange}, router({name: queues(*destinations)}))


def test_only_tokens_no_longer_needed_are_retired() -> None:
    old = carried("x", "a", "b")
    assert retired_tokens(old, carried("x", "b", "c")) == ((old.carriers[0], ("queue", b"a")),)


def test_tokens_belong_to_the_carrier_not_to_the_exchange() -> None:
    assert retired_tokens(carried("x", "a"), carried("renamed", "a")) == ()
    assert len(retired_tokens(carried("x", "a"), carried("x", "a", carrier="other"))) == 1


def test_all_tokens_of_a_dropped_exchange_are_retired() -> None:
    assert len(retired_tokens(carried("x", "a", "b"), desired_state({}, router({})))) == 2


def test_bound_tokens_are_taken_over_by_the_new_exchange() -> None:
    fresh = {b"x": owned("x", carrier=b"c"), b"y": owned("y"), b"z": owned("z", Delivery.QUEUE, carrier=b"c")}
    share_tables(carried("x", "a"), fresh)
    assert [exchange.bound for exchange in fresh.values()] == [queues("a"), set(), set()]


def test_a_token_that_newer_rules_need_again_is_kept() -> None:
    [token] = retired_tokens(carried("x", "a", "b"), carried("x", "b"))
    assert needed_again(carried("x", "a"), token)
    assert not needed_again(carried("x", "b"), token)
    assert not needed_again(carried("x", "a", carrier="other"), token)
