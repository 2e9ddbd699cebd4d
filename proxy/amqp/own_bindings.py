"""How are tokens bound with a producer's own rights? On the channel of ours on its connection.

An exclusive queue can be bound by its owner's connection only, and what a client's rules or messages choose must
not be bound with the control user's rights. A refusal means "missing, with that reason", never an error to the
producer.

Source: delivery notes, "Tokens and bindings"; RabbitMQ guide "Access control".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from proxy.amqp import methods
from proxy.amqp.conversation import Conversation
from proxy.amqp.method_frames import exchange_bind, exchange_unbind, queue_bind, queue_unbind
from proxy.amqp.tokens import token
from proxy.amqp.vhost import Destination, OwnedExchange


def bind_frame(channel: int, carrier: bytes, destination: Destination) -> bytes:
    """Build the method that binds a destination to a carrier under its token."""
    kind, name = destination
    make = queue_bind if kind == "queue" else exchange_bind
    return make(channel, name, carrier, token(kind, name))


def bind_step(channel: int, carrier: bytes, destination: Destination) -> tuple[bytes, int]:
    """Build the method that binds a token, and say what answers it."""
    reply = methods.QUEUE_BIND_OK if destination[0] == "queue" else methods.EXCHANGE_BIND_OK
    return bind_frame(channel, carrier, destination), reply


def unbind_step(channel: int, carrier: bytes, destination: Destination) -> tuple[bytes, int]:
    """Build the method that unbinds a token, and say what answers it."""
    kind, name = destination
    if kind == "queue":
        return queue_unbind(channel, name, carrier, token(kind, name)), methods.QUEUE_UNBIND_OK
    return exchange_unbind(channel, name, carrier, token(kind, name)), methods.EXCHANGE_UNBIND_OK


def bind_tokens(
    conversation: Conversation,
    wanted: Sequence[tuple[OwnedExchange, Destination]],
    done: Callable[[], None],
    refused: dict[Destination, str],
) -> None:
    """Bind tokens on the connection's own channel, one after another.

    Args:
        conversation: the connection.
        wanted: (carrier's exchange, destination) of each token; not empty.
        done: called when all are bound or refused.
        refused: gets the reason for each destination that was refused.
    """
    waiting = len(wanted)
    state = conversation.state

    def answered(text: str | None, owned: OwnedExchange, destination: Destination) -> None:
        nonlocal waiting
        waiting -= 1
        if text is None:
            owned.bound.add(destination)
            state.missing.pop(destination, None)
            state.changed()
        else:
            refused[destination] = text
        if not waiting:
            done()

    for owned, destination in wanted:
        frame = bind_frame(conversation.own.number or 0, owned.carrier, destination)
        conversation.own.run(frame, partial(answered, owned=owned, destination=destination))
