"""Tests frames that wait because a publish has spent a regex budget, while channels resume."""

from __future__ import annotations

from dataclasses import replace

from pamqp import commands

from proxy.amqp.tables import encode_table
from proxy.relay.vhost import VhostState
from proxy.values import Value
from tests.client import names, queue_bind
from tests.relay.wire import GOODBYE, Wire, publish, ruled, say
from tests.routing.building import to_queue


def expensive() -> VhostState:
    """A virtual host with rules on which a message with the header ``t`` can spend the budget.

    If a message has the header ``u``, its routing key names a queue.
    """
    bindings = [to_queue("q", {"x-?hkvre t": rf"(a+)+\d{{{number + 3}}}$"}) for number in range(40)]
    bindings.append(to_queue("u", {"x-?hkex": "u", "x-msg-destq-rk": ""}))
    vhost = ruled(*bindings, bound=[("queue", b"q"), ("queue", b"u")])
    vhost.queues = replace(vhost.queues, names=(b"late",), version=1)
    return vhost


def spending(number: int) -> bytes:
    return publish(headers=((b"t", Value("S", b"a" * 4000 + str(number).encode())),))


def all_sent(wire: Wire, sent: bytes) -> list[str]:
    """Names of the frames sent upstream, including those sent after the pauses that the driver makes."""
    while wire.relay.interrupted:
        sent += wire.produce()
    return names(sent)


def test_held_publishes_after_one_that_spends_the_budget_precede_the_close() -> None:
    wire = Wire(expensive()).open()
    waits = publish("late", ((b"u", Value("S", b"")),))
    assert wire.produce(waits, spending(1), spending(2), spending(3), GOODBYE) == b""
    sent = all_sent(wire, wire.control("late"))
    assert sent == ["Basic.Publish", "Header", "Body"] * 4 + ["Connection.Close"]


def test_held_publishes_spend_one_budget_at_a_time() -> None:
    wire = Wire(expensive()).open()
    waits = publish("late", ((b"u", Value("S", b"")),))
    wire.produce(waits, *map(spending, range(60)))
    budgets = wire.plans.counters
    sent = wire.control("late")
    assert budgets.regex_budgets_spent == 1
    assert all_sent(wire, sent).count("Basic.Publish") == 61


def test_frames_after_a_spent_budget_are_sent_although_another_channel_resumes_next() -> None:
    wire = Wire(expensive()).open(1, 2)
    binds = [
        queue_bind(number, b"b", b"xo", b"", encode_table(((b"x-?hkv= kind", Value("I", number)),)))
        for number in (1, 2)
    ]
    wire.produce(*binds)
    assert wire.produce(spending(1), spending(2), spending(3), publish(to="other", channel=2)) == b""
    wire.answer(say(1, commands.Queue.BindOk()), say(2, commands.Queue.BindOk()))
    assert all_sent(wire, wire.upstream()).count("Basic.Publish") == 4


def test_a_publish_that_spends_the_budget_after_waiting_interrupts_its_producer() -> None:
    wire = Wire(expensive()).open()
    wire.produce(publish("late", ((b"u", Value("S", b"")), (b"t", Value("S", b"a" * 4000)))))
    seen = [wire.relay.interrupted]
    wire.produce()
    seen.append(wire.relay.interrupted)
    wire.control("late")
    seen.append(wire.relay.interrupted)
    assert seen == [True, False, True]
