"""Where does each destination of a decision really lead, once the address table has been asked?

Each destination is looked up once: a queue as a publish to the default exchange under its name, an exchange as a
publish to it under the message's key. What comes of it is not looked up again. Knows nothing of how a publish leaves.

Source: architecture, "The path of one publish"; the messenger-addressing specification, 3.1 and 3.2.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from proxy.addressing.targets import AddressBook, FailedTranslation, Publication, Target
from proxy.routing.router import Router
from proxy.values import EXCHANGE, QUEUE, Destination

#: Why a destination's translation to an exchange of the rules is none: nothing is evaluated behind a decision.
EVALUATED_HERE = "an exchange that is evaluated here, behind one that was"


class Readdressing(NamedTuple):
    """What the destinations of a decision have become.

    Args:
        queues: queues here, by name.
        exchanges: exchanges here that get the message under its own key.
        publications: exchanges here that get it under another key.
        remotes: exchanges and keys of other brokers.
        failed: destinations whose translation leads nowhere.
        rule: index of the first rule that applied, None where none did.
    """

    queues: tuple[bytes, ...]
    exchanges: tuple[bytes, ...]
    publications: tuple[Publication, ...] = ()
    remotes: tuple[Target, ...] = ()
    failed: tuple[FailedTranslation, ...] = ()
    rule: int | None = None


def departure(
    book: AddressBook,
    queues: Iterable[bytes],
    exchanges: Iterable[bytes],
    routing_key: bytes,
    evaluated: Container[bytes],
) -> Readdressing:
    """Ask the table about every destination.

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
    return Readdressing(
        tuple(name for kind, name in found if kind == QUEUE),
        tuple(name for kind, name in found if kind == EXCHANGE),
        tuple(publications),
        tuple(remotes.values()),
        tuple(failed),
        rule,
    )


class Relocation(NamedTuple):
    """What the address table makes of a destination that rules name, as far as it is the same for every message.

    Args:
        destination: as the rules name it.
        here: the destination on this broker in its place; None where it is none, or depends on the message.
        remote: the exchange and key at another broker in its place, likewise.
        failure: why the translation leads nowhere; empty where it leads somewhere.
    """

    destination: Destination
    here: Destination | None = None
    remote: Target | None = None
    failure: str = ""


class Relocations(NamedTuple):
    """What the address table makes of the destinations that rules name.

    Args:
        away: those that need not exist, since no message goes to them.
        found: what is known of all that the table is for.
    """

    away: Mapping[Destination, Relocation]
    found: tuple[Relocation, ...]


def relocations(book: AddressBook, named: Iterable[Destination], router: Router) -> Relocations:
    """Ask the table about destinations before there is a message.

    Args:
        book: the table.
        named: destinations that rules name.
        router: the rules.
    """
    evaluated = router.exchanges
    found = [one for one in (relocation(book, each, evaluated) for each in sorted(set(named))) if one is not None]
    # What the table itself has sent to an exchange is looked up no more: its destinations are the rules' own.
    final = {one for name in evaluated if book.may_lead_to(name) for one in router.destinations(name)}
    return Relocations({one.destination: one for one in found if one.destination not in final}, tuple(found))


#: Routing keys that a fixed translation makes the same of.
_PROBES = (b"a", b"b/c.d")


def relocation(book: AddressBook, destination: Destination, evaluated: Container[bytes]) -> Relocation | None:
    """Ask the table about a destination before there is a message.

    Args:
        book: the table.
        destination: chosen by rules.
        evaluated: exchanges that are evaluated here.

    Returns:
        None where the destination stands for itself, at least for some messages.
    """
    kind, name = destination
    if kind == QUEUE:
        targets = [book.standing(b"", name)]
    elif book.takes_all(name):
        targets = [book.standing(name, key) for key in _PROBES]
    else:
        return None
    target = targets[0]
    if target is None:
        return None
    found = Relocation(destination)
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
