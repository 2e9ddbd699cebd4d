"""Translates the destinations of a decision by the address table.

Each destination is looked up once: a queue as a publish to the default exchange under its name, an exchange as a
publish to it under the routing key of the message. The result is not looked up again.

`translate_destinations` serves publishes. `static_translations` serves the control plane, before there is a message:
which destinations need not exist, and which must exist in their place.

Source: the messenger-addressing specification, 3.1 and 3.2.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from proxy.addressing.targets import AddressBook, FailedTranslation, Publication, Target
from proxy.routing.router import Router
from proxy.values import EXCHANGE, QUEUE, Destination

#: Two different routing keys: a translation that does not depend on the key has the same result for both.
_PROBE_KEYS = (b"a", b"b/c.d")
#: Why a destination can't be translated to an exchange of the rules: a decision is not followed by a second decision.
EVALUATED_HERE = "an exchange that is evaluated here, after one that was"


class TranslatedDestinations(NamedTuple):
    """Translated destinations of a decision."""

    queues: tuple[bytes, ...]  # queues on this broker, by name
    exchanges: tuple[bytes, ...]  # exchanges on this broker that receive the message under its own key
    publications: tuple[Publication, ...] = ()  # exchanges on this broker that receive it under another key
    remotes: tuple[Target, ...] = ()  # exchanges and keys of other brokers
    failed: tuple[FailedTranslation, ...] = ()  # destinations whose translation failed
    rule: int | None = None  # index of the first rule that applied, None if none did


def translate_destinations(
    book: AddressBook,
    queues: Iterable[bytes],
    exchanges: Iterable[bytes],
    routing_key: bytes,
    evaluated: Container[bytes],
) -> TranslatedDestinations:
    """Translate every destination.

    Args:
        book: the table.
        queues: chosen queues.
        exchanges: chosen exchanges.
        routing_key: the message's.
        evaluated: exchanges that are evaluated here.
    """
    found: dict[Destination, None] = {}
    publications: dict[Publication, None] = {}
    remotes: dict[tuple[object, Publication], Target] = {}
    failed: list[FailedTranslation] = []
    rule: int | None = None
    wanted = [(Publication(b"", name), (QUEUE, name)) for name in queues]
    wanted += [(Publication(name, routing_key), (EXCHANGE, name)) for name in exchanges]
    for publication, destination in wanted:
        target = book.look_up(*publication)
        if target is None:
            found[destination] = None
            continue
        rule = target.rule if rule is None else rule
        if isinstance(target, FailedTranslation):
            failed.append(target)
        elif target.remote is not None:
            remotes[target.remote, target.publication] = target
        elif target.publication.exchange in evaluated:
            failed.append(FailedTranslation(target.rule, EVALUATED_HERE))
        elif not target.publication.exchange:
            found[QUEUE, target.publication.routing_key] = None
        elif target.publication.routing_key == routing_key:
            found[EXCHANGE, target.publication.exchange] = None
        else:
            publications[target.publication] = None
    return TranslatedDestinations(
        tuple(name for kind, name in found if kind == QUEUE),
        tuple(name for kind, name in found if kind == EXCHANGE),
        tuple(publications),
        tuple(remotes.values()),
        tuple(failed),
        rule,
    )


class StaticTranslation(NamedTuple):
    """The translation of a destination named by rules, as far as it is the same for every message."""

    destination: Destination  # as named by the rules
    #: its replacement on this broker; None if there is none, or it depends on the message
    here: Destination | None = None
    remote: Target | None = None  # its replacement at another broker, likewise
    failure: str = ""  # why the translation fails; empty if it succeeds


class StaticTranslations(NamedTuple):
    """The translations of the destinations named by rules."""

    away: Mapping[Destination, StaticTranslation]  # destinations that need not exist, since no message is sent to them
    found: tuple[StaticTranslation, ...]  # all translations


def static_translations(book: AddressBook, named: Iterable[Destination], router: Router) -> StaticTranslations:
    """Translate destinations before there is a message.

    Args:
        book: the table.
        named: destinations named by rules.
        router: the rules.
    """
    evaluated = router.exchanges
    found = [
        one for one in (static_translation(book, each, evaluated) for each in sorted(set(named))) if one is not None
    ]
    # A message that the table sent to an exchange is not translated again: its destinations are the rules' own.
    final = {one for name in evaluated if book.may_lead_to(name) for one in router.destinations(name)}
    return StaticTranslations({one.destination: one for one in found if one.destination not in final}, tuple(found))


def static_translation(
    book: AddressBook, destination: Destination, evaluated: Container[bytes]
) -> StaticTranslation | None:
    """Translate a destination before there is a message.

    Args:
        book: the table.
        destination: chosen by rules.
        evaluated: exchanges that are evaluated here.

    Returns:
        None if the destination is not translated, at least for some messages.
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
    found = StaticTranslation(destination)
    if isinstance(target, FailedTranslation):
        return found._replace(failure=target.reason)
    exchange, key = target.publication
    others = [other for other in targets[1:] if isinstance(other, Target)]
    if len(others) < len(targets) - 1 or any(
        (other.remote, other.publication.exchange) != (target.remote, exchange)
        or (not exchange and other.publication.routing_key != key)
        for other in others
    ):
        return found
    if target.remote is not None:
        return found._replace(remote=target)
    if exchange in evaluated:
        return found._replace(failure=EVALUATED_HERE)
    return found._replace(here=(EXCHANGE, exchange) if exchange else (QUEUE, key))
