"""Writes a rules file from a broker's definitions, to migrate exchanges of the open-exchange plugin or of standard
types.

Definitions are the JSON output of ``rabbitmqctl export_definitions``. They contain neither the widths of numbers nor
the order in which bindings were declared. If the result depends on this order, a warning is returned.

Source: RabbitMQ's guide "Schema Definition Export and Import"; the open-exchange specification, section 8.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from oxproxy.errors import ConfigError, ConfigErrors
from oxproxy.routing.bindings.compiled import CompiledBinding
from oxproxy.routing.bindings.exchange_types import OPEN
from oxproxy.routing.bindings.patterns import Budget, InvalidPattern, compile_pattern
from oxproxy.routing.filters import ALTERNATE
from oxproxy.rules.loader import LoadedRules, compile_rules
from oxproxy.rules.schema import TYPES
from oxproxy.values import RESERVED_PREFIXES, text
from oxproxy.yamlfile.document import ConfigWarning, Place, escaped, join
from oxproxy.yamlfile.models import suggestion

#: Exchange types that distinguish bindings by their arguments; other types ignore arguments.
_BY_ARGUMENTS = (OPEN, "headers")
_BY_KEY = ("direct", "topic")
#: Name of the carrier if the broker already has an exchange with the imported name.
_CARRIER = "{}.oxproxy"
#: Prefixes of the names of exchanges that sidecars create, and of routing keys on carriers. They identify the exchanges
#: that must not be imported.
_RESERVED = tuple(prefix.decode() for prefix in RESERVED_PREFIXES)
_EXPECTED = "the output of rabbitmqctl export_definitions"
#: JSON names of the types that were found, by Python type.
_SEEN = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
#: JSON names of the expected types, keyed by pydantic's error type.
_WANTED = {
    "model_type": "an object", "dict_type": "an object", "list_type": "a list",
    "string_type": "a string", "literal_error": "queue or exchange",
}  # fmt: skip
#: The definitions of an exchange without bindings are the same as those of an empty carrier.
_EMPTY = " []  # none; remove this exchange if a sidecar declared it as a carrier"
_HEADER = (
    "# Bindings with equal order are in the order of the definitions, not in the order in which they were declared.\n"
)


#: Null stands for an empty table.
_Arguments: TypeAlias = Annotated[dict[str, Any], BeforeValidator(lambda written: written or {})]


class _Object(BaseModel):
    """An object of the broker. Keys that are not used here are ignored.

    Args:
        vhost: missing if only one virtual host was exported.
    """

    vhost: str = "/"


class _Exchange(_Object):
    name: str
    type: str
    internal: bool = False
    arguments: _Arguments = {}


class _Policy(_Object):
    name: str = ""
    pattern: str
    apply_to: str = Field(default="all", alias="apply-to")
    priority: int = 0
    definition: _Arguments = {}

    def gives_alternate_exchange(self, exchange: _Exchange) -> bool:
        """Return True if the policy may set the alternate exchange of an exchange."""
        if ALTERNATE.decode() not in self.definition or ALTERNATE.decode() in exchange.arguments:
            return False
        try:
            pattern = compile_pattern(self.pattern.encode("utf-8", "replace"))
        except InvalidPattern:
            return False
        matches = pattern.search(exchange.name.encode("utf-8", "replace"), Budget()) is True
        return self.vhost == exchange.vhost and self.apply_to in ("all", "exchanges") and matches


class _Binding(_Object):
    source: str
    destination_type: Literal["queue", "exchange"]
    destination: str
    routing_key: str = ""
    arguments: _Arguments = {}


class _Vhost(BaseModel):
    name: str


class _Definitions(BaseModel):
    exchanges: list[_Exchange]
    bindings: list[_Binding]
    queues: list[_Object] = []
    vhosts: list[_Vhost] = []
    policies: list[_Policy] = []


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
        ConfigErrors: the data is not a definitions file, or does not contain the virtual host or a requested exchange.
    """
    place = Place(source, 0)
    definitions = _parsed(data, source)
    bindings: dict[str, list[_Binding]] = {}
    for binding in definitions.bindings:
        if binding.vhost == vhost:
            bindings.setdefault(binding.source, []).append(binding)
    defined = _selected(definitions, source, vhost, bindings, only)
    exchanges = [
        (exchange, _distinct(exchange.type, bindings.get(exchange.name, ())))
        for exchange in defined
        if exchange.type in TYPES
    ]
    warnings = [
        ConfigWarning(place, f"exchange {exchange.name}", f"omitted: the type {exchange.type} is not supported")
        for exchange in defined
        if exchange.type not in TYPES
    ]
    for exchange, _ in exchanges:
        if exchange.internal:
            message = "producers can publish to it through the sidecar, although it is internal on the broker"
            warnings.append(ConfigWarning(place, f"exchange {exchange.name}", message))
        for policy in definitions.policies:
            if policy.gives_alternate_exchange(exchange):
                message = (
                    f"the policy {policy.name} sets an alternate exchange, which is not imported: "
                    f"add alternate-exchange to the arguments"
                )
                warnings.append(ConfigWarning(place, f"exchange {exchange.name}", message))
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


def _parsed(data: bytes, source: str) -> _Definitions:
    """Read definitions; all invalid values are reported."""
    try:
        return _Definitions.model_validate(json.loads(data))
    except ValidationError as error:
        raise ConfigErrors([_fault(source, detail) for detail in error.errors(include_url=False)]) from None
    except (ValueError, RecursionError):
        message = f"got a file that is not JSON, expected {_EXPECTED}"
        raise ConfigErrors([ConfigError(source, 0, "", message)]) from None


