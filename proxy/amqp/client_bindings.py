"""What does it mean when a client binds to, or unbinds from, an exchange that is evaluated here?

The binding is checked as the plugin would, then made on the carrier on the client's own channel: once under its storage
key, where the broker keeps it, and once under the destination's token, where messages find it. What a rules file
owns is not the client's to change.

Source: architecture, "The broker is the store"; delivery notes, "Tokens and bindings"; the open-exchange
specification, 11 and 13.
"""

from __future__ import annotations

from typing import NamedTuple

from proxy.amqp import methods, script
from proxy.amqp.channel import Channel, Expected
from proxy.amqp.conversation import Conversation
from proxy.amqp.method_arguments import (
    read_exchange_bind,
    read_queue_bind,
    read_queue_unbind,
)
from proxy.amqp.method_frames import empty_ok, exchange_bind, exchange_unbind, queue_bind, queue_unbind
from proxy.amqp.methods import method_frame
from proxy.amqp.own_bindings import bind_step, unbind_step
from proxy.amqp.stored import kept_arguments, storage_key
from proxy.amqp.tables import decode_table
from proxy.amqp.vhost import Delivery, Destination, OwnedExchange, StoredBinding
from proxy.errors import ProtocolError, Scope
from proxy.routing.bindings import EXCHANGE, QUEUE, Binding
from proxy.routing.exchange_types import compile_binding


class _Asked(NamedTuple):
    """A bind or unbind, of a queue or an exchange."""

    kind: str
    destination: bytes
    source: bytes
    routing_key: bytes
    nowait: bool
    entries: bytes
    reply: int
    ids: tuple[int, int]


