"""Compiles the exchanges of rules files and reports rejections at the lines that cause them.

The package `routing` rejects a declaration as the broker would, with a single error and without a position. Each
argument of a rejected declaration is therefore tried alone, so that every error is reported at its line.
"""

from __future__ import annotations

import difflib
from collections.abc import Hashable

from proxy.errors import ProtocolError
from proxy.routing.bindings.arguments import X_MATCH
from proxy.routing.bindings.binding import Binding
from proxy.routing.bindings.exchange_types import OPEN
from proxy.routing.bindings.operators import TEXT_PROPERTIES
from proxy.routing.bindings.patterns import why_invalid
from proxy.routing.exchange import Exchange
from proxy.rules.message import PROPERTIES
from proxy.rules.operator_reference import OPERATORS
from proxy.rules.ruleset import ExchangeRule
from proxy.rules.schema import ParsedBinding, ParsedExchange
from proxy.values import Table, Value, strings, text
from proxy.yamlfile.document import Faults
from proxy.yamlfile.models import short_fault

#: Valid values of x-match by exchange type.
_MATCH_TYPES = {
    OPEN: "all, any, eq, set or set N with an integer N",
    "headers": "all, any, all-with-x or any-with-x",
}


def compile_exchange(parsed: ParsedExchange, faults: Faults) -> Exchange:
    """Compile one exchange with its bindings. The result is usable only if no error was reported."""
    rule = parsed.rule
    try:
        exchange = Exchange(rule.name, rule.type, rule.arguments, rule.local_time, rule.alternate)
    except ProtocolError:
        _blame_exchange(parsed, faults)
        exchange = Exchange(rule.name, rule.type, (), rule.local_time)
    repeated = [binding for binding in parsed.bindings if not _bind(exchange, binding, rule, faults)]
    if repeated:
        # Arguments with errors are omitted, so the remaining arguments can equal those of another binding.
        incomplete = {(error.file, error.key.partition(".arguments")[0]) for error in faults.errors}
        first: dict[Hashable, ParsedBinding] = {}
        for binding in parsed.bindings:
            if (binding.place.source, binding.path) not in incomplete:
                original = first.setdefault(binding.binding.identity, binding)
                if original is not binding:
                    faults.error(binding.place, binding.path, f"the same binding as on line {original.place.line}")
    return exchange


def _blame_exchange(parsed: ParsedExchange, faults: Faults) -> None:
    """Find the invalid arguments of a rejected exchange by trying each argument alone, and report them."""
    reported = False
    for name, value in parsed.rule.arguments:
        try:
            Exchange(parsed.rule.name, parsed.rule.type, ((name, value),), parsed.rule.local_time)
        except ProtocolError as error:
            reported = True
            message = f"{text(error.text)} Expected an integer, 0 or more"
            faults.error(*parsed.argument_at(name), message)
    if not reported:
        parsed.fields.error("arguments", "these arguments can't be combined")


def _bind(exchange: Exchange, parsed: ParsedBinding, owner: ExchangeRule, faults: Faults) -> bool:
    """Add a binding, or report why it is rejected. Return False if the binding already exists."""
    _reserved(parsed, faults)
    try:
        return exchange.bind(parsed.binding)
    except ProtocolError as error:
        _blame_binding(error, parsed, owner, faults)
        return True


def _reserved(parsed: ParsedBinding, faults: Faults) -> None:
    """Report routing operators with destination names that have a reserved prefix or are too long."""
    for key, name in parsed.named_routes():
        fault = short_fault(name)
        if fault:
            faults.error(*parsed.argument_at(key), f"got {fault}")


def _blame_binding(error: ProtocolError, parsed: ParsedBinding, owner: ExchangeRule, faults: Faults) -> None:
    """Find the invalid lines of a rejected binding by trying each argument alone, and report them."""
    binding = parsed.binding
    reported = False
    if binding.routing_key and _refusal(owner, binding, binding.routing_key, ()):
        reported = True
        message = f"{text(error.text)}: it must be empty for type {owner.type}"
        faults.error(parsed.key_place, f"{parsed.path}.routing_key", message)
    match = tuple(entry for entry in binding.arguments if entry[0] == X_MATCH)
    refusal = _refusal(owner, binding, b"", match) if match else None
    if refusal:
        reported = True
        message = f"got {_shown(match[0][1])}, expected {_MATCH_TYPES[owner.type]}"
        faults.error(*parsed.argument_at(X_MATCH), message)
        match = ()
    for entry in binding.arguments:
        if entry[0] == X_MATCH:
            continue
        refusal = _refusal(owner, binding, b"", (*match, entry))
        if refusal:
            reported = True
            faults.error(*parsed.argument_at(entry[0]), _reworded(refusal, *entry))
    if not reported:
        faults.error(parsed.place, parsed.path, text(error.text))