def _fault(source: str, detail: Mapping[str, Any]) -> ConfigError:
    path = ""
    for step in detail["loc"]:
        path = join(path, step)
    if detail["type"] == "missing":
        return ConfigError(source, 0, path, f"missing, expected {_EXPECTED}")
    seen = _SEEN.get(type(detail["input"]), "null")
    expected = _WANTED.get(detail["type"], detail["msg"])
    return ConfigError(source, 0, path, f"got {seen}, expected {expected}, as in {_EXPECTED}")


def _is_wanted(exchange: _Exchange, bindings: Sequence[_Binding], only: Sequence[str]) -> bool:
    """Return True if an exchange was requested and was not created by a sidecar."""
    if exchange.name not in only if only else exchange.name.startswith("amq."):
        return False
    if not bindings and exchange.type in _BY_KEY and exchange.name.endswith(_CARRIER.format("")):
        return False  # an empty carrier
    return not any(key.startswith(_RESERVED) for key in (exchange.name, *(binding.routing_key for binding in bindings)))


def _selected(
    definitions: _Definitions,
    source: str,
    vhost: str,
    bindings: Mapping[str, Sequence[_Binding]],
    only: Sequence[str],
) -> list[_Exchange]:
    """Return the requested exchanges of a virtual host.

    Raises:
        ConfigErrors: the virtual host or a requested exchange does not exist, or a sidecar created the exchange.
    """
    present = [exchange for exchange in definitions.exchanges if exchange.vhost == vhost and exchange.name]
    selected = [exchange for exchange in present if _is_wanted(exchange, bindings.get(exchange.name, ()), only)]
    if not selected:
        vhosts = {named.name for named in definitions.vhosts}
        vhosts = vhosts or {owned.vhost for owned in (*definitions.exchanges, *definitions.queues)}
        if vhost not in vhosts:
            message = f'got "{vhost}", expected a virtual host defined in this file: {", ".join(sorted(vhosts))}'
            raise ConfigErrors([ConfigError(source, 0, "--vhost", message)])
    faults = []
    for name in sorted(set(only) - {exchange.name for exchange in selected}):
        known = {exchange.name for exchange in present if _is_wanted(exchange, bindings.get(exchange.name, ()), ())}
        if name in {exchange.name for exchange in present}:
            expected = ", which a sidecar created, expected another exchange"
        else:
            expected = suggestion(name, known) if known else ", but the virtual host has no exchanges to import"
        faults.append(ConfigError(source, 0, "--exchange", f'got "{name}"{expected}'))
    if faults:
        raise ConfigErrors(faults)
    return selected


def _distinct(kind: str, bindings: Iterable[_Binding]) -> list[_Binding]:
    """Remove keys that the exchange type ignores, and bindings that then equal an earlier binding."""
    ignored: dict[str, object] = {}
    if kind not in (*_BY_KEY, OPEN):
        ignored["routing_key"] = ""
    if kind not in _BY_ARGUMENTS:
        ignored["arguments"] = {}
    distinct: dict[str, _Binding] = {}
    for binding in bindings:
        relevant = binding.model_copy(update=ignored)
        distinct.setdefault(json.dumps(relevant.model_dump(), sort_keys=True), relevant)
    return list(distinct.values())


def _lines(vhost: str, exchanges: Sequence[tuple[_Exchange, Sequence[_Binding]]]) -> Iterator[str]:
    yield f"{_HEADER}vhost: {_written(vhost)}\nexchanges:{'' if exchanges else ' []'}\n"
    for exchange, bindings in exchanges:
        yield f"  - name: {_written(exchange.name)}\n    type: {exchange.type}\n"
        if exchange.type != OPEN:
            yield f"    carrier: {_written(_CARRIER.format(exchange.name))}  # the broker already has this exchange\n"
        if exchange.arguments:
            yield f"    arguments: {_written(exchange.arguments)}\n"
        yield f"    bindings:{'' if bindings else _EMPTY if exchange.type in _BY_KEY else ' []'}\n"
        for binding in bindings:
            yield f"      - {binding.destination_type}: {_written(binding.destination)}\n"
            if binding.routing_key:
                yield f"        routing_key: {_written(binding.routing_key)}\n"
            if binding.arguments:
                yield "        arguments:\n"
            for key, value in binding.arguments.items():
                yield f"          {_written(key)}: {_written(value)}\n"


def _written(value: object) -> str:
    """Write a JSON value as YAML with the same meaning."""
    # Some characters that JSON strings may contain, and pairs of surrogate escapes, are not valid in YAML.
    return escaped(json.dumps(value, ensure_ascii=False))


def _undecided(loaded: LoadedRules) -> Iterator[tuple[str, str]]:
    """Yield a warning for bindings with equal `x-order` if the result depends on their order of declaration."""
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
                        f"destinations; since definitions do not contain the order in which bindings were declared, "
                        f"give each binding its own x-order",
                    )


def _depends_on_order(compiled: CompiledBinding) -> bool:
    effects = [effect for effect in (compiled.on_true, compiled.on_false) if effect is not None]
    return any(effect.jump or effect.delete or effect.delete_queues or effect.granted_delete for effect in effects)
