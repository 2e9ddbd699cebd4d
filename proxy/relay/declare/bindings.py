"""Binds and unbinds of clients whose source is an exchange that is evaluated here.

The binding is checked as the plugin would, then made on the carrier on the client's own channel, where the broker keeps
it. The first one of a destination is made under the destination's token, where messages find it; further ones under
storage keys of their own. RabbitMQ before 3.11 looks at every binding of an exchange for each message that has a BCC:
a token and a storage key for each destination would be twice as many. Each sidecar makes such a first one of its own,
or a pin: what leads there through another may be taken away by it before this one knows (`relay.token_table`). What a
rules file owns is not the client's to change.

Routes that a client declared lead only to what this client could have bound itself (`ClientReach`). What they choose
and exists is checked when the binding is made, before it is kept; what comes later, when a message chooses it. What was
bound for it goes with the client's last binding.

Source: architecture, "The broker is the store"; delivery notes, "Tokens and bindings"; the open-exchange
specification, 7, 11 and 13; AMQP 0-9-1 spec, 1.7.2.3 and 1.7.2.5; RabbitMQ guides "Exchange to exchange bindings" and
"Queues" (an empty name is the queue declared last).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import NamedTuple

from proxy.amqp import methods
from proxy.amqp.frames import OVERHEAD, U32
from proxy.amqp.method_frames import (
    ExchangeBind,
    QueueBind,
    QueueUnbind,
    bind,
    empty_ok,
    look_for,
    read_method,
    unbind,
)
from proxy.amqp.tables import decode_table
from proxy.errors import ProtocolError, Scope
from proxy.relay.channel import Channel, ExpectedReply
from proxy.relay.connection_state import ConnectionState, Phase
from proxy.relay.declare.exchanges import refuse_nested
from proxy.relay.declare.injected_methods import (
    hold_channel,
    inject,
    inject_and_reply,
    inject_held,
    is_held,
    reply_and_resume,
)
from proxy.relay.declare.storage import kept_rows, pin_entries, refuse_own_arguments, signed_copy, storage_key
from proxy.relay.declare.token_bindings import check_permission, run_steps, withdraw
from proxy.relay.token_table import PLAIN, Reliance, TokenTable
from proxy.relay.tokens import grant_key
from proxy.relay.vhost import BindingCopy, Delivery, Destination, OwnedExchange, StoredBinding
from proxy.routing.bindings.binding import Binding
from proxy.routing.bindings.compiled import CompiledBinding, count_regexes
from proxy.routing.bindings.exchange_types import compile_binding
from proxy.routing.bindings.patterns import Budget
from proxy.values import EXCHANGE, QUEUE, RESERVED_PREFIX

#: what answers each of the methods
_REPLIES = {
    methods.QUEUE_BIND: methods.QUEUE_BIND_OK,
    methods.QUEUE_UNBIND: methods.QUEUE_UNBIND_OK,
    methods.EXCHANGE_BIND: methods.EXCHANGE_BIND_OK,
    methods.EXCHANGE_UNBIND: methods.EXCHANGE_UNBIND_OK,
}

#: Destinations that are asked about when a binding is made; further ones when a message chooses them.
CHECKED_AT_ONCE = 500
_REFUSED = "403 ACCESS_REFUSED - "
#: Binds of one channel that may be under way to the broker; further ones wait until these are answered.
_BINDS_AT_ONCE = 256


class BindRequest(NamedTuple):
    """A bind or unbind, of a queue or an exchange.

    Args:
        kind: ``queue`` or ``exchange``: what is bound.
        destination: its name.
        source: the exchange that it is bound to.
        routing_key: as given; that of a queue without a name is the name, where it is empty.
        nowait: whether no answer is expected.
        entries: raw entries of the argument table.
        method: class id << 16 | method id.
    """

    kind: str
    destination: bytes
    source: bytes
    routing_key: bytes
    nowait: bool
    entries: bytes
    method: int

    @property
    def receiver(self) -> Destination:
        return self.kind, self.destination

    @property
    def ids(self) -> tuple[int, int]:
        return self.method >> 16, self.method & 0xFFFF

    @property
    def key(self) -> bytes:
        return storage_key(self.kind, self.destination, self.routing_key, self.entries)

    def answer(self, channel: Channel) -> bytes:
        return b"" if self.nowait else empty_ok(channel.number, _REPLIES[self.method])

    def pass_on(self, channel: Channel) -> bool:
        """Take note that the broker answers it; gives True: it goes upstream as it came."""
        if not self.nowait:
            channel.replies.append(ExpectedReply(_REPLIES[self.method]))
        return True


def read_bind_request(channel: Channel, index: int, frame: bytes) -> BindRequest:
    """Read a bind or unbind.

    Raises:
        ProtocolError: 502 on the connection, malformed arguments.
    """
    payload = frame[7:-1]
    if index in (methods.EXCHANGE_BIND, methods.EXCHANGE_UNBIND):
        exchange = read_method(ExchangeBind, payload)
        return BindRequest(EXCHANGE, *exchange, index)
    if index == methods.QUEUE_BIND:
        name, source, key, nowait, entries = read_method(QueueBind, payload)
    else:
        (name, source, key, entries), nowait = read_method(QueueUnbind, payload), False
    if not name:  # the queue declared last on the channel, and its name for an empty key (RabbitMQ does so)
        name = channel.last_queue
        key = key or channel.last_queue
    return BindRequest(QUEUE, name, source, key, nowait, entries, index)


def is_bind(frame: bytes) -> int:
    """Give the method of a method frame where it is a bind, else 0."""
    index: int = U32.unpack_from(frame, 7)[0] if len(frame) >= OVERHEAD + U32.size else 0
    return index if index in (methods.QUEUE_BIND, methods.EXCHANGE_BIND) else 0


class ClientReach:
    """Asks for one connection what its client may bind."""

    def __init__(self, connection: ConnectionState) -> None:
        self._connection = connection
        self._state = connection.plans.state

    def chosen_destinations(
        self, owned: OwnedExchange, compiled: CompiledBinding
    ) -> tuple[list[Destination], list[Destination]]:
        """Give what the routes of a binding choose now, as far as it exists: what to ask about, and what is allowed."""
        state = self._state
        chosen: dict[Destination, None] = {}
        budget = Budget(state.regex_budget)
        for effects in (compiled.on_true, compiled.on_false):
            if effects is None:
                continue
            chosen |= dict.fromkeys(one for one in sorted(effects.add) if one[0] == EXCHANGE or state.has_queue(one[1]))
            for route in effects.add_queues:
                for name in state.queues.names:
                    found = route.pattern.search(name, budget)
                    if budget.spent:
                        break  # what is left is asked about when a message chooses it
                    if (found is True) is not route.negated:
                        chosen[QUEUE, name] = None
        allowed = owned.reach(self._connection.user).allowed if chosen else set()
        unknown = [one for one in chosen if one not in allowed]
        return unknown[:CHECKED_AT_ONCE], [one for one in chosen if one in allowed]

    def check(self, owned: OwnedExchange, wanted: Iterable[Destination], then: Callable[[], None]) -> None:
        """Ask the broker on the channel of ours whether the client may bind what is wanted, then call `then`."""
        reach = owned.reach(self._connection.user)
        left = [one for one in wanted if one not in reach.allowed]

        def check_next() -> None:
            if left and self._connection.lifecycle.phase is Phase.OPEN:
                check_permission(self._connection, owned, reach, left.pop(0), check_next)
            else:
                then()

        check_next()

    def refusal(self, owned: OwnedExchange, named: Iterable[Destination], ids: tuple[int, int]) -> ProtocolError | None:
        """Give the broker's refusal of something that a client named itself, if there is one."""
        refused = owned.reach(self._connection.user).refused
        for one in named:
            text = refused.get(one, "")
            if text.startswith(_REFUSED):
                return ProtocolError(403, text.removeprefix(_REFUSED), Scope.CHANNEL, *ids)
        return None

    def remove_unneeded(
        self, owned: OwnedExchange, client: str, tokens: Collection[Destination], then: Callable[[], None]
    ) -> None:
        """Take away what was bound for a client's routes, once it has no binding there any more."""
        if self._state.exchanges.get(owned.name) is not owned or self._connection.lifecycle.phase is not Phase.OPEN:
            then()
            return
        grants: list[bytes] = []
        freed = set(tokens)
        if client in owned.reaches and not any(one.client == client for one in owned.clients.values()):
            reach = owned.reaches.pop(client)
            freed |= reach.allowed
            grants = [key for key, one in owned.grants.items() if key == grant_key(client, *one)]
        unneeded = sorted(one for one in freed if not self.is_needed(owned, one))
        withdraw(self._connection, owned, unneeded, grants, then)

    def needed_besides(self, owned: OwnedExchange, stored: StoredBinding) -> bool:
        """Return whether anything but a binding that goes leads to its destination."""
        return self.is_needed(owned, stored.destination, stored.binding.identity in owned.clients)

    def is_needed(self, owned: OwnedExchange, destination: Destination, uses: int = 0) -> bool:
        """Return whether a route, a next exchange or more than `uses` bindings lead to a destination."""
        router = self._state.router
        exchange = router.exchanges[owned.name]
        if exchange.uses(destination) > uses or any(destination in one.allowed for one in owned.reaches.values()):
            return True
        return any(router.names(one, destination) for one in exchange.next_names if one in router.exchanges)


