"""Selects the types of carriers, and the form of the tokens on topic carriers.

An existing carrier keeps its type: the broker refuses to declare an existing exchange with a different type, the
carrier stores clients' bindings, and other sidecars publish to it. A new carrier gets the type that costs the broker
less, which depends on the number of destinations (`FEW_DESTINATIONS`). `relay.tokens.TokenForm` describes the forms.

A carrier is migrated from one-word to eight-word tokens in three steps: each destination is bound with both kinds of
token; messages are then sent with eight-word tokens; after `FORMER_LOOKS` passes, the one-word tokens are unbound
(`token_migration`). By then, other sidecars have also switched, since their passes detect the eight-word tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import structlog

from proxy.broker.management_api import BindingInfo, ExchangeInfo
from proxy.broker.reconcile.desired import DesiredState
from proxy.broker.reconcile.executor import Executor
from proxy.relay.tokens import FEW_DESTINATIONS, TokenForm, is_eight_words
from proxy.relay.vhost import CarrierType, OwnedExchange, VhostState
from proxy.values import EXCHANGE, counted, shown

#: Number of passes for which one-word tokens stay bound after a carrier has switched to eight-word tokens.
FORMER_LOOKS = 12
#: The first version of RabbitMQ that looks up the bindings of a direct exchange by routing key, without scanning them.
_LOOKS_UP = (3, 13)

log = structlog.get_logger(__name__)


def scans_bindings(version: str) -> bool:
    """Return True if this version of RabbitMQ compares a message's keys with all bindings of a direct exchange."""
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    return major.isdigit() and minor.isdigit() and (int(major), int(minor)) < _LOOKS_UP


def form_on_topic(exchange: OwnedExchange, desired: DesiredState) -> TokenForm:
    """Return the form that tokens must have on a topic carrier."""
    named = desired.tokens_of(exchange) | exchange.bound
    leads_on = exchange.alternate is not None or exchange.name in desired.adds_exchanges
    return TokenForm.EIGHT_WORDS if leads_on or any(kind == EXCHANGE for kind, _ in named) else TokenForm.ONE_WORD


def has_many(exchange: OwnedExchange, desired: DesiredState) -> bool:
    """Return True if an exchange has, or may get, enough destinations for a topic carrier to cost less."""
    if exchange.declared is not None or exchange.clients or exchange.name in desired.chooses_queues:
        return True
    return len(desired.tokens_of(exchange)) > FEW_DESTINATIONS[form_on_topic(exchange, desired)]


class CarrierBindings(NamedTuple):
    """The number of bindings on a carrier.

    Args:
        exchange: the exchange to which the carrier belongs.
        scans: whether the broker compares every message with all bindings of a direct exchange.
    """

    exchange: OwnedExchange
    bindings: int
    scans: bool

    @property
    def fits(self) -> bool:
        """True if the type is as requested or, if none is requested, the other type would not cost the broker less."""
        wanted = self.exchange.wanted_type
        if wanted is not CarrierType.AUTO:
            return self.exchange.carrier_type is wanted
        form = TokenForm.ONE_WORD if self.exchange.alternate is None else TokenForm.EIGHT_WORDS
        return self.exchange.is_topic or not self.scans or self.bindings <= FEW_DESTINATIONS[form]

    def __str__(self) -> str:
        """Describe the carrier and its number of bindings in one line for operators."""
        why = "RabbitMQ before 3.13 compares all of them with every message"
        if self.exchange.wanted_type is not CarrierType.AUTO:
            why = f"carrier_type requests {self.exchange.wanted_type.value}"
        kind = f"{self.exchange.carrier_type.value} exchange with {counted(self.bindings, 'binding')}"
        return f"exchange {shown(self.exchange.name)}: carrier {shown(self.exchange.carrier)} is a {kind}; {why}"


