from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxproxy.addressing.targets import Publication
from oxproxy.amqp.tables import encode_table
from oxproxy.errors import Scope
from oxproxy.relay.declare.storage import identity_key
from oxproxy.relay.plan import plan as plan_module
from oxproxy.relay.plan.outgoing import copy_frames
from oxproxy.relay.plan.plan import FACTS_BYTES, DecisionCaches, Plan
from oxproxy.relay.tokens import Secrets
from oxproxy.relay.vhost import BindingCopy, Delivery, StoredBinding, VhostState
from oxproxy.routing.bindings.binding import Binding
from oxproxy.values import EXCHANGE, QUEUE, Destination, Table, Value
from tests import client
from tests.client import content_header, split
from tests.relay.contents import properties, tables
from tests.relay.wire import REPORT, Wire, owned, publish, routed, ruled, state, table, token, with_tokens
from tests.routing.building import NOW, Plain, exchange, many, to_queue


def plan_of(wire: Wire) -> Plan:
    plan = wire.plans.find(b"xo", b"")
    assert plan is not None
    return plan


def forwarded(wire: Wire, message: bytes) -> bytes:
    """Publish a message with an empty body; return the bytes sent to the broker."""
    if 1 not in wire.relay.connection.channels:
        wire.open(1)
    return wire.produce(message)


def chosen(wire: Wire, message: bytes) -> tuple[bytes, ...]:
    """Publish a message; return the queues whose tokens are in the message sent to the broker."""
    left = split(forwarded(wire, message))[1].payload
    return tuple(name for name in (b"a", b"b", b"jobs.1") if token("queue", name) in left)


# -- output -----------------------------------------------------------------------------------------------------------


def test_a_message_without_a_table_gets_one() -> None:
    message = publish(headers=None, body=b"", content_type=b"text/plain", priority=3)
    head = forwarded(Wire(ruled(to_queue("a"))), message)
    assert head == with_tokens(message, "a")


@pytest.mark.parametrize("headers", [None, (), table(type="other")])
def test_without_a_destination_the_header_is_unchanged(headers: Table | None) -> None:
    message = publish(headers=headers, body=b"", content_type=b"text/plain")
    assert forwarded(Wire(routed("a")), message) == message


@given(properties(), tables())
def test_properties_survive_the_tokens(fields: dict[str, bytes | int], entries: Table) -> None:
    """The decoded properties are unchanged, except BCC and the headers that only the sidecar may set."""
    message = client.publish(1, b"xo", b"", entries, b"", fields)
    head = forwarded(Wire(ruled(to_queue("a"), to_queue("b"))), message)
    sent, left = split(message)[1].payload, split(head)[1].payload
    ours = {b"BCC", b"x-original-address", b"x-original-cc"}
    bcc = next((value for name, value in entries if name == b"BCC"), None)
    if bcc is not None and bcc.letter != "A":
        assert left == sent  # unchanged, so that the broker refuses it
        return
    kept = encode_table(tuple(entry for entry in entries if entry[0] not in ours))
    tokens = Value("A", tuple(Value("S", token("queue", name)) for name in (b"a", b"b")))
    whole = kept + encode_table(((b"BCC", tokens),))
    assert left == content_header(1, 0, whole, fields)[7:-1]


@given(properties(), tables(), st.sampled_from([b"", b"q", b"k" * 255]), st.sampled_from(Delivery))
def test_copies_have_the_same_encoding_as_on_the_fast_path(
    fields: dict[str, bytes | int], entries: Table, key: bytes, delivery: Delivery
) -> None:
    wire = Wire(ruled(to_queue("a"), delivery=delivery))
    message = client.publish(1, b"xo", key, entries, b"", fields)
    start, header = split(message)[:2]
    left = forwarded(wire, message)
    (out,) = plan_of(wire).decisions.values()
    assert b"".join(copy_frames(out.copies[0], Publication(b"xo", key), start.raw, header.raw)) == left


def test_a_header_that_ends_within_a_property_is_malformed() -> None:
    for flags, rest in [
        (0x8000, b"\xff" + b"t" * 20),
        (0x8000, b""),
        (0xC000, b"\x01t\x14" + b"e" * 10),
        (0x2000, b""),
        (0x2000, b"\0\0\0"),
        (0x2000, b"\0\0\0\x05\x01a"),
        (0xA000, b"\x04text\0\0\0\x01"),
        (0x2000, b"\xff\xff\xff\xff"),
        (0x2000, b"\0\0\0\x03\x01aZ"),
    ]:
        payload = struct.pack(">HHQH", 60, 0, 4, flags) + rest
        header = b"\x02\0\x01" + len(payload).to_bytes(4, "big") + payload + b"\xce"
        start = split(publish(body=b""))[0].raw
        # The following bytes, which belong to another message in the same read, must not be parsed as the table.
        data = header + publish(headers=REPORT, body=b"x" * 300)
        wire = Wire(routed("a")).open(1)
        wire.produce(start + data)
        fault = wire.relay.connection.lifecycle.fault
        assert fault is not None
        assert (fault.reply_code, fault.scope) == (502, Scope.CONNECTION)


