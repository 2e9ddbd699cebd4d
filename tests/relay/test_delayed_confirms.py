"""Tests that confirms, and only confirms, wait until the audit records of their publishes are written."""

from __future__ import annotations

import pytest
from pamqp import commands

from proxy.relay.connection_state import Phase, RelayLimits
from tests import client
from tests.client import split
from tests.relay.test_connection_audit import Log
from tests.relay.wire import (
    CLOSE,
    CLOSE_OK,
    GOODBYE,
    GOODBYE_OK,
    NOT_FOUND,
    Wire,
    ack,
    nack,
    publish,
    returned,
    routed,
    say,
    several,
)


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
    """Write all lines, or the lines up to the given number; return the bytes that are then sent to the producer."""
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
