"""Handles clients' binds and unbinds whose source is an exchange that is evaluated here.

A binding is checked as the open-exchange plugin would check it. It is then created on the carrier, on the client's own
channel, so that the broker stores it and checks the client's permissions. The frames of one bind are, in this order:

1. the token rows of the destinations that its routes name;
2. the storage row, which stores the binding (`relay.declare.storage`);
3. the token row of its destination, through which messages reach the destination.

All rows are always sent, whatever is known about the broker: an existing row stays as it is, and the last reply shows
that the broker has all of them. The storage row precedes the token row because a queue may be deleted and declared
again between the two; in this order, the binding is then stored only if its token row is bound too or will be bound by
a pass of the control plane (tests/relay/model). Token rows are never removed here. Pipelined binds form a batch: the
token rows of their destinations are sent once, after the last storage row of the batch, and the last reply answers all
binds.

An unbind removes the storage rows of the binding, and nothing else. Clients can't change bindings from rules files.

Source: docs/explanation/declarations.md; the open-exchange specification, 7, 11 and 13; AMQP 0-9-1 spec, 1.7.2.3 and
1.7.2.5; RabbitMQ guides "Exchange to exchange bindings" and "Queues" (an empty name means the last declared queue).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias

from oxproxy.amqp import methods
from oxproxy.amqp.method_frames import ExchangeBind, QueueBind, QueueUnbind, bind, read_request, unbind
from oxproxy.amqp.tables import decode_table
from oxproxy.errors import ProtocolError, Scope
from oxproxy.relay.channel import Channel
from oxproxy.relay.channel_state import DECLARING, ChannelEvent
from oxproxy.relay.connection_state import ConnectionState
from oxproxy.relay.declare.injected_methods import (
    Steps,
    answer,
    expect,
    inject,
    look_up,
    nothing,
    pass_on,
    refuse_in_order,
    refuse_unknown,
    reply_and_resume,
    run_steps,
)
from oxproxy.relay.declare.storage import identity_key, refuse_nested, refuse_own_arguments, signed_copy, stored_rows
from oxproxy.relay.declare.token_bindings import bind_tokens, end_exchange, own_tokens, tokens_to_bind
from oxproxy.relay.vhost import BindingCopy, ClientRoutes, Delivery, OwnedExchange, StoredBinding
from oxproxy.routing.bindings.binding import Binding
from oxproxy.routing.bindings.compiled import CompiledBinding
from oxproxy.values import EXCHANGE, QUEUE, Destination, can_exist, counted, describe, reserved_prefix, shown

#: An exchange to look up; if there is a destination, the exchange's bindings to it are looked up instead.
Unknown: TypeAlias = tuple[bytes, Destination | None]


class BindRequest(NamedTuple):
    """A bind or unbind, of a queue or an exchange."""

    #: kind of the destination: ``queue`` or ``exchange``
    kind: str
    destination: bytes
    #: the exchange from which messages are routed
    source: bytes
    #: the routing key as sent; the name of the last declared queue if both the key and the queue name are empty
    routing_key: bytes
    #: whether the client expects no reply
    nowait: bool
    #: raw entries of the argument table
    entries: bytes
    #: class id << 16 | method id
    method: int

    @property
    def receiver(self) -> Destination:
        return self.kind, self.destination


def read_bind_request(channel: Channel, frame: bytes) -> BindRequest:
    payload = frame[7:-1]
    index = methods.method_of(payload)
    if index in (methods.EXCHANGE_BIND, methods.EXCHANGE_UNBIND):
        return BindRequest(EXCHANGE, *read_request(ExchangeBind, payload), index)
    if index == methods.QUEUE_BIND:
        name, source, key, nowait, entries = read_request(QueueBind, payload)
    else:
        (name, source, key, entries), nowait = read_request(QueueUnbind, payload), False
    if not name:  # as in RabbitMQ, this is the last declared queue, whose name also replaces an empty key
        name = channel.last_queue
        key = key or channel.last_queue
    return BindRequest(QUEUE, name, source, key, nowait, entries, index)


@dataclass(slots=True, eq=False)
class _Bind:
    """A checked bind whose rows are being sent."""

    request: BindRequest
    owned: OwnedExchange
    #: the binding in the form used for routing
    compiled: CompiledBinding
    #: the stored binding; None if a rules file contains the same binding
    stored: StoredBinding | None
    #: destinations that the binding's routes name, and whose token rows are sent first
    routes: tuple[Destination, ...]
    #: number of regular expressions in the binding; 0 if the binding is known, so that they are already counted
    regexes: int = 0

    @property
    def identity(self) -> Hashable:
        return self.compiled.binding.identity


@dataclass(slots=True, eq=False)
class _Batch:
    """The pipelined binds of one channel whose destinations' token rows have not been sent yet."""

    channel: Channel
    binds: list[_Bind] = field(default_factory=list)
    #: the tokens that were sent for destinations of exchanges
    tokens: dict[tuple[OwnedExchange, Destination], tuple[bytes, ...]] = field(default_factory=dict)
    #: whether the binds can be answered as soon as the earlier batches of the channel have been answered
    done: bool = False


