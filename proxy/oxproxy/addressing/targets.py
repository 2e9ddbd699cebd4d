"""Maps a publish to its address, and a translated address to a broker, an exchange and a routing key.

Each combination of exchange and routing key has exactly one address. A result of the table consists of a domain (the
broker) and a name (the exchange and routing key on that broker). If a result is unusable, no exception is raised;
the reason is returned in a `FailedTranslation`. Source: the messenger-addressing specification, 3.1 and 3.2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from oxproxy.addressing.address import Address, InvalidAddress, parse_address, password_span
from oxproxy.addressing.table import AddressPattern, AddressTable, TranslationTemplate, fixed_domain
from oxproxy.values import EXCHANGE, LONGEST_NAME_BYTES, QUEUE, Destination, text

_QUEUE, _EXCHANGE, _TOPIC = b"/queue/", b"/exchange/", b"topic/"
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_INCOMPLETE_ESCAPE = re.compile(rb"%[0-9A-Fa-f]?\Z")
#: Maximum number of cached targets. The cache takes a few megabytes if routing keys have 255 bytes.
_KEPT_TARGETS = 8192
#: Maximum number of cached targets for destinations in rules. The control plane looks up all of them in every reconcile
#: pass.
_KEPT_FIXED_TARGETS = 1 << 16
#: Maximum number of exchanges for which translated destinations, or the result of `may_lead_to`, are cached.
_KEPT_EXCHANGES = 1024
ANY_HOST = b"*"
#: Translations to the original exchange and routing key on the sidecar's own broker.
_SAME_NAME = (b"", b"/", b"//")
#: Sample values of a variable: a part of a name, and the digits of an escape such as ``%2F``.
_POSSIBLE = (b"v", b"2F")


class Publication(NamedTuple):
    """Exchange and routing key of a publish; the exchange is empty for the default exchange."""

    exchange: bytes
    routing_key: bytes


def address_of(publication: Publication) -> bytes:
    """Return the canonical address for the exchange and routing key of a publish."""
    exchange, key = publication
    if exchange:
        return _EXCHANGE + exchange.replace(b"%", b"%25").replace(b"/", b"%2F") + b"/" + key
    return _QUEUE + key if key.startswith(b"/") else key


def publication_at(address: bytes) -> Publication | None:
    """Return the exchange and routing key that have this address; None if there are none."""
    if address.startswith(_EXCHANGE):
        exchange, slash, key = address[len(_EXCHANGE) :].partition(b"/")
        publication = Publication(_partly_decoded(exchange), key)
        return publication if slash and exchange and address_of(publication) == address else None
    if address.startswith(_QUEUE):
        key = address[len(_QUEUE) :]
        return Publication(b"", key) if key.startswith(b"/") else None
    return None if address.startswith(b"/") else Publication(b"", address)


@dataclass(frozen=True, slots=True)
class Remote:
    """Another broker, as specified by an address.

    Args:
        broker: name of a configured broker, or empty.
        host: host to connect to; for a configured broker, the broker's name.
        port: port; None for the configured port.
        tls: whether the address requests TLS; None for the configured setting.
        user: user name; None for the configured user.
        password: password; None for the configured password.
    """

    broker: bytes
    host: bytes
    port: int | None
    tls: bool | None
    user: bytes | None = None
    password: bytes | None = field(default=None, repr=False)

    @property
    def label(self) -> str:
        """Name of the broker in metrics, audit records and explanations; without credentials."""
        if self.broker:
            return text(self.broker)
        host = text(self.host)
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a translated publish.

    Args:
        rule: index of the rule that applied.
        remote: the other broker; None for the sidecar's own broker, which is reached through the client's connection.
        publication: exchange and routing key on that broker.
    """

    rule: int
    remote: Remote | None
    publication: Publication


@dataclass(frozen=True, slots=True)
class FailedTranslation:
    """A translation without a usable target.

    Args:
        reason: the reason, without any part of the address.
    """

    rule: int
    reason: str


#: Result of a lookup in the address table; None if no rule applies.
_Result: TypeAlias = Target | FailedTranslation | None
_Results: TypeAlias = dict[tuple[bytes, bytes], _Result]


