"""Makes clients' declarations on the broker, with the stored arguments, as a sidecar's relay does.

Only the connection of the control plane is used, because it sends arbitrary bytes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from proxy.amqp.method_frames import exchange_declare
from proxy.amqp.tables import encode_table
from proxy.broker.connection import ControlConnection, ControlSettings
from proxy.broker.declared.store import declared_exchange, stored_binding
from proxy.broker.methods import Bind
from proxy.relay.declare.storage import exchange_arguments, kept_rows, signed_copy
from proxy.relay.tokens import token
from proxy.relay.vhost import BindingCopy, DeclaredExchange, Delivery, OwnedExchange, StoredBinding, VhostState
from proxy.routing.router import Router
from proxy.values import Table, Value
from tests.broker.observed import bind_token, every_token

DURABLE, AUTO_DELETE, INTERNAL = 2, 4, 8


def text(value: str | bytes) -> Value:
    return Value("S", value if isinstance(value, bytes) else value.encode())


def stored(
    exchange: str, queue: str, arguments: Table = (), sequence: int = 1, key: str = "", kind: str = "queue"
) -> StoredBinding:
    """A client's binding, as in the state."""
    place = exchange.encode(), (kind, queue.encode()), key.encode()
    made = stored_binding(*place, encode_table(arguments), [BindingCopy(sequence, "", b"")])
    return copied(made, sequence)


def storage_key(kind: str, destination: bytes, routing_key: bytes, entries: bytes) -> bytes:
    """The routing key of a client's stored binding on a direct carrier."""
    return stored_binding(b"", (kind, destination), routing_key, entries, [BindingCopy(1, "", b"")]).key


def copied(
    made: StoredBinding, *sequences: int, client: str = "", mark: bool = False, vhost: str = "/"
) -> StoredBinding:
    """A stored binding with signed copies."""
    key = token(*made.destination) if mark else made.key
    state = VhostState(vhost, Router(()))
    binding, carrier = made.binding, made.binding.exchange
    copies = [
        signed_copy(state, carrier, replace(binding, sequence=sequence), made.entries, key, client)
        for sequence in sequences
    ]
    return stored_binding(binding.exchange, made.destination, binding.routing_key, made.entries, copies)


def declare_here(
    state: VhostState,
    name: str,
    *bindings: StoredBinding,
    arguments: Table = (),
    sequence: int = 1,
    delivery: Delivery = Delivery.CARRIER,
    auto_delete: bool = False,
) -> OwnedExchange:
    """Add a client's exchange and bindings to a state, as a relay does after the broker's reply."""
    declared = DeclaredExchange(True, auto_delete, False, encode_table(arguments), sequence)
    owned, exchange = declared_exchange(name.encode(), declared, delivery)
    state.add_exchange(owned, exchange)
    for binding in bindings:
        state.add_binding(binding)
    return owned


@dataclass(frozen=True)
class _Raw:
    """A method given as bytes."""

    frame: bytes

    async def call(self, channel: object, limit_seconds: float) -> object:
        raise ValueError


class Client:
    """Clients of a sidecar, as seen by the broker."""

    def __init__(self, connection: ControlConnection, vhost: str) -> None:
        self._connection = connection
        self._vhost = vhost
        self._tokens = every_token(vhost)

    def signed(self, binding: StoredBinding) -> StoredBinding:
        """The binding as a relay of this virtual host signs it."""
        sequences = [copy.sequence for copy in binding.copies]
        return copied(binding, *sequences, client=binding.client, mark=binding.is_mark, vhost=self._vhost)

    async def declare(self, name: str, arguments: Table = (), sequence: int = 1, flags: int = DURABLE) -> None:
        entries = exchange_arguments(sequence, encode_table(arguments))
        await self.declare_raw(name, entries, flags)

    async def declare_raw(self, name: str, entries: bytes, flags: int = DURABLE) -> None:
        kinds = {"durable": DURABLE, "auto_delete": AUTO_DELETE, "internal": INTERNAL}
        set_flags = {kind: bool(flags & flag) for kind, flag in kinds.items()}
        frame = exchange_declare(0, name.encode(), b"direct", entries, **set_flags)
        assert await self._connection.call(_Raw(frame)) is None

    async def bind(self, *bindings: StoredBinding, tokens: bool = True) -> None:
        """Bind with the storage keys, then with the tokens, as relays do."""
        methods = [_bind(self.signed(binding)) for binding in bindings]
        assert set(await self._connection.call_all(methods)) <= {None}
        if tokens:
            pairs = {(made.binding.exchange, made.binding.destination) for made in bindings}
            made = [
                bind_token(exchange, ("queue", queue), key)
                for exchange, queue in sorted(pairs)
                for key in self._tokens.of("queue", queue)
            ]
            assert set(await self._connection.call_all(made)) <= {None}

    async def bind_raw(self, exchange: str, queue: str, key: bytes, entries: bytes) -> None:
        bind = bind_token(exchange.encode(), ("queue", queue.encode()), key, entries)
        assert await self._connection.call(bind) is None

    async def unbind(self, *bindings: StoredBinding, tokens: bool = True) -> None:
        for kept_binding in bindings:
            binding = kept_binding.binding
            for key, kept in kept_rows(self.signed(kept_binding)):
                unbind = Bind(binding.exchange, kept_binding.destination, key, kept, unbinds=True)
                assert await self._connection.call(unbind) is None
            if tokens:
                destination = binding.destination_type, binding.destination
                for key in self._tokens.of(*destination):
                    assert await self._connection.call(Bind(binding.exchange, destination, key, unbinds=True)) is None


def _bind(stored: StoredBinding) -> Bind:
    return bind_token(stored.binding.exchange, stored.destination, *kept_rows(stored)[0])


@asynccontextmanager
async def client(settings: ControlSettings, vhost: str) -> AsyncIterator[Client]:
    connection = ControlConnection(settings, vhost)
    await connection.connect()
    try:
        yield Client(connection, vhost)
    finally:
        await connection.close()
