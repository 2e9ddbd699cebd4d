"""What the drafts mean: exchanges compiled by the routing room, its refusals brought back to the operator's lines.

The routing room says what is wrong as the broker would, once per declaration and without a place. Here each argument
of a refused declaration is tried alone, so that every fault is reported at its own line.
"""

from __future__ import annotations

import difflib
from collections.abc import Hashable

from proxy.errors import ProtocolError
from proxy.routing.bindings import Binding
from proxy.routing.exchange import Exchange
from proxy.routing.values import Table
from proxy.rules.faults import Faults
from proxy.rules.fields import short_fault
from proxy.rules.nodes import join
from proxy.rules.schema import OPEN, BindingDraft, ExchangeDraft

_MATCH = b"x-match"
#: Every operator of open exchanges, without the name behind its blank.
_HEADER_TESTS = ("=", "!=", "<", "<=", ">=", ">", "re", "!re")
OPERATORS = (
    *(f"x-?hk{form}v{test}" for form in ("", "?") for test in _HEADER_TESTS),
    *(f"x-?hk{test}" for test in ("ex", "!ex")),
    *(f"x-?hkex{sign}{letter}" for sign in ("", "!") for letter in "snbia"),
    *(f"x-?rk{test}" for test in ("=", "!=", "re", "!re", "ta", "!ta", "taci", "!taci")),
    *(f"x-?pr{test}" for test in ("ex", "!ex", *_HEADER_TESTS)),
    *(f"x-?dt{clock}{test}" for clock in "ul" for test in ("re", "!re")),
    *(
        f"x-{verb}-{when}"
        for verb in (
            *(f"{act}{kind}" for act in ("add", "del") for kind in ("q", "e", "qre", "q!re")),
            *("add1qre", "add1q!re", "stop", "goto"),
            *(f"msg-{act}{kind}" for act in ("add", "del") for kind in ("q", "e", "qre")),
        )
        for when in ("ontrue", "onfalse")
    ),
    *("x-match", "x-order", "x-del-dest", "x-msg-destq-rk"),
)


def compile_exchange(draft: ExchangeDraft, faults: Faults) -> Exchange:
    """Compile one exchange with all its bindings.

    Args:
        draft: as read from the file.
        faults: takes every refusal of the routing room.

    Returns:
        The exchange as far as it is good; to be used only where there was no fault.
    """
    try:
        exchange = Exchange(draft.name, draft.type, draft.arguments, draft.local_time, draft.alternate)
    except ProtocolError:
        _blame_exchange(draft, faults)
        exchange = Exchange(draft.name, draft.type, (), draft.local_time)
    repeated = [binding for binding in draft.bindings if not _bind(exchange, binding, draft, faults)]
    if repeated:
        first: dict[Hashable, BindingDraft] = {}
        for binding in draft.bindings:
            first.setdefault(binding.binding.identity, binding)
        for binding in repeated:
            line = first[binding.binding.identity].place.line
            faults.error(binding.place, binding.path, f"the same binding as in line {line}")
    return exchange


def _blame_exchange(draft: ExchangeDraft, faults: Faults) -> None:
    """Find which arguments of a refused exchange are at fault, by trying each alone."""
    path = draft.fields.at("arguments")
    found = False
    for name, value in draft.arguments:
        try:
            Exchange(draft.name, draft.type, ((name, value),), draft.local_time)
        except ProtocolError as error:
            found = True
            message = f"{_text(error)} Expected a whole number, 0 or more"
            faults.error(draft.argument_place(name), join(path, name.decode()), message)
    if not found:
        faults.error(draft.fields.place_of("arguments"), path, "these arguments are refused together")


def _bind(exchange: Exchange, draft: BindingDraft, owner: ExchangeDraft, faults: Faults) -> bool:
    """Add a binding, or report why not; False where it is there already."""
    _reserved(draft, faults)
    try:
        return exchange.bind(draft.binding)
    except ProtocolError as error:
        _blame_binding(error, draft, owner, faults)
        return True


def _reserved(draft: BindingDraft, faults: Faults) -> None:
    """Report destinations under the reserved prefix among the routing operators."""
    for key, name in draft.named_routes():
        fault = short_fault(name)
        if fault:
            faults.error(draft.argument_place(key), draft.argument_path(key), f"seen {fault}")


def _blame_binding(error: ProtocolError, draft: BindingDraft, owner: ExchangeDraft, faults: Faults) -> None:
    """Find which lines of a refused binding are at fault, by trying each argument alone."""
    binding = draft.binding
    found = False
    if binding.routing_key and _refusal(owner, binding, binding.routing_key, ()):
        found = True
        message = f"{_text(error)}: it must be empty for type {owner.type}"
        faults.error(draft.key_place, f"{draft.path}.routing_key", message)
    match = tuple(entry for entry in binding.arguments if entry[0] == _MATCH)
    refusal = _refusal(owner, binding, b"", match) if match else None
    if refusal:
        found = True
        key = _MATCH.decode()
        faults.error(draft.argument_place(key), draft.argument_path(key), _text(refusal))
        match = ()
    for entry in binding.arguments:
        if entry[0] == _MATCH:
            continue
        refusal = _refusal(owner, binding, b"", (*match, entry))
        if refusal:
            found = True
            key = entry[0].decode()
            text = _text(refusal)
            message = text + _hint(key, owner, text)
            faults.error(draft.argument_place(key), draft.argument_path(key), message)
    if not found:
        faults.error(draft.place, draft.path, _text(error))


def _refusal(owner: ExchangeDraft, binding: Binding, key: bytes, arguments: Table) -> ProtocolError | None:
    try:
        Exchange(owner.name, owner.type, (), owner.local_time).bind(
            Binding(owner.name, binding.destination_type, binding.destination, key, arguments)
        )
    except ProtocolError as error:
        return error
    return None


def _hint(key: str, owner: ExchangeDraft, refusal: str) -> str:
    """Say what was probably meant, where the broker's text says only that something is wrong."""
    if owner.type != OPEN or not refusal.startswith("Unknown or invalid"):
        return ""
    head, blank, rest = key.partition(" ")
    if head in OPERATORS:
        return "; the operator is known: is its value of the kind it takes, and does it need a name behind a blank?"
    near = difflib.get_close_matches(head, OPERATORS, 1, 0.75)
    return f"; did you mean {near[0]}{blank}{rest}?" if near else ""


def _text(error: ProtocolError) -> str:
    return error.text.decode("utf-8", "backslashreplace")
