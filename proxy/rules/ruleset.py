"""The content of rules files after parsing and checking, as plain data for other packages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from pathlib import Path

from pydantic import SecretStr

from proxy.addressing.table import AddressRule
from proxy.routing.bindings.binding import Binding
from proxy.values import Table
from proxy.yamlfile.document import Place

#: First of the descending sequence numbers for bindings from files. The sequence numbers of clients' bindings, which
#: are microseconds since 1970, are smaller. Among bindings with equal order, the binding with the greatest number is
#: visited first, so bindings from files precede clients' bindings.
FILE_FIRST = 1 << 62
_NOWHERE = Place("", 0)


@dataclass(frozen=True, slots=True)
class QueueRule:
    """A queue to declare as durable; an existing queue is used unchanged."""

    name: bytes
    arguments: Table = ()


@dataclass(frozen=True, slots=True)
class ExchangeRule:
    """One exchange in a rules file.

    Args:
        carrier: name of the exchange on the broker, by default equal to `name`.
        carrier_type: type of the carrier if it has to be declared: ``auto``, ``direct`` or ``topic``.
        unmatched_pass: whether messages that no binding routes are passed unchanged to the broker's own exchange.
        arguments: exchange arguments in file order, including alternate-exchange.
        bindings: the bindings in file order; bindings with equal order are visited by `sequence`.
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
    local_time: tzinfo


@dataclass(frozen=True, slots=True)
class TlsRule:
    """TLS settings for a broker, whose certificate is always verified.

    Args:
        ca: file with trusted CA certificates; None for the system's certificates.
        server_name: host name expected in the certificate; None for the host in the broker's address.
    """

    ca: Path | None = None
    server_name: str | None = None
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class BrokerRule:
    """Another broker that translations may name.

    Args:
        username: user name; None if only translations contain one.
        password: password in plain text; None if it is stored elsewhere.
        vhost: virtual host on this broker; None for the producer's virtual host.
        deadline_seconds: deadline for a publish to this broker.
        unconfirmed: number of unconfirmed publishes at which producers are paused.
        unconfirmed_bytes: total size of the bodies of unconfirmed publishes at which producers are paused.
        places: positions of the keys whose values are verified later: address, password_env, password_file, and the
            files in tls.
    """

    name: bytes
    host: str
    port: int
    tls: TlsRule | None = None
    username: str | None = None
    password: SecretStr | None = None
    password_env: str | None = None
    password_file: Path | None = None
    vhost: str | None = None
    deadline_seconds: float = 10.0
    unconfirmed: int = 50_000
    unconfirmed_bytes: int = 32 << 20
    place: Place = _NOWHERE
    places: Mapping[str, Place] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AddressPlaces:
    """Positions of one rule of the address table.

    Args:
        hosts: position of the key `hosts`, or of the rule if it has no such key.
    """

    path: str
    translation: Place
    hosts: Place


@dataclass(frozen=True, slots=True)
class VhostRules:
    """The rules of one virtual host.

    Args:
        addresses: the address table, in matching order.
    """

    vhost: str
    queues: tuple[QueueRule, ...] = ()
    exchanges: tuple[ExchangeRule, ...] = ()
    addresses: tuple[AddressRule, ...] = ()
    brokers: tuple[BrokerRule, ...] = ()
    address_places: tuple[AddressPlaces, ...] = ()


@dataclass(frozen=True, slots=True)
class Rules:
    """The content of all rules files.

    Args:
        version: short hash of the files' content.
    """

    version: str
    vhosts: dict[str, VhostRules] = field(default_factory=dict)
