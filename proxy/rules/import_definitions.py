"""Writes a rules file from a broker's definitions, to migrate exchanges of the open-exchange plugin or of standard
types.

Definitions are the JSON output of ``rabbitmqctl export_definitions``. They contain neither the widths of numbers nor
the order in which bindings were declared. If the result depends on this order, a warning is returned.

Source: RabbitMQ's guide "Schema Definition Export and Import"; the open-exchange specification, section 8.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import cast

from proxy.errors import ConfigError, ConfigErrors
from proxy.routing.bindings.compiled import CompiledBinding
from proxy.routing.bindings.exchange_types import OPEN
from proxy.rules.loader import LoadedRules, compile_rules
from proxy.rules.schema import TYPES
from proxy.values import RESERVED_PREFIXES, text
from proxy.yamlfile.document import ConfigWarning, Place

#: Exchange types that distinguish bindings by their arguments; other types ignore arguments.
_BY_ARGUMENTS = (OPEN, "headers")
_BY_KEY = ("direct", "topic")
#: Name of the carrier if the broker already has an exchange with the imported name.
_CARRIER = "{}.oxproxy"
#: Prefixes of exchanges created by a sidecar, and of routing keys. An exchange with such bindings is a carrier.
_RESERVED = tuple(prefix.decode() for prefix in RESERVED_PREFIXES)
_HEADER = (
    "# Bindings with equal order are in the order of the definitions, not in the order in which they were declared.\n"
)


@dataclass(frozen=True, slots=True)
class _Exchange:
    name: str
    type: str
    arguments: Mapping[str, object]
    bindings: Sequence[Mapping[str, object]]


def import_definitions(
    data: bytes, source: str, vhost: str, only: Sequence[str] = ()
) -> tuple[str, list[ConfigWarning]]:
    """Write a rules file.

    Args:
        vhost: virtual host to import.
        only: exchanges to import. If empty, all exchanges are imported except those predefined by the broker.

    Returns:
        The file's text, and warnings.

    Raises:
        ConfigErrors: the data is not a definitions file, or does not contain the virtual host.
    """
    place = Place(source, 0)
    defined = list(_exchanges(data, source, vhost, only))
    exchanges = [exchange for exchange in defined if exchange.type in TYPES]
    if not defined:
        known = _vhosts(data)
        if vhost not in known:
            message = f'seen "{vhost}", expected a virtual host defined in this file: {", ".join(sorted(known))}'
            raise ConfigErrors([ConfigError(source, 0, "--vhost", message)])
    warnings = [
        ConfigWarning(place, f"exchange {name}", "not in these definitions")
        for name in only
        if name not in {exchange.name for exchange in defined}
    ]
    warnings += [
        ConfigWarning(place, f"exchange {exchange.name}", f"omitted: the type {exchange.type} is not supported")
        for exchange in defined
        if exchange.type not in TYPES
    ]
    if not exchanges and not only:
        warnings.append(ConfigWarning(place, f"vhost {vhost}", "no exchange of a supported type"))
    content = "".join(_lines(vhost, exchanges))
    try:
        loaded = compile_rules([(source, content.encode())])
    except ConfigErrors as errors:
        warnings += [ConfigWarning(place, error.key, f"imported unchanged: {error.message}") for error in errors.errors]
    else:
        warnings += [ConfigWarning(place, key, message) for key, message in _undecided(loaded)]
    return content, warnings


def _exchanges(data: bytes, source: str, vhost: str, only: Sequence[str]) -> Iterator[_Exchange]:
    try:
        definitions = json.loads(data)
        bindings: dict[str, list[Mapping[str, object]]] = {}
        for binding in definitions["bindings"]:
            if binding.get("vhost", "/") == vhost:
                bindings.setdefault(binding["source"], []).append(binding)
        for exchange in definitions["exchanges"]:
            name = exchange["name"]
            wanted = name in only if only else not name.startswith("amq.")
            if name and wanted and exchange.get("vhost", "/") == vhost:
                own = bindings.get(name, ())
                used = (name, *(str(binding.get("routing_key", "")) for binding in own))
                if any(key.startswith(_RESERVED) for key in used):
                    continue
                kind = exchange["type"]
                yield _Exchange(name, kind, exchange.get("arguments") or {}, _distinct(kind, own))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = "expected definitions as written by rabbitmqctl export_definitions"
        raise ConfigErrors([ConfigError(source, 0, "", message)]) from error


def _vhosts(data: bytes) -> set[str]:
    """Return the virtual hosts in definitions. If only one virtual host was exported, its name may be missing."""
    definitions = json.loads(data)
    listed = {str(vhost["name"]) for vhost in definitions.get("vhosts", ())}
    return listed or {
        str(entry.get("vhost", "/")) for key in ("exchanges", "queues") for entry in definitions.get(key, ())
    }


def _distinct(kind: str, bindings: Iterable[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """Remove keys that the exchange type ignores, and bindings that are duplicates without these keys."""
    distinct: dict[str, Mapping[str, object]] = {}
    for defined in bindings:
        binding = {
            "destination_type": defined["destination_type"],
            "destination": defined["destination"],
            "routing_key": defined.get("routing_key", "") if kind in (*_BY_KEY, OPEN) else "",
            "arguments": (defined.get("arguments") or {}) if kind in _BY_ARGUMENTS else {},
        }
        distinct.setdefault(json.dumps(binding, sort_keys=True), binding)
    return list(distinct.values())


def _lines(vhost: str, exchanges: Sequence[_Exchange]) -> Iterator[str]:
    yield f"{_HEADER}vhost: {_written(vhost)}\nexchanges:{'' if exchanges else ' []'}\n"
    for exchange in exchanges:
        yield f"  - name: {_written(exchange.name)}\n    type: {exchange.type}\n"
        if exchange.type != OPEN:
            yield f"    carrier: {_written(_CARRIER.format(exchange.name))}  # the broker already has this exchange\n"
        if exchange.arguments:
            yield f"    arguments: {_written(exchange.arguments)}\n"
        yield f"    bindings:{'' if exchange.bindings else ' []'}\n"
        for binding in exchange.bindings:
            yield f"      - {binding['destination_type']}: {_written(binding['destination'])}\n"
            if binding["routing_key"]:
                yield f"        routing_key: {_written(binding['routing_key'])}\n"
            arguments = cast("Mapping[str, object]", binding["arguments"])
            if arguments:
                yield "        arguments:\n"
            for key, value in arguments.items():
                yield f"          {_written(key)}: {_written(value)}\n"


def _written(value: object) -> str:
    """Write a JSON value as YAML with the same meaning."""
    if isinstance(value, str):
        return '"' + "".join(map(_character, value)) + '"'
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_written(key)}: {_written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_written, value)) + "]"
    return json.dumps(value)


def _character(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if character.isprintable() else f"\\U{ord(character):08x}"


def _undecided(loaded: LoadedRules) -> Iterator[tuple[str, str]]:
    """Yield a warning for bindings with equal `x-order` whose result depends on the order of declaration."""
    for router in loaded.routers.values():
        for exchange in router.exchanges.values():
            entries = exchange.entries
            for order, group in groupby(entries, lambda entry: entry.order):
                alike = list(group)
                deciding = [entry for entry in alike if _depends_on_order(entry)]
                if deciding and len(alike) > 1:
                    names = ", ".join(sorted({text(entry.binding.destination) for entry in deciding}))
                    yield (
                        f"exchange {text(exchange.name)}",
                        f"{len(alike)} bindings have order {order}, and the bindings to {names} stop, jump or remove "
                        f"destinations; definitions do not contain the order in which bindings were declared: "
                        f"give each binding its own x-order",
                    )


def _depends_on_order(compiled: CompiledBinding) -> bool:
    effects = [effect for effect in (compiled.on_true, compiled.on_false) if effect is not None]
    return any(effect.jump or effect.delete or effect.delete_queues or effect.granted_delete for effect in effects)
