"""What does it mean when a client declares or deletes an exchange that is, or is to be, evaluated here?

An ``x-open`` exchange becomes a marked direct exchange on the broker, declared on the client's own channel. The broker
compares only type and alternate exchange of an existing one, so everything else is compared here. What a rules file
owns is not the client's to change.

Source: delivery notes, "The store"; the open-exchange specification, 10 and 11; RabbitMQ guide "Exchanges".
"""

from __future__ import annotations

from functools import partial

from proxy.amqp import methods, script
from proxy.amqp.channel import Channel, Expected
from proxy.amqp.conversation import Conversation, LookUpExchange
from proxy.amqp.equivalence import inequivalence, inequivalent_type
from proxy.amqp.method_arguments import ExchangeDeclare, read_exchange_declare, read_exchange_delete
from proxy.amqp.method_frames import empty_ok, exchange_declare, exchange_delete
from proxy.amqp.own_bindings import unbind_step
from proxy.amqp.stored import DELIVERY, exchange_arguments
from proxy.amqp.tables import decode_table
from proxy.amqp.vhost import Declared, Delivery, OwnedExchange
from proxy.errors import ProtocolError, Scope
from proxy.routing.exchange import Exchange
from proxy.routing.values import Table

OPEN = b"x-open"
_DECLARE, _DELETE = (40, 10), (40, 20)
_ALTERNATE = b"alternate-exchange"


