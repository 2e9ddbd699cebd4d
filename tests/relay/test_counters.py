from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.relay.counters import DECISION_BOUNDS, RESULTS, ConnectionCounters, Counters, Histogram, RelayCounters


def test_a_duration_equal_to_a_bound_counts_below_it() -> None:
    histogram = Histogram((0.1, 1.0))
    histogram.observe(0.1)
    histogram.observe(0.5)
    histogram.observe(1.5)
    assert histogram.cumulative() == [1, 2, 3]
    assert histogram.total_seconds == 2.1


@given(st.lists(st.floats(0, 10)))
def test_every_bound_counts_what_is_not_above_it(seconds: list[float]) -> None:
    histogram = Histogram(DECISION_BOUNDS)
    for value in seconds:
        histogram.observe(value)
    expected = [sum(value <= bound for value in seconds) for bound in DECISION_BOUNDS]
    assert histogram.cumulative() == [*expected, len(seconds)]


def test_relays_of_one_virtual_host_share_their_counters() -> None:
    counters = Counters()
    counters.relay("/").publishes_passed += 1
    counters.relay("/").publishes_passed += 1
    assert counters.relay("/").publishes_passed == 2
    assert counters.relay("other").publishes_passed == 0


def test_protocol_errors_count_by_reply_code() -> None:
    counters = RelayCounters("/")
    for code in (404, 406, 404):
        counters.protocol_error(code)
    assert counters.protocol_errors == {404: 2, 406: 1}


def test_attempts_count_by_result_from_zero() -> None:
    counters = ConnectionCounters()
    counters.attempt("refused")
    assert counters.results == {**dict.fromkeys(RESULTS, 0), "refused": 1}
