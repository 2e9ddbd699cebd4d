"""Binds destination tokens and checks permissions on the sidecar channel of a client's connection.

An exclusive queue can be bound only on its owner's connection. Destinations chosen by the routes of a client's bindings
or by headers must not be bound with the control user's permissions. This module checks whether the client is permitted
to bind them. If so, it stores a grant on the carrier, as a binding with a grant key. If not, the destination counts as
missing, with the broker's refusal as the reason; this is never an error for the producer.

Source: `relay.token_table`; RabbitMQ guide "Access control".
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from proxy.amqp.method_frames import bind, look_for, unbind
from proxy.relay.channel import Channel
from proxy.relay.connection_state import ConnectionState, PermissionCheck, Phase
from proxy.relay.declare.injected_methods import Step, Steps, inject, run_steps
from proxy.relay.declare.storage import pin_entries
from proxy.relay.token_table import PLAIN
from proxy.relay.tokens import Tokens, grant_key
from proxy.relay.vhost import Delivery, OwnedExchange, VhostState
from proxy.routing.bindings.binding import Binding
from proxy.values import QUEUE, Destination, can_exist

#: prefix of the broker's refusal if the source or destination does not exist; the broker checks the permissions first
_NOT_FOUND = "404 "


def is_gone(
    connection: ConnectionState, channel: Channel, destination: Destination
) -> Generator[Step, Any, bool]:  # Any: as in `Steps`
    """Look up a destination that a client is about to declare; return True if it does not exist.

    The broker deletes an auto-delete or expired object together with its bindings, without notice. The client's frames
    are held from now on.
    """
    # The client's earlier requests may cause the broker to delete the destination.
    yield partial(inject, connection, channel, [])
    sidecar_channel = connection.upstream.sidecar_channel
    refusal: str | None = yield partial(sidecar_channel.run, [look_for(sidecar_channel.number or 0, destination)])
    return refusal is not None and refusal.startswith(_NOT_FOUND)


def row_frames(
    make: Callable[[int, Destination, bytes, bytes, bytes], bytes],
    number: int,
    owned: OwnedExchange,
    destination: Destination,
    tokens: Tokens,
    row: bytes = PLAIN,
) -> list[bytes]:
    """Build the methods that bind or unbind a row on a channel: one per token, with the token as the routing key."""
    entries = pin_entries(row)
    return [make(number, destination, owned.carrier, key, entries) for key in tokens.of(*destination)]


def removal_frames(
    number: int, owned: OwnedExchange, destination: Destination, tokens: Tokens, rows: Iterable[bytes]
) -> list[bytes]:
    """Build the methods that unbind rows, and also pins with former tokens, which would keep the exchange in use."""
    frames = [frame for row in rows for frame in row_frames(unbind, number, owned, destination, tokens, row)]
    for row in owned.tokens.former_pins(destination):
        entries = pin_entries(row)
        frames += [unbind(number, destination, owned.carrier, key, entries) for key in tokens.former(*destination)]
    return frames


class Pin(NamedTuple):
    """A pin that is being bound (see `relay.token_table`)."""

    owned: OwnedExchange
    #: the destination whose tokens are the routing keys of this pin
    destination: Destination
    row: bytes
    #: pins that are unbound once this pin is bound
    replaced: tuple[bytes, ...]
    #: time at which the bind was sent
    sent_at: float
    #: the tokens that are the routing keys of this pin
    tokens: Tokens

    def frames(self, number: int) -> list[bytes]:
        """Build the methods that bind this pin on a channel and then unbind the pins that it replaces."""
        frames = row_frames(bind, number, self.owned, self.destination, self.tokens, self.row)
        for row in self.replaced:
            frames += row_frames(unbind, number, self.owned, self.destination, self.tokens, row)
        return frames


def new_pin(connection: ConnectionState, owned: OwnedExchange, destination: Destination) -> Pin:
    """Return a new row on which clients' bindings can rely: a pin or, if there are no other sidecars, the plain row."""
    state = connection.plans.state
    table = (state.now(owned) or owned).tokens
    row = state.next_pin(connection.plans.sources.wall()) if table.shared else PLAIN
    replaced, sent_at = table.superseded(destination), connection.traffic.now
    return Pin(owned, destination, row, replaced, sent_at, state.tokens_of(owned))


def note_pin(state: VhostState, pin: Pin, binder: object | None) -> None:
    """Record that the broker has created a pin, and removed the earlier pins that this pin replaces."""
    owned = state.now(pin.owned) or pin.owned
    owned.tokens.asserted(pin.destination, pin.row, pin.sent_at, binder, pin.replaced)
    check_tokens(state, owned, pin.destination, pin.tokens)


