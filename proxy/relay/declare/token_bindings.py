"""Binds destination tokens and checks a client's permissions on the sidecar channel of its connection.

An exclusive queue can be bound by its owner's connection only, and what a client's rules or messages choose must not
be reached with the control user's rights: whether the client could have bound it is checked here, and the answer is
kept on the carrier as a binding under a grant key. A refusal means "missing, with that reason", never an error to the
producer.

Source: delivery notes, "Tokens and bindings"; RabbitMQ guide "Access control".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from proxy.amqp.method_frames import bind, unbind
from proxy.relay.connection_state import ConnectionState
from proxy.relay.declare.storage import pin_entries
from proxy.relay.token_table import PLAIN
from proxy.relay.tokens import grant_key
from proxy.relay.vhost import Delivery, Destination, OwnedExchange, VhostState
from proxy.routing.bindings.binding import Reach

#: how a refusal begins where source or destination does not exist: the permissions were looked at before
_NOT_FOUND = "404 "


def tokens_of(state: VhostState, queue: bytes) -> list[tuple[OwnedExchange, Destination]]:
    """Give (carrier's exchange, destination) of each token that a queue is to have."""
    destination = ("queue", queue)
    return [(owned, destination) for owned in state.carried() if state.router.names(owned.name, destination)]


def bind_tokens(
    connection: ConnectionState,
    wanted: Sequence[tuple[OwnedExchange, Destination]],
    done: Callable[[], None],
    refused: Callable[[Destination, str], None],
) -> None:
    """Bind tokens on the connection's own channel, one after another."""
    waiting = len(wanted)
    state = connection.plans.state

    def answered(text: str | None, owned: OwnedExchange, destination: Destination) -> None:
        nonlocal waiting
        waiting -= 1
        if text is None:
            owned.tokens.bind_ok(destination)
            state.not_missing(destination)
            state.changed()
        else:
            refused(destination, text)
        if not waiting:
            done()

    number = connection.upstream.sidecar_channel.number or 0
    for owned, destination in wanted:
        current, *others = state.tokens.of(*destination)
        for key in others:
            connection.upstream.sidecar_channel.run(bind(number, destination, owned.carrier, key), _unheeded)
        # Last: when it is answered all are.
        frame = bind(number, destination, owned.carrier, current)
        connection.upstream.sidecar_channel.run(frame, partial(answered, owned=owned, destination=destination))


def run_steps(
    connection: ConnectionState, frames: Callable[[int], list[bytes]], done: Callable[[str | None], None]
) -> None:
    """Run methods on the connection's own channel; `done` gets the first refusal, None where there is none."""
    steps = frames(connection.upstream.sidecar_channel.number or 0)
    refusals: list[str] = []

    def answered(text: str | None, last: bool) -> None:
        if text is not None:
            refusals.append(text)
        if last:
            done(refusals[0] if refusals else None)

    for number, frame in enumerate(steps, 1):
        connection.upstream.sidecar_channel.run(frame, partial(answered, last=number == len(steps)))


def _unheeded(text: str | None) -> None:
    """Of a destination's tokens the current one's answer counts."""


def check_permission(
    connection: ConnectionState,
    owned: OwnedExchange,
    reach: Reach,
    destination: Destination,
    done: Callable[[], None],
) -> None:
    """Ask whether a client may bind a destination, on a connection of that client, and note the answer in its reach."""
    key = grant_key(reach.client, *destination)

    def witnessed(text: str | None) -> None:
        if text is None or (owned.delivery is Delivery.QUEUE and text.startswith(_NOT_FOUND)):
            reach.refused.pop(destination, None)
            reach.allowed.add(destination)
            owned.grants[key] = destination
        else:
            reach.refused[destination] = text
        done()

    def bound(text: str | None) -> None:
        if text is not None:
            witnessed(text)
            return
        owned.tokens.asserted(destination, pin, sent_at, None, replaced)
        if connection.plans.state.not_missing(destination):
            connection.plans.state.changed()
        others_replaced = [(bind, key, pin) for key in others] + [
            (unbind, key, row) for row in replaced for key in keys
        ]
        for make, under, row in others_replaced:
            run(make(number, destination, owned.carrier, under, pin_entries(row)), _unheeded)
        run(bind(number, destination, owned.carrier, key), witnessed)

    keys = connection.plans.state.tokens.of(*destination)
    current, *others = keys
    run = connection.upstream.sidecar_channel.run
    number = connection.upstream.sidecar_channel.number or 0
    if owned.delivery is Delivery.QUEUE:
        # Nothing is there to unbind from, or nothing under this key: but the permissions are the same.
        run(unbind(number, destination, owned.name, key), witnessed)
    elif destination[0] == "exchange" and destination[1] in connection.plans.state.exchanges:
        run(bind(number, destination, owned.carrier, key), witnessed)
    else:
        pin, replaced = connection.next_pin(owned.tokens), owned.tokens.superseded(destination)
        sent_at = connection.traffic.now
        run(bind(number, destination, owned.carrier, current, pin_entries(pin)), bound)


def withdraw(
    connection: ConnectionState,
    owned: OwnedExchange,
    tokens: Iterable[Destination],
    grants: Iterable[bytes],
    done: Callable[[], None],
    *,
    plain: bool = False,
) -> None:
    """Unbind tokens and grants that nothing needs any more; a refusal leaves them to the control plane.

    With `plain` what the control plane has bound goes as well.
    """
    number = connection.upstream.sidecar_channel.number or 0
    table, gone = owned.tokens, list(tokens)
    frames = []
    for destination in gone:
        rows = {*table.removable(destination), PLAIN} if plain or not table.shared else {*table.superseded(destination)}
        if not rows:
            continue
        table.unbinding(destination)
        frames += [
            unbind(number, destination, owned.carrier, key, pin_entries(row))
            for row in sorted(rows)
            for key in connection.plans.state.tokens.of(*destination)
        ]
    for key in grants:
        destination = owned.grants.pop(key)
        frames.append(unbind(number, destination, owned.carrier, key))
    if owned.delivery is Delivery.QUEUE or not frames:
        done()
        return

    def answered(text: str | None) -> None:
        for destination in gone:
            table.unbound(destination)
        if gone:
            connection.plans.state.changed()
        done()

    for frame in frames[:-1]:
        connection.upstream.sidecar_channel.run(frame, _unheeded)
    connection.upstream.sidecar_channel.run(frames[-1], answered)
