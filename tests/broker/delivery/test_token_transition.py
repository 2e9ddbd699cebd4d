"""Sidecars bind and publish with different tokens: no acked message is lost, and afterwards no rule is bypassed.

Two sidecars with different tokens run in front of one broker. Neither refreshes its inventory while queues are
declared and deleted, so each assumes that the queues it has seen are bound, whichever sidecar bound them last.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pamqp import commands

from proxy.relay.tokens import is_keyed, token
from tests.broker.delivery.site import vhost_status
from tests.broker.observed import Outside
from tests.producer import Producer, until
from tests.rabbitmq import Broker, quoted
from tests.sidecar import PROGRAM, Sidecar, oxproxy_here

RULES = """
exchanges:
  - name: letters
    bindings:
      - {queue: a}
      - {queue: b, arguments: {"x-?hkex": to}}
      - {queue: mine}
"""
OLD = (sys.executable, "-m", "tests.peer_0_1")
ROUNDS = 6

Start = Callable[..., Sidecar]


@pytest.fixture
def start(broker: Broker, vhost: str, tmp_path: Path) -> Iterator[Start]:
    """Start sidecars with the rules: by names of secrets, the current one first, or of version 0.1."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(f"vhost: {vhost}\n{RULES}")
    with ExitStack() as stack:

        def begin(*names: str, old: bool = False, refresh: str = "1h") -> Sidecar:
            settings: dict[str, object] = {"inventory": {"refresh": refresh}}
            if names:
                for name in names:
                    (tmp_path / name).write_bytes(name.encode().ljust(32, b"!"))
                settings["declared"] = {"secrets": [{"file": str(tmp_path / name)} for name in names]}
            program = OLD if old else (str(PROGRAM),)
            return stack.enter_context(Sidecar(broker, [rules], settings, program=program))

        yield begin


def churn(outside: Outside, first: Sidecar, second: Sidecar) -> None:
    """Declare and delete queues through one sidecar, and publish to them through the other."""
    peers = [Producer(sidecar.port, outside.vhost).open(confirm=True) for sidecar in (first, second)]
    published = 0
    for number in range(ROUNDS):
        peer = peers[number % 2]
        peer.ask(commands.Queue.Delete(0, "a"))
        peer.declare("a")
        for publisher in (*peers, *peers):
            assert publisher.send_settled("letters", "k") == (True, [])
            published += 1
        assert [len(peer.take("a")), published] == [4, published]
    for peer in peers:
        peer.disconnect()


@pytest.mark.parametrize(
    ("first_kind", "second_kind"),
    [
        pytest.param({"old": True}, {"names": ("new",)}, id="0.1 and 0.2"),
        pytest.param({"names": ("previous",)}, {"names": ("new", "previous")}, id="the secret is added"),
        pytest.param({"names": ("new", "previous")}, {"names": ("new",)}, id="the previous secret is dropped"),
        pytest.param({"names": ("previous", "new")}, {"names": ("new", "previous")}, id="another secret is first"),
    ],
)
def test_queues_changed_through_two_sidecars_with_different_tokens_lose_nothing(
    start: Start, outside: Outside, first_kind: dict[str, object], second_kind: dict[str, object]
) -> None:
    def begin(kind: dict[str, object]) -> Sidecar:
        return start(*kind.get("names", ()), old=bool(kind.get("old")))  # type: ignore[misc]

    outside.make_queues("a", "b", "mine")
    first = begin(first_kind)
    second = begin(second_kind)
    churn(outside, first, second)
    # Upgraded, then rolled back: the second sidecar runs alone, and then the first one again.
    first.stop()
    third = begin(second_kind)
    churn(outside, second, third)
    second.stop()
    third.stop()
    fourth, fifth = begin(first_kind), begin(first_kind)
    churn(outside, fourth, fifth)


