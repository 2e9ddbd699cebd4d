"""What the audit log learns of a connection."""

from __future__ import annotations

from collections.abc import Iterable

from pamqp import commands

from proxy.amqp.auditing import ConnectionAudit
from proxy.routing.values import Table, Value
from tests import client
from tests.amqp.relaying import REPORT, Wire, publish, routed, say


class Line:
    def __init__(self, of: str) -> None:
        self._of = of

    def line(
        self, ts: str, origin: str, seq: int, routing_key: bytes, message_id: bytes | None, size: int, headers: str
    ) -> bytes:
        identity = "" if message_id is None else message_id.decode()
        return f"{self._of} {origin} {seq} {routing_key.decode()} {identity} {size} {headers}".encode()


class Log:
    """A journal that keeps lines as plain text."""

    def __init__(self, names: Iterable[bytes] = (), *, ruled_only: bool = False) -> None:
        self.names = frozenset(names)
        self.ruled_only = ruled_only
        self.lines: list[str] = []
        self.settled: list[tuple[int, int, str]] = []

    def timestamp(self) -> str:
        return "now"

    def origin(self, conn: str, user: str, vhost: str, ch: int) -> str:
        return f"{conn}/{ch}"

    def template(self, exchange: bytes, outcome: str, *more: object, **others: object) -> Line:
        return Line(f"{exchange.decode()} {outcome}")

    def headers(self, entries: Iterable[tuple[bytes, bytes]]) -> str:
        return ",".join(name.decode() for name, _ in entries)

    def append(self, line: bytes) -> None:
        self.lines.append(line.decode())

    def settle(self, conn: str, ch: int, seq: int, result: str, confirm_us: float | None = None) -> None:
        self.settled.append((ch, seq, result))


def audited(log: Log, *, confirm: bool = False) -> Wire:
    wire = Wire(routed("a"))
    wire.plans.journal = log
    wire.relay.audited("c", "guest")
    return wire.open(confirm=confirm)


def test_each_publish_has_one_line_whatever_becomes_of_it() -> None:
    log = Log()
    wire = audited(log)
    wire.produce(publish("k1"), publish("k2", headers=None), publish("k3", to="amq.direct"))
    assert log.lines == [
        "xo routed c/1 1 k1  4 {}",
        "xo unrouted c/1 2 k2  4 {}",
        "amq.direct passed c/1 3 k3  4 {}",
    ]


def test_runs_of_publishes_are_numbered_through() -> None:
    log = Log()
    wire = audited(log)
    for _ in range(2):
        wire.produce(*[publish("k") for _ in range(5)], *[publish("k", to="amq.direct") for _ in range(5)])
    assert [line.split()[3] for line in log.lines] == [str(number) for number in range(1, 21)]


def test_publishes_that_no_rule_touches_are_left_out_where_only_ruled_ones_are_wanted() -> None:
    log = Log(ruled_only=True)
    audited(log).produce(publish("k1", to="amq.direct"), publish("k2"))
    assert [line.split()[0] for line in log.lines] == ["xo"]


def test_message_id_and_allowed_headers_are_read_past_every_other_property() -> None:
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
    assert log.lines == ["xo routed c/1 1 k the-id 4 type"]


def test_numbers_go_on_where_tags_begin_anew() -> None:
    log = Log()
    wire = audited(log)
    wire.produce(publish("k1"))
    wire.produce(say(1, commands.Confirm.Select()))
    wire.produce(publish("k2"))
    assert [line.split()[3] for line in log.lines] == ["1", "2"]


def test_a_nack_and_a_return_name_the_publish_they_are_about() -> None:
    log = Log()
    wire = audited(log, confirm=True)
    wire.produce(publish("k1", mandatory=True), publish("k2", mandatory=True), publish("k3", mandatory=True))
    returned = say(1, commands.Basic.Return(312, "NO_ROUTE", "xo", "k2")) + client.content(1, None, b"body", {})
    wire.answer(returned)
    wire.answer(say(1, commands.Basic.Nack(3)))
    assert (1, 2, "returned") in log.settled
    assert (1, 3, "nacked") in log.settled


def test_what_nobody_will_confirm_any_more_is_lost() -> None:
    log = Log()
    wire = audited(log, confirm=True)
    wire.produce(publish("k1"), publish("k2"))
    wire.answer(say(1, commands.Basic.Ack(1)))
    wire.relay.ended()
    assert (1, 2, "lost") in log.settled
    assert (1, 1, "lost") not in log.settled


def test_templates_of_exchanges_passed_through_are_kept() -> None:
    audit = ConnectionAudit(Log(), "c", "guest", "/")
    first = audit.passed(b"e")
    assert audit.passed(b"e") is first
    audit.renew()
    assert audit.passed(b"e") is not first