def adopt_types(state: VhostState, desired: DesiredState, listed: Mapping[bytes, ExchangeInfo] | None) -> None:
    """Adopt the types of existing carriers, and choose types for the carriers that have to be declared.

    Args:
        state: the shared state, which records whether the broker scans bindings.
        listed: the exchanges on the broker; None if they are unknown.
    """
    for exchange in desired.carriers:
        info = None if listed is None else listed.get(exchange.carrier)
        if info is not None:
            if not info.marked:
                continue
            is_topic = info.type == CarrierType.TOPIC.value
        elif exchange.declared is None and not exchange.bound:
            many = listed is not None and has_many(exchange, desired)
            is_topic = state.prefers_topic(exchange.wanted_type, many=many)
        else:
            continue
        if is_topic is not exchange.is_topic:
            for destination in list(exchange.bound):
                exchange.tokens.not_bound(destination)
            exchange.form = form_on_topic(exchange, desired) if is_topic else TokenForm.DIRECT
            state.changed()


class CarrierForms:
    """The types and forms of the carriers of one virtual host.

    If the connection is lost, methods raise `UpstreamError`. The next pass continues an interrupted switch.

    Args:
        state: the shared state; the forms of its exchanges are set here.
    """

    def __init__(self, state: VhostState, executor: Executor) -> None:
        self._state = state
        self._executor = executor
        #: By carrier: number of passes since its switch that have found one-word tokens still bound.
        self._looks: dict[bytes, int] = {}

    async def change_forms(self, desired: DesiredState, changed: Callable[[OwnedExchange], bool]) -> None:
        """Switch carriers to eight-word tokens as needed, after their bindings have been listed.

        Args:
            changed: returns True if a carrier has eight-word tokens because another sidecar needs them.
        """
        carriers = {exchange.carrier for exchange in desired.carriers}
        self._looks = {carrier: looks for carrier, looks in self._looks.items() if carrier in carriers}
        for exchange in desired.carriers:
            needed = exchange.form is TokenForm.CHANGING
            if exchange.form is TokenForm.ONE_WORD:
                needed = changed(exchange) or form_on_topic(exchange, desired) is TokenForm.EIGHT_WORDS
            if needed:
                await self.change(exchange)

    async def change(self, exchange: OwnedExchange) -> None:
        """Switch a topic carrier to eight-word tokens."""
        if exchange.form in (TokenForm.DIRECT, TokenForm.EIGHT_WORDS):
            return
        # While new rules are being prepared, the carrier has two exchange objects: one for the current rules and one
        # for the new rules.
        now = self._state.exchanges.get(exchange.name)
        in_use = [now] if now is not None and now is not exchange and now.tokens is exchange.tokens else []
        for sharing in (exchange, *in_use):
            if sharing.form is TokenForm.ONE_WORD:
                sharing.form = TokenForm.CHANGING
        exchange.tokens.forget_assertions()
        self._state.changed()
        leftover = await self._executor.bind_again(exchange)
        exchange.leftover = frozenset(leftover)
        exchange.form = TokenForm.EIGHT_WORDS
        self._state.changed()
        log.info(
            "carrier switched to eight-word tokens",
            vhost=self._state.name,
            carrier=shown(exchange.carrier),
            destinations=len(exchange.bound),
            under_one_word=len(leftover),
        )

    def removable(self, exchange: OwnedExchange, former: Collection[BindingInfo]) -> list[BindingInfo]:
        """Of the bindings with former tokens, return those that may be removed at the end of a pass.

        One-word tokens stay bound until the other sidecars have also switched to eight-word tokens, except on a
        client's exchange without bindings. Such an exchange routes nothing, but while tokens are bound, the broker
        considers the exchange in use.
        """
        if exchange.declared is not None and not exchange.clients:
            return list(former)
        one_word = [
            info for info in former if not is_eight_words(info.routing_key) and exchange.form is TokenForm.EIGHT_WORDS
        ]
        if not one_word:
            self._looks.pop(exchange.carrier, None)
            return list(former)
        looks = self._looks[exchange.carrier] = self._looks.get(exchange.carrier, 0) + 1
        if looks <= FORMER_LOOKS:
            return [info for info in former if info not in one_word]
        return [info for info in former if info.destination not in exchange.leftover]