class Declaring:
    """Takes exchange.declare and exchange.delete of one connection.

    Args:
        conversation: what both directions share.
    """

    def __init__(self, conversation: Conversation) -> None:
        """Start without anything declared."""
        self._conversation = conversation
        self._state = conversation.state

    def declare(self, channel: Channel, frame: bytes) -> bool:
        """Take an exchange.declare; answer whether it goes upstream as it came.

        Raises:
            ProtocolError: 406 on the channel.
        """
        asked = read_exchange_declare(frame[7:-1])
        owned = self._state.exchanges.get(asked.exchange)
        if owned is not None and (owned.type.encode() == asked.exchange_type or self._is_carrier(owned)):
            if asked.passive:
                return self._passive(channel, asked, owned)
            return self._again(channel, asked, owned)
        if asked.exchange_type != OPEN or asked.passive:
            self._pass(channel, asked.nowait, methods.EXCHANGE_DECLARE_OK)
            return True
        self._new(channel, asked)
        return False

    def delete(self, channel: Channel, frame: bytes) -> bool:
        """Take an exchange.delete; answer whether it goes upstream as it came.

        Raises:
            ProtocolError: 403 for what a rules file owns, 406 where it is in use, on the channel.
        """
        asked = read_exchange_delete(frame[7:-1])
        owned = self._state.exchanges.get(asked.exchange)
        if owned is None or (owned.declared is None and not self._is_carrier(owned)):
            self._pass(channel, asked.nowait, methods.EXCHANGE_DELETE_OK)
            return True
        if owned.declared is None:
            text = f"exchange '{_text(owned.name)}' is declared by a rules file of the proxy"
            raise ProtocolError(403, text, Scope.CHANNEL, *_DELETE)
        if asked.if_unused and owned.clients:
            text = f"exchange '{_text(owned.name)}' in vhost '{self._state.name}' in use"
            raise ProtocolError(406, text, Scope.CHANNEL, *_DELETE)
        steps: list[script.Step] = []
        if owned.delivery is Delivery.CARRIER:
            if asked.if_unused:  # our tokens count as use to the broker
                steps = [unbind_step(channel.number, owned.carrier, one) for one in sorted(owned.bound)]
            delete = exchange_delete(channel.number, owned.carrier, if_unused=asked.if_unused)
            steps.append((delete, methods.EXCHANGE_DELETE_OK))

        def done() -> bytes:
            self._state.remove_exchange(owned.name)
            self._conversation.inventory.changed(owned.name)
            return b"" if asked.nowait else empty_ok(channel.number, methods.EXCHANGE_DELETE_OK)

        script.run(self._conversation, channel, steps, done)
        return False

    @staticmethod
    def _is_carrier(owned: OwnedExchange) -> bool:
        """Whether the exchange of that name on the broker, if there is one, is ours."""
        return owned.declared is not None or (owned.delivery is Delivery.CARRIER and owned.carrier == owned.name)

    @staticmethod
    def _pass(channel: Channel, nowait: bool, reply: int) -> None:
        if not nowait:
            channel.replies.append(Expected(reply))

    def _passive(self, channel: Channel, asked: ExchangeDeclare, owned: OwnedExchange) -> bool:
        if owned.delivery is Delivery.CARRIER and owned.carrier == owned.name:
            self._pass(channel, asked.nowait, methods.EXCHANGE_DECLARE_OK)
            return True
        if not asked.nowait:
            self._conversation.to_producer.append(empty_ok(channel.number, methods.EXCHANGE_DECLARE_OK))
        return False

    def _again(self, channel: Channel, asked: ExchangeDeclare, owned: OwnedExchange) -> bool:
        """An exchange that is known here: it must be declared the same."""
        table = decode_table(asked.arguments, 0, len(asked.arguments))
        if owned.type.encode() != asked.exchange_type:
            raise self._inequivalent(inequivalent_type(owned.name, self._state.name, asked.exchange_type, owned.type))
        text = inequivalence(owned, table, asked, self._state.name)
        if text:
            raise self._inequivalent(text)
        steps: list[script.Step] = []
        if owned.delivery is Delivery.CARRIER and owned.carrier == owned.name:
            # The broker compares the flags and the alternate exchange, and asks for the client's permission.
            steps.append((self._carrier_frame(channel, asked, 0), methods.EXCHANGE_DECLARE_OK))
        script.run(self._conversation, channel, steps, partial(_declared, channel, asked))
        return False

    @staticmethod
    def _inequivalent(text: str) -> ProtocolError:
        return ProtocolError(406, text, Scope.CHANNEL, *_DECLARE)

    def _carrier_frame(self, channel: Channel, asked: ExchangeDeclare, sequence: int) -> bytes:
        return exchange_declare(
            channel.number,
            asked.exchange,
            b"direct",
            exchange_arguments(sequence, asked.arguments),
            durable=asked.durable,
            auto_delete=asked.auto_delete,
            internal=asked.internal,
        )

    def _new(self, channel: Channel, asked: ExchangeDeclare) -> None:
        conversation = self._conversation
        owned, exchange = self._make(asked)
        script.hold(conversation, channel)
        if owned.delivery is Delivery.QUEUE:
            self._state.add_exchange(owned, exchange)
            conversation.inventory.changed(owned.name)
            script.go_on(conversation, channel, _declared(channel, asked))
            return

        def looked_up(found: str | None) -> None:
            """Before the declare: is there an exchange of that name that is not ours?"""
            known = self._state.exchanges.get(owned.name)
            try:
                if known is not None:
                    self._again(channel, asked, known)
                    return
                if found is not None:
                    raise self._inequivalent(inequivalent_type(owned.name, self._state.name, OPEN, found))
            except ProtocolError as error:
                conversation.refuse(channel, error)
                return
            assert owned.declared is not None  # noqa: S101 -- made so above
            frame = self._carrier_frame(channel, asked, owned.declared.sequence)
            conversation.to_upstream.append(frame)
            channel.replies.append(Expected(methods.EXCHANGE_DECLARE_OK, taken=made))

        def made(_: bytes) -> bool:
            """Behind the declare-ok: two may have declared at once, and the broker did not compare. Look again."""
            conversation.requests.append(LookUpExchange(channel, asked.exchange, compared))
            return False

        def compared(_: str | None) -> None:
            known = self._state.exchanges.get(owned.name)
            if known is None:
                self._state.add_exchange(owned, exchange)
            elif text := inequivalence(known, owned.arguments, asked, self._state.name):
                conversation.refuse(channel, self._inequivalent(text))
                return
            conversation.inventory.changed(owned.name)
            script.go_on(conversation, channel, _declared(channel, asked))

        conversation.requests.append(LookUpExchange(channel, asked.exchange, looked_up))

    def _make(self, asked: ExchangeDeclare) -> tuple[OwnedExchange, Exchange]:
        """Check the arguments of a new open exchange and make it."""
        rules = self._conversation.plans.rules
        table = decode_table(asked.arguments, 0, len(asked.arguments))
        alternate = _alternate(table)
        try:
            exchange = Exchange(asked.exchange, OPEN.decode(), table, rules.local_time, alternate)
        except ProtocolError as error:
            raise ProtocolError(error.reply_code, error.text, Scope.CHANNEL, *_DECLARE) from error
        declared = Declared(
            asked.durable,
            asked.auto_delete,
            asked.internal,
            asked.arguments,
            self._conversation.next_sequence(),
        )
        owned = OwnedExchange(
            asked.exchange,
            OPEN.decode(),
            _delivery(table, rules.delivery),
            asked.exchange,
            alternate=alternate,
            arguments=table,
            declared=declared,
        )
        return owned, exchange


def _delivery(table: Table, default: Delivery) -> Delivery:
    chosen = dict(table).get(DELIVERY)
    if chosen is None:
        return default
    for delivery in Delivery:
        if chosen.letter == "S" and chosen.value == delivery.value.encode():
            return delivery
    raise ProtocolError(406, "Invalid exchange argument.", Scope.CHANNEL, *_DECLARE)


def _alternate(table: Table) -> bytes | None:
    value = dict(table).get(_ALTERNATE)
    return value.value if value is not None and isinstance(value.value, bytes) else None


def _declared(channel: Channel, asked: ExchangeDeclare) -> bytes:
    return b"" if asked.nowait else empty_ok(channel.number, methods.EXCHANGE_DECLARE_OK)


def _text(name: bytes) -> str:
    return name.decode(errors="replace")
