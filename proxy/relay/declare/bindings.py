"""Handles clients' binds and unbinds whose source is an exchange that is evaluated here.

A binding is checked as the open-exchange plugin would check it. It is then created on the carrier, on the client's own
channel, so that the broker stores it. The first binding to a destination also routes messages to it, since a separate
binding for the token would double the number of bindings. Each sidecar creates its own first binding, or a pin, since
other sidecars may remove their rows at any time (`relay.token_table`). Clients can't change bindings from rules files.

A client's routes reach only destinations that the client has permission to bind (`ClientReach`). Existing destinations
are checked before the binding is stored; other destinations are checked when a message chooses them. Tokens bound for
the routes are removed with the client's last binding.

Source: architecture, "The broker is the store"; the open-exchange specification, 7, 11 and 13; AMQP 0-9-1 spec, 1.7.2.3
and 1.7.2.5; RabbitMQ guides "Exchange to exchange bindings" and "Queues" (an empty name means the last declared queue).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

from proxy.amqp import methods
from proxy.amqp.method_frames import ExchangeBind, QueueBind, QueueUnbind, bind, look_for, read_request, unbind
from proxy.amqp.tables import decode_table
from proxy.errors import ProtocolError, Scope
from proxy.relay.channel import Channel
from proxy.relay.channel_state import DECLARING, ChannelEvent
from proxy.relay.connection_state import ConnectionState, PermissionCheck, Phase
from proxy.relay.declare.injected_methods import (
    Steps,
    answer,
    inject,
    look_up,
    pass_on,
    refuse_in_order,
    reply_and_resume,
    run_steps,
)
from proxy.relay.declare.storage import identity_key, kept_rows, refuse_nested, refuse_own_arguments, signed_copy
from proxy.relay.declare.token_bindings import (
    Pin,
    bind_tokens,
    check_permission,
    check_tokens,
    new_pin,
    note_pin,
    own_tokens,
    removal_frames,
    row_frames,
    withdraw,
)
from proxy.relay.token_table import TokenTable
from proxy.relay.tokens import Tokens, grant_key
from proxy.relay.vhost import BindingCopy, Delivery, OwnedExchange, StoredBinding
from proxy.routing.bindings.binding import Binding
from proxy.routing.bindings.compiled import CompiledBinding
from proxy.routing.bindings.exchange_types import compile_binding
from proxy.routing.bindings.patterns import Budget
from proxy.values import EXCHANGE, QUEUE, Destination, counted, reserved_prefix, shown

#: Maximum number of destinations checked when a binding is created; others are checked when a message chooses them.
CHECKED_AT_ONCE = 500
_REFUSED = "403 ACCESS_REFUSED - "
#: The broker's error messages for destinations that a client is not permitted to bind.
Refusals: TypeAlias = Mapping[Destination, str]
#: An exchange to look up; if there is a destination, the exchange's bindings to it are looked up instead.
Unknown: TypeAlias = tuple[bytes, Destination | None]
#: Maximum number of unanswered binds on one channel; further binds wait. Waiting binds are sent when the number has
#: dropped to `_REFILL_AT`, so that the broker is busy while the sidecar prepares further binds.
_BINDS_AT_ONCE, _REFILL_AT = 256, 128


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


class ClientReach:
    """Checks which destinations the client of a connection is permitted to bind."""

    def __init__(self, connection: ConnectionState) -> None:
        self._connection = connection
        self._state = connection.plans.state

    def chosen_destinations(
        self, owned: OwnedExchange, compiled: CompiledBinding
    ) -> tuple[list[Destination], list[Destination]]:
        """Return the exchanges and existing queues of a binding's routes, as two lists: unchecked, and already allowed.

        The first list contains at most `CHECKED_AT_ONCE` destinations.
        """
        state = self._state
        chosen: dict[Destination, None] = {}
        budget = Budget(state.regex_budget)
        for effects in (compiled.on_true, compiled.on_false):
            if effects is None:
                continue
            added = (name for name in sorted(effects.add) if name[0] == EXCHANGE or name[1] in state.queues)
            chosen |= dict.fromkeys(added)
            for route in effects.add_queues:
                for queue in state.queues.names:
                    match = route.pattern.search(queue, budget)
                    if budget.spent:
                        break  # the other queues are checked when a message chooses them
                    if (match is True) is not route.negated:
                        chosen[QUEUE, queue] = None
        allowed = owned.reach(self._connection.terms.user).allowed if chosen else set()
        unknown = [destination for destination in chosen if destination not in allowed]
        return unknown[:CHECKED_AT_ONCE], [destination for destination in chosen if destination in allowed]

    def check(self, owned: OwnedExchange, wanted: Iterable[Destination], then: Callable[[Refusals], None]) -> None:
        """Check on the sidecar channel whether the client is permitted to bind the destinations, then call `then`."""
        reach = owned.reach(self._connection.terms.user)
        checks = [PermissionCheck(owned, reach, name) for name in wanted if name not in reach.allowed]
        waiting = len(checks)
        # The refusals are collected here, since a pass of the control plane may clear those in `reach` before the
        # broker has replied to the last check.
        refusals: dict[Destination, str] = {}

        def checked(destination: Destination) -> None:
            nonlocal waiting
            waiting -= 1
            if destination in reach.refused:
                refusals[destination] = reach.refused[destination]
            if not waiting:
                then(refusals)

        for check in checks:
            check_permission(self._connection, check, partial(checked, check.destination))
        if not checks:
            then(refusals)

    @staticmethod
    def refusal(refusals: Refusals, named: Iterable[Destination]) -> ProtocolError | None:
        """Return the first refusal for a destination that the client itself named; None if there is none."""
        for destination in named:
            text = refusals.get(destination, "")
            if text.startswith(_REFUSED):
                return ProtocolError(403, text.removeprefix(_REFUSED), Scope.CHANNEL)
        return None

    def remove_unneeded(
        self, owned: OwnedExchange, client: str, tokens: Collection[Destination], then: Callable[[], None]
    ) -> None:
        """Unbind rows that are no longer needed, after a client's binding was removed or refused.

        If the client has no bindings left on the exchange, the client's grants are also unbound.

        Args:
            tokens: the destinations whose tokens were bound for the binding.
        """
        if self._state.exchanges.get(owned.name) is not owned or self._connection.lifecycle.phase is not Phase.OPEN:
            then()
            return
        grants: list[bytes] = []
        freed = set(tokens)
        if client in owned.reaches and not any(stored.client == client for stored in owned.clients.values()):
            freed |= owned.reaches.pop(client).allowed
            grants = [key for key, destination in owned.grants.items() if key == grant_key(client, *destination)]
        unneeded = sorted(destination for destination in freed if not self.is_needed(owned, destination))
        withdraw(self._connection, owned, unneeded, grants, then)

    def needed_besides(self, owned: OwnedExchange, stored: StoredBinding) -> bool:
        """Return True if anything other than the given binding needs the binding's destination."""
        return self.is_needed(owned, stored.destination, stored.binding.identity in owned.clients)

    def is_needed(self, owned: OwnedExchange, destination: Destination, uses: int = 0) -> bool:
        """Return True if a route, a downstream exchange, or more than `uses` bindings need the given destination."""
        router = self._state.router
        exchange = router.exchanges[owned.name]
        if exchange.uses(destination) > uses or any(destination in reach.allowed for reach in owned.reaches.values()):
            return True
        return any(router.names(name, destination) for name in exchange.next_names if name in router.exchanges)