class ClientBindings:
    """Handles binds and unbinds on one connection."""

    def __init__(self, connection: ConnectionState) -> None:
        self._connection = connection
        self._state = connection.plans.state
        #: the batches to which further binds can be added, by channel number
        self._batches: dict[int, _Batch] = {}
        #: the batches of each channel that have not been answered, in order
        self._unanswered: dict[Channel, list[_Batch]] = {}
        #: the unanswered new bindings, so that a bind that is repeated in the meantime stores the same row
        self._coming: dict[Hashable, StoredBinding] = {}

    # -- bind --------------------------------------------------------------------------------------------------

    def bind(self, channel: Channel, frame: bytes) -> bool:
        """Handle queue.bind or exchange.bind; return whether to forward it unchanged."""
        request = self._read(channel, frame)
        unknown = self._unknown(request)
        if not unknown:
            return self._bind(channel, request)
        run_steps(self._look_up_first(channel, frame, request, unknown, self._bind))
        return False

    def _bind(self, channel: Channel, request: BindRequest) -> bool:
        owned = self._owned(request)
        if owned is None:
            refusal = self._real_source_refusal(request)
            if refusal is None:
                return pass_on(channel, request.method, request.nowait)
            inject(self._connection, channel, [], partial(self._connection.fail, refusal))
            return False
        self._send(channel, self._planned(request, owned))
        return False

    def bind_while_held(self, channel: Channel, frame: bytes) -> bool:
        """Handle a bind while earlier binds are unanswered; return False if it has to wait for their replies."""
        if methods.method_in(frame) not in (methods.QUEUE_BIND, methods.EXCHANGE_BIND):
            return False
        try:
            request = self._read(channel, frame)
            owned = None if self._unknown(request) else self._owned(request)
            if owned is None:
                return False
            planned = self._planned(request, owned)
        except ProtocolError:
            return False  # the bind waits, and is refused later, when it is processed
        self._send(channel, planned)
        return True

    def _read(self, channel: Channel, frame: bytes) -> BindRequest:
        """Read a bind. Refuse arguments that are nested too deeply (406), and reserved arguments and keys (403)."""
        request = read_bind_request(channel, frame)
        refuse_nested(request.entries, f"binding to {request.kind}", request.destination, self._state.name)
        refuse_own_arguments(request.entries)
        prefix = reserved_prefix(request.routing_key)
        if prefix:
            key = shown(request.routing_key)
            text = f"routing key '{key}' begins with '{shown(prefix)}', which is reserved for the proxy"
            raise ProtocolError(403, text, Scope.CHANNEL)
        return request

    def _planned(self, request: BindRequest, owned: OwnedExchange) -> _Bind:
        """Check a bind.

        Raises:
            ProtocolError: the binding is not valid or not permitted.
        """
        state = self._state
        binding = self._binding(request, owned)
        exchange = state.router.exchanges[owned.name]
        compiled = exchange.compile(binding)
        self._refuse_unkept(request, owned)
        known = self._coming.get(binding.identity) or owned.clients.get(binding.identity)
        if known is None and exchange.has(binding):
            return _Bind(request, owned, compiled, None, ())
        routes = self._routes(request, compiled)
        regexes = 0
        copy = None if known is None else next((copy for copy in known.copies if copy.secret == 0), None)
        if copy is None:
            # The binding is new, or no copy is signed with the current secret.
            if known is None or not known.signed:
                regexes = compiled.regexes
                self._refuse_many_regexes(regexes)
            copy = signed_copy(state, owned.carrier, binding, request.entries, self._connection.terms.user)
        key = identity_key(binding.identity, one_word=owned.is_topic)
        return _Bind(request, owned, compiled, StoredBinding(binding, key, (copy,)), routes, regexes)

    def _routes(self, request: BindRequest, compiled: CompiledBinding) -> tuple[Destination, ...]:
        """Return the destinations that the routes of a binding name, and which the broker has to check.

        Raises:
            ProtocolError: the routes are not permitted (403), or no destination can have this name (404).
        """
        if self._state.client_routes is ClientRoutes.ANY:
            return ()  # the control user binds these destinations when messages choose them
        if compiled.chooses:
            text = (
                "a binding whose destinations are chosen by message or by a pattern needs declared.client_routes: any "
                "in the configuration of the proxy, or a rules file"
            )
            raise ProtocolError(403, text, Scope.CHANNEL)
        routes = sorted(compiled.destinations - {request.receiver})
        for destination in routes:
            if not can_exist(destination[1]):  # the broker would close the connection
                text = f"no {describe(destination)} in vhost '{self._state.name}'"
                raise ProtocolError(404, text, Scope.CHANNEL)
        return tuple(routes)

    def _send(self, channel: Channel, planned: _Bind) -> None:
        """Send the first rows of a bind; the token row of its destination is sent at the end of the batch."""
        connection, owned, request, stored = self._connection, planned.owned, planned.request, planned.stored
        batch = self._batches.get(channel.number)
        if batch is None or batch.channel is not channel:
            batch = self._batches[channel.number] = _Batch(channel)
            connection.change(channel, ChannelEvent.DECLARE)
            channel.held.batches += 1
            self._unanswered.setdefault(channel, []).append(batch)
            connection.pending.at_end.append(partial(self._finish, batch))
        batch.binds.append(planned)
        rows = [row for destination in planned.routes for row in self._token_rows(batch, owned, destination)]
        if stored is not None:
            rows += [bind(channel.number, request.receiver, owned.carrier, *row) for row in stored_rows(stored)]
            self._coming[planned.identity] = stored
            self._state.coming_regexes[connection.terms.user] += planned.regexes
        expect(connection, channel, rows)

    def _token_rows(self, batch: _Batch, owned: OwnedExchange, destination: Destination) -> list[bytes]:
        tokens = tokens_to_bind(self._connection, owned, destination)
        batch.tokens[owned, destination] = tokens
        return [bind(batch.channel.number, destination, owned.carrier, token) for token in tokens]

    def _finish(self, batch: _Batch) -> None:
        """Send the token rows of the destinations in a batch. The last reply answers the binds."""
        channel = batch.channel
        del self._batches[channel.number]
        places = dict.fromkeys(
            (planned.owned, planned.request.receiver)
            for planned in batch.binds
            if self._state.has_token(planned.request.receiver)
        )
        rows = [row for owned, destination in places for row in self._token_rows(batch, owned, destination)]
        done, dropped = partial(run_steps, self._bound(batch)), partial(self._dropped, batch)
        expect(self._connection, channel, rows or [nothing(channel)], done, dropped)

    def _dropped(self, batch: _Batch) -> None:
        """Forget binds on a channel that was closed before the last reply. Rows that exist are found by listings."""
        self._forget(batch)
        self._remove_batch(batch)
        for name in {planned.owned.name for planned in batch.binds}:
            self._connection.terms.inventory.changed(name)

    def _forget(self, batch: _Batch) -> None:
        user = self._connection.terms.user
        for planned in batch.binds:
            if planned.stored is not None:
                self._coming.pop(planned.identity, None)
                self._state.coming_regexes[user] -= planned.regexes

    def _bound(self, batch: _Batch) -> Steps:
        """Record the bindings of a batch, bind tokens on further carriers, and answer the client."""
        state, channel = self._state, batch.channel
        self._forget(batch)
        changed: set[bytes] = set()
        for planned in batch.binds:
            owned, stored = planned.owned, planned.stored
            if stored is not None and state.has(owned) and state.add_binding(stored, planned.compiled):
                changed.add(owned.name)
        for (owned, destination), tokens in batch.tokens.items():
            if state.has_token(destination) and state.has(owned):
                owned.tokens.bind_ok(destination, tokens)
        further = [place for planned in batch.binds for place in own_tokens(self._connection, planned.compiled.binding)]
        for name in changed:
            self._connection.terms.inventory.changed(name)
        if further:
            yield partial(bind_tokens, self._connection, further)
        batch.done = True
        # An earlier batch may still be waiting for further tokens.
        while self._unanswered.get(channel) and self._unanswered[channel][0].done:
            self._answer(self._unanswered[channel][0])

    def _answer(self, batch: _Batch) -> None:
        channel = batch.channel
        for planned in batch.binds:
            if channel.state is DECLARING and not planned.request.nowait:
                self._connection.send_to_producer(channel, answer(channel, planned.request.method, nowait=False))
        self._remove_batch(batch)
        if not channel.held.batches:
            reply_and_resume(self._connection, channel, b"")

    def _remove_batch(self, batch: _Batch) -> None:
        channel = batch.channel
        channel.held.batches -= 1
        self._unanswered[channel].remove(batch)
        if not self._unanswered[channel]:
            del self._unanswered[channel]

    # -- unbind ------------------------------------------------------------------------------------------------

    def unbind(self, channel: Channel, frame: bytes) -> bool:
        """Handle queue.unbind or exchange.unbind; return whether to forward it unchanged."""
        request = read_bind_request(channel, frame)
        unknown = self._unknown(request)
        if self._may_be_elsewhere(request):
            unknown.append((request.source, request.receiver))
        if not unknown:
            return self._unbind(channel, request)
        run_steps(self._look_up_first(channel, frame, request, unknown, self._unbind))
        return False

    def _unbind(self, channel: Channel, request: BindRequest) -> bool:
        owned = self._owned(request)
        if owned is None:
            return pass_on(channel, request.method, request.nowait)
        self._refuse_unkept(request, owned)
        binding = self._binding(request, owned)
        stored = owned.clients.get(binding.identity)
        if stored is None:
            self._refuse_unknown(request, owned, binding)
            # Nothing is removed, but the broker checks the permissions and whether both source and destination exist.
            key = identity_key(binding.identity, one_word=owned.is_topic)
            stored = StoredBinding(binding, key, (BindingCopy(0, "", request.entries),))
        run_steps(self._remove(channel, request, owned, stored))
        return False

    def _remove(self, channel: Channel, request: BindRequest, owned: OwnedExchange, stored: StoredBinding) -> Steps:
        """Unbind the storage rows of a binding, and end the exchange if it was the last one."""
        known: StoredBinding | None = stored
        unbound: set[tuple[bytes, bytes]] = set()
        while known is not None and (rows := [row for row in stored_rows(known) if row not in unbound]):
            steps = [unbind(channel.number, request.receiver, owned.carrier, *row) for row in rows]
            yield partial(inject, self._connection, channel, steps)
            unbound.update(rows)
            # A listing may have shown further copies, which another sidecar has stored, in the meantime.
            known = owned.clients.get(stored.binding.identity) if self._state.has(owned) else None
        if known is not None:
            self._state.remove_binding(known)
            self._connection.terms.inventory.changed(owned.name)
            if owned.ends:
                yield from end_exchange(self._connection, owned)
        reply_and_resume(self._connection, channel, answer(channel, request.method, request.nowait))

    # -- declarations through other sidecars ---------------------------------------------------------------------

    def _unknown(self, request: BindRequest) -> list[Unknown]:
        """Return the exchanges of a request that may just have been declared through another sidecar."""
        names = [request.source, request.destination] if request.kind == EXCHANGE else [request.source]
        return [(name, None) for name in names if self._state.may_be_open(name)]

    def _may_be_elsewhere(self, request: BindRequest) -> bool:
        """Return True if the binding is unknown here, but may just have been created through another sidecar."""
        owned = self._owned(request)
        if owned is None or owned.delivery is not Delivery.CARRIER or not self._state.shared:
            return False
        binding = self._binding(request, owned)
        return binding.identity not in owned.clients and not self._state.router.exchanges[owned.name].has(binding)

    def _look_up_first(
        self,
        channel: Channel,
        frame: bytes,
        request: BindRequest,
        unknown: Iterable[Unknown],
        handle: Callable[[Channel, BindRequest], bool],
    ) -> Steps:
        """Handle a bind or unbind after looking up the unknown exchanges and bindings.

        If the bind of an open exchange were forwarded, the broker would store a binding that bypasses the rules.
        """
        connection = self._connection
        connection.change(channel, ChannelEvent.DECLARE)
        found: list[tuple[bytes, str | None]] = []
        for name, destination in unknown:
            found.append((name, (yield partial(look_up, connection, name, destination=destination))))
        if channel.state is not DECLARING:
            return
        try:
            for name, exchange_type in found:
                refuse_unknown(name, exchange_type)
            forwards = handle(channel, request)
        except ProtocolError as error:
            error.about(request.method)
            if error.scope is Scope.CONNECTION:
                connection.fail(error)
            else:
                refuse_in_order(connection, channel, error)
            return
        if forwards:
            connection.to_upstream.append(frame)
            connection.pending.resume(channel)

    # -- state -------------------------------------------------------------------------------------------------

    def _owned(self, request: BindRequest) -> OwnedExchange | None:
        """Return the source exchange if the sidecar, rather than the broker's own exchange, evaluates its bindings."""
        owned = self._state.exchanges.get(request.source)
        return None if owned is None or owned.unmatched_pass else owned

    def _binding(self, request: BindRequest, owned: OwnedExchange) -> Binding:
        table = decode_table(request.entries, 0, len(request.entries))
        sequence, user = self._connection.next_sequence(), self._connection.terms.user
        name, key = request.destination, request.routing_key
        extensions = self._connection.plans.rules.extensions
        return Binding(owned.name, request.kind, name, key, table, "", sequence, owner=user, extensions=extensions)

    # -- refusals ----------------------------------------------------------------------------------------------

    def _evaluated_destination(self, request: BindRequest) -> OwnedExchange | None:
        return self._state.exchanges.get(request.destination) if request.kind == EXCHANGE else None

    def _real_source_refusal(self, request: BindRequest) -> ProtocolError | None:
        """Return the error for a bind from one of the broker's own exchanges to an exchange that is evaluated here."""
        owned = self._evaluated_destination(request)
        if owned is None or (owned.declared is None and owned.carrier != owned.name):
            return None
        if self._state.may_be_open(request.source):
            return None  # it has been looked up and does not exist, so the broker refuses the bind with 404
        text = (
            f"exchange '{shown(request.destination)}' is evaluated by the proxy, but the broker would route "
            f"messages from '{shown(request.source)}' to it without the proxy"
        )
        return ProtocolError(540, text).about(request.method)

    def _refuse_unkept(self, request: BindRequest, owned: OwnedExchange) -> None:
        """Refuse a binding that the broker can't store, since its source or destination is not on the broker."""
        if owned.delivery is Delivery.QUEUE:
            text = (
                f"exchange '{shown(owned.name)}' has delivery queue in a rules file of the proxy, so the broker can't "
                f"store bindings of clients; add the binding to the rules file"
            )
            raise ProtocolError(403, text, Scope.CHANNEL)
        receiver = self._evaluated_destination(request)
        if receiver is not None and receiver.delivery is Delivery.QUEUE:
            text = (
                f"exchange '{shown(receiver.name)}' has delivery queue, so it does not exist on the broker "
                f"and can't be bound to '{shown(owned.name)}'"
            )
            raise ProtocolError(540, text)

    def _refuse_many_regexes(self, more: int) -> None:
        if not more:
            return
        user, most = self._connection.terms.user, self._connection.plans.rules.regexes
        current = self._state.coming_regexes[user]
        current += sum(owned.clients.regexes[user] for owned in self._state.exchanges.values())
        if current + more > most:
            text = (
                f"the bindings of user '{user}' have {counted(current, 'regular expression')}; {more} more would "
                f"exceed {most} (declared.regexes)"
            )
            raise ProtocolError(406, text, Scope.CHANNEL)

    def _refuse_unknown(self, request: BindRequest, owned: OwnedExchange, binding: Binding) -> None:
        exchange = self._state.router.exchanges[owned.name]
        if exchange.has(binding):
            text = f"the binding to '{shown(request.destination)}' belongs to a rules file of the proxy"
            raise ProtocolError(403, text, Scope.CHANNEL)
        strict = self._connection.plans.rules.strict_unbind
        if strict and exchange.binds(request.kind, request.destination, request.routing_key):
            raise ProtocolError(406, "binding arguments do not match", Scope.CHANNEL)
