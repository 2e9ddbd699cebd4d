"""Where does each destination of a decision really lead, once the address table has been asked?

Each destination is looked up once: a queue as a publish to the default exchange under its name, an exchange as a
publish to it under the message's key. What comes of it is not looked up again. Knows nothing of how a publish leaves.

Source: architecture, "The path of one publish"; the messenger-addressing specification, 3.1 and 3.2.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import NamedTuple

from proxy.routing.address_targets import AddressBook, FailedTranslation, Publication, Target
from proxy.routing.bindings import EXCHANGE, QUEUE, Destination

#: Why a destination's translation to an exchange of the rules is none: nothing is evaluated behind a decision.
EVALUATED_HERE = "an exchange that is evaluated here, behind one that was"


class Departure(NamedTuple):
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
) -> Departure:
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
    return Departure(
        tuple(name for kind, name in found if kind == QUEUE),
        tuple(name for kind, name in found if kind == EXCHANGE),
        tuple(publications),
        tuple(remotes.values()),
        tuple(failed),
        rule,
    )
