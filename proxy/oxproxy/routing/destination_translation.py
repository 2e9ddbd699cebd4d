"""Translates the destinations of a decision with the address table.

A queue is translated like a publish to the default exchange with the queue's name as routing key, and an exchange like
a publish to that exchange with the message's routing key. The translated address is not translated again.

`translate_destinations` is used for publishes. The control plane, which has no message, uses `static_translations` to
determine which destinations need not exist, and which must exist instead.

Source: the messenger-addressing specification, 3.1 and 3.2.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from typing import NamedTuple

from oxproxy.addressing.targets import AddressBook, FailedTranslation, Publication, Remote, Target
from oxproxy.routing.router import Router
from oxproxy.values import EXCHANGE, QUEUE, RESERVED_PREFIXES, Destination

#: Two different routing keys. A translation that does not depend on the key has the same result for both.
_PROBE_KEYS = (b"a", b"b/c.d")
EVALUATED_HERE = "the target is an exchange that the sidecar evaluates, but a message is evaluated only once"
CARRIER_TARGET = "a carrier, not the exchange that it represents"
_RESERVED_KEY = "a routing key with a reserved prefix"


class TranslatedDestinations(NamedTuple):
    """Translated destinations of a decision."""

    queues: tuple[bytes, ...]  # queues on this broker, by name
    exchanges: tuple[bytes, ...]  # exchanges on this broker that receive the message with the original routing key
    #: exchanges on this broker that receive the message with a different routing key
    publications: tuple[Publication, ...] = ()
    remotes: tuple[Target, ...] = ()  # exchanges and routing keys on other brokers
    failed: tuple[FailedTranslation, ...] = ()  # translations that failed
    rule: int | None = None  # index of the first rule that applied, None if no rule applied


def translate_destinations(
    book: AddressBook,
    queues: Iterable[bytes],
    exchanges: Iterable[bytes],
    routing_key: bytes,
    taken: Container[bytes],
) -> TranslatedDestinations:
    """Translate every destination; `taken` contains the exchanges that the sidecar evaluates, and their carriers."""
    translated: dict[Destination, None] = {}
    publications: dict[Publication, None] = {}
    remotes: dict[tuple[object, Publication], Target] = {}
    failed: list[FailedTranslation] = []
    rule: int | None = None
    wanted = [(Publication(b"", name), (QUEUE, name)) for name in queues]
    wanted += [(Publication(name, routing_key), (EXCHANGE, name)) for name in exchanges]
    for publication, destination in wanted:
        target = book.look_up(*publication)
        if target is None:
            translated[destination] = None
            continue
        rule = target.rule if rule is None else rule
        if isinstance(target, FailedTranslation):
            failed.append(target)
        elif target.remote is not None:
            remotes[target.remote, target.publication] = target
        elif target.publication.exchange in taken:
            failed.append(FailedTranslation(target.rule, EVALUATED_HERE))
        elif not target.publication.exchange:
            translated[QUEUE, target.publication.routing_key] = None
        elif target.publication.routing_key == routing_key:
            translated[EXCHANGE, target.publication.exchange] = None
        elif target.publication.routing_key.startswith(RESERVED_PREFIXES):  # copied from the producer's routing key
            failed.append(FailedTranslation(target.rule, _RESERVED_KEY))
        else:
            publications[target.publication] = None
    return TranslatedDestinations(
        tuple(name for kind, name in translated if kind == QUEUE),
        tuple(name for kind, name in translated if kind == EXCHANGE),
        tuple(publications),
        tuple(remotes.values()),
        tuple(failed),
        rule,
    )


class StaticTranslation(NamedTuple):
    """The translation of a destination named by rules, if it is the same for every message."""

    destination: Destination  # as named by the rules
    #: its replacement on this broker; None if there is none, or if the replacement depends on the message
    here: Destination | None = None
    #: the other broker and its replacement there; None if there is none, or if the replacement depends on the message
    remote: tuple[Remote, Destination] | None = None
    failure: str = ""  # why the translation fails; empty if it succeeds


class StaticTranslations(NamedTuple):
    """The translations of the destinations named by rules."""

    away: Mapping[Destination, StaticTranslation]  # destinations that need not exist, since no message is sent to them
    found: tuple[StaticTranslation, ...]  # all translations


def static_translations(
    book: AddressBook, named: Iterable[Destination], router: Router, carriers: Collection[bytes]
) -> StaticTranslations:
    """Translate the destinations named by rules, independently of messages.

    Args:
        carriers: names of the carriers of the router's exchanges.
    """
    evaluated = router.exchanges
    taken = evaluated.keys() | carriers
    candidates = (static_translation(book, destination, taken) for destination in sorted(set(named)))
    translations = tuple(translation for translation in candidates if translation is not None)
    # A message that the table redirected to an exchange is not translated again, so these destinations must exist.
    final = {destination for name in evaluated if book.may_lead_to(name) for destination in router.destinations(name)}
    by_destination = {translation.destination: translation for translation in translations}
    # A rule may keep messages with certain routing keys at an exchange, although a later rule redirects all other
    # messages from this exchange.
    final |= {(kind, name) for kind, name in by_destination if kind == EXCHANGE and book.may_keep(name)}
    away = {destination: by_destination[destination] for destination in by_destination if destination not in final}
    return StaticTranslations(away, translations)


def static_translation(
    book: AddressBook, destination: Destination, taken: Container[bytes]
) -> StaticTranslation | None:
    """Return the translation of a destination; None if the table does not translate it for every message.

    Rules that match only some routing keys of an exchange are not considered, unless they match a probe key.
    """
    kind, name = destination
    if kind == QUEUE:
        targets = [book.fixed_target(b"", name)]
    elif book.covers_exchange(name):
        targets = [book.fixed_target(name, key) for key in _PROBE_KEYS]
    else:
        return None
    target = targets[0]
    if target is None:
        return None
    translation = StaticTranslation(destination)
    if isinstance(target, FailedTranslation):
        return translation._replace(failure=target.reason)
    exchange, key = target.publication
    others = [other for other in targets[1:] if isinstance(other, Target)]
    if len(others) < len(targets) - 1 or any(
        (other.remote, other.publication.exchange) != (target.remote, exchange)
        or (not exchange and other.publication.routing_key != key)
        for other in others
    ):
        return translation
    replacement = (EXCHANGE, exchange) if exchange else (QUEUE, key)
    if target.remote is not None:
        return translation._replace(remote=(target.remote, replacement))
    if exchange in taken:
        return translation._replace(failure=EVALUATED_HERE)
    return translation._replace(here=replacement)
