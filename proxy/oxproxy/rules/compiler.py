"""Compiles the exchanges of rules files and reports rejections at the lines that cause them.

The package `routing` rejects a declaration as the broker would, with a single error and without a position. Each
argument of a rejected declaration is therefore tried alone, so that every error is reported at its line.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Hashable
from typing import cast

from oxproxy.errors import ProtocolError
from oxproxy.routing.bindings.arguments import X_MATCH
from oxproxy.routing.bindings.binding import Binding
from oxproxy.routing.bindings.exchange_types import OPEN
from oxproxy.routing.bindings.operators import TEXT_PROPERTIES
from oxproxy.routing.bindings.patterns import why_invalid
from oxproxy.routing.contract import Contract, RequiredCondition, read_condition
from oxproxy.routing.exchange import Exchange
from oxproxy.rules.message import PROPERTIES, quoted_text, value_words
from oxproxy.rules.operator_reference import OPERATORS
from oxproxy.rules.ruleset import ExchangeRule
from oxproxy.rules.schema import ParsedBinding, ParsedExchange
from oxproxy.values import Table, Value, strings, text
from oxproxy.yamlfile.document import Faults
from oxproxy.yamlfile.models import short_fault

_BINDING_PATH = re.compile(r"exchanges\[\d+\]\.bindings\[\d+\]")
#: Valid values of x-match by exchange type.
_MATCH_TYPES = {
    OPEN: "all, any, eq, set or set N with an integer N",
    "headers": "all, any, all-with-x or any-with-x",
}


def compile_exchange(parsed: ParsedExchange, faults: Faults) -> Exchange:
    """Compile one exchange with its bindings. The result is usable only if no error was reported."""
    rule = parsed.rule
    contract = _contract(parsed, faults)
    try:
        exchange = Exchange(rule.name, rule.type, rule.arguments, rule.local_time, rule.alternate, contract)
    except ProtocolError:
        _blame_exchange(parsed, faults)
        exchange = Exchange(rule.name, rule.type, (), rule.local_time)
    repeated = [binding for binding in parsed.bindings if not _bind(exchange, binding, rule, faults)]
    if repeated:
        # Arguments with errors are omitted, so the remaining arguments can equal those of another binding.
        incomplete = {(error.file, _binding_path(error.key)) for error in faults.errors}
        first: dict[Hashable, ParsedBinding] = {}
        for binding in parsed.bindings:
            if (binding.place.source, binding.path) not in incomplete:
                original = first.setdefault(binding.binding.identity, binding)
                if original is not binding:
                    faults.error(binding.place, binding.path, f"the same binding as on line {original.place.line}")
    return exchange


def _contract(parsed: ParsedExchange, faults: Faults) -> Contract | None:
    """Compile the contract of an exchange, or report which conditions are invalid."""
    rule = parsed.rule
    conditions: list[RequiredCondition] = []
    for argument, written, expected in rule.require:
        try:
            conditions += read_condition(argument, written, expected, rule.local_time)
        except ProtocolError as error:
            faults.error(*parsed.condition_at(written), _reworded(error, *argument, written))
    return Contract(conditions, rule.observes) if conditions or rule.observes else None


def _binding_path(key: str) -> str:
    """Return the path of the binding that contains the key at a dotted path."""
    match = _BINDING_PATH.match(key)
    return match[0] if match else key


def _blame_exchange(parsed: ParsedExchange, faults: Faults) -> None:
    """Find the invalid arguments of a rejected exchange by trying each argument alone, and report them."""
    reported = False
    for name, value in parsed.rule.arguments:
        try:
            Exchange(parsed.rule.name, parsed.rule.type, ((name, value),), parsed.rule.local_time)
        except ProtocolError as error:
            reported = True
            message = f"{text(error.text)} Got {value_words(value)}, expected an integer, 0 or more"
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
        hint = f"; write when: {{key: {text(binding.routing_key)}}}" if owner.type == OPEN else ""
        message = f"{text(error.text)}: it must be empty for type {owner.type}{hint}"
        faults.error(parsed.key_place, f"{parsed.path}.routing_key", message)
    match = tuple(entry for entry in binding.arguments if entry[0] == X_MATCH)
    refusal = _refusal(owner, binding, b"", match) if match else None
    if refusal:
        reported = True
        message = f"got {value_words(match[0][1])}, expected {_MATCH_TYPES[owner.type]}"
        faults.error(*parsed.argument_at(X_MATCH), message)
        match = ()
    for entry in binding.arguments:
        if entry[0] == X_MATCH:
            continue
        refusal = _refusal(owner, binding, b"", (*match, entry))
        if refusal:
            reported = True
            faults.error(*parsed.argument_at(entry[0]), _reworded(refusal, *entry, parsed.written_key(entry[0])))
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


def _reworded(refusal: ProtocolError, name: bytes, value: Value, written: str) -> str:
    """Return a reason that is more precise than the plugin's error message, which clients receive.

    Args:
        name: key of the rejected argument.
        written: the key in the file, which differs from `name` in the readable spelling.
    """
    reason, key = text(refusal.text), name.decode()
    unknown = key.partition(" ")[0] not in OPERATORS
    if reason.startswith("Unknown or invalid") or (unknown and reason == "Invalid property match operator"):
        return _unknown(key, value)
    if reason.startswith("Invalid regex"):
        wrong = (element for element in strings(value) if why_invalid(element))
        source = next(wrong, b"")
        return f"got {quoted_text(source)}, which is not a regular expression: {why_invalid(source)}"
    if reason == "Invalid property match operator":
        return f"{reason}: {_property(key, value, written.rpartition(' ')[2] if written != key else '')}"
    if reason.startswith("Invalid use of list type"):
        return f"{reason}: {_without_list(key, value, written)}"
    if reason.startswith("Type's value"):
        return f"{reason}: got {_brief(value)}, expected a number"
    if reason.startswith(("Binding's order", "Binding's goto", "Invalid AMQP topic")):
        return f"{reason}: got {value_words(value)}"
    return reason


def _brief(value: Value) -> str:
    return quoted_text(value.value) if isinstance(value.value, bytes) and value.letter == "S" else value_words(value)


def _without_list(key: str, value: Value, written: str) -> str:
    """Explain how to write a condition that does not accept a list."""
    head, _, name = key.partition(" ")
    negated, sign = head.endswith("!="), head.removeprefix("x-?")
    if not sign.endswith("="):
        return "got a list, expected a single value"
    if sign.endswith((">=", "<=")):
        return "got a list, expected a single number"
    operator = f"{head.removesuffix('!=' if negated else '=')}{'!in' if negated else 'in'} {name}".rstrip()
    if written != key:
        start = written.removesuffix(" !=").removesuffix(" =")
        operator = f"{start} {'not in' if negated else 'in'}"
    elements = cast("tuple[Value, ...]", value.value)
    shown = ", ".join(
        text(element.value) if isinstance(element.value, bytes) else str(element.value) for element in elements
    )
    return f'got a list, expected a single value; did you mean "{operator}": [{shown}]?'


def _unknown(key: str, value: Value) -> str:
    head, space, rest = key.partition(" ")
    if head not in OPERATORS:
        if not rest[:1].isalnum() and (spaced := _with_one_space(key.replace(" ", "", 1))):
            return f'unknown operator {head}; did you mean "{spaced}"?'
        turned = head.replace("=>", ">=").replace("=<", "<=").replace("==", "=")
        near = [turned] if turned in OPERATORS else difflib.get_close_matches(head, OPERATORS, 1, 0.75)
        if near:
            return f"unknown operator {head}; did you mean {near[0]}{space}{rest}?"
        if f"{head}-ontrue" in OPERATORS:
            return f"unknown operator {head}; did you mean {head}-ontrue or {head}-onfalse?"
        return f'unknown operator {head}; to test a header of that name, use "x-?hkv= {key}"'
    named = OPERATORS[head].named
    if named and not rest:
        return f'got {head} without a name, expected "{head} NAME", the name of a {named} after exactly one space'
    if space and not named:
        return f"got a name after {head}, expected {head} without a name"
    return f"got {value_words(value)}, expected {OPERATORS[head].expected}"


def _with_one_space(key: str) -> str:
    """Return an operator and the name after it, separated by one space; empty if the key does not contain both."""
    operators = (name for name, operator in OPERATORS.items() if operator.named and key.startswith(name))
    operator = max(operators, key=len, default="")
    name = key[len(operator) :].lstrip(" ")
    return f"{operator} {name}" if operator and name[:1].isalnum() else ""


def _property(key: str, value: Value, operator: str) -> str:
    """Explain why an operator does not fit a property.

    Args:
        operator: the operator as written in the readable spelling; empty for arguments.
    """
    head, _, rest = key.partition(" ")
    if head.endswith("ex"):
        return f"got {value_words(value)}, expected {OPERATORS[head].expected}"
    if rest not in PROPERTIES:
        near = difflib.get_close_matches(rest, PROPERTIES, 1, 0.75)
        return f"there is no property {quoted_text(rest.encode())}" + (
            f"; did you mean {near[0]}?" if near else f", expected one of {', '.join(PROPERTIES)}"
        )
    is_string = rest in TEXT_PROPERTIES
    kind, wanted = ("a string", "=, !=, in, matches") if is_string else ("an integer", "=, !=, <, <=, >=, >, in")
    sign = head.removeprefix("x-?pr")
    if sign.startswith(("<", ">")) if is_string else sign.endswith("re"):
        shown = head if operator in ("", rest) else operator
        return f"{rest} is {kind}, got the operator {shown}, expected an operator for {kind}, such as {wanted}"
    return f"{rest} is {kind}, got {value_words(value)}, expected {kind}"
