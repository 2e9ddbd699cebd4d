"""Handles exchange.declare and exchange.delete for exchanges that are or will be evaluated here, and for destinations.

With carrier delivery, an ``x-open`` exchange becomes a marked direct or topic exchange on the broker, declared on the
client's own channel. If the exchange already exists, the broker compares the type, the flags and the alternate
exchange. The filters of an open exchange are compared here, by value, so that the width of integers makes no
difference. Reply texts are those of RabbitMQ. Clients can't change exchanges from rules files.

Source: architecture, "The broker is the store"; the open-exchange specification, 10 and 11; RabbitMQ guide "Exchanges";
error messages of RabbitMQ 3.10 ("inequivalent arg").
"""

from __future__ import annotations

from functools import partial

from oxproxy.amqp import methods
from oxproxy.amqp.method_frames import (
    ExchangeDeclare,
    ExchangeDelete,
    exchange_declare,
    exchange_delete,
    read_request,
)
from oxproxy.amqp.tables import decode_table
from oxproxy.errors import ProtocolError, Scope
from oxproxy.relay.channel import Channel
from oxproxy.relay.channel_state import DECLARING, ChannelEvent
from oxproxy.relay.connection_state import ConnectionState, EnsureDestination
from oxproxy.relay.declare.injected_methods import (
    Steps,
    answer,
    expect_reply,
    inject,
    look_up,
    pass_on,
    refuse_unknown,
    reply_and_resume,
    run_steps,
)
from oxproxy.relay.declare.storage import (
    ALTERNATE,
    CARRIER_TYPE,
    DELIVERY,
    exchange_arguments,
    open_exchange,
    refuse_nested,
    refuse_own_arguments,
    wanted_type,
)
from oxproxy.relay.declare.token_bindings import end_exchange, hold_tokens, is_gone, restore_tokens
from oxproxy.relay.vhost import CarrierType, DeclaredExchange, Delivery, OwnedExchange
from oxproxy.routing.bindings.exchange_types import OPEN
from oxproxy.routing.error_texts import TYPE_NAMES, format_term
from oxproxy.routing.exchange import Exchange
from oxproxy.values import EXCHANGE, Table, Value, shown

#: compared arguments: those of the plugin in its order, then those of the sidecar
_COMPARED = (
    ALTERNATE,
    b"min-payload-size",
    b"max-payload-size",
    b"min-payload-size-silent",
    b"max-payload-size-silent",
    b"max-headers-depth",
    b"max-headers-size",
    CARRIER_TYPE,
    DELIVERY,
)
_CARRIER = Value("S", Delivery.CARRIER.value.encode())
#: properties of the exchanges that the control plane declares for rules files
_BY_FILE = DeclaredExchange(durable=True, auto_delete=False, internal=False, entries=b"", sequence=0)


def refuse_inequivalent(owned: OwnedExchange, request: ExchangeDeclare, table: Table, vhost: str) -> None:
    """Refuse a redeclaration with a different type, flag or argument; the error (406) names the first difference."""
    declared = owned.declared or _BY_FILE
    received_type, current_type = shown(request.exchange_type), owned.type
    compared = [("type", f"'{received_type}'", f"'{current_type}'")] if received_type != current_type else []
    for name in ("durable", "auto_delete", "internal"):  # in the broker's order, and before the arguments
        received, current = getattr(request, name), getattr(declared, name)
        if received != current:
            compared.append((name, f"'{str(received).lower()}'", f"'{str(current).lower()}'"))
    before, now = dict(owned.arguments), dict(table)
    for key in _COMPARED:
        received_value, current_value = now.get(key), before.get(key)
        if not _equal(received_value, current_value):
            texts = _shown(received_value, current_value), _shown(current_value, received_value)
            compared.append((shown(key), *texts))
    if compared:
        raise _inequivalent(owned.name, vhost, *compared[0])


def _inequivalent(exchange: bytes, vhost: str, argument: str, received: str, current: str) -> ProtocolError:
    text = (
        f"inequivalent arg '{argument}' for exchange '{shown(exchange)}' in vhost '{vhost}': "
        f"received {received} but current is {current}"
    )
    return ProtocolError(406, text, Scope.CHANNEL)


