"""Binds destination tokens on the sidecar channel of a client's connection, and looks up destinations on it.

An exclusive queue can be bound only on its owner's connection. Such a queue is bound with all its candidates, so that
every sidecar can use one of them, whatever its secrets and rules are.

Source: `relay.token_table`; `relay.tokens`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

from oxproxy.amqp.method_frames import bind, passive_declare, unbind
from oxproxy.relay.channel import Channel
from oxproxy.relay.connection_state import ConnectionState, EndExchange, HoldTokens, RestoreTokens
from oxproxy.relay.declare.injected_methods import Step, Steps, inject
from oxproxy.relay.vhost import OwnedExchange
from oxproxy.routing.bindings.binding import Binding
from oxproxy.values import QUEUE, Destination

#: prefix of the broker's refusal if the source or destination does not exist; the broker checks the permissions first
_NOT_FOUND = "404 "


def is_gone(
    connection: ConnectionState, channel: Channel, destination: Destination
) -> Generator[Step, Any, bool]:  # Any: as in `Steps`
    """Look up a destination that a client is about to declare; return True if it does not exist.

    The broker deletes an auto-delete or expired object together with its bindings, without notice. The client's frames
    are held from now on. A client that may declare an object may also look it up.
    """
    # The client's earlier requests may cause the broker to delete the destination.
    yield partial(inject, connection, channel, [])
    sidecar_channel = connection.upstream.sidecar_channel
    refusal: str | None = yield partial(
        sidecar_channel.run, [passive_declare(sidecar_channel.number or 0, destination)]
    )
    return refusal is not None and refusal.startswith(_NOT_FOUND)


def tokens_to_bind(connection: ConnectionState, owned: OwnedExchange, destination: Destination) -> tuple[bytes, ...]:
    """Return the tokens with which a destination is bound on a client's connection."""
    state = connection.plans.state
    if destination[0] == QUEUE and destination[1] in connection.upstream.exclusive_queues:
        return state.tokens.candidates(destination, one_word=owned.is_topic)
    return state.candidates(owned, destination)[:1]


def own_tokens(connection: ConnectionState, binding: Binding) -> list[tuple[OwnedExchange, Destination]]:
    """Return (exchange, queue) for each exclusive queue that, because of a new binding, needs tokens on a carrier.

    A binding from an exchange to an exclusive queue may also route messages that the exchange gets from other exchanges
    evaluated here. A binding between two exchanges may route messages to exclusive queues bound to the second one.
    """
    queues = connection.upstream.exclusive_queues
    if binding.destination_type == QUEUE:
        queues = queues & {binding.destination}
    elif binding.destination not in connection.plans.state.exchanges:
        return []
    needing = connection.plans.state.needing
    wanted = [(owned, (QUEUE, queue)) for queue in sorted(queues) for owned in needing((QUEUE, queue))]
    return [(owned, destination) for owned, destination in wanted if destination not in owned.tokens.bound]


def bind_tokens(
    connection: ConnectionState, wanted: Sequence[tuple[OwnedExchange, Destination]], done: Callable[[], None]
) -> None:
    """Bind tokens on the sidecar channel of the connection; a refused destination is recorded as missing."""
    if not wanted:
        done()
        return
    waiting = len(wanted)
    channel = connection.upstream.sidecar_channel

    def answered(text: str | None, owned: OwnedExchange, destination: Destination, tokens: tuple[bytes, ...]) -> None:
        nonlocal waiting
        waiting -= 1
        if text is None:
            owned.tokens.bind_ok(destination, tokens)
        else:
            owned.tokens.refused(destination, text, connection.traffic.now)
        if not waiting:
            done()

    for owned, destination in wanted:
        tokens = tokens_to_bind(connection, owned, destination)
        frames = [bind(channel.number or 0, destination, owned.carrier, token) for token in tokens]
        channel.run(frames, partial(answered, owned=owned, destination=destination, tokens=tokens))


def end_exchange(connection: ConnectionState, owned: OwnedExchange) -> Generator[Step, Any, bool]:  # Any: as in `Steps`
    """Unbind the tokens of an exchange that is about to end; return False if clients' bindings are left on it.

    See `Reconciler.end`, which cannot unbind exclusive queues.
    """
    yield partial(_unbind_exclusive, connection, owned)
    ended: bool = yield lambda then: connection.pending.requests.append(EndExchange(owned, then))
    if not ended:
        yield partial(_bind_exclusive, connection, owned)
    return ended


def hold_tokens(connection: ConnectionState, owned: OwnedExchange, then: Callable[[], None]) -> None:
    """Prevent the control plane from binding tokens of an exchange that is about to be deleted; see `HoldTokens`."""
    connection.pending.requests.append(HoldTokens(owned, then))


def restore_tokens(connection: ConnectionState, owned: OwnedExchange) -> Steps:
    """Bind the tokens of an exchange again that was to end, and that the broker has refused to delete."""
    connection.terms.inventory.changed(owned.name)
    connection.pending.requests.append(RestoreTokens(owned))
    yield partial(_bind_exclusive, connection, owned)


def _bind_exclusive(connection: ConnectionState, owned: OwnedExchange, done: Callable[[], None]) -> None:
    """Bind the tokens of the connection's exclusive queues that an exchange needs; others can't do this."""
    queues = [(QUEUE, queue) for queue in sorted(connection.upstream.exclusive_queues)]
    names = connection.plans.state.router.names
    bind_tokens(connection, [(owned, queue) for queue in queues if names(owned.name, queue)], done)


def _unbind_exclusive(connection: ConnectionState, owned: OwnedExchange, done: Callable[[], None]) -> None:
    """Unbind the tokens of the connection's exclusive queues from an exchange that ends; others can't do this."""
    channel = connection.upstream.sidecar_channel
    queues = [(QUEUE, queue) for queue in sorted(connection.upstream.exclusive_queues)]
    frames = [
        unbind(channel.number or 0, destination, owned.carrier, token)
        for destination in queues
        for token in sorted(owned.tokens.bound.get(destination, ()))
    ]
    for destination in queues:
        owned.tokens.deleted(destination)
    if frames:
        channel.run(frames, lambda refusal: done())
    else:
        done()