class _Bind(NamedTuple):
    """A checked bind."""

    channel: Channel
    request: BindRequest
    owned: OwnedExchange
    identity: Hashable
    #: the binding in the form used for routing
    compiled: CompiledBinding
    #: the tokens of the carrier when the bind was sent
    under: Tokens
    #: the stored binding; None if a rules file contains the same binding
    stored: StoredBinding | None
    #: whether the binding may be new to the broker
    is_new: bool
    #: methods that store the binding on the broker; empty if nothing has to be stored
    keep: list[bytes]
    #: destinations whose tokens are bound together with the binding
    tokens: tuple[Destination, ...]
    #: destinations of the binding's routes that the client is known to have permission to bind
    routes: tuple[Destination, ...]
    #: destinations to be checked before the binding is stored
    chosen: list[Destination]


class ClientBindings:
    """Handles binds and unbinds on one connection."""

    def __init__(self, connection: ConnectionState) -> None:
        self._connection = connection
        self._state = connection.plans.state
        self._reach = ClientReach(connection)
        #: identifies this connection in token tables, which may outlive the connection
        self._binder = object()

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
        planned = self._planned(channel, request, owned)
        run_steps(self._check_first(planned) if planned.chosen else self._make(planned))
        return False

    def bind_while_held(self, channel: Channel, frame: bytes) -> bool:
        """Handle a bind while other binds are unanswered; return False if it has to wait for their replies."""
        index = methods.method_in(frame)
        if index not in (methods.QUEUE_BIND, methods.EXCHANGE_BIND) or len(channel.held.binds) >= _BINDS_AT_ONCE:
            return False
        try:
            request = self._read(channel, frame)
            owned = None if self._unknown(request) else self._owned(request)
            planned = None if owned is None else self._planned(channel, request, owned)
        except ProtocolError:
            return False  # the bind waits, and is refused later, when it is processed
        if planned is None or planned.chosen or planned.identity in channel.held.binds:
            return False
        if planned.compiled.regexes:
            return False  # unanswered binds do not count towards the limit on regular expressions
        run_steps(self._make(planned))
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

    def _planned(self, channel: Channel, request: BindRequest, owned: OwnedExchange) -> _Bind:
        """Check a bind, and determine the steps for it."""
        binding = self._binding(request, owned)
        identity, receiver, user = binding.identity, request.receiver, self._connection.terms.user
        under = self._state.tokens_of(owned)
        compiled = compile_binding(owned.type, binding, local_time=None)
        self._refuse_unkept(request, owned)
        known = owned.clients.get(identity)
        kept = known is not None or not self._state.router.exchanges[owned.name].has(binding)
        if known is not None and not known.signed:
            known = None  # the client that created this binding may have different permissions
        is_new = known is None
        carried = owned.delivery is Delivery.CARRIER
        tokens = (receiver,) if carried and self._state.has_token(receiver) else ()
        chosen, allowed = list[Destination](), list[Destination]()
        if kept and is_new:
            self._refuse_many_regexes(compiled.regexes)
            if self._state.own_routes:
                chosen, allowed = self._reach.chosen_destinations(owned, compiled)
        routes = tuple(destination for destination in allowed if self._state.has_token(destination)) if carried else ()
        if not carried or (chosen and not tokens):
            chosen = list(dict.fromkeys((receiver, *chosen)))
        stored = known
        if kept and known is None:
            key = storage = identity_key(identity, one_word=owned.is_topic)
            # The first binding routes messages to the destination, provided that the destination has a single token.
            # If the binding's key were one of several tokens, only some sidecars would read the binding.
            marked = owned.tokens.has_assertion(receiver) or (owned, receiver) in channel.held.marking
            if tokens and not chosen and not marked and len(keys := under.of(*receiver)) == 1:
                key = keys[0]
            copy = signed_copy(self._state, owned.carrier, binding, request.entries, key, user)
            stored = StoredBinding(binding, request.entries, storage, (copy,))
        keep = list[bytes]()
        if stored is not None and carried:
            keep = [bind(channel.number, receiver, owned.carrier, *kept_rows(stored)[0])]
        return _Bind(channel, request, owned, identity, compiled, under, stored, is_new, keep, tokens, routes, chosen)

    def _make(self, planned: _Bind) -> Steps:
        """Store the binding and bind its destination's token, in one batch."""
        channel, owned, receiver, stored = planned.channel, planned.owned, planned.request.receiver, planned.stored
        table, place = owned.tokens, (owned, receiver)
        since, sent_at = table.events, self._connection.traffic.now
        # The key of a mark is the only token of its destination.
        is_mark = stored is not None and (stored.copies[0].key,) == self._state.tokens_of(owned).of(*receiver)
        # Whether the binding may rely on an assertion that this connection has made or is making.
        may_rely = place in channel.held.marking or (
            receiver[0] == QUEUE and table.may_rely(receiver, self._binder, sent_at)
        )
        steps = list(planned.keep)
        pins: list[Pin] = []
        if planned.tokens and stored is None:  # the rules' plain row, which all bindings share
            steps += row_frames(bind, channel.number, owned, receiver, planned.under)
        elif planned.tokens and not is_mark and not may_rely:
            pins.append(new_pin(self._connection, owned, receiver))
            steps += self._pin_steps(channel, pins)
        if (is_mark and planned.is_new) or pins:
            channel.held.marking.add(place)
        relies = [] if is_mark or pins or stored is None else list(planned.tokens)
        channel.held.binds[planned.identity] = None
        yield partial(inject, self._connection, channel, steps)
        channel.held.marking.discard(place)
        if is_mark and planned.is_new and stored is not None:
            self._table(owned).asserted(receiver, stored.copies[0].sequence, sent_at, self._binder)
        self._note_pins(pins)
        yield from self._confirm(planned, relies, since)
        yield from self._record(planned)
        if planned.identity in channel.held.binds:  # not if the channel has been closed in the meantime
            channel.held.binds[planned.identity] = answer(channel, planned.request.method, planned.request.nowait)
            self._answer_binds(channel)

    def _answer_binds(self, channel: Channel) -> None:
        """Answer finished binds in the order of the requests. A bind that needs pins may finish after later binds."""
        binds = channel.held.binds
        for identity, ok in list(binds.items()):
            if ok is None:
                return
            del binds[identity]
            if not binds:
                reply_and_resume(self._connection, channel, ok)
                return
            self._connection.send_to_producer(channel, ok)
            if len(binds) == _REFILL_AT:
                self._connection.take_held_again(channel)

    def _confirm(self, planned: _Bind, relies: Iterable[Destination], since: int) -> Steps:
        """If any of the rows on which a newly stored binding relies may no longer exist, bind pins."""
        table, now = self._table(planned.owned), self._connection.traffic.now
        lacking = [name for name in (*relies, *planned.routes) if not table.holds(name, since, now)]
        pins = [new_pin(self._connection, planned.owned, name) for name in lacking if name in planned.tokens]
        if pins:
            yield partial(inject, self._connection, planned.channel, self._pin_steps(planned.channel, pins))
            self._note_pins(pins)
        for name in lacking:
            if name not in planned.tokens:
                # A route's destination may have just been deleted; the bind must still succeed.
                pin = new_pin(self._connection, planned.owned, name)
                refusal = yield partial(self._pin_aside, planned.channel, pin)
                if refusal is None:
                    self._note_pins([pin])

    def _check_first(self, planned: _Bind) -> Steps:
        """Check the client's permissions, then store the binding. After a refusal, the new rows are unbound again."""
        channel, request, owned = planned.channel, planned.request, planned.owned
        user = self._connection.terms.user
        fresh = [destination for destination in planned.tokens if destination not in owned.bound]
        since = owned.tokens.events
        pins = [new_pin(self._connection, owned, destination) for destination in planned.tokens]
        asked = planned.chosen if owned.delivery is Delivery.CARRIER else ()
        routed = (*planned.routes, *planned.tokens, *filter(self._state.has_token, asked))
        steps = self._pin_steps(channel, pins)
        if not steps and self._state.has_token(request.receiver):
            steps = [look_for(channel.number, request.receiver)]
        yield partial(inject, self._connection, channel, steps, request_method=request.method)
        self._note_pins(pins)
        refusals = yield partial(self._reach.check, owned, planned.chosen)
        named = [destination for destination in planned.chosen if destination in planned.compiled.destinations]
        refusal = self._reach.refusal(refusals, named)
        held = channel.state is DECLARING
        if not held or refusal is not None:
            if held and refusal is not None:
                self._connection.refuse(channel, refusal.about(request.method))
            self._reach.remove_unneeded(owned, user, fresh, lambda: None)
            return
        allowed = owned.reach(user).allowed
        routes = tuple(name for name in routed if name in allowed or name in planned.tokens)
        if planned.keep:
            yield partial(inject, self._connection, channel, planned.keep)
            yield from self._confirm(planned._replace(routes=routes), (), since)
        yield from self._record(planned)
        reply_and_resume(self._connection, channel, answer(channel, request.method, request.nowait))

    def _record(self, planned: _Bind) -> Steps:
        """Record the binding, and bind tokens on further carriers."""
        state, stored = self._state, planned.stored
        owned = state.now(planned.owned)
        if owned is not None:
            for destination in planned.tokens:
                owned.tokens.bind_ok(destination)
                check_tokens(state, owned, destination, planned.under)
            if state.not_missing(planned.request.receiver):
                state.changed()
            # In the meantime, the binding may have been added to a rules file.
            exchange = state.router.exchanges[owned.name]
            is_clients = planned.identity in owned.clients or not exchange.has(planned.compiled.binding)
            if stored is not None and is_clients and state.add_binding(stored, planned.compiled):
                self._connection.terms.inventory.changed(owned.name)
        yield partial(bind_tokens, self._connection, own_tokens(self._connection, planned.compiled.binding))

    # -- pins --------------------------------------------------------------------------------------------------

    def _pin_steps(self, channel: Channel, pins: Iterable[Pin]) -> list[bytes]:
        return [frame for pin in pins for frame in pin.frames(channel.number)]

    def _pin_aside(self, channel: Channel, pin: Pin, then: Callable[[str | None], None]) -> None:
        """Bind a pin on the sidecar channel, if there is one, so that a refusal does not close the client's channel.

        `then` is called with the refusal; None if there was none.
        """
        sidecar_channel = self._connection.upstream.sidecar_channel
        if sidecar_channel.number is None:
            inject(self._connection, channel, self._pin_steps(channel, [pin]), partial(then, None))
        else:
            sidecar_channel.run(pin.frames(sidecar_channel.number), then)

    def _note_pins(self, pins: Iterable[Pin]) -> None:
        for pin in pins:
            note_pin(self._state, pin, self._binder)

    def _table(self, owned: OwnedExchange) -> TokenTable:
        """Return the current token table of an exchange."""
        return (self._state.now(owned) or owned).tokens

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
        binding = self._binding(request, owned)
        stored = owned.clients.get(binding.identity)
        if stored is None:
            self._refuse_unknown(request, owned, binding)
            # Nothing is removed, but the broker checks the permissions and whether both source and destination exist.
            key = identity_key(binding.identity, one_word=owned.is_topic)
            stored = StoredBinding(binding, request.entries, key, (BindingCopy(0, "", key),))
        remove = self._remove_unstored if owned.delivery is Delivery.QUEUE else self._remove
        run_steps(remove(channel, request, owned, stored))
        return False

    def _marks(self, owned: OwnedExchange, stored: StoredBinding) -> frozenset[int]:
        """Return the sequence numbers of a binding's marks whose key is a token that publishes carry.

        No binding relies on a mark with a former token.
        """
        receiver, tokens = stored.destination, self._state.tokens_of(owned)
        keys = tokens.of(*receiver)
        if receiver in owned.leftover:
            keys += tokens.former(*receiver)
        return frozenset(copy.sequence for copy in stored.copies if copy.key in keys)

    def _remove(self, channel: Channel, request: BindRequest, old: OwnedExchange, stored: StoredBinding) -> Steps:
        """Unbind a binding that is stored on the broker. If anything else may rely on it, a pin is bound first."""
        receiver, needed = request.receiver, self._reach.needed_besides(old, stored)
        plan = old.tokens.unbind_plan(receiver, self._marks(old, stored), needed=needed)
        if plan.pin:
            yield from self._pin_first(channel, old, receiver, handed_over=plan.handed_over)
            if channel.state is not DECLARING:
                return
        else:
            self._connection.change(channel, ChannelEvent.DECLARE)
        owned = self._state.now(old) or old
        known = owned.clients.get(stored.binding.identity)
        stored = stored if known is None else stored.merged_with(known)  # a listing may have contained further copies
        table, tokens, steps = owned.tokens, self._state.tokens_of(owned), list[bytes]()
        if stored.marks:
            table.unbinding_marks(receiver, stored.marks)
        if receiver in table.bound and not self._reach.needed_besides(owned, stored):
            # Tokens are unbound first, since they keep the exchange in use and an auto-delete exchange is deleted with
            # its last binding.
            steps += removal_frames(channel.number, owned, receiver, tokens, table.removable(receiver))
            table.unbinding(receiver)
        # A copy whose key is a retired token may have been moved to another key in the meantime.
        stays = (stored.key, *tokens.of(*receiver))
        moved = [copy._replace(key=stored.key) for copy in stored.copies if copy.key not in stays]
        copies = stored._replace(copies=(*stored.copies, *moved))
        steps += [unbind(channel.number, receiver, owned.carrier, *row) for row in kept_rows(copies)]
        # If the channel is closed first, because of an earlier request, the rows still exist.
        dropped = partial(table.not_unbound, receiver)
        yield partial(inject, self._connection, channel, steps, dropped=dropped)
        yield from self._removed(channel, request, old, stored)

    def _pin_first(self, channel: Channel, owned: OwnedExchange, receiver: Destination, *, handed_over: bool) -> Steps:
        """Bind a pin. If `handed_over` is set, the pin is for other sidecars."""
        pin = new_pin(self._connection, owned, receiver)
        if handed_over:
            pin = pin._replace(replaced=())
        if self._connection.upstream.sidecar_channel.number is not None:
            yield partial(inject, self._connection, channel, [])
        # The pin may be refused because the queue has just been deleted; the unbind must still succeed.
        refusal = yield partial(self._pin_aside, channel, pin)
        if refusal is None and not handed_over:
            self._note_pins([pin])

    def _remove_unstored(
        self, channel: Channel, request: BindRequest, owned: OwnedExchange, stored: StoredBinding
    ) -> Steps:
        """Unbind from an exchange with queue delivery, or refuse the unbind if the client lacks permission.

        As on the broker, the result does not depend on whether the binding exists.
        """
        yield partial(inject, self._connection, channel, [])
        refusals = yield partial(self._reach.check, owned, [request.receiver])
        if channel.state is not DECLARING:
            return
        refusal = self._reach.refusal(refusals, [request.receiver])
        if refusal is None:
            yield from self._removed(channel, request, owned, stored)
        else:
            self._connection.refuse(channel, refusal.about(request.method))

    def _removed(self, channel: Channel, request: BindRequest, old: OwnedExchange, stored: StoredBinding) -> Steps:
        """Record that the binding was removed, unbind rows that are no longer needed, and answer the client."""
        owned = self._state.now(old)
        known = None
        if owned is not None:
            owned.tokens.unbound(request.receiver)
            known = owned.clients.get(stored.binding.identity)
        if owned is not None and known is not None:
            self._state.remove_binding(known)
            self._connection.terms.inventory.changed(owned.name)
            yield partial(self._reach.remove_unneeded, owned, known.client, (request.receiver,))
            yield from self._remove_ended(old)
        reply_and_resume(self._connection, channel, answer(channel, request.method, request.nowait))

    def _remove_ended(self, owned: OwnedExchange) -> Steps:
        """Remove an auto-delete exchange that the broker has deleted with its last binding."""
        if self._has_ended(owned):
            sidecar_channel = self._connection.upstream.sidecar_channel
            look = look_for(sidecar_channel.number or 0, (EXCHANGE, owned.carrier))
            refusal = yield partial(sidecar_channel.run, [look])
            # While rows of other sidecars or tokens bound on demand remain, the broker keeps the exchange. If it were
            # removed here, the broker would answer binds, and its own exchange would route messages without the rules.
            if refusal is not None and self._has_ended(owned):
                self._state.remove_exchange(owned.name)

    def _has_ended(self, owned: OwnedExchange) -> bool:
        return owned.ends and self._state.exchanges.get(owned.name) is owned

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
        for name, destination in unknown:
            yield partial(look_up, connection, name, destination=destination)
        if channel.state is not DECLARING:
            return
        try:
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
        reach = owned.reaches.get(user) if self._state.own_routes else None
        name, key = request.destination, request.routing_key
        return Binding(owned.name, request.kind, name, key, table, "", sequence, reach, owner=user)

    # -- refusals ----------------------------------------------------------------------------------------------

    def _evaluated_destination(self, request: BindRequest) -> OwnedExchange | None:
        return self._state.exchanges.get(request.destination) if request.kind == EXCHANGE else None

    def _real_source_refusal(self, request: BindRequest) -> ProtocolError | None:
        """Return the error for a bind from one of the broker's own exchanges to an exchange that is evaluated here."""
        owned = self._evaluated_destination(request)
        if owned is None or (owned.declared is None and owned.carrier != owned.name):
            return None
        text = (
            f"exchange '{shown(request.destination)}' is evaluated by the proxy, but the broker would route "
            f"messages from '{shown(request.source)}' to it without the proxy"
        )
        return ProtocolError(540, text).about(request.method)

    def _refuse_unkept(self, request: BindRequest, owned: OwnedExchange) -> None:
        """Refuse a binding that the broker can't store: from a carrier to an exchange that is not on the broker."""
        receiver = self._evaluated_destination(request)
        if receiver is not None and receiver.delivery is Delivery.QUEUE and owned.delivery is Delivery.CARRIER:
            text = (
                f"exchange '{shown(receiver.name)}' has delivery queue, so it does not exist on the broker "
                f"and can't be bound to '{shown(owned.name)}'"
            )
            raise ProtocolError(540, text)

    def _refuse_many_regexes(self, more: int) -> None:
        if not more:
            return
        user, most = self._connection.terms.user, self._connection.plans.rules.regexes
        current = sum(owned.regexes[user] for owned in self._state.exchanges.values())
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