class _PendingBind(NamedTuple):
    """A bind or unbind under way.

    Args:
        channel: the client's.
        request: what it asked for.
        owned: the exchange.
        stored: the binding; None where a rules file has it.
        tokens: destinations whose tokens come or go with it.
        routes: destinations of its routes that the client may bind, as is known.
        is_new: whether the broker is not known to have it.
        handed_over: whether a pin for other sidecars stays in its place when it is unbound.
    """

    channel: Channel
    request: BindRequest
    owned: OwnedExchange
    stored: StoredBinding | None
    tokens: tuple[Destination, ...]
    routes: tuple[Destination, ...] = ()
    is_new: bool = False
    handed_over: bool = False


class _Pin(NamedTuple):
    """A pin on its way; see `relay.token_table`.

    Args:
        destination: under whose token it lies.
        row: the pin.
        replaced: pins that are unbound once it is bound.
        sent_at: when it was sent.
    """

    destination: Destination
    row: bytes
    replaced: tuple[bytes, ...]
    sent_at: float


class _PlannedBind(NamedTuple):
    """A bind that was checked, and what it takes.

    Args:
        pending: it.
        binding: what routing is to know.
        keep: the step that keeps it on the broker; none where that is not needed, or nothing is kept there.
        chosen: destinations about which the broker is to be asked first.
        named: those among them that the client named itself: a refusal of one refuses the bind.
    """

    pending: _PendingBind
    binding: Binding
    keep: list[bytes]
    chosen: list[Destination]
    named: list[Destination]