class _NowhereError(Exception):
    """Raised internally with the reason why an address has no usable target."""


class Rewrites:
    """Translates the destinations of one exchange.

    The translation of a queue is fixed. The translation of an exchange may depend on the routing key, so exchanges that
    any rule may match are looked up for each routing key.

    Args:
        destinations: destinations of the exchange; compared by identity, see `AddressBook.rewrites`.
        before: the previous translations, which are reused for destinations that remain.
    """

    __slots__ = ("_book", "_exchanges", "_queues", "_targets", "destinations")

    def __init__(self, book: AddressBook, destinations: frozenset[Destination], before: Rewrites | None = None) -> None:
        self._book = book
        self.destinations = destinations
        known = before._queues if before is not None else {}
        self._queues: dict[bytes, Publication] = {
            name: publication for name, publication in known.items() if (QUEUE, name) in destinations
        }
        for kind, name in destinations - (before.destinations if before is not None else frozenset()):
            target = book.fixed_target(b"", name) if kind == QUEUE else None
            if isinstance(target, Target) and target.remote is None:
                self._queues[name] = target.publication
        self._targets = frozenset(self._queues.values())
        self._exchanges = [name for kind, name in destinations if kind == EXCHANGE and book.may_rewrite(name)]

    def leads_to(self, routing_key: bytes, publication: Publication) -> bool:
        """Return True if messages with this routing key have a destination that is translated to the publication."""
        if publication in self._targets:
            return True
        sought = (None, publication)
        targets = [self._book.look_up(name, routing_key) for name in self._exchanges]
        return any(isinstance(target, Target) and (target.remote, target.publication) == sought for target in targets)