@pytest.mark.parametrize("declared_by_old", [True, False])
def test_an_exclusive_queue_is_reached_through_a_sidecar_of_the_other_version(
    start: Start, outside: Outside, declared_by_old: bool
) -> None:
    sidecars = start(old=True, refresh="200ms"), start("new", refresh="200ms")
    owner, publisher = sidecars if declared_by_old else sidecars[::-1]
    consumer = Producer(owner.port, outside.vhost).open()
    consumer.declare("mine", exclusive=True)
    producer = Producer(publisher.port, outside.vhost).open(confirm=True)

    def arrives() -> bool:
        assert producer.send_settled("letters", "k") == (True, [])
        return bool(consumer.take("mine"))

    until(arrives)
    for _ in range(5):
        assert arrives()
    consumer.disconnect()
    producer.disconnect()


@pytest.mark.parametrize("made_by_old", [True, False])
def test_a_binding_made_through_one_version_is_routed_by_the_other(
    start: Start, outside: Outside, made_by_old: bool
) -> None:
    outside.make_queues("a", "b")
    sidecars = start(old=True, refresh="200ms"), start("new", refresh="200ms")
    maker, user = sidecars if made_by_old else sidecars[::-1]
    client = Producer(maker.port, outside.vhost).open()
    client.ask(commands.Exchange.Declare(0, "open", "x-open"))
    client.ask(commands.Queue.Bind(0, "a", "open", ""))
    second = Producer(user.port, outside.vhost).open(confirm=True)
    until(lambda: '"open"' in user.get("/status"))
    until(lambda: second.send_settled("open").acked and client.take("a"))
    client.disconnect()
    second.disconnect()


# -- end of the transition --------------------------------------------------------------------------------------------


def unkeyed_tokens(sidecar: Sidecar) -> float:
    """The gauge on the metrics page."""
    [line] = [row for row in sidecar.get("/metrics").splitlines() if row.startswith("oxproxy_topology_unkeyed_tokens ")]
    return float(line.rpartition(" ")[2])


def adopt(sidecar: Sidecar, vhost: str, *more: str) -> subprocess.CompletedProcess[str]:
    return oxproxy_here("adopt", "--config", sidecar.configuration, "--vhost", vhost, *more)