def check_tokens(state: VhostState, owned: OwnedExchange, destination: Destination, tokens: Tokens) -> None:
    """If the carrier's tokens have changed in the meantime, record that the new row does not route messages."""
    if not tokens.lead_to(state.tokens_of(owned)):
        owned.tokens.not_bound(destination)


def tokens_of(state: VhostState, queue: bytes) -> list[tuple[OwnedExchange, Destination]]:
    """Return (exchange, destination) for each carrier on which a queue needs its tokens."""
    destination = (QUEUE, queue)
    return [(owned, destination) for owned in state.carried() if state.router.names(owned.name, destination)]


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
    wanted = [place for queue in sorted(queues) for place in tokens_of(connection.plans.state, queue)]
    return [(owned, destination) for owned, destination in wanted if destination not in owned.bound]


def bind_tokens(
    connection: ConnectionState, wanted: Sequence[tuple[OwnedExchange, Destination]], done: Callable[[], None]
) -> None:
    """Bind tokens on the sidecar channel of the connection; a refused destination is recorded as missing."""
    if not wanted:
        done()
        return
    waiting = len(wanted)
    state, channel = connection.plans.state, connection.upstream.sidecar_channel

    def answered(text: str | None, owned: OwnedExchange, destination: Destination) -> None:
        nonlocal waiting
        waiting -= 1
        if text is None:
            owned.tokens.bind_ok(destination)
            state.not_missing(destination)
            state.changed()
        else:
            state.set_missing(destination, text)
        if not waiting:
            done()

    for owned, destination in wanted:
        current, *others = row_frames(bind, channel.number or 0, owned, destination, state.tokens_of(owned))
        if others:
            channel.run(others, _unheeded)
        # The bind with the current token is sent last, so that it is answered last.
        channel.run([current], partial(answered, owned=owned, destination=destination))


def _unheeded(text: str | None) -> None:
    """Ignore the reply, since only the reply for the destination's current token counts."""


def check_permission(connection: ConnectionState, check: PermissionCheck, done: Callable[[], None]) -> None:
    """Check, on a client's connection, whether the client is permitted to bind a destination, and record the result."""
    if not can_exist(check.destination[1]):  # the broker would close the client's connection
        check.reach.refuse(check.destination, "no queue or exchange can have this name")
        done()
    elif connection.lifecycle.phase is Phase.OPEN:
        run_steps(_check_permission(connection, check, done))
    else:
        done()


def _check_permission(connection: ConnectionState, check: PermissionCheck, done: Callable[[], None]) -> Steps:
    owned, reach, destination = check
    state, channel = connection.plans.state, connection.upstream.sidecar_channel
    number, key = channel.number or 0, grant_key(reach.client, *destination)
    refusal: str | None = None
    if owned.delivery is Delivery.QUEUE:
        # Usually there is nothing to unbind, but the broker checks the same permissions as for a bind.
        refusal = yield partial(channel.run, [unbind(number, destination, owned.name, key)])
        if refusal is not None and refusal.startswith(_NOT_FOUND):
            refusal = None
    else:
        if state.has_token(destination):
            pin = new_pin(connection, owned, destination)
            current, *others = pin.frames(number)
            refusal = yield partial(channel.run, [current])
            if refusal is None:
                note_pin(state, pin, None)
                if state.not_missing(destination):
                    state.changed()
                if others:
                    channel.run(others, _unheeded)
        if refusal is None:
            refusal = yield partial(channel.run, [bind(number, destination, owned.carrier, key)])
    if refusal is None:
        reach.refused.pop(destination, None)
        reach.allowed.add(destination)
        owned.grants[key] = destination
    else:
        reach.refuse(destination, refusal)
    done()


def withdraw(
    connection: ConnectionState,
    owned: OwnedExchange,
    tokens: Iterable[Destination],
    grants: Iterable[bytes],
    done: Callable[[], None],
    *,
    plain: bool = False,
) -> None:
    """Unbind tokens (with `plain`, also plain rows) and grants; the control plane retries refused unbinds."""
    state, channel = connection.plans.state, connection.upstream.sidecar_channel
    number = channel.number or 0
    table, destinations = owned.tokens, list(tokens)
    frames = []
    for destination in destinations:
        rows = {*table.removable(destination), PLAIN} if plain or not table.shared else {*table.superseded(destination)}
        frames += removal_frames(number, owned, destination, state.tokens_of(owned), sorted(rows))
        if rows:
            table.unbinding(destination)
    frames += [unbind(number, owned.grants.pop(key), owned.carrier, key) for key in grants]
    if owned.delivery is Delivery.QUEUE or not frames:
        done()
        return

    def answered(text: str | None) -> None:
        for destination in destinations:
            table.unbound(destination)
        if destinations:
            state.changed()
        done()

    channel.run(frames, answered)