class ClientBindings:
    """Takes binds and unbinds of one connection.

    Args:
        conversation: what both directions share.
    """

    def __init__(self, conversation: Conversation) -> None:
        """Start with nothing bound."""
        self._conversation = conversation
        self._state = conversation.state

    def bind(self, channel: Channel, index: int, frame: bytes) -> bool:
        """Take queue.bind or exchange.bind; answer whether it goes upstream as it came.

        Raises:
            ProtocolError: 406 and 403 on the channel, 540 on the connection.
        """
        asked = self._read(channel, index, frame)
        owned = self._owned(asked)
        if owned is None:
            self._refuse_real_source(asked)
            return _pass(channel, asked)
        binding = self._binding(asked, owned)
        try:
            compiled = compile_binding(owned.type, binding, self._conversation.plans.rules.local_time)
        except ProtocolError as error:
            raise ProtocolError(error.reply_code, error.text, Scope.CHANNEL, *asked.ids) from error
        known = owned.clients.get(binding.identity)
        in_file = known is None and self._state.router.exchanges[owned.name].has(binding)
        stored = known or StoredBinding(binding, asked.entries, _key(asked), (binding.sequence,))
        destination: Destination = (asked.kind, asked.destination)
        evaluated = asked.kind == EXCHANGE and asked.destination in self._state.exchanges
        tokens = [] if evaluated else [destination]
        if self._conversation.plans.rules.own_routes:
            tokens += self._others(compiled.destinations - {destination})

        def done() -> bytes:
            if self._state.exchanges.get(owned.name) is not owned:
                return _answer(channel, asked)
            if owned.delivery is Delivery.CARRIER:
                owned.bound.update(tokens)
                for one in tokens:
                    self._state.missing.pop(one, None)
            if not in_file and self._state.add_binding(stored):
                self._conversation.inventory.changed(owned.name)
            return _answer(channel, asked)

        steps = self._bind_steps(channel, owned, stored, tokens, keep=not in_file)
        script.run(self._conversation, channel, steps, done)
        return False

    def unbind(self, channel: Channel, index: int, frame: bytes) -> bool:
        """Take queue.unbind or exchange.unbind; answer whether it goes upstream as it came.

        Raises:
            ProtocolError: 403 and 406 on the channel.
        """
        asked = self._read(channel, index, frame)
        owned = self._owned(asked)
        if owned is None:
            return _pass(channel, asked)
        binding = self._binding(asked, owned)
        stored = owned.clients.get(binding.identity)
        if stored is None:
            self._refuse_unknown(asked, owned, binding)
            # Nothing is removed, but the broker is asked: it checks permissions and that source and destination exist.
            stored = StoredBinding(binding, asked.entries, _key(asked), (0,))
        unneeded = self._unneeded(owned, stored)
        steps = self._unbind_steps(channel, owned, stored, unneeded)

        def done() -> bytes:
            owned.bound.difference_update(unneeded)
            if binding.identity in owned.clients:
                self._state.remove_binding(stored)
                self._conversation.inventory.changed(owned.name)
                if owned.declared is not None and owned.declared.auto_delete and not owned.clients:
                    self._state.remove_exchange(owned.name)  # the broker has dropped it with its last binding
            return _answer(channel, asked)

        script.run(self._conversation, channel, steps, done)
        return False

    def _read(self, channel: Channel, index: int, frame: bytes) -> _Asked:
        payload = frame[7:-1]
        ids = (index >> 16, index & 0xFFFF)
        if index in (methods.EXCHANGE_BIND, methods.EXCHANGE_UNBIND):
            name, source, key, nowait, entries = read_exchange_bind(payload)
            reply = methods.EXCHANGE_BIND_OK if index == methods.EXCHANGE_BIND else methods.EXCHANGE_UNBIND_OK
            return _Asked(EXCHANGE, name, source, key, nowait, entries, reply, ids)
        read = read_queue_bind if index == methods.QUEUE_BIND else read_queue_unbind
        name, source, key, nowait, entries = read(payload)
        if not name:  # the queue declared last on the channel, and its name for an empty key (RabbitMQ does so)
            name = channel.last_queue
            key = key or channel.last_queue
        reply = methods.QUEUE_BIND_OK if index == methods.QUEUE_BIND else methods.QUEUE_UNBIND_OK
        return _Asked(QUEUE, name, source, key, nowait, entries, reply, ids)

    def _owned(self, asked: _Asked) -> OwnedExchange | None:
        """The source, where binding to it is ours to judge: not what stays the broker's own beside it."""
        owned = self._state.exchanges.get(asked.source)
        return None if owned is None or owned.unmatched_pass else owned

    def _refuse_real_source(self, asked: _Asked) -> None:
        owned = self._state.exchanges.get(asked.destination) if asked.kind == EXCHANGE else None
        if owned is not None and (owned.declared is not None or owned.carrier == owned.name):
            text = (
                f"exchange '{_text(asked.destination)}' is evaluated by the proxy; the broker alone would route from "
                f"'{_text(asked.source)}' to it"
            )
            raise ProtocolError(540, text, Scope.CONNECTION, *asked.ids)

    def _binding(self, asked: _Asked, owned: OwnedExchange) -> Binding:
        table = decode_table(asked.entries, 0, len(asked.entries))
        sequence = self._conversation.next_sequence()
        return Binding(owned.name, asked.kind, asked.destination, asked.routing_key, table, "", sequence)

    def _others(self, named: frozenset[Destination]) -> list[Destination]:
        """Destinations beside the main one that exist: bound with this client's rights, now, or not at all."""
        state = self._state
        return sorted(
            one for one in named if one[1] not in state.exchanges and (one[0] == EXCHANGE or state.has_queue(one[1]))
        )

    def _bind_steps(
        self, channel: Channel, owned: OwnedExchange, stored: StoredBinding, tokens: list[Destination], *, keep: bool
    ) -> list[script.Step]:
        number = channel.number
        name = stored.binding.destination
        queue = stored.binding.destination_type == QUEUE
        if owned.delivery is Delivery.QUEUE:
            return [(_find_queue(number, name), methods.QUEUE_DECLARE_OK)] if queue else []
        steps: list[script.Step] = []
        if keep:
            kept = kept_arguments(stored.sequences[0], stored.entries, stored.binding.routing_key)
            make = queue_bind if queue else exchange_bind
            reply = methods.QUEUE_BIND_OK if queue else methods.EXCHANGE_BIND_OK
            steps.append((make(number, name, owned.carrier, stored.key, kept), reply))
        return steps + [bind_step(number, owned.carrier, one) for one in tokens]

    def _unbind_steps(
        self, channel: Channel, owned: OwnedExchange, stored: StoredBinding, unneeded: list[Destination]
    ) -> list[script.Step]:
        if owned.delivery is Delivery.QUEUE:
            return []
        number = channel.number
        name = stored.binding.destination
        queue = stored.binding.destination_type == QUEUE
        make = queue_unbind if queue else exchange_unbind
        reply = methods.QUEUE_UNBIND_OK if queue else methods.EXCHANGE_UNBIND_OK
        steps: list[script.Step] = []
        for sequence in stored.sequences:
            kept = kept_arguments(sequence, stored.entries, stored.binding.routing_key)
            steps.append((make(number, name, owned.carrier, stored.key, kept), reply))
        # The token counts as use: it goes with the last binding that needs it, tokens first, since an auto-delete
        # exchange goes with its last binding.
        return [unbind_step(number, owned.carrier, one) for one in unneeded] + steps

    def _unneeded(self, owned: OwnedExchange, stored: StoredBinding) -> list[Destination]:
        """The destination of a binding that goes, where its token stands and nothing else leads there."""
        binding = stored.binding
        destination = (binding.destination_type, binding.destination)
        if destination not in owned.bound:
            return []
        router = self._state.router
        exchange = router.exchanges[owned.name]
        uses = exchange.uses(destination) - (binding.identity in owned.clients)
        nested = any(destination in router.destinations(one) for one in exchange.next_names if one in router.exchanges)
        return [] if uses > 0 or nested else [destination]

    def _refuse_unknown(self, asked: _Asked, owned: OwnedExchange, binding: Binding) -> None:
        exchange = self._state.router.exchanges[owned.name]
        if exchange.has(binding):
            text = f"the binding to '{_text(asked.destination)}' belongs to a rules file of the proxy"
            raise ProtocolError(403, text, Scope.CHANNEL, *asked.ids)
        strict = self._conversation.plans.rules.strict_unbind
        if strict and exchange.binds(asked.kind, asked.destination, asked.routing_key):
            raise ProtocolError(406, "binding arguments do not match", Scope.CHANNEL, *asked.ids)


def _find_queue(channel: int, queue: bytes) -> bytes:
    """Build a passive declare: 404 where there is no such queue, nothing else."""
    return method_frame(channel, methods.QUEUE_DECLARE, 0, queue, True, False, False, False, False, b"")


def _key(asked: _Asked) -> bytes:
    return storage_key(asked.kind, asked.destination, asked.routing_key, asked.entries)


def _pass(channel: Channel, asked: _Asked) -> bool:
    if not asked.nowait:
        channel.replies.append(Expected(asked.reply))
    return True


def _answer(channel: Channel, asked: _Asked) -> bytes:
    return b"" if asked.nowait else empty_ok(channel.number, asked.reply)


def _text(name: bytes) -> str:
    return name.decode(errors="replace")
