"""Lists the objects that rules need on a broker, with their positions. The objects are the destinations named by
bindings, and the evaluated exchanges.

`oxproxy check --broker` compares these objects with the broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from oxproxy.addressing.targets import AddressBook
from oxproxy.routing.destination_translation import static_translations
from oxproxy.routing.router import Router
from oxproxy.rules.lint.bindings import linted_exchanges
from oxproxy.rules.loader import LoadedRules
from oxproxy.rules.ruleset import ExchangeRule, VhostRules
from oxproxy.rules.schema import ParsedFile
from oxproxy.values import EXCHANGE, QUEUE
from oxproxy.yamlfile.document import Place


@dataclass(frozen=True, slots=True)
class NamedDestination:
    """A destination named by a binding, or a queue declared by the rules.

    Args:
        translated: whether the destination is the result of an address translation instead of the name in the file.
    """

    vhost: str
    kind: str
    name: bytes
    place: Place
    path: str
    translated: bool = False


@dataclass(frozen=True, slots=True)
class EvaluatedExchange:
    """An exchange in the rules files.

    Args:
        place: position of the exchange's name.
        published: with ``delivery: queue``, the exchanges on the broker to which the sidecar publishes for this
            exchange.
    """

    vhost: str
    rule: ExchangeRule
    place: Place
    path: str
    published: frozenset[bytes]


_Key: TypeAlias = tuple[str, str, bytes]
#: The kind of the destinations that a routing operator adds, by the first seven octets of its key.
_ADDED = {b"x-addq-": QUEUE, b"x-adde-": EXCHANGE}


def destinations(files: Sequence[ParsedFile], loaded: LoadedRules) -> list[NamedDestination]:
    """Return every destination that must exist on the broker, each with its first position."""
    named: dict[_Key, NamedDestination] = {}
    declared: set[_Key] = set()
    for exchange in linted_exchanges(files, loaded):
        vhost = exchange.vhost
        declared |= {(vhost, QUEUE, queue.name) for queue in loaded.rules.vhosts[vhost].queues}
        declared |= {(vhost, EXCHANGE, name) for name in loaded.routers[vhost].exchanges}
        for parsed in exchange.bindings.values():
            binding = parsed.binding
            kind, name = binding.destination_type, binding.destination
            if (vhost, kind, name) not in named:
                written = NamedDestination(vhost, kind, name, parsed.place, f"{parsed.path}.{kind}")
                named[vhost, kind, name] = written
            for key, name in parsed.named_routes():
                kind = _ADDED.get(key[:7], "")
                if kind:  # destinations that are only removed from the selection need not exist
                    named.setdefault((vhost, kind, name), NamedDestination(vhost, kind, name, *parsed.argument_at(key)))
    for vhost, book in loaded.books.items():
        named = _relocated(named, loaded.rules.vhosts[vhost], book, loaded.routers[vhost])
    return [destination for key, destination in named.items() if key not in declared]


def _relocated(
    named: dict[_Key, NamedDestination], rules: VhostRules, book: AddressBook, router: Router
) -> dict[_Key, NamedDestination]:
    """Replace destinations with their address translations."""
    vhost = rules.vhost
    moved = static_translations(book, [key[1:] for key in named if key[0] == vhost], router, rules.carriers)
    kept = {key: entry for key, entry in named.items() if key[0] != vhost or key[1:] not in moved.away}
    for translation in moved.found:
        if translation.here is not None:
            kind, name = translation.here
            written = named[vhost, *translation.destination]
            kept.setdefault((vhost, kind, name), replace(written, kind=kind, name=name, translated=True))
    return kept


def declared_queues(files: Sequence[ParsedFile]) -> list[NamedDestination]:
    return [
        NamedDestination(file.vhost, QUEUE, queue.rule.name, queue.place, queue.path)
        for file in files
        for queue in file.queues
    ]


def evaluated_exchanges(files: Sequence[ParsedFile], loaded: LoadedRules) -> list[EvaluatedExchange]:
    evaluated: list[EvaluatedExchange] = []
    for file in files:
        router = loaded.routers[file.vhost]
        for parsed in file.exchanges:
            rule = parsed.rule
            published = {name for kind, name in router.destinations(rule.name) if kind == EXCHANGE}
            if rule.alternate is not None and rule.alternate not in router.exchanges:
                published.add(rule.alternate)
            place, path = parsed.fields.place_of("name"), parsed.fields.at("name")
            by_queue = rule.delivery == "queue"
            evaluated.append(
                EvaluatedExchange(file.vhost, rule, place, path, frozenset(published) if by_queue else frozenset())
            )
    return evaluated
