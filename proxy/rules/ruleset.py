"""The content of rules files after parsing and checking, as plain data for the other packages."""

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

#: Bindings of files have greater sequences than those of clients (microseconds since 1970): among equal orders the
#: greater sequence is visited first, so files come before clients.
FILE_FIRST = 1 << 62
_NOWHERE = Place("", 0)


@dataclass(frozen=True, slots=True)
class QueueRule:
    """A queue that a rules file asks for: declared durable, taken as it is where it exists."""

    name: bytes
    arguments: Table = ()


@dataclass(frozen=True, slots=True)
class ExchangeRule:
    """One exchange of a rules file.

    Args:
        carrier: name of the exchange on the broker (equal to `name` unless the file says otherwise).
        carrier_type: ``auto``, ``direct`` or ``topic``: its type where it has to be declared.
        unmatched_pass: what no binding routes goes to the broker's own exchange unchanged.
        arguments: exchange arguments in file order, alternate-exchange included.
        bindings: in file order; their `sequence` decides among equal orders.
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
    """How a broker proves itself: chain and name are always checked.

    Args:
        ca: file of the authorities to trust, None for the system's.
        server_name: name that the certificate must have, None for the host's.
    """

    ca: Path | None = None
    server_name: str | None = None
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class BrokerRule:
    """Another broker that translations may name.

    Args:
        username: user name of the login, None if only translations have one.
        password: as text, None if it is kept elsewhere.
        vhost: its virtual host, None for that of the producer.
        deadline_seconds: a publish to it waits this long at most.
        unconfirmed: publishes to it that may wait for their confirms before producers wait.
        unconfirmed_bytes: the same in bytes of their bodies.
        places: where its keys were, of those that can be wrong later: address, password_env, password_file, and those
            under tls that name files.
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
    """Where one rule of the address table was written.

    Args:
        hosts: place of that key, or of the rule where it has none.
    """

    path: str
    translation: Place
    hosts: Place


@dataclass(frozen=True, slots=True)
class VhostRules:
    """Everything the rules files say about one virtual host.

    Args:
        addresses: the address table, in the order in which it is tried.
    """

    vhost: str
    queues: tuple[QueueRule, ...] = ()
    exchanges: tuple[ExchangeRule, ...] = ()
    addresses: tuple[AddressRule, ...] = ()
    brokers: tuple[BrokerRule, ...] = ()
    address_places: tuple[AddressPlaces, ...] = ()


@dataclass(frozen=True, slots=True)
class Rules:
    """All rules files together.

    Args:
        version: short hash of the files' content.
    """

    version: str
    vhosts: dict[str, VhostRules] = field(default_factory=dict)
