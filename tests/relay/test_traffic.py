from __future__ import annotations

from oxproxy.relay.counters import Matched, Tally, Traffic

X = b"documents"


def rows(traffic: Traffic) -> dict[tuple[str, bytes, str], int]:
    return {(vhost, name, outcome): n for vhost, name, outcome, n, _ in traffic.publishes() if n}


def matches(traffic: Traffic) -> dict[tuple[bytes, str], int]:
    return {(exchange, binding): count for vhost, exchange, binding, count in traffic.matches() if vhost == "/"}


def destinations(traffic: Traffic) -> dict[bytes, int]:
    return {name: count for vhost, name, count in traffic.destinations() if vhost == "/"}


def fold(traffic: Traffic) -> None:
    for _ in traffic.folding():
        pass


def count(tally: Tally, publishes: int, body_bytes: int = 0) -> None:
    tally.count.publishes += publishes
    tally.count.body_bytes += body_bytes


def named(bindings: int = 2, limit: int = 500) -> Traffic:
    traffic = Traffic(limit)
    traffic.name(
        traffic.labels([("/", X)], [("/", X, f"b{index}") for index in range(bindings)], [("/", b"q1"), ("/", b"q2")])
    )
    return traffic


def test_bindings_of_clients_use_the_remaining_series() -> None:
    traffic = named(bindings=1, limit=2)
    both: Matched = ((X, "client1"), (X, "client2"))
    traffic.add("/", X, "routed", both, (), 1, 0)
    assert matches(traffic) == {(X, "b0"): 0, (X, "client1"): 1, (b"other", "other"): 1}


def test_destinations_that_no_rule_names_have_no_total() -> None:
    traffic = named()
    traffic.add("/", X, "routed", (), (b"q1", b"amq.gen-1"), 1, 0)
    assert destinations(traffic) == {b"q1": 1, b"q2": 0}


def test_a_change_of_rules_keeps_remaining_totals_and_drops_removed_ones() -> None:
    traffic = named(bindings=2)
    held = traffic.tally("/", X, "routed", ((X, "b0"), (X, "b1"), (X, "client")), (b"q1", b"q2"))
    count(held, 2)
    traffic.name(traffic.labels([("/", X), ("/", b"new")], [("/", X, "b1"), ("/", X, "b9")], [("/", b"q2")]))
    assert rows(traffic) == {("/", X, "routed"): 2}
    assert matches(traffic) == {(X, "b1"): 2, (X, "client"): 2, (X, "b9"): 0, (b"other", "other"): 0}
    assert destinations(traffic) == {b"q2": 2}


def test_a_tally_of_removed_rules_counts_in_other_series() -> None:
    traffic = named(bindings=1)
    held = traffic.tally("/", X, "routed", ((X, "b0"),), ())
    traffic.name(traffic.labels([], [], []))
    count(held, 7)
    fold(traffic)
    assert rows(traffic) == {("/", b"other", "routed"): 7}
    assert sum(matches(traffic).values()) == 7
