"""Makes clients' declarations on the broker, with the stored arguments, as a sidecar's relay does.

Only the connection of the control plane is used, because it sends arbitrary bytes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from oxproxy.amqp.method_frames import exchange_declare
from oxproxy.amqp.tables import decode_table, encode_table
from oxproxy.broker.connection import ControlConnection, ControlSettings
from oxproxy.broker.methods import Bind
from oxproxy.relay.declare.storage import exchange_arguments, identity_key, open_exchange, signed_copy, stored_rows
from oxproxy.relay.vhost import BindingCopy, DeclaredExchange, OwnedExchange, StoredBinding, VhostState
from oxproxy.routing.bindings.binding import Binding
from oxproxy.routing.router import Router
from oxproxy.values import Table, Value
from tests.broker.observed import bind_token
from tests.relay.wire import token

DURABLE, AUTO_DELETE, INTERNAL = 2, 4, 8


def text(value: str | bytes) -> Value:
    return Value("S", value if isinstance(value, bytes) else value.encode())


def stored(
    exchange: str, queue: str, arguments: Table = (), sequence: int = 1, key: str = "", kind: str = "queue"
) -> StoredBinding:
    """A client's binding, as in the state."""
    binding = Binding(exchange.encode(), kind, queue.encode(), key.encode(), arguments, sequence=sequence)
    copy = BindingCopy(sequence, "", encode_table(arguments))
    return copied(StoredBinding(binding, identity_key(binding.identity), (copy,)), sequence)


def storage_key(kind: str, destination: bytes, routing_key: bytes, entries: bytes) -> bytes:
    """The routing key of a client's stored binding on a direct carrier."""
    table = decode_table(entries, 0, len(entries))
    return identity_key(Binding(b"", kind, destination, routing_key, table).identity)


def copied(made: StoredBinding, *sequences: int, client: str = "", vhost: str = "/") -> StoredBinding:
    """A stored binding with signed copies."""
    state = VhostState(vhost, Router(()))
    binding, entries = made.binding, made.copies[0].entries
    copies = tuple(
        signed_copy(state, binding.exchange, replace(binding, sequence=sequence), entries, client)
        for sequence in sequences
    )
    return made._replace(copies=copies, binding=replace(binding, sequence=sequences[0]))


def declare_here(
    state: VhostState,
    name: str,
    *bindings: StoredBinding,
    arguments: Table = (),
    sequence: int = 1,
    auto_delete: bool = False,
) -> OwnedExchange:
    """Add a client's exchange and bindings to a state, as a relay does after the broker's reply."""
    declared = DeclaredExchange(True, auto_delete, False, encode_table(arguments), sequence)
    owned, exchange = open_exchange(name.encode(), declared)
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

    def signed(self, binding: StoredBinding) -> StoredBinding:
        """The binding as a relay of this virtual host signs it."""
        sequences = [copy.sequence for copy in binding.copies]
        return copied(binding, *sequences, client=binding.client, vhost=self._vhost)

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
                bind_token(exchange, ("queue", queue), token("queue", queue, self._vhost))
                for exchange, queue in sorted(pairs)
            ]
            assert set(await self._connection.call_all(made)) <= {None}

    async def bind_raw(self, exchange: str, queue: str, key: bytes, entries: bytes) -> None:
        bind = bind_token(exchange.encode(), ("queue", queue.encode()), key, entries)
        assert await self._connection.call(bind) is None

    async def unbind(self, *bindings: StoredBinding) -> None:
        for kept_binding in bindings:
            binding = kept_binding.binding
            for key, kept in stored_rows(self.signed(kept_binding)):
                unbind = Bind(binding.exchange, kept_binding.destination, key, kept, unbinds=True)
                assert await self._connection.call(unbind) is None


def _bind(stored: StoredBinding) -> Bind:
    return bind_token(stored.binding.exchange, stored.destination, *stored_rows(stored)[0])


@asynccontextmanager
async def client(settings: ControlSettings, vhost: str) -> AsyncIterator[Client]:
    connection = ControlConnection(settings, vhost)
    await connection.connect()
    try:
        yield Client(connection, vhost)
    finally:
        await connection.close()