def test_after_the_transition_unkeyed_tokens_are_removed_and_no_message_is_lost(start: Start, outside: Outside) -> None:
    outside.make_queues("a", "b", "mine")
    outside.make_exchange("around", alternate_exchange="letters")
    old = start(old=True, refresh="200ms")
    client = Producer(old.port, outside.vhost).open(confirm=True)
    client.ask(commands.Queue.Bind(0, "b", "letters", "", arguments={"x-?hkex": "by-client"}))  # under the token
    new, second = start("new", refresh="200ms"), start("new", refresh="200ms")
    client.disconnect()
    old.stop()
    unkeyed = {token("queue", name) for name in (b"a", b"b", b"mine")}
    bypassing = outside.broker  # a producer connected directly to the broker
    past = Producer(bypassing.port, outside.vhost).open(confirm=True)
    past.publish("around", token("queue", b"b").decode())
    assert past.settle().acked
    assert len(past.take("b")) == 1  # the open bypass

    producers = [Producer(sidecar.port, outside.vhost).open(confirm=True) for sidecar in (new, second)]
    until(lambda: unkeyed_tokens(new) == 4)  # one of them the client's
    done = adopt(new, outside.vhost, "--finish", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert unkeyed_tokens(new) == 4
    done = adopt(new, outside.vhost, "--finish")
    assert f"vhost {outside.vhost}: transition finished" in done.stdout
    assert done.returncode == 0
    published = 0

    def gone() -> bool:
        nonlocal published
        for producer in producers:
            assert producer.send_settled("letters", "k", {"by-client": 1}) == (True, [])
            published += 1
        return not {key for _, _, key in outside.bindings("letters")} & unkeyed

    until(gone)
    until(lambda: unkeyed_tokens(new) == 0)
    gone()
    assert [len(past.take(queue)) for queue in ("a", "b")] == [published] * 2
    past.publish("around", token("queue", b"b").decode())
    assert past.settle().acked
    assert past.take("b") == []
    assert all(is_keyed(key) or b".b." in key for _, _, key in outside.bindings("letters"))
    # Later queues and bindings get no unkeyed tokens.
    new.stop()
    third = start("new", refresh="200ms")
    last = Producer(third.port, outside.vhost).open(confirm=True)
    assert last.send_settled("letters", "k", {"by-client": 1}).acked
    assert [len(past.take(queue)) for queue in ("a", "b")] == [1, 1]
    assert not {key for _, _, key in outside.bindings("letters")} & unkeyed
    for peer in (*producers, past, last):
        peer.disconnect()
    second.stop()
    third.stop()


def test_the_transition_is_not_finished_while_a_queue_has_only_old_tokens(start: Start, outside: Outside) -> None:
    outside.make_queues("a", "b", "mine")
    start(old=True)
    sidecar = start("new")
    with outside.channel() as channel:
        channel.queue_declare("late", durable=True)
        channel.queue_bind("late", "letters", token("queue", b"late").decode())
    done = adopt(sidecar, outside.vhost, "--finish")
    assert done.returncode == 1
    assert "queue late is bound only with tokens from version 0.1 or a previous secret" in done.stdout
    names = {item["name"] for item in outside.broker.api("GET", f"exchanges/{outside.vhost}")}
    assert not [name for name in names if name.startswith("x.o.p.e.n.x.f.")]


def delete_other_carriers(broker: Broker) -> None:
    """Delete the carriers of other tests, because carriers of earlier versions put the whole broker in transition."""
    for row in broker.api("GET", "exchanges?columns=name,vhost,arguments"):
        if "x-open-exchange" in row["arguments"]:
            broker.api("DELETE", f"exchanges/{quoted(row['vhost'])}/{quoted(row['name'])}")


def test_a_new_virtual_host_has_no_unkeyed_tokens(start: Start, outside: Outside) -> None:
    delete_other_carriers(outside.broker)
    outside.make_queues("a", "b", "mine")
    sidecar = start("new", refresh="200ms")
    unkeyed = {key for _, _, key in outside.bindings("letters") if not is_keyed(key)}
    assert unkeyed == set(), sidecar.log.read_text()  # the log states why it assumed earlier versions
    producer = Producer(sidecar.port, outside.vhost).open(confirm=True)
    assert producer.send_settled("letters", "k").acked
    assert len(producer.take("a")) == 1
    producer.disconnect()


# -- paths to a carrier ----------------------------------------------------------------------------------------------


def test_alternate_and_dead_letter_exchanges_that_target_a_carrier_are_reported_while_they_exist(
    start: Start, outside: Outside
) -> None:
    outside.make_queues("a", "b", "mine")
    sidecar = start("new", refresh="200ms")

    def ways() -> object:
        return vhost_status(sidecar, outside.vhost)["bypasses"]

    assert ways() == []
    outside.make_exchange("around", alternate_exchange="letters")
    outside.make_exchange("further", "fanout", alternate_exchange="around")
    outside.make_exchange("elsewhere", alternate_exchange="amq.fanout")
    outside.make_queue("dying", x_dead_letter_exchange="further")
    outside.make_queue("other", x_dead_letter_exchange="elsewhere")
    expected = [
        "exchange around: its alternate exchange letters routes to a carrier",
        "exchange further: its alternate exchange around routes to a carrier",
        "queue dying: its dead-letter exchange further routes to a carrier",
    ]
    until(lambda: ways() == expected)
    until(lambda: "oxproxy_topology_carrier_bypasses 3.0" in sidecar.get("/metrics"))
    assert "messages can reach carriers without being evaluated" in sidecar.log.read_text()
    outside.delete_queue("dying")
    outside.delete_exchange("around")
    until(lambda: ways() == [])
    until(lambda: "oxproxy_topology_carrier_bypasses 0.0" in sidecar.get("/metrics"))


def test_an_alternate_exchange_bound_to_a_carrier_is_reported_at_the_start(start: Start, outside: Outside) -> None:
    outside.make_queues("a", "b", "mine")
    first = start("new")
    outside.make_exchange("bound", "fanout")
    with outside.channel() as channel:
        channel.exchange_bind("letters", "bound")
    outside.make_exchange("around", alternate_exchange="bound")
    first.stop()
    sidecar = start("new")
    assert "exchange around: its alternate exchange bound routes to a carrier" in sidecar.get("/status")