# -- cached decisions -------------------------------------------------------------------------------------------------


def decisions_made(wire: Wire) -> int:
    """The number of decisions made."""
    return wire.counters.relays["/"].cache_misses


def test_headers_that_no_rule_uses_do_not_cause_a_new_decision() -> None:
    wire = Wire(routed("a"))
    for number in range(5):
        message = publish(headers=(*REPORT, (b"n", Value("I", number))), body=b"", message_id=b"%d" % number)
        assert forwarded(wire, message) == with_tokens(message, "a")
    assert decisions_made(wire) == 1


@pytest.mark.parametrize(
    ("condition", "matching", "other"),
    [
        pytest.param({"x-?hkv= type": "report"}, publish(), publish(headers=table(type="other")), id="header"),
        pytest.param({"x-?rk=": "yes"}, publish("yes"), publish("no"), id="routing key"),
        pytest.param({"x-?pr= priority": 3}, publish(priority=3), publish(priority=4), id="property"),
    ],
)
def test_a_fact_that_a_rule_uses_causes_a_new_decision(
    condition: dict[str, Plain], matching: bytes, other: bytes
) -> None:
    wire = Wire(ruled(to_queue("a", condition)))
    assert [chosen(wire, message) for message in (matching, other, matching)] == [(b"a",), (), (b"a",)]
    assert decisions_made(wire) == 2


def test_duplicate_headers_in_another_order_are_decided_separately() -> None:
    wire = Wire(routed("a"))
    twice = [table(type="report") + table(type="other"), table(type="other") + table(type="report")]
    outcomes = [chosen(wire, publish(headers=headers)) for headers in twice]
    alone = [chosen(Wire(routed("a")), publish(headers=headers)) for headers in twice]
    assert outcomes == alone


def test_messages_with_a_shared_decision_keep_their_routing_keys() -> None:
    wire = Wire(routed("a", delivery=Delivery.QUEUE))
    for key in ("one", "two"):
        head = forwarded(wire, publish(key))
        assert key.encode() in split(head)[1].payload
    assert decisions_made(wire) == 1


def test_with_a_clock_rule_a_decision_is_cached_for_one_second() -> None:
    wire = Wire(ruled(to_queue("a", {"x-?dture": "080000"})))
    queues = []
    for seconds in (0.0, 0.9, 1.1, 1.9):
        wire.wall = NOW + seconds
        queues.append(chosen(wire, publish()))
    assert queues == [(b"a",), (b"a",), (), ()]
    assert decisions_made(wire) == 2


def test_queue_names_that_a_rule_uses_cause_a_new_decision() -> None:
    of = ruled(to_queue("a", {"x-addqre-ontrue": "^jobs"}), bound=[("queue", b"a"), ("queue", b"jobs.1")])
    wire = Wire(of)
    message = publish(body=b"")
    assert forwarded(wire, message) == with_tokens(message, "a")
    of.set_queues(of.queues.with_name(b"jobs.1"))
    assert forwarded(wire, message) == with_tokens(message, "a", "jobs.1")


# -- validity ---------------------------------------------------------------------------------------------------------


def client_binding(exchange: bytes, destination: Destination) -> StoredBinding:
    binding = Binding(exchange, *destination, b"", ())
    return StoredBinding(binding, identity_key(binding.identity), (BindingCopy(1, "user", b"", b"s"),))


def of_three_exchanges() -> VhostState:
    """A virtual host in which ``xo`` routes to ``next``, and ``other`` chooses among all queues."""
    made = (
        exchange(Binding(b"xo", EXCHANGE, b"next", b"", ())),
        exchange(name="next"),
        exchange(to_queue("a", {"x-addqre-ontrue": "^jobs"}), name="other"),
    )
    return state(*((one, owned(one, bound=[(QUEUE, b"a")])) for one in made))


@pytest.mark.parametrize(
    ("change", "new_decisions"),
    [
        pytest.param(lambda of: of.add_binding(client_binding(b"xo", (QUEUE, b"a"))), {"xo"}, id="its bindings"),
        pytest.param(
            lambda of: of.add_binding(client_binding(b"next", (QUEUE, b"a"))), {"xo", "next"}, id="bindings downstream"
        ),
        pytest.param(
            lambda of: of.exchanges[b"next"].tokens.refused((QUEUE, b"a"), "gone", 0.0), {"next"}, id="its tokens"
        ),
        pytest.param(lambda of: of.set_queues(of.queues.with_name(b"jobs.1")), {"other"}, id="the queues"),
        pytest.param(lambda of: of.set_secrets(Secrets([b"s"])), {"xo", "next", "other"}, id="the secrets"),
    ],
)
def test_a_change_makes_only_the_decisions_that_depend_on_it_be_made_again(
    change: Callable[[VhostState], object], new_decisions: set[str]
) -> None:
    wire = Wire(of_three_exchanges()).open()
    messages = {name: publish(to=name) for name in ("xo", "next", "other")}
    for message in messages.values():
        wire.produce(message)
    change(wire.state)
    made = set()
    for name, message in messages.items():
        before = decisions_made(wire)
        wire.produce(message)
        if decisions_made(wire) > before:
            made.add(name)
    assert made == new_decisions


