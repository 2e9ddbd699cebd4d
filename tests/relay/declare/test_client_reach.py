"""Tests permission checks for the dynamic routes of clients, and what is unbound with the last binding of a client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC

import pytest
from pamqp import commands

from proxy.amqp.method_frames import QueueUnbind, read_method
from proxy.relay.declare.bindings import CHECKED_AT_ONCE, ClientReach, Refusals
from proxy.relay.tokens import grant_key, token
from proxy.relay.vhost import BindingCopy, StoredBinding
from proxy.routing.bindings.binding import Binding
from proxy.routing.bindings.exchange_types import compile_open
from proxy.routing.decision import QueueNames
from proxy.values import Destination
from tests.broker.clients import storage_key
from tests.client import split
from tests.relay.wire import OWN, TUNING, Wire, routed, say
from tests.routing.building import Plain, many, to_queue

A, B, E = ("queue", b"a"), ("queue", b"b"), ("exchange", b"e")


class Client:
    """A connection whose client binds to ``xo``, in a virtual host in which the given queues exist."""

    def __init__(self, *queues: str) -> None:
        self.wire = Wire(routed("z")).open()
        self.state = self.wire.state
        self.state.queues = QueueNames(tuple(sorted(name.encode() for name in queues)), 1)
        self.reach = ClientReach(self.wire.relay.connection)
        self.owned = self.state.exchanges[b"xo"]

    def chosen(self, entries: Mapping[str, Plain]) -> list[Destination]:
        return self.reach.chosen_destinations(self.owned, compile_open(to_queue("main", entries), UTC))[0]

    def bind(self, binding: Binding, client: str = "") -> StoredBinding:
        key = storage_key(binding.destination_type, binding.destination, b"", b"")
        self.state.add_binding(StoredBinding(binding, b"", key, (BindingCopy(1, client, key),)))
        return self.owned.clients[binding.identity]

    def leave(self, client: str = "") -> list[bytes]:
        """Remove the bindings of a client; answer the resulting unbinds, and return their routing keys."""
        self.reach.remove_unneeded(self.owned, client, (), lambda: None)
        unbound = []
        while frames := split(self.wire.upstream()):
            (frame,) = frames
            if frame.name == "Channel.Open":
                self.wire.answer(say(OWN, commands.Channel.OpenOk()))
            else:
                unbound.append(read_method(QueueUnbind, frame.payload).routing_key)
                self.wire.answer(say(OWN, commands.Queue.UnbindOk()))
        return unbound


@pytest.mark.parametrize(
    ("entries", "chosen"),
    [
        ({"x-addq-ontrue": many("b", "ghost")}, [B]),
        ({"x-addq-onfalse": "a"}, [A]),
        ({"x-adde-ontrue": "e"}, [E]),
        ({"x-addqre-ontrue": "^b"}, [B]),
        ({"x-addq!re-ontrue": "^b"}, [A]),
        ({"x-add1qre-ontrue": "."}, [A, B]),
        ({"x-delq-ontrue": "a", "x-msg-addq-ontrue": ""}, []),
        ({}, []),
    ],
)
def test_permissions_are_checked_for_existing_routed_queues(
    entries: dict[str, Plain], chosen: list[Destination]
) -> None:
    assert Client("a", "b").chosen(entries) == chosen


def test_permission_checks_of_a_large_virtual_host_are_limited_in_number() -> None:
    client = Client(*(f"q{number}" for number in range(CHECKED_AT_ONCE + 10)))
    assert len(client.chosen({"x-addqre-ontrue": "."})) == CHECKED_AT_ONCE


def test_all_permission_checks_fail_if_the_broker_allows_no_further_channel() -> None:
    wire = Wire(routed("z"), tuning=replace(TUNING, channel_max_upstream=TUNING.channel_max_producer))
    owned = wire.state.exchanges[b"xo"]
    destinations = [("queue", f"q{number}".encode()) for number in range(CHECKED_AT_ONCE)]
    answers: list[Refusals] = []
    ClientReach(wire.relay.connection).check(owned, destinations, answers.append)
    assert [refusals.keys() for refusals in answers] == [set(destinations)]
    assert owned.reach("").refused.keys() == set(destinations)


def test_granted_bindings_are_kept_while_the_client_has_a_binding() -> None:
    client = Client()
    stored = client.bind(to_queue("a", {"x-addq-ontrue": "b"}))
    client.owned.grant(grant_key("", *B), B)
    client.owned.tokens.asserted(B, b"1 pin", 0.0, None)
    assert client.leave() == []
    client.state.remove_binding(stored)
    assert client.leave() == [token(*B), grant_key("", *B)]
    assert not client.owned.reaches
    assert not client.owned.grants
    assert B not in client.owned.bound


def test_granted_bindings_that_others_need_are_kept() -> None:
    client = Client()
    stored = client.bind(to_queue("a", {"x-addq-ontrue": "b"}))
    client.bind(to_queue("b"), "another")
    client.owned.grant(grant_key("", *B), B)
    client.owned.tokens.bind_ok(B)
    client.state.remove_binding(stored)
    assert client.leave() == [grant_key("", *B)]
    assert B in client.owned.bound