def _equal(value: Value | None, other: Value | None) -> bool:
    if value is None or other is None:
        return value is other
    return type(value.value) is type(other.value) and value.value == other.value


def _shown(value: Value | None, other: Value | None) -> str:
    """Format a value as in the broker's error messages, which include its type only if the other value is missing."""
    if value is None:
        return "none"
    text = shown(value.value) if isinstance(value.value, bytes) else format_term(value)
    if other is not None:
        return f"'{text}'"
    return f"the value '{text}' of type '{TYPE_NAMES.get(value.letter, value.letter)}'"


class ClientExchanges:
    """Handles exchange.declare and exchange.delete on one connection."""

    def __init__(self, connection: ConnectionState) -> None:
        self._connection = connection
        self._state = connection.plans.state

    def declare(self, channel: Channel, frame: bytes) -> bool:
        """Handle exchange.declare; return whether to forward it unchanged."""
        request = read_request(ExchangeDeclare, frame[7:-1])
        refuse_nested(request.arguments, "exchange", request.exchange, self._state.name)
        refuse_own_arguments(request.arguments)
        owned = self._state.exchanges.get(request.exchange)
        if owned is not None and (
            owned.type.encode() == request.exchange_type or owned.declared is not None or owned.is_carrier
        ):
            if not request.passive:
                may_be_gone = owned.declared is not None and owned.declared.auto_delete and owned.is_carrier
                run_steps((self._new_or_again if may_be_gone else self._again)(channel, request, owned))
                return False
            if owned.is_carrier:
                return pass_on(channel, methods.EXCHANGE_DECLARE, request.nowait)
            inject(self._connection, channel, [], partial(self._declare_ok, channel, request))
            return False
        if request.exchange_type != OPEN.encode() or request.passive:
            if request.passive or not self._state.bound_by_clients((EXCHANGE, request.exchange)):
                return self._declare_destination(channel, request)
            run_steps(self._declare_destination_again(channel, request, frame))
            return False
        run_steps(self._new(channel, request))
        return False

    def _declare_destination(self, channel: Channel, request: ExchangeDeclare) -> bool:
        """Declare one of the broker's own exchanges; return whether to forward the method.

        If the exchange was missing, publishes have to wait from now on until its tokens are bound. Otherwise, its
        tokens are bound again before the client is answered, since the exchange and its bindings may have been deleted
        elsewhere. The channel waits for the reply, since the client's next message may be routed to the exchange. If
        no message can be routed to the exchange and the client expects no reply, the method is forwarded unchanged.
        """
        destination, state = (EXCHANGE, request.exchange), self._state
        if request.nowait and not (self._is_destination(request.exchange) or state.router.may_be_chosen(destination)):
            return True
        self._connection.change(channel, ChannelEvent.DECLARE)
        return self._expect_declare_ok(channel, request)

    def _declare_destination_again(self, channel: Channel, request: ExchangeDeclare, frame: bytes) -> Steps:
        """Declare a destination that clients have bound; if it no longer exists, its bindings are removed first."""
        connection = self._connection
        if (yield from is_gone(connection, channel, (EXCHANGE, request.exchange))):
            connection.terms.inventory.changed(request.exchange)
        if channel.state is DECLARING and self._expect_declare_ok(channel, request):
            connection.to_upstream.append(frame)

    def _expect_declare_ok(self, channel: Channel, request: ExchangeDeclare) -> bool:
        """Expect the reply to the declare of a destination; return whether the client's frame is to be forwarded."""
        connection, destination, state = self._connection, (EXCHANGE, request.exchange), self._state

        def declared(frame: bytes) -> bool:
            if connection.upstream.closing:
                return not request.nowait
            go_on = partial(reply_and_resume, connection, channel, b"" if request.nowait else frame)
            if any(owned.tokens.knows(destination) for owned in state.carried()) or state.router.mentions(destination):
                connection.pending.requests.append(EnsureDestination(destination, go_on))
            else:
                connection.terms.inventory.declared(destination, False)
                go_on()
            return False

        return expect_reply(connection, channel, methods.EXCHANGE_DECLARE, request, declared)

    def _is_destination(self, name: bytes) -> bool:
        """Return True if an exchange is a destination that is, was or should be bound."""
        destination, state = (EXCHANGE, name), self._state
        known = any(owned.tokens.knows(destination) for owned in state.exchanges.values())
        return known or state.router.mentions(destination)

    def delete(self, channel: Channel, frame: bytes) -> bool:
        """Handle exchange.delete; return whether to forward it unchanged."""
        request = read_request(ExchangeDelete, frame[7:-1])
        owned = self._state.exchanges.get(request.exchange)
        if owned is None and self._is_destination(request.exchange):
            return self._delete_destination(channel, request)
        if owned is None or owned.unmatched_pass:  # the broker's own exchange, which the rules only supplement
            return pass_on(channel, methods.EXCHANGE_DELETE, request.nowait)
        if owned.declared is None:
            text = f"exchange '{shown(owned.name)}' is declared by a rules file of the proxy"
            raise ProtocolError(403, text, Scope.CHANNEL)
        if request.if_unused and owned.clients:
            raise self._in_use(owned)
        run_steps(self._delete(channel, request, owned))
        return False

    def _delete_destination(self, channel: Channel, request: ExchangeDelete) -> bool:
        """Handle the deletion of one of the broker's own exchanges that is a destination; return whether to forward it.

        The bindings with its tokens are deleted as well, so if the exchange is declared again, publishes have to wait
        until its tokens are bound again.
        """

        def deleted(_: bytes) -> bool:
            self._connection.terms.inventory.changed(request.exchange)
            if request.nowait:
                self._connection.pending.resume(channel)
            return not request.nowait

        # A reply is always requested, since the broker may refuse to delete the exchange.
        if request.nowait:  # the client's next frames, which may declare the exchange again, wait for the reply
            self._connection.change(channel, ChannelEvent.DECLARE)
        return expect_reply(self._connection, channel, methods.EXCHANGE_DELETE, request, deleted)

    def _delete(self, channel: Channel, request: ExchangeDelete, owned: OwnedExchange) -> Steps:
        """Delete an exchange that a client declared."""
        self._connection.change(channel, ChannelEvent.DECLARE)
        ended = True
        if request.if_unused:  # our token rows make the exchange count as used
            ended = yield from end_exchange(self._connection, owned)
        else:
            yield partial(hold_tokens, self._connection, owned)
        if channel.state is not DECLARING:
            self._connection.terms.inventory.changed(owned.name)
            return
        if not ended:
            self._connection.refuse(channel, self._in_use(owned).about(methods.EXCHANGE_DELETE))
            return
        delete = [exchange_delete(channel.number, owned.carrier, if_unused=request.if_unused)]
        # The broker refuses if the client has no permission, or if another sidecar has stored a binding meanwhile.
        dropped = partial(self._connection.terms.inventory.changed, owned.name)
        if request.if_unused:
            dropped = partial(run_steps, restore_tokens(self._connection, owned))
        yield partial(inject, self._connection, channel, delete, dropped=dropped)
        if self._state.exchanges.get(owned.name) is owned:
            self._state.remove_exchange(owned.name)
        self._connection.terms.inventory.changed(owned.name)
        reply_and_resume(self._connection, channel, answer(channel, methods.EXCHANGE_DELETE, request.nowait))

    def _in_use(self, owned: OwnedExchange) -> ProtocolError:
        return ProtocolError(406, f"exchange '{shown(owned.name)}' in vhost '{self._state.name}' in use", Scope.CHANNEL)

    def _new_or_again(self, channel: Channel, request: ExchangeDeclare, owned: OwnedExchange) -> Steps:
        """Redeclare an auto-delete exchange, which the broker may have deleted together with its bindings."""
        if (yield from is_gone(self._connection, channel, (EXCHANGE, owned.name))):
            self._state.remove_exchange(owned.name)
            self._connection.terms.inventory.changed(owned.name)
        try:
            if channel.state is DECLARING:
                yield from self._new(channel, request)
        except ProtocolError as error:
            self._connection.refuse(channel, error.about(methods.EXCHANGE_DECLARE))

    def _again(self, channel: Channel, request: ExchangeDeclare, owned: OwnedExchange) -> Steps:
        """Redeclare a known exchange, whose properties must match."""
        table = decode_table(request.arguments, 0, len(request.arguments))
        refuse_inequivalent(owned, request, table, self._state.name)
        declared = owned.declared
        owned.declares += 1
        # The broker compares the flags and the alternate exchange, and checks the client's permission.
        steps = [self._carrier_frame(channel, request, owned)] if owned.is_carrier else []
        yield partial(inject, self._connection, channel, steps)
        owned.declares += 1
        if declared is not None and owned.name not in self._state.exchanges:
            # The broker had deleted the exchange with its last binding, and a listing showed this in the meantime.
            new, exchange = open_exchange(owned.name, declared)
            new.carrier_type = owned.carrier_type
            self._state.add_exchange(new, exchange)
            self._connection.terms.inventory.changed(owned.name)
        self._declare_ok(channel, request)

    def _declare_ok(self, channel: Channel, request: ExchangeDeclare) -> None:
        reply_and_resume(self._connection, channel, answer(channel, methods.EXCHANGE_DECLARE, request.nowait))

    @staticmethod
    def _carrier_frame(channel: Channel, request: ExchangeDeclare, owned: OwnedExchange) -> bytes:
        return exchange_declare(
            channel.number,
            request.exchange,
            owned.carrier_type.value.encode(),
            exchange_arguments(0 if owned.declared is None else owned.declared.sequence, request.arguments),
            durable=request.durable,
            auto_delete=request.auto_delete,
            internal=request.internal,
        )

    def _new(self, channel: Channel, request: ExchangeDeclare) -> Steps:
        """Declare an exchange that is unknown here, after looking it up on the broker."""
        owned, exchange = self._make(request)
        exchange_type: str | None = None
        if request.exchange:
            # The lookup waits for the client's earlier requests, which may delete an exchange with this name.
            yield partial(inject, self._connection, channel, [])
            exchange_type = yield partial(look_up, self._connection, request.exchange)
        else:  # this declare will be refused
            self._connection.change(channel, ChannelEvent.DECLARE)
        try:
            if channel.state is DECLARING:
                yield from self._declare(channel, request, owned, exchange, exchange_type)
        except ProtocolError as error:
            self._connection.refuse(channel, error.about(methods.EXCHANGE_DECLARE))

    def _declare(
        self,
        channel: Channel,
        request: ExchangeDeclare,
        owned: OwnedExchange,
        exchange: Exchange,
        exchange_type: str | None,
    ) -> Steps:
        """Declare an exchange that was looked up; `exchange_type`: type of the broker's exchange, or None.

        Raises:
            ProtocolError: the name is already used or reserved.
        """
        known = self._state.exchanges.get(owned.name)
        if known is not None:
            yield from self._again(channel, request, known)
            return
        refuse_unknown(owned.name, exchange_type)
        if exchange_type is not None:
            raise _inequivalent(owned.name, self._state.name, "type", f"'{OPEN}'", f"'{exchange_type}'")
        yield partial(inject, self._connection, channel, [self._carrier_frame(channel, request, owned)])
        # Two clients may have declared the exchange concurrently, and the broker does not compare filters.
        yield partial(look_up, self._connection, request.exchange)
        if channel.state is not DECLARING:
            return
        known = self._state.exchanges.get(owned.name)
        if known is None:
            self._state.add_exchange(owned, exchange)
        else:
            refuse_inequivalent(known, request, owned.arguments, self._state.name)
        self._connection.terms.inventory.changed(owned.name)
        self._declare_ok(channel, request)

    def _make(self, request: ExchangeDeclare) -> tuple[OwnedExchange, Exchange]:
        """Check the arguments of a new open exchange and create it."""
        table = decode_table(request.arguments, 0, len(request.arguments))
        if dict(table).get(DELIVERY, _CARRIER) != _CARRIER:
            text = "Invalid exchange argument x-delivery: expected carrier (only rules files can request queue)"
            raise ProtocolError(406, text, Scope.CHANNEL)
        if wanted_type(table) is None:
            text = "Invalid exchange argument x-carrier-type: expected auto, direct or topic"
            raise ProtocolError(406, text, Scope.CHANNEL)
        declared = DeclaredExchange(
            request.durable, request.auto_delete, request.internal, request.arguments, self._connection.next_sequence()
        )
        owned, exchange = open_exchange(request.exchange, declared)
        if self._state.prefers_topic(owned.wanted_type, many=True):
            owned.carrier_type = CarrierType.TOPIC
        return owned, exchange
