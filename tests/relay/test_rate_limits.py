from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxproxy.relay.rate_limits import RateLimits, TokenBucket, UserRateLimit, UserRateLimits


def test_a_bucket_permits_its_burst_and_then_its_rate() -> None:
    bucket = TokenBucket(100, 2)
    assert bucket.take(200, 0.0) == 0
    assert bucket.take(50, 0.0) == 0.5
    assert bucket.take(0, 0.25) == 0.25
    assert bucket.take(0, 0.5) == 0
    assert bucket.take(100, 1.5) == 0


@given(st.lists(st.tuples(st.integers(0, 1000), st.floats(0, 10)), max_size=50), st.integers(1, 1000))
def test_waiting_as_required_never_exceeds_burst_and_rate(takes: list[tuple[int, float]], rate: int) -> None:
    bucket, now, taken, last = TokenBucket(rate, 1), 0.0, 0, 0
    for amount, pause in takes:
        now += bucket.take(amount, now) + pause
        taken, last = taken + amount, amount
    assert taken - last <= rate * (1 + now) + 1e-6 * (1 + taken)


def test_the_limit_with_the_longest_wait_is_named() -> None:
    both = UserRateLimit(RateLimits(publishes=10, read_bytes=1000, burst_seconds=1))
    assert both.take(10, 1000, 0.0) == (0.0, "")
    assert both.take(5, 100, 0.0) == (0.5, "publish_rate")
    assert both.take(0, 900, 0.0) == (1.0, "publish_bytes")


def test_unlimited_values_are_not_charged() -> None:
    assert UserRateLimit(RateLimits(read_bytes=10)).take(10**6, 1, 0.0) == (0.0, "")
    assert UserRateLimit(RateLimits(publishes=10)).take(1, 10**9, 0.0) == (0.0, "")


def test_patience_runs_from_the_first_debt_until_the_buckets_are_full() -> None:
    user = UserRateLimit(RateLimits(publishes=10, patience_seconds=5))
    assert user.patience_left(0.0) == float("inf")
    user.take(20, 0, 0.0)
    assert user.patience_left(2.0) == 3.0
    user.take(15, 0, 1.5)  # at the earliest permitted time, so it always exceeds its rate
    assert user.patience_left(4.0) == 1.0
    user.take(1, 0, 10.0)
    assert user.patience_left(10.0) == float("inf")


def test_connections_of_one_user_share_limits_and_debt() -> None:
    users = UserRateLimits(RateLimits(publishes=10))
    first = users.acquire("anna", 0.0)
    assert users.acquire("anna", 0.0) is first
    assert users.acquire("ben", 0.0) is not first
    first.take(30, 0, 0.0)
    users.release(first)
    users.release(first)
    assert users.acquire("anna", 1.0) is first


def test_disconnected_users_without_debt_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oxproxy.relay.rate_limits.REMEMBERED", 3)
    users = UserRateLimits(RateLimits(publishes=10))
    stays, owes, gone = (users.acquire(name, 0.0) for name in ("stays", "owes", "gone"))
    owes.take(100, 0, 0.0)
    users.release(owes)
    users.release(gone)
    users.acquire("new", 1.0)
    assert users.acquire("stays", 1.0) is stays
    assert users.acquire("owes", 1.0) is owes
    assert users.acquire("gone", 1.0) is not gone