def test_the_decisions_for_a_deleted_exchange_are_discarded_when_another_exchange_is_used() -> None:
    wire = Wire(of_three_exchanges()).open()
    wire.produce(publish(to="xo"), publish(to="next"), publish(to="other"))
    used = wire.plans.caches.used_bytes
    wire.state.remove_exchange(b"other")
    wire.state.add_binding(client_binding(b"next", (QUEUE, b"a")))
    wire.produce(publish(to="next"))
    assert 0 < wire.plans.caches.used_bytes < used


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_the_number_of_cached_decisions_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "EXCHANGE_ENTRIES", 4)
    wire = Wire(ruled(to_queue("a", {"x-?hkv= n": 1})))
    for number in range(23):
        message = publish(headers=table(n=number), body=b"")
        expected = with_tokens(message, "a") if number == 1 else message
        assert forwarded(wire, message) == expected
        assert len(plan_of(wire).decisions) <= 4


def test_caching_pauses_if_no_cached_decision_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "EXCHANGE_ENTRIES", 4)
    wire = Wire(ruled(to_queue("a", {"x-?hkv= n": 1})))
    kept = []
    for number in range(5 + 4 * 16 + 1):
        forwarded(wire, publish(headers=table(n=number), body=b""))
        kept.append(len(plan_of(wire).decisions))
    assert kept == [1, 2, 3, 4, *([0] * (1 + 4 * 16)), 1]
    assert wire.plans.counters.cache_bypassed == 4 * 16


def test_caching_continues_if_cached_decisions_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "EXCHANGE_ENTRIES", 4)
    wire = Wire(ruled(to_queue("a", {"x-?hkv= n": 1})))
    for number in (1, 1, 2, 3, 4, 5):
        forwarded(wire, publish(headers=table(n=number), body=b""))
    assert len(plan_of(wire).decisions) == 1


def test_the_size_of_cached_decisions_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "EXCHANGE_BYTES", 10_000)
    wire = Wire(ruled(to_queue("a", {"x-?hkv= n": "x"})))
    for number in range(50):
        forwarded(wire, publish(headers=table(n=f"{number}" * 400), body=b""))
        assert len(plan_of(wire).decisions) * 400 <= 10_000


def test_messages_with_equal_decisions_share_one_outgoing_form() -> None:
    wire = Wire(ruled(to_queue("a", {"x-?hkv>= n": 10}), to_queue("b", {"x-?hkv>= n": 50})))
    for number in range(100):
        forwarded(wire, publish(headers=table(n=number), body=b""))
    decisions = plan_of(wire).decisions
    assert len(decisions) == 100
    assert len({id(out) for out in decisions.values()}) == 3
    assert sorted({chosen(wire, publish(headers=table(n=number))) for number in (1, 20, 70)}) == [
        (),
        (b"a",),
        (b"a", b"b"),
    ]


def test_large_facts_are_not_cached() -> None:
    wire = Wire(ruled(to_queue("a", {"x-?hkv= n": "x"})))
    for _ in range(2):
        forwarded(wire, publish(headers=table(n="x" * FACTS_BYTES), body=b""))
    assert not plan_of(wire).decisions
    assert decisions_made(wire) == 2


def test_the_cache_size_of_the_process_is_limited_and_the_largest_cache_is_cleared() -> None:
    caches = DecisionCaches(limit_bytes=20_000)
    wires = []
    for _ in range(2):
        wire = Wire(ruled(to_queue("a", {"x-?hkv= n": "x"})))
        wire.plans.caches = caches
        wires.append(wire)
    small, large = wires
    forwarded(small, publish(headers=table(n="x"), body=b""))
    for number in range(100):
        forwarded(large, publish(headers=table(n=f"{number}" * 300), body=b""))
        assert caches.used_bytes <= 20_000
    assert len(plan_of(small).decisions) == 1
    for wire in wires:
        wire.state.settings_changed()
        plan_of(wire)
    assert caches.used_bytes == 0


def test_outgoing_forms_count_towards_the_cache_size_although_their_decisions_are_not_cached() -> None:
    wire = Wire(ruled(to_queue("a", {"x-msg-addq-ontrue": ""}), delivery=Delivery.QUEUE))
    caches = wire.plans.caches = DecisionCaches(limit_bytes=100_000)
    sizes = []
    for number in range(50):
        named = many(*(f"{name:0100}" for name in range(number * 30, number * 30 + 30)))
        forwarded(wire, publish(headers=((b"x-addq-ontrue", named),), body=b""))
        sizes.append(caches.used_bytes)
    assert not plan_of(wire).decisions
    assert sizes[0] > 30 * 100
    assert sizes[7] == 8 * sizes[0]
    assert max(sizes) <= 100_000
