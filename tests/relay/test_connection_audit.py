"""Tests the audit records of a connection."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from pamqp import commands

from oxproxy.relay.connection_state import Phase, RelayLimits
from oxproxy.relay.records.audit_record import PublishLog
from oxproxy.relay.records.facts_record import FactsMode, FactsTable
from oxproxy.relay.records.privacy import Privacy
from oxproxy.relay.vhost import Delivery, VhostState
from oxproxy.values import Table, Value
from tests import client
from tests.client import split
from tests.relay.wire import (
    CLOSE,
    CLOSE_OK,
    GOODBYE,
    GOODBYE_OK,
    NOT_FOUND,
    REPORT,
    TYPE,
    Wire,
    ack,
    nack,
    publish,
    returned,
    routed,
    ruled,
    say,
    several,
)
from tests.routing.building import to_exchange, to_queue


class Log:
    """A publish log and the lines appended to it. In `lines`, the records of publishes are shortened to strings."""

    def __init__(
        self, names: Iterable[bytes] = (), *, ruled_only: bool = False, facts: FactsMode | None = None
    ) -> None:
        self.records: list[dict[str, Any]] = []
        self.lines: list[str] = []
        self.settled: list[tuple[int, int, str]] = []
        self.rules = ""
        privacy = Privacy(frozenset(names))
        table = None if facts is None else FactsTable("test", privacy, facts)
        self.made = PublishLog(
            "test", privacy, lambda: self.rules, self._keep, lambda: 0.25, ruled_only=ruled_only, facts=table
        )

    def _keep(self, lines: bytes, count: int) -> None:
        records = [json.loads(line) for line in lines.splitlines()]
        assert len(records) == count
        self.records += records
        for record in records:
            if record["kind"] == "settle":
                self.settled.append((record["ch"], record["seq"], record["result"]))
                continue
            rules = "/" + record["rules"] if record["rules"] else ""
            headers = ",".join(record["headers"]) or "{}"
            timed = " timed" if "decide_us" in record else ""
            self.lines.append(
                f"{record['conn']}/{record['ch']} {record['seq']} {record['exchange']} {record['outcome']}{rules} "
                f"{record['rk']} {record['message_id'] or ''} {record['size']} {headers}{timed}"
            )


def audited(log: Log, state: VhostState | None = None, *, confirm: bool = False) -> Wire:
    wire = Wire(state or routed("a"))
    wire.plans.journal = log.made
    wire.relay.connection.start_audit("c")
    return wire.open(confirm=confirm)


def test_records_contain_the_time_and_the_decision() -> None:
    log = Log()
    log.rules = "v2"
    wire = audited(log, confirm=True)
    wire.produce(publish("k"))
    wire.answer(ack(1))
    published, settled = log.records
    assert published["ts"] == settled["ts"] == "1970-01-01T00:00:00.250000Z"
    assert (published["queues"], published["exchanges"], published["remotes"]) == (["a"], [], [])
    assert [len(binding) for binding in published["bindings"]] == [10]
    assert (published["rules"], published["reason"]) == ("v2", None)
    assert (settled["result"], settled["confirm_us"], "exchange" in settled) == ("acked", 0.0, False)


def test_a_line_of_an_unmatched_publish_contains_the_reason_for_its_outcome() -> None:
    log = Log()
    audited(log, routed("a", carrier="xo.oxproxy", unmatched_pass=True)).produce(publish("k", headers=None))
    assert [(record["outcome"], record["reason"]) for record in log.records] == [("passed", "unmatched")]


def test_each_publish_has_one_line_for_every_outcome() -> None:
    log = Log()
    wire = audited(log)
    wire.produce(publish("k1"), publish("k2", headers=None), publish("k3", to="amq.direct"))
    assert log.lines == [
        "c/1 1 xo routed k1  4 {} timed",
        "c/1 2 xo unrouted k2  4 {} timed",
        "c/1 3 amq.direct passed k3  4 {}",
    ]


def test_the_decision_time_is_in_the_line_of_its_publish() -> None:
    log = Log()
    wire = audited(log)
    for _ in range(2):
        wire.produce(publish("k1"), publish("k1"), publish("k1", body=b"another size"), publish("k1", headers=None))
    assert [line.endswith(" timed") for line in log.lines] == [True, False, False, True] + [False] * 4


def test_publishes_in_one_read_are_numbered_consecutively() -> None:
    log = Log()
    wire = audited(log)
    for _ in range(2):
        wire.produce(*[publish("k") for _ in range(5)], *[publish("k", to="amq.direct") for _ in range(5)])
    assert [line.split()[1] for line in log.lines] == [str(number) for number in range(1, 21)]


def test_publishes_without_rules_are_omitted_if_only_evaluated_ones_are_audited() -> None:
    log = Log(ruled_only=True)
    audited(log).produce(publish("k1", to="amq.direct"), publish("k2"))
    assert [line.split()[2] for line in log.lines] == ["xo"]


def test_message_id_and_allowed_headers_are_read_among_all_properties() -> None:
    log = Log([b"type"])
    table: Table = (*REPORT, (b"secret", Value("S", b"x")))
    wire = audited(log)
    properties: dict[str, bytes | int] = {
        "content_type": b"t",
        "content_encoding": b"e",
        "delivery_mode": 2,
        "priority": 1,
        "correlation_id": b"c",
        "reply_to": b"r",
        "expiration": b"1000",
        "message_id": b"the-id",
        "timestamp": 5,
    }
    wire.produce(client.publish(1, b"xo", b"k", table, b"body", properties))
    wire.produce(client.publish(1, b"amq.direct", b"k", table, b"body", properties))
    assert log.lines == ["c/1 1 xo routed k the-id 4 type timed", "c/1 2 amq.direct passed k the-id 4 type"]


def facts(log: Log) -> list[dict[str, Any] | None]:
    """Return the headers, the properties and the mark for client declarations of each publish since the last call."""
    assert log.made.facts is not None
    defined = {number: json.loads(b'{"ts":"' + line) for number, line in log.made.facts.take_used()[0].items()}
    found = [defined.get(record.get("facts", 0)) for record in log.records]
    log.records.clear()
    return [fact and {key: fact[key] for key in ("headers", "properties", "declared") if key in fact} for fact in found]


def test_records_refer_to_the_facts_that_rules_test() -> None:
    log = Log(facts=FactsMode.ALL_MENTIONED)
    wire = audited(log, ruled(to_queue("a", TYPE | {"x-?pr= priority": 3}), to_queue("b", {"x-?prex": "type"})))
    other = ((b"other", Value("S", b"secret")), *REPORT)
    wire.produce(
        publish("k", other, priority=3, app_id=b"x"), publish("k", None, type=b"t"), publish("k", to="amq.direct")
    )
    shown = [["type", "S", "report"]]
    assert facts(log) == [
        {"headers": shown, "properties": {"priority": 3}},
        {"headers": [], "properties": {"type": "t"}},
        None,
    ]


def test_facts_on_the_slow_path_are_those_of_the_fast_path() -> None:
    log = Log(facts=FactsMode.ALL_MENTIONED)
    wire = audited(log, ruled(to_queue("a", TYPE), to_exchange("x", TYPE), delivery=Delivery.QUEUE))
    wire.produce(publish("k", ((b"other", Value("I", 1)), *REPORT)))
    assert facts(log) == [{"headers": [["type", "S", "report"]], "properties": {}}]


def test_facts_show_that_bindings_of_clients_apply() -> None:
    log = Log(facts=FactsMode.ALL_MENTIONED)
    state = routed("a")
    wire = audited(log, state)
    wire.produce(publish("k"))
    state.router.exchanges[b"xo"].bind(replace(to_queue("a", {"x-?hkex": "type"}), owner="guest"))
    state.changed()
    wire.produce(publish("k"))
    assert ["declared" in (fact or {}) for fact in facts(log)] == [False, True]


def test_no_facts_are_recorded_by_default() -> None:
    log = Log()
    audited(log).produce(publish("k"))
    assert "facts" not in log.records[0]


def test_the_record_names_the_alternate_exchange_that_receives_an_unmatched_message() -> None:
    log = Log()
    audited(log, routed("a", alternate="fallback")).produce(publish("k", None), publish("k"))
    assert [record.get("alternate") for record in log.records] == ["fallback", None]


def test_line_numbers_continue_when_delivery_tags_restart() -> None:
    log = Log()
    wire = audited(log)
    wire.produce(publish("k1"))
    wire.produce(say(1, commands.Confirm.Select()))
    wire.produce(publish("k2"))
    assert [line.split()[1] for line in log.lines] == ["1", "2"]


def test_nacks_and_returns_name_their_publish() -> None:
    log = Log()
    wire = audited(log, confirm=True)
    wire.produce(publish("k1", mandatory=True), publish("k2", mandatory=True), publish("k3", mandatory=True))
    returned = say(1, commands.Basic.Return(312, "NO_ROUTE", "xo", "k2")) + client.content(1, None, b"body", {})
    wire.answer(returned)
    wire.answer(say(1, commands.Basic.Nack(3)))
    assert (1, 2, "returned") in log.settled
    assert (1, 3, "nacked") in log.settled


def test_the_line_of_a_return_identifies_the_message_and_its_decision() -> None:
    log = Log()
    wire = audited(log)
    wire.produce(publish("k1", mandatory=True), publish("k2", mandatory=True, message_id=b"m2"))
    wire.answer(say(1, commands.Basic.Return(312, "NO_ROUTE", "xo", "k2")) + client.content(1, None, b"body", {}))
    line = log.records[-1]
    shown = ("result", "reply_code", "vhost", "exchange", "rk", "message_id", "outcome")
    assert [line[name] for name in shown] == ["returned", 312, "/", "xo", "k2", "m2", "routed"]


@pytest.mark.parametrize("multiple", [False, True])
def test_a_publish_whose_confirm_is_timed_has_one_result(multiple: bool) -> None:
    log = Log()
    wire = audited(log, confirm=True)
    wire.produce(publish("k1"))  # the first publish of a connection is timed
    wire.answer(nack(1, multiple=multiple))
    assert log.settled == [(1, 1, "nacked")]
    wire.produce(publish("k2"))
    wire.answer(ack(2))
    assert log.settled == [(1, 1, "nacked"), (1, 2, "acked")]


def the_broker_closes(wire: Wire) -> None:
    wire.answer(NOT_FOUND)
    wire.produce(CLOSE_OK)


def the_sidecar_closes(wire: Wire) -> None:
    wire.produce(publish("x-o-p-e-n-x-reserved"))
    wire.refused()
    wire.produce(CLOSE_OK)
    wire.answer(CLOSE_OK)


def the_producer_closes(wire: Wire) -> None:
    wire.produce(CLOSE)
    wire.answer(CLOSE_OK)


@pytest.mark.parametrize("closes", [the_broker_closes, the_sidecar_closes, the_producer_closes])
def test_publishes_unconfirmed_when_their_channel_is_closed_are_lost(closes: Callable[[Wire], None]) -> None:
    log = Log()
    wire = audited(log, confirm=True)
    wire.produce(publish("k1"), publish("k2"))
    wire.answer(ack(1))
    closes(wire)
    assert [settled for settled in log.settled if settled[2] == "lost"] == [(1, 2, "lost")]
    wire.relay.ended()
    assert log.settled.count((1, 2, "lost")) == 1


def test_a_line_names_the_rules_in_force_although_its_decision_is_cached() -> None:
    log = Log()
    wire = audited(log)
    for log.rules in ("v1", "v2"):  # the rules of another virtual host have changed
        wire.produce(publish("k"), publish("k", headers=None), publish("k", to="amq.direct"))
    assert wire.plans.counters.cache_hits == 2
    assert [line.split()[3] for line in log.lines] == [
        *("routed/v1", "unrouted/v1", "passed/v1"),
        *("routed/v2", "unrouted/v2", "passed/v2"),
    ]


def test_a_line_of_a_publish_that_waits_names_the_rules_with_which_it_is_sent() -> None:
    log = Log()
    log.rules = "v1"
    wire = audited(log, routed("a", bound=()))
    wire.produce(publish("k"))
    log.rules = "v2"
    wire.control("a")
    assert log.lines == ["c/1 1 xo routed/v2 k  4 {} timed"]


def test_a_mandatory_publish_is_dropped_when_it_is_confirmed() -> None:
    wire = audited(log := Log(), confirm=True)
    channel = wire.relay.connection.channels[1]
    wire.produce(*[publish("k", mandatory=True)] * 1000)
    assert channel.audit.mandatory is not None
    assert len(channel.audit.mandatory) == 1000
    wire.answer(ack(500, multiple=True), nack(501))
    assert len(channel.audit.mandatory) == 499
    back = returned("xo", "k", b"".join(frame.raw for frame in split(publish())[1:]))
    wire.answer(back, *[ack(tag) for tag in range(502, 1001)])
    assert (502, "returned") in [settled[1:] for settled in log.settled]
    assert len(channel.audit.mandatory) == 0


def test_without_confirms_only_the_latest_mandatory_publishes_are_kept() -> None:
    wire = audited(log := Log())
    channel = wire.relay.connection.channels[1]
    for _ in range(5):
        wire.produce(*[publish("k", mandatory=True)] * 1000)
    assert channel.audit.mandatory is not None
    assert len(channel.audit.mandatory) == 4096
    wire.answer(returned("xo", "k", b"".join(frame.raw for frame in split(publish())[1:])))
    assert log.settled == [(1, 905, "returned")]


class Disk(Log):
    """A log whose lines are written to disk only when the test requests it."""

    def __init__(self, *, ruled_only: bool = False) -> None:
        super().__init__(ruled_only=ruled_only)
        self.durable = 0
        self.failure: str | None = None
        self.requests = 0

    @property
    def appended(self) -> int:
        return len(self.lines)

    def commit_point(self) -> int:
        self.requests += 1
        return self.appended


def strict(disk: Disk, *channels: int, wire: Wire | None = None, confirm: bool = True) -> Wire:
    wire = wire or Wire(routed("a"), limits=RelayLimits(held_bytes=1000))
    wire.plans.journal = disk.made
    wire.relay.connection.start_audit("c", disk)
    return wire.open(*channels, confirm=confirm)


def written(wire: Wire, disk: Disk, line: int | None = None) -> bytes:
    """Write all lines, or the lines up to the given number; return the bytes then sent to the producer."""
    disk.durable = disk.appended if line is None else line
    if (delayed_confirms := wire.relay.connection.delayed_confirms) is not None:
        delayed_confirms.durable(disk.durable)
    return wire.producer()


def test_a_confirm_requests_and_awaits_the_last_line_of_its_channel() -> None:
    wire = strict(disk := Disk())
    wire.produce(publish(), publish())
    assert (wire.answer(ack(1)), disk.requests) == (b"", 1)
    assert written(wire, disk, 1) == b""
    assert written(wire, disk) == ack(1)
    assert wire.answer(ack(2)) == ack(2)
    assert not wire.relay.connection.delayed_confirms


def test_channels_do_not_wait_for_each_other() -> None:
    wire = strict(disk := Disk(), 1, 2)
    wire.produce(publish(), publish(channel=2))
    assert wire.answer(ack(1), ack(1, channel=2)) == b""
    wire.produce(publish())
    assert written(wire, disk, 2) == ack(1) + ack(1, channel=2)


def test_a_publish_without_a_line_is_confirmed_at_once() -> None:
    wire = strict(disk := Disk(ruled_only=True), 1, 2)
    wire.produce(publish(), publish(channel=2, to="amq.direct"))
    assert wire.answer(ack(1), ack(1, channel=2)) == ack(1, channel=2)
    assert written(wire, disk) == ack(1)


def test_other_frames_are_forwarded_in_order() -> None:
    wire = strict(disk := Disk(), 1, 2)
    wire.produce(publish(mandatory=True), publish())
    back = returned("xo", "", b"".join(frame.raw for frame in split(publish())[1:]))
    delivery = say(2, commands.Basic.Deliver("c", 1, False, "", "q")) + client.content(2, None, b"body")
    reply = say(2, commands.Channel.OpenOk())
    output = wire.answer(back, ack(1), delivery, ack(2), say(3, commands.Basic.QosOk()), reply)
    assert output == back + delivery + say(3, commands.Basic.QosOk()) + reply
    assert written(wire, disk) == ack(1) + ack(2)


def test_a_nack_does_not_overtake_an_ack_that_covers_it() -> None:
    wire = strict(disk := Disk())
    wire.produce(publish(), publish())
    assert wire.answer(ack(1), nack(2, multiple=True)) == b""
    assert written(wire, disk) == ack(1) + nack(2, multiple=True)


def test_a_commit_ok_waits_for_the_lines() -> None:
    wire = strict(disk := Disk(), confirm=False)
    wire.answer(say(1, commands.Tx.SelectOk()))
    assert wire.answer(say(1, commands.Tx.CommitOk())) == say(1, commands.Tx.CommitOk())
    wire.produce(publish())
    assert wire.answer(say(1, commands.Tx.CommitOk())) == b""
    assert written(wire, disk) == say(1, commands.Tx.CommitOk())


def test_a_confirm_of_several_copies_waits_for_the_lines() -> None:
    wire = strict(disk := Disk(), wire=Wire(several("other", queues=("a", "b"))))
    wire.produce(publish())
    assert wire.answer(ack(2, multiple=True)) == b""
    assert written(wire, disk) == ack(1)


def test_confirms_do_not_interrupt_a_content() -> None:
    wire = strict(disk := Disk())
    wire.produce(publish())
    wire.answer(ack(1))
    method = say(1, commands.Basic.Deliver("c", 1, False, "", "q"))
    frames = [frame.raw for frame in split(client.content(1, None, b"body"))]
    assert wire.answer(method, frames[0]) == method + frames[0]
    assert written(wire, disk) == b""
    assert wire.answer(frames[1]) == frames[1] + ack(1)


def test_waiting_confirms_count_towards_the_limit_that_stops_the_reading() -> None:
    wire = strict(disk := Disk())
    for tag in range(1, 11):
        wire.produce(publish())
        wire.answer(ack(tag))
        assert wire.relay.connection.upstream_full is (tag > 6)
    assert written(wire, disk) == b"".join(map(ack, range(1, 11)))
    assert not wire.relay.connection.upstream_full


CLOSES = {
    "the producer closes its channel": (CLOSE, CLOSE_OK),
    "the broker closes the channel": (b"", NOT_FOUND),
    "the producer closes its connection": (GOODBYE, GOODBYE_OK),
    "the broker closes the connection": (b"", say(0, commands.Connection.Close(320, "CONNECTION_FORCED", 0, 0))),
}


@pytest.mark.parametrize("case", CLOSES)
def test_the_close_waits_for_confirms_whose_lines_are_being_written(case: str) -> None:
    request, close = CLOSES[case]
    wire = strict(disk := Disk(), 1, 2)
    wire.produce(publish())
    wire.answer(ack(1))
    wire.produce(request)
    assert wire.answer(say(2, commands.Channel.Flow(True)), close) == say(2, commands.Channel.Flow(True))
    assert wire.relay.connection.close_is_delayed
    assert wire.relay.connection.upstream_full
    assert written(wire, disk) == ack(1) + close
    assert not wire.relay.connection.close_is_delayed


@pytest.mark.parametrize("case", CLOSES)
@pytest.mark.parametrize("late", [False, True])
def test_the_close_does_not_wait_for_a_disk_that_refuses_lines(case: str, late: bool) -> None:
    request, close = CLOSES[case]
    wire = strict(disk := Disk(), 1, 2)
    wire.produce(publish())
    wire.answer(ack(1))
    disk.failure = None if late else "full"
    wire.produce(request)
    output = wire.answer(close)
    if late:
        assert output == b""
        assert wire.relay.connection.delayed_confirms is not None
        wire.relay.connection.delayed_confirms.failing()
        output = wire.producer()
    assert output == close
    assert not wire.relay.connection.close_is_delayed
    assert written(wire, disk) == b""


def test_a_second_close_waits_and_keeps_the_order() -> None:
    wire = strict(disk := Disk(), 1, 2, 3)
    wire.produce(publish())
    wire.answer(ack(1))
    assert wire.answer(NOT_FOUND) == b""
    wire.produce(publish(channel=2))
    close_2 = say(2, commands.Channel.Close(404, "NOT_FOUND", 60, 40))
    reply = say(3, commands.Channel.Flow(True))
    assert wire.answer(ack(1, channel=2), reply, close_2) == b""
    assert written(wire, disk, 1) == b""
    assert written(wire, disk) == ack(1) + NOT_FOUND + reply + ack(1, channel=2) + close_2


def test_a_close_of_the_sidecar_waits_for_confirms() -> None:
    wire = strict(disk := Disk())
    wire.produce(publish())
    wire.answer(ack(1))
    wire.relay.connection.close(320, b"the proxy is shutting down")
    assert wire.producer() == b""
    frames = split(written(wire, disk))
    assert [frame.name for frame in frames] == ["Basic.Ack", "Connection.Close"]
    wire.produce(GOODBYE_OK)
    assert wire.relay.connection.lifecycle.phase is Phase.CLOSED
