"""The content of rules files after parsing and checking, as plain data for other packages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import NamedTuple

from oxproxy.addressing.table import AddressRule
from oxproxy.routing.bindings.binding import Binding
from oxproxy.rules.addresses import BrokerRule
from oxproxy.values import Table, Value
from oxproxy.yamlfile.document import Place

#: The sequence numbers of bindings from files descend from this number. The sequence numbers of client bindings, which
#: are microseconds since 1970, are smaller. Among bindings with equal order, the binding with the greatest number is
#: visited first, so bindings from files precede client bindings.
FILE_FIRST = 1 << 62


@dataclass(frozen=True, slots=True)
class QueueRule:
    """A queue to declare as durable; an existing queue is used unchanged."""

    name: bytes
    arguments: Table = ()


class Requirement(NamedTuple):
    """One condition of a contract.

    Args:
        argument: the key and the value of the corresponding argument of a binding.
        written: the condition without its value.
        expected: the value, as text.
    """

    argument: tuple[bytes, Value]
    written: str
    expected: str


@dataclass(frozen=True, slots=True)
class ExchangeRule:
    """One exchange in a rules file.

    Args:
        carrier: name of the exchange on the broker, by default equal to `name`.
        carrier_type: type of the carrier if it has to be declared: ``auto``, ``direct`` or ``topic``.
        unmatched_pass: whether messages that no binding routes are passed unchanged to the broker's own exchange.
        arguments: exchange arguments in file order, including alternate-exchange.
        require: the conditions of the contract, in file order.
        observes: whether violations of the contract and of filters are only recorded.
        bindings: the bindings in file order; bindings with equal order are visited by descending `sequence`.
        local_time: time zone of ``dtl`` operators; None for the system's time zone.
    """

    name: bytes
    type: str
    delivery: str
    carrier: bytes
    carrier_type: str
    unmatched_pass: bool
    arguments: Table
    alternate: bytes | None
    bindings: tuple[Binding, ...]
    local_time: tzinfo | None
    require: tuple[Requirement, ...] = ()
    observes: bool = False


@dataclass(frozen=True, slots=True)
class VhostRules:
    """The rules of one virtual host.

    Args:
        addresses: the address table, in matching order.
        address_places: see `ParsedAddress.places`.
    """

    vhost: str
    queues: tuple[QueueRule, ...] = ()
    exchanges: tuple[ExchangeRule, ...] = ()
    addresses: tuple[AddressRule, ...] = ()
    brokers: tuple[BrokerRule, ...] = ()
    address_places: tuple[Mapping[str, tuple[Place, str]], ...] = ()

    @property
    def carriers(self) -> frozenset[bytes]:
        """The names of the carriers of all exchanges with delivery ``carrier``."""
        return frozenset(rule.carrier for rule in self.exchanges if rule.delivery == "carrier")


@dataclass(frozen=True, slots=True)
class Rules:
    """The content of all rules files.

    Args:
        version: short hash of the files' content.
    """

    version: str
    vhosts: dict[str, VhostRules] = field(default_factory=dict)