class AddressBook:
    """Finds the targets of publishes in the address table and among the configured brokers.

    Args:
        brokers: names of the configured brokers.
    """

    def __init__(self, table: AddressTable, brokers: Collection[bytes] = ()) -> None:
        self.table = table
        self._brokers = frozenset(brokers)
        self._domains = [fixed_domain(rule) for rule in table.rules]
        #: whether the result of any rule may be on the sidecar's own broker
        self.stays_here = any(domain is None or domain.local for domain in self._domains)
        self._kept: _Results = {}
        self._fixed_targets: _Results = {}
        #: translations of destinations, by name of the exchange
        self._rewrites: dict[bytes, Rewrites] = {}
        #: results of `may_lead_to`
        self._led_to: dict[bytes, bool] = {}
        #: rules that have matched an address that contains a password, and whether the match has been reported
        self._exposing: dict[int, bool] = {}

    def with_empty_cache(self) -> AddressBook:
        """Return a copy with empty caches, for another thread."""
        return AddressBook(self.table, self._brokers)

    def look_up(self, exchange: bytes, routing_key: bytes) -> _Result:
        """Return the target of a publish; None if no rule applies. Results are cached."""
        return self._cached(self._kept, _KEPT_TARGETS, exchange, routing_key)

    def fixed_target(self, exchange: bytes, routing_key: bytes) -> _Result:
        """Return the target of a publish like `look_up`, but with a separate cache for destinations in rules."""
        return self._cached(self._fixed_targets, _KEPT_FIXED_TARGETS, exchange, routing_key)

    def _cached(self, kept: _Results, most: int, exchange: bytes, routing_key: bytes) -> _Result:
        try:
            return kept[exchange, routing_key]
        except KeyError:
            target = self._look_up(Publication(exchange, routing_key))
        if len(kept) >= most:
            kept.clear()
        kept[exchange, routing_key] = target
        return target

    def may_rewrite(self, exchange: bytes) -> bool:
        """Return True if a rule may match a publish to the given exchange, for at least one routing key."""
        return self.table.may_fit(address_of(Publication(exchange, b"")))

    def rewrites(self, exchange: bytes, destinations: frozenset[Destination]) -> Rewrites:
        """Return the translations of an exchange's destinations.

        Args:
            destinations: the exchange's destinations. If this is the same object as in the last call for the exchange,
                nothing is recomputed.
        """
        kept = self._rewrites.get(exchange)
        if kept is None or kept.destinations is not destinations:
            if len(self._rewrites) >= _KEPT_EXCHANGES:
                self._rewrites.clear()
            kept = self._rewrites[exchange] = Rewrites(self, destinations, kept)
        return kept

    def _look_up(self, publication: Publication) -> _Result:
        address = address_of(publication)
        translation = self.table.translate(address)
        if translation is None:
            return None
        if b"@" in address and password_span(address) is not None:
            self._exposing.setdefault(translation.rule, False)
        return self.resolve(translation.rule, translation.address, publication)

    def covers_exchange(self, exchange: bytes) -> bool:
        """Return True if one rule matches every publish to the given exchange, regardless of the routing key."""
        every = AddressPattern(address_of(Publication(exchange, b"*")))
        return bool(exchange) and any(pattern.covers(every) for pattern in self.table.patterns)

    def may_lead_to(self, exchange: bytes) -> bool:
        """Return True if the result of any rule may be the given exchange on the sidecar's own broker."""
        kept = self._led_to.get(exchange)
        if kept is None:
            if len(self._led_to) >= _KEPT_EXCHANGES:
                self._led_to.clear()
            kept = any(self._may_name(position, exchange) for position in range(len(self.table.rules)))
            self._led_to[exchange] = kept
        return kept

    def may_keep(self, exchange: bytes) -> bool:
        """Return True if a rule may match publishes to an exchange and translate them to the same exchange.

        The first rule that matches every publish to the exchange is not considered, nor is any rule after it.
        """
        beginning = address_of(Publication(exchange, b""))
        every = AddressPattern(beginning + b"*")
        for position, pattern in enumerate(self.table.patterns):
            if pattern.covers(every):
                return False
            translation = self.table.rules[position].translation
            if pattern.may_fit(beginning) and (translation in _SAME_NAME or self._may_name(position, exchange)):
                return True
        return False

    def _may_name(self, position: int, exchange: bytes) -> bool:
        """Return True if the result of this rule may be the given exchange on the sidecar's own broker."""
        translation, domain = self.table.rules[position].translation, self._domains[position]
        return translation is not None and (domain is None or domain.local) and _may_name(translation, exchange)

    def rules_exposing_passwords(self) -> list[int]:
        """Return the rules that have matched an address with a password and have not been returned before.

        Receivers can see these passwords in the original address.
        """
        rules = [rule for rule, reported in tuple(self._exposing.items()) if not reported]
        self._exposing.update(dict.fromkeys(rules, True))
        return rules

    def resolve(self, rule: int, result: bytes | None, original: Publication) -> Target | FailedTranslation:
        """Resolve a result of the table.

        Args:
            result: the translated address.
            original: the publish before translation.
        """
        try:
            if result is None:
                raise _NowhereError("the rule has no translation")
            address = parse_address(result)
            remote = self._remote(address, self.table.rules[rule].hosts)
            publication = _named(address.name or b"", original)
            if max(map(len, publication)) > LONGEST_NAME_BYTES:
                raise _NowhereError("the exchange or routing key is longer than 255 bytes")
        except (InvalidAddress, _NowhereError) as error:
            return FailedTranslation(rule, str(error))
        return Target(rule, remote, publication)

    def certain_failure(self, rule: int) -> str:
        """Return the reason why a rule's translation fails for all values of the variables; "" if it may succeed."""
        address_rule = self.table.rules[rule]
        if address_rule.translation is None or fixed_domain(address_rule) is None:
            return ""
        template = TranslationTemplate(address_rule.translation)
        reasons = []
        for value in _POSSIBLE:
            text = b"".join(value if isinstance(part, int) else part for part in template.parts)
            target = self.resolve(rule, text, Publication(b"e", b"k"))
            if not isinstance(target, FailedTranslation):
                return ""
            reasons.append(target.reason)
        return reasons[0]

    def _remote(self, address: Address, hosts: tuple[bytes, ...] | None) -> Remote | None:
        if address.passive:
            raise _NowhereError("~ marks an address to listen on")
        if address.local:
            return None
        if not address.host:
            raise _NowhereError("scheme, credentials or port without a host")
        if hosts is not None and not _permitted(address, hosts):
            raise _NowhereError("the rule does not permit the host")
        if address.host in self._brokers and address.port is None:
            tls = address.tls if address.scheme else None
            return Remote(address.host, address.host, None, tls, address.user, address.password)
        return Remote(b"", address.host, address.effective_port, address.tls, address.user, address.password)