def _refusal(owner: ExchangeRule, binding: Binding, key: bytes, arguments: Table) -> ProtocolError | None:
    try:
        Exchange(owner.name, owner.type, (), owner.local_time).bind(
            Binding(owner.name, binding.destination_type, binding.destination, key, arguments, extensions=True)
        )
    except ProtocolError as error:
        return error
    return None


def _reworded(refusal: ProtocolError, name: bytes, value: Value) -> str:
    """Return a reason that is more precise than the plugin's error message, which clients receive."""
    reason, key = text(refusal.text), name.decode()
    unknown = key.partition(" ")[0] not in OPERATORS
    if reason.startswith("Unknown or invalid") or (unknown and reason == "Invalid property match operator"):
        return _unknown(key, value)
    if reason.startswith("Invalid regex"):
        wrong = (element for element in strings(value) if why_invalid(element))
        source = next(wrong, b"")
        return f"got {_quoted(source)}, which is not a regular expression: {why_invalid(source)}"
    if reason == "Invalid property match operator":
        return f"{reason}: {_property(key, value)}"
    if reason == "Invalid AMQP topic":
        return f"{reason}: got {_shown(value)}"
    return reason


def _unknown(key: str, value: Value) -> str:
    head, space, rest = key.partition(" ")
    if head not in OPERATORS:
        if not rest[:1].isalnum() and (spaced := _with_one_space(key.replace(" ", "", 1))):
            return f'unknown operator {head}; did you mean "{spaced}"?'
        near = difflib.get_close_matches(head, OPERATORS, 1, 0.75)
        if near:
            return f"unknown operator {head}; did you mean {near[0]}{space}{rest}?"
        return f'unknown operator {head}; to test a header of that name, use "x-?hkv= {key}"'
    named = OPERATORS[head].named
    if named and not rest:
        return f'got {head} without a name, expected "{head} NAME", the name of a {named} after exactly one space'
    if space and not named:
        return f"got a name after {head}, expected {head} without a name"
    return f"got {_shown(value)}, expected {OPERATORS[head].expected}"


def _with_one_space(key: str) -> str:
    """Return an operator and the name after it, separated by one space; empty if the key does not contain both."""
    operators = (name for name, operator in OPERATORS.items() if operator.named and key.startswith(name))
    operator = max(operators, key=len, default="")
    name = key[len(operator) :].lstrip(" ")
    return f"{operator} {name}" if operator and name[:1].isalnum() else ""


def _property(key: str, value: Value) -> str:
    head, _, rest = key.partition(" ")
    if head.endswith("ex"):
        return f"got {_shown(value)}, expected {OPERATORS[head].expected}"
    if rest not in PROPERTIES:
        near = difflib.get_close_matches(rest, PROPERTIES, 1, 0.75)
        return f"there is no property {_quoted(rest.encode())}" + (
            f"; did you mean {near[0]}?" if near else f", expected one of {', '.join(PROPERTIES)}"
        )
    kind = "a string" if rest in TEXT_PROPERTIES else "an integer"
    return f"{rest} is {kind}, but {head} or its value requires another type"


def _shown(value: Value) -> str:
    """Describe an argument's value for an error message."""
    match value.letter:
        case "S":
            return f"the string {_quoted(value.value)}" if isinstance(value.value, bytes) else "a string"
        case "t":
            return f"the boolean {str(value.value).lower()}"
        case "A":
            return "a list"
        case "F":
            return "a mapping"
        case "V":
            return "null"
        case "x":
            return "bytes"
    return f"the number {value.value}"


def _quoted(name: bytes) -> str:
    shown = text(name)
    return f'"{shown if len(shown) <= 60 else shown[:57] + "..."}"'
