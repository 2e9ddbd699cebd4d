from __future__ import annotations

from proxy.observe import metrics as readings
from proxy.observe.metrics import MERGE_STEP, Reading, Row, merged
from proxy.relay.counters import Counters, Traffic


def rows_of(rows: readings.Rows) -> list[Row]:
    return [row for row in rows if row is not None]


def test_rows_with_equal_labels_become_one() -> None:
    assert rows_of(merged([(("a",), 1), (("b",), 2), (("a",), 3)])) == [(("a",), 4), (("b",), 2)]


def test_merging_many_rows_pauses() -> None:
    rows = [((str(number),), 1.0) for number in range(2 * MERGE_STEP)]
    assert list(merged(rows)).count(None) == 2


def test_sources_of_traffic_add_up() -> None:
    other = Traffic()
    other.name([("/", b"x")], [(b"x", "b")], [b"q"])
    other.add("/", b"x", "routed", ((b"x", "b"),), (b"q",), 2, 20)
    counters = Counters()
    counters.traffic.name([("/", b"x")], [(b"x", "b")], [b"q"])
    counters.traffic.add("/", b"x", "routed", ((b"x", "b"),), (b"q",), 1, 10)
    reading = Reading(counters, (counters.traffic, other), "1")
    assert (("/", "x", "routed"), 3) in rows_of(readings.publishes(reading))
    assert (("/", "x"), 30) in rows_of(readings.publish_bytes(reading))
    assert (("x", "b"), 3) in rows_of(readings.binding_matches(reading))
    assert (("q",), 3) in rows_of(readings.destination_publishes(reading))


def test_virtual_hosts_add_up_where_the_metric_has_no_vhost() -> None:
    counters = Counters()
    for vhost, code in (("a", 404), ("b", 404), ("b", 406)):
        counters.relay(vhost).protocol_error(code)
        counters.relay(vhost).returns += 1
    reading = Reading(counters, (), "1")
    assert rows_of(readings.protocol_errors(reading)) == [(("404",), 2), (("406",), 1)]
    assert rows_of(readings.relays("returns")(reading)) == [((), 3)]