def _permitted(address: Address, hosts: tuple[bytes, ...]) -> bool:
    """Return True if a rule's list contains the host, with or without its port, ignoring case."""
    host = address.host.lower()
    bracketed = b"[" + host + b"]" if b":" in host else host
    accepted = {ANY_HOST, host, bracketed, b"%s:%d" % (bracketed, address.effective_port)}
    return any(permitted.lower() in accepted for permitted in hosts)


def _named(name: bytes, original: Publication) -> Publication:
    """Parse a name.

    An additional leading slash, which users of Messenger had to write, is ignored if the rest of the name is empty or
    begins with one of `_FORMS`.
    """
    inner = name[1:] if name.startswith(b"/") else name
    if not inner:
        return original
    for form, read in _FORMS.items():
        if inner.startswith(form):
            return read(inner[len(form) :], original)
    return Publication(b"", name)


def _may_name(translation: bytes, exchange: bytes) -> bool:
    """Return True if a local translation can name the exchange, judging by the literal before the first variable."""
    fixed, variable, _ = translation.partition(b"$")
    fixed = fixed.lstrip(b"/")
    for form, decode in ((b"exchange/", _partly_decoded), (b"exchanges/", _decoded)):
        if fixed.startswith(form):
            name, slash, _ = fixed[len(form) :].partition(b"/")
            if variable and not slash:
                # The variable may also complete an escape.
                return exchange.startswith(decode(_INCOMPLETE_ESCAPE.sub(b"", name)))
            return decode(name) == exchange
        if variable and form.startswith(fixed):
            return True
    may_be_topic = fixed.startswith(_TOPIC) or bool(variable and _TOPIC.startswith(fixed))
    return may_be_topic and exchange == b"amq.topic"


def _partly_decoded(text: bytes) -> bytes:
    return _ESCAPE.sub(lambda escape: {b"2F": b"/", b"25": b"%"}.get(escape[1].upper(), escape[0]), text)


def _percent_decoded(text: bytes) -> bytes:
    if b"/" in text:
        raise _NowhereError("a name contains a slash; write it as %2F")
    if _BAD_ESCAPE.search(text):
        raise _NowhereError("a name contains a malformed percent escape")
    return _decoded(text)


def _decoded(text: bytes) -> bytes:
    return _ESCAPE.sub(lambda escape: bytes.fromhex(escape[1].decode()), text)


def _some(text: bytes) -> bytes:
    if not text:
        raise _NowhereError("the exchange or queue name is empty")
    return text


def _exchange(rest: bytes, original: Publication) -> Publication:
    exchange, slash, key = rest.partition(b"/")
    return Publication(_partly_decoded(_some(exchange)), key if slash else original.routing_key)


def _exchange_v2(rest: bytes, original: Publication) -> Publication:
    exchange, _, key = rest.partition(b"/")
    return Publication(_some(_percent_decoded(exchange)), _percent_decoded(key))


def _queue(rest: bytes, original: Publication) -> Publication:
    return Publication(b"", _some(rest))


def _queue_v2(rest: bytes, original: Publication) -> Publication:
    return Publication(b"", _some(_percent_decoded(rest)))


def _topic(rest: bytes, original: Publication) -> Publication:
    return Publication(b"amq.topic", rest)


#: Parser for each possible beginning of a name, in the address formats of RabbitMQ 3 (v1) and RabbitMQ 4 (v2).
_FORMS: dict[bytes, Callable[[bytes, Publication], Publication]] = {
    b"exchange/": _exchange,
    b"exchanges/": _exchange_v2,
    b"queue/": _queue,
    b"amq/queue/": _queue,
    b"queues/": _queue_v2,
    _TOPIC: _topic,
}