class ClientBindings:
    """Takes binds and unbinds of one connection."""

    def __init__(self, connection: ConnectionState) -> None:
        self._connection = connection
        self._state = connection.plans.state
        self._reach = ClientReach(connection)
        #: stands for this connection in the tables of tokens, which may outlive it
        self._binder = object()

    def bind(self, channel: Channel, index: int, frame: bytes) -> bool:
        """Take queue.bind or exchange.bind; answer whether it goes upstream as it came.

        Raises:
            ProtocolError: 406 and 403 on the channel, 540 on the connection.
        """
        request = self._read(channel, index, frame)
        owned = self._owned(request)
        if owned is None:
            self._refuse_real_source(request)
            return request.pass_on(channel)
        planned = self._planned(channel, request, owned)
        if planned.chosen:
            self._check_first(planned)
        else:
            self._make(planned)
        return False

    def bind_while_held(self, channel: Channel, frame: bytes) -> bool:
        """Take a frame after binds that are not answered yet, where it is one more: it need not wait for them.

        Answers:
            False where it has to wait: it is something else, or not as plain.
        """
        index = is_bind(frame)
        if not index or len(channel.held.binds) >= _BINDS_AT_ONCE:
            return False
        try:
            request = self._read(channel, index, frame)
            owned = self._owned(request)
            planned = None if owned is None else self._planned(channel, request, owned)
        except ProtocolError:
            return False  # in its turn it will be refused
        if planned is None or planned.chosen or planned.binding.identity in channel.held.binds:
            return False
        if count_regexes(planned.binding.arguments):
            return False  # so that binds under way can't add up to more than there may be
        self._make(planned)
        return True

    def _read(self, channel: Channel, index: int, frame: bytes) -> BindRequest:
        """Read a bind.

        Raises:
            ProtocolError: 403 on the channel, what sidecars alone may; 406 on the channel, nested too deep; 502 on the
                connection, malformed.
        """
        request = read_bind_request(channel, index, frame)
        refuse_nested(request.entries, f"binding to {request.kind}", request.destination, self._state.name, request.ids)
        refuse_own_arguments(request.entries, request.ids)
        if request.routing_key.startswith(RESERVED_PREFIX):
            key, prefix = _text(request.routing_key), _text(RESERVED_PREFIX)
            text = f"routing key '{key}' begins with '{prefix}', which is the proxy's own"
            raise ProtocolError(403, text, Scope.CHANNEL, *request.ids)
        return request

    def _planned(self, channel: Channel, request: BindRequest, owned: OwnedExchange) -> _PlannedBind:
        """Check a bind, and say what it takes."""
        binding = self._binding(request, owned)
        try:
            compiled = compile_binding(owned.type, binding, self._connection.plans.rules.local_time)
        except ProtocolError as error:
            raise ProtocolError(error.reply_code, error.text, Scope.CHANNEL, *request.ids) from error
        self._refuse_unkept(request, owned)
        known = owned.clients.get(binding.identity)
        if known is not None and not known.signed:
            known = None  # that one may not do what this one may
        kept = self._is_clients(owned, binding)
        if kept and known is None and compiled.regexes:
            self._refuse_many_regexes(request, compiled.regexes)
        carried = owned.delivery is Delivery.CARRIER
        tokens = (request.receiver,) if carried and not self._evaluated(request) else ()
        chosen, allowed = list[Destination](), list[Destination]()
        if kept and known is None and self._state.own_routes:
            chosen, allowed = self._reach.chosen_destinations(owned, compiled)
        routes = tuple(one for one in allowed if self._has_token(one)) if carried else ()
        if not carried or (chosen and not tokens):
            chosen = list(dict.fromkeys((request.receiver, *chosen)))
        key = request.key
        if kept and known is None and tokens and not chosen and not self._is_marked(channel, owned, request.receiver):
            key = self._mark_key(request)
        stored = known or self._stored(owned, binding, request, key)
        rows = kept_rows(stored)[:1] if kept and carried else []
        keep = [bind(channel.number, request.receiver, owned.carrier, *row) for row in rows]
        named = [one for one in chosen if one in compiled.destinations]
        pending = _PendingBind(channel, request, owned, stored if kept else None, tokens, routes, known is None)
        return _PlannedBind(pending, binding, keep, chosen, named)

    def _stored(self, owned: OwnedExchange, binding: Binding, request: BindRequest, key: bytes) -> StoredBinding:
        copy = signed_copy(self._state, owned.carrier, binding, request.entries, key, self._connection.user)
        return StoredBinding(binding, request.entries, request.key, (copy,))

    def _make(self, planned: _PlannedBind) -> None:
        """Keep the binding and make sure of its destination's token, in one go."""
        pending, identity = planned.pending, planned.binding.identity
        channel, owned = pending.channel, pending.owned
        table, receiver = owned.tokens, pending.request.receiver
        place = (owned, receiver)
        is_mark = self._is_mark(pending.stored)
        steps = list(planned.keep)
        pins: list[_Pin] = []
        if pending.tokens and pending.stored is None:
            steps += self._token_steps(bind, pending.channel, owned, receiver)  # the rules' own, which all share
        elif pending.tokens and not is_mark and not self._may_rely(place, channel):
            pins.append(self._pin(owned, receiver))
            steps += self._pin_steps(channel, owned, pins)
        if (is_mark and pending.is_new) or pins:
            channel.held.marking.add(place)
        relies = [] if is_mark or pins or pending.stored is None else list(pending.tokens)
        reliance, sent_at = table.reliance(pinned=False), self._connection.traffic.now

        def answered() -> None:
            channel.held.marking.discard(place)
            if is_mark and pending.is_new and pending.stored is not None:
                sequence = pending.stored.copies[0].sequence
                self._table(owned).asserted(receiver, sequence, sent_at, self._binder)
            self._note_pins(owned, pins)
            self._confirm(pending, relies, reliance, bound)

        def bound() -> None:
            channel.held.binds.discard(identity)
            answer = self._bound(pending)
            if channel.held.binds:
                self._connection.send_to_producer(channel, answer)
            else:
                reply_and_resume(self._connection, channel, answer)

        if steps:
            hold_channel(self._connection, channel)
            channel.held.binds.add(identity)
            inject_held(self._connection, channel, steps, answered)
        else:
            inject_and_reply(self._connection, channel, steps, partial(self._bound, pending))

    def _may_rely(self, place: tuple[OwnedExchange, Destination], channel: Channel) -> bool:
        """Whether a binding may rely on what this connection has asserted, or is about to on the same channel."""
        owned, receiver = place
        if place in channel.held.marking:
            return True
        return receiver[0] == QUEUE and owned.tokens.may_rely(receiver, self._binder, self._connection.traffic.now)

    def _confirm(
        self, pending: _PendingBind, relies: list[Destination], reliance: Reliance, then: Callable[[], None]
    ) -> None:
        """Make sure that what a binding relies on still stands, now that the broker has it; then go on."""
        channel, owned = pending.channel, pending.owned
        table = self._table(owned)
        now = self._connection.traffic.now
        lacking = [one for one in (*relies, *pending.routes) if not table.holds(one, reliance, now)]
        if not lacking:
            then()
            return
        pins = [self._pin(owned, one) for one in lacking]

        def answered() -> None:
            self._note_pins(owned, pins)
            then()

        inject_held(self._connection, channel, self._pin_steps(channel, owned, pins), answered)

    def _pin(self, owned: OwnedExchange, destination: Destination) -> _Pin:
        table = self._table(owned)
        now = self._connection.traffic.now
        return _Pin(destination, self._connection.next_pin(table), table.superseded(destination), now)

    def _pin_steps(self, channel: Channel, owned: OwnedExchange, pins: Iterable[_Pin]) -> list[bytes]:
        steps: list[bytes] = []
        for pin in pins:
            steps += self._token_steps(bind, channel, owned, pin.destination, pin.row)
            for row in pin.replaced:
                steps += self._token_steps(unbind, channel, owned, pin.destination, row)
        return steps

    def _note_pins(self, owned: OwnedExchange, pins: Iterable[_Pin]) -> None:
        for pin in pins:
            self._table(owned).asserted(pin.destination, pin.row, pin.sent_at, self._binder, pin.replaced)

    def _token_steps(
        self,
        make: Callable[[int, Destination, bytes, bytes, bytes], bytes],
        channel: Channel,
        owned: OwnedExchange,
        destination: Destination,
        row: bytes = PLAIN,
    ) -> list[bytes]:
        """Bind or unbind a row under every token of a destination."""
        entries = pin_entries(row)
        keys = self._state.tokens.of(*destination)
        return [make(channel.number, destination, owned.carrier, key, entries) for key in keys]

    def _table(self, owned: OwnedExchange) -> TokenTable:
        """The tokens of an exchange, or what it is by now."""
        return (self._now(owned) or owned).tokens

    def _has_token(self, destination: Destination) -> bool:
        """Whether messages find a destination by a token: it is not evaluated here."""
        return destination[0] == QUEUE or destination[1] not in self._state.exchanges

    def _mark_key(self, request: BindRequest) -> bytes:
        """Give the key for a binding by which messages are to find its destination: the token, where that is one alone.

        Where several are bound, a binding under one of them would be read by some sidecars only.
        """
        current, *others = self._state.tokens.of(*request.receiver)
        return request.key if others else current

    def _is_mark(self, stored: StoredBinding | None) -> bool:
        """Whether messages find the destination of a binding by it alone."""
        return stored is not None and self._state.tokens.of(*stored.destination) == (stored.copies[0].key,)

    def _check_first(self, planned: _PlannedBind) -> None:
        """Ask what the client may bind; the binding is kept last: what a refusal leaves is removed."""
        pending = planned.pending
        channel, request, owned = pending.channel, pending.request, pending.owned
        fresh = [one for one in pending.tokens if one not in owned.bound]
        reliance = owned.tokens.reliance(pinned=False)
        pins = [self._pin(owned, one) for one in pending.tokens]
        mark = self._pin_steps(channel, owned, pins)
        asked = [one for one in planned.chosen if owned.delivery is Delivery.CARRIER and self._has_token(one)]
        routed = pending._replace(routes=(*pending.routes, *pending.tokens, *asked))

        def marked() -> None:
            self._note_pins(owned, pins)
            self._reach.check(owned, planned.chosen, partial(self._reached, planned, routed, fresh, reliance))

        inject(self._connection, channel, mark or self._look_steps(channel, request), marked, request.method)

    def _reached(
        self, planned: _PlannedBind, pending: _PendingBind, fresh: list[Destination], reliance: Reliance
    ) -> None:
        """It is known now what the client may bind: keep the binding, or refuse it."""
        channel, owned = pending.channel, pending.owned
        held = is_held(channel)
        refusal = self._reach.refusal(owned, planned.named, pending.request.ids)
        if held and refusal is None:
            allowed = owned.reach(self._connection.user).allowed
            reached = pending._replace(
                routes=tuple(one for one in pending.routes if one in allowed or one in pending.tokens)
            )

            def bound() -> None:
                reply_and_resume(self._connection, channel, self._bound(pending))

            if planned.keep:
                inject(self._connection, channel, planned.keep, partial(self._confirm, reached, [], reliance, bound))
            else:
                bound()
            return
        if held and refusal is not None:
            self._connection.refuse(channel, refusal)
        self._reach.remove_unneeded(owned, self._connection.user, fresh, lambda: None)

    def _bound(self, pending: _PendingBind) -> bytes:
        """Everything stands on the broker: give the answer for the client."""
        state, stored = self._state, pending.stored
        owned = self._now(pending.owned)
        if owned is not None:
            for one in pending.tokens:
                owned.tokens.bind_ok(one)
                state.not_missing(one)
            if stored is not None and self._is_clients(owned, stored.binding) and state.add_binding(stored):
                self._connection.inventory.changed(owned.name)
        return pending.request.answer(pending.channel)

    def unbind(self, channel: Channel, index: int, frame: bytes) -> bool:
        """Take queue.unbind or exchange.unbind; answer whether it goes upstream as it came.

        Raises:
            ProtocolError: 403 and 406 on the channel.
        """
        request = read_bind_request(channel, index, frame)
        owned = self._owned(request)
        if owned is None:
            return request.pass_on(channel)
        binding = self._binding(request, owned)
        stored = owned.clients.get(binding.identity)
        if stored is None:
            self._refuse_unknown(request, owned, binding)
            # Nothing is removed, but the broker is asked: it checks permissions and that source and destination exist.
            stored = StoredBinding(binding, request.entries, request.key, (BindingCopy(0, "", request.key),))
        pending = _PendingBind(channel, request, owned, stored, ())
        if owned.delivery is Delivery.CARRIER:
            needed = self._reach.needed_besides(owned, stored)
            plan = owned.tokens.unbind_plan(request.receiver, stored.marks, needed=needed)
            if plan.pin:
                self._replace(pending._replace(handed_over=plan.handed_over))
            else:
                hold_channel(self._connection, channel)
                self._drop(pending)
        else:
            permitted = partial(self._permitted, pending)
            # Whether it exists makes no difference, as on the broker.
            inject(self._connection, channel, [], lambda: self._reach.check(owned, [request.receiver], permitted))
        return False

    def _replace(self, pending: _PendingBind) -> None:
        """Others lead there by the binding that goes, or may: a pin comes in its place first."""
        channel, owned, receiver = pending.channel, pending.owned, pending.request.receiver
        pin = self._pin(owned, receiver)
        if pending.handed_over:
            pin = pin._replace(replaced=())

        def bound(text: str | None = None) -> None:
            if text is None and not pending.handed_over:
                self._note_pins(owned, [pin])
            if is_held(channel):
                self._drop(pending)

        if self._connection.upstream.sidecar_channel.number is None:
            inject(self._connection, channel, self._pin_steps(channel, owned, [pin]), bound)
            return

        def bind_pin() -> None:
            # Elsewhere it may be refused, where the queue has just gone: unbinding is no error then.
            run_steps(self._connection, partial(self._pin_frames, owned, pin), bound)

        inject(self._connection, channel, [], bind_pin)

    def _pin_frames(self, owned: OwnedExchange, pin: _Pin, number: int) -> list[bytes]:
        entries = pin_entries(pin.row)
        rows = [(bind, entries)] + [(unbind, pin_entries(row)) for row in pin.replaced]
        keys = self._state.tokens.of(*pin.destination)
        return [make(number, pin.destination, owned.carrier, key, row) for make, row in rows for key in keys]

    def _drop(self, pending: _PendingBind) -> None:
        """Unbind, now that nothing that leads there otherwise is lost with it."""
        channel, stored, receiver = pending.channel, pending.stored, pending.request.receiver
        if stored is None:
            return
        owned = self._now(pending.owned) or pending.owned
        known = owned.clients.get(stored.binding.identity)
        stored = stored if known is None else stored.merged_with(known)  # a look may have found further copies
        table, rows = owned.tokens, list[bytes]()
        if stored.marks:
            table.unbinding_marks(receiver, stored.marks)
        if receiver in table.bound and not self._reach.needed_besides(owned, stored):
            # The token counts as use: tokens first, since an auto-delete exchange goes with its last binding.
            for row in table.removable(receiver):
                rows += self._token_steps(unbind, channel, owned, receiver, row)
            table.unbinding(receiver)
        # A copy under a token that is retired may have been moved meanwhile.
        stays = (stored.key, *self._state.tokens.of(*receiver))
        moved = [copy._replace(key=stored.key) for copy in stored.copies if copy.key not in stays]
        copies = stored._replace(copies=(*stored.copies, *moved))
        rows += [unbind(channel.number, receiver, owned.carrier, *row) for row in kept_rows(copies)]
        inject_held(self._connection, channel, rows, partial(self._unbound, pending))

    def _permitted(self, pending: _PendingBind) -> None:
        """It is known now whether the client may unbind, where no binding on the broker says so."""
        if not is_held(pending.channel):
            return
        refusal = self._reach.refusal(pending.owned, [pending.request.receiver], pending.request.ids)
        if refusal is None:
            self._unbound(pending)
        else:
            self._connection.refuse(pending.channel, refusal)

    def _unbound(self, pending: _PendingBind) -> None:
        """Nothing of the binding stands on the broker any more, but perhaps what its routes asked for."""
        state, owned = self._state, self._now(pending.owned)
        known = None
        if owned is not None:
            owned.tokens.unbound(pending.request.receiver)
            known = None if pending.stored is None else owned.clients.get(pending.stored.binding.identity)
        if owned is None or known is None:
            reply_and_resume(self._connection, pending.channel, pending.request.answer(pending.channel))
            return
        state.remove_binding(known)
        self._connection.inventory.changed(owned.name)
        self._reach.remove_unneeded(owned, known.client, (pending.request.receiver,), partial(self._gone, pending))

    def _gone(self, pending: _PendingBind) -> None:
        owned = pending.owned
        # The broker has dropped it with its last binding, unless that is a pin now: a later look finds that it is gone.
        if owned.ends and not pending.handed_over and self._state.exchanges.get(owned.name) is owned:
            self._state.remove_exchange(owned.name)
        reply_and_resume(self._connection, pending.channel, pending.request.answer(pending.channel))

    def _owned(self, request: BindRequest) -> OwnedExchange | None:
        """The source, where binding to it is ours to judge: not what stays the broker's own in addition to it."""
        owned = self._state.exchanges.get(request.source)
        return None if owned is None or owned.unmatched_pass else owned

    @staticmethod
    def _is_marked(channel: Channel, owned: OwnedExchange, destination: Destination) -> bool:
        """Whether messages find a destination by a binding that came through us, or comes before this one."""
        return owned.tokens.has_assertion(destination) or (owned, destination) in channel.held.marking

    def _is_clients(self, owned: OwnedExchange, binding: Binding) -> bool:
        """Whether a binding is, or would be, a client's: not one that the rules file has."""
        return binding.identity in owned.clients or not self._state.router.exchanges[owned.name].has(binding)

    def _now(self, owned: OwnedExchange) -> OwnedExchange | None:
        """What an exchange is by now: rules may have been reloaded meanwhile; None where it is gone."""
        now = self._state.exchanges.get(owned.name)
        if now is None or now is owned:
            return now
        place = (owned.type, owned.delivery, owned.carrier)
        same = owned.declared is None and now.declared is None and place == (now.type, now.delivery, now.carrier)
        return now if same else None

    def _evaluated(self, request: BindRequest) -> bool:
        """Whether the destination is an exchange that is evaluated here: it needs no token."""
        return request.kind == EXCHANGE and request.destination in self._state.exchanges

    def _binding(self, request: BindRequest, owned: OwnedExchange) -> Binding:
        table = decode_table(request.entries, 0, len(request.entries))
        sequence = self._connection.next_sequence()
        return Binding(owned.name, request.kind, request.destination, request.routing_key, table, "", sequence)

    # -- refusals ----------------------------------------------------------------------------------------------

    def _refuse_real_source(self, request: BindRequest) -> None:
        owned = self._state.exchanges.get(request.destination) if request.kind == EXCHANGE else None
        if owned is not None and (owned.declared is not None or owned.carrier == owned.name):
            text = (
                f"exchange '{_text(request.destination)}' is evaluated by the proxy; the broker alone would route from "
                f"'{_text(request.source)}' to it"
            )
            raise ProtocolError(540, text, Scope.CONNECTION, *request.ids)

    def _refuse_unkept(self, request: BindRequest, owned: OwnedExchange) -> None:
        """Refuse what the broker can't keep: a binding of a carrier to an exchange that it does not have."""
        receiver = self._state.exchanges.get(request.destination) if request.kind == EXCHANGE else None
        if receiver is not None and receiver.delivery is Delivery.QUEUE and owned.delivery is Delivery.CARRIER:
            text = (
                f"exchange '{_text(receiver.name)}' with delivery queue is not on the broker, where a binding of "
                f"'{_text(owned.name)}' with delivery carrier is kept"
            )
            raise ProtocolError(540, text, Scope.CONNECTION, *request.ids)

    def _refuse_many_regexes(self, request: BindRequest, more: int) -> None:
        user, most = self._connection.user, self._connection.plans.rules.regexes
        there = self._state.regexes(user)
        if there + more > most:
            text = (
                f"the bindings of user '{user}' have {there} regular expressions; {more} more would exceed {most} "
                "(declared.regexes)"
            )
            raise ProtocolError(406, text, Scope.CHANNEL, *request.ids)

    def _refuse_unknown(self, request: BindRequest, owned: OwnedExchange, binding: Binding) -> None:
        exchange = self._state.router.exchanges[owned.name]
        if exchange.has(binding):
            text = f"the binding to '{_text(request.destination)}' belongs to a rules file of the proxy"
            raise ProtocolError(403, text, Scope.CHANNEL, *request.ids)
        strict = self._connection.plans.rules.strict_unbind
        if strict and exchange.binds(request.kind, request.destination, request.routing_key):
            raise ProtocolError(406, "binding arguments do not match", Scope.CHANNEL, *request.ids)

    def _look_steps(self, channel: Channel, request: BindRequest) -> list[bytes]:
        return [] if self._evaluated(request) else [look_for(channel.number, request.receiver)]


def _text(name: bytes) -> str:
    return name.decode(errors="replace")
