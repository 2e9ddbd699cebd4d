"""Selects the types of carriers.

An existing carrier keeps its type: the broker refuses to declare an existing exchange with a different type. A new
carrier gets the requested type or, with ``auto``, the type that costs the broker less, which depends on its version and
on the number of destinations (docs/reference/brokers.md). A carrier whose type no longer fits is reported; it can
only be replaced by a carrier with another name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from oxproxy.broker.management_api import ExchangeInfo
from oxproxy.broker.reconcile.desired import DesiredState
from oxproxy.relay.tokens import FEW_DESTINATIONS
from oxproxy.relay.vhost import CarrierType, OwnedExchange, VhostState
from oxproxy.values import counted, shown


def has_many(exchange: OwnedExchange, desired: DesiredState) -> bool:
    """Return True if an exchange has, or may get, enough destinations for a topic carrier to cost less."""
    if exchange.declared is not None or exchange.clients or exchange.name in desired.chooses_queues:
        return True
    return len(desired.tokens_of(exchange)) > FEW_DESTINATIONS


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
        return self.exchange.is_topic or not self.scans or self.bindings <= FEW_DESTINATIONS

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
        elif exchange.declared is None and not exchange.tokens.bound:
            many = listed is not None and has_many(exchange, desired)
            is_topic = state.prefers_topic(exchange.wanted_type, many=many)
        else:
            continue
        carrier_type = CarrierType.TOPIC if is_topic else CarrierType.DIRECT
        if exchange.carrier_type is not carrier_type:
            exchange.carrier_type = carrier_type
            state.changed()
