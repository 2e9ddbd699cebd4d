"""Compiles bindings as each exchange type interprets them.

For each type, a function returns a `CompiledBinding`, so that the engine does not depend on exchange types. Bindings of
the standard types have neither order nor routes, and differ only in their conditions.

Sources: the open-exchange specification, sections 8, 11 and 13; AMQP 0-9-1 spec, 3.1.3.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import tzinfo
from typing import Final, TypeAlias, cast

from oxproxy.routing.bindings.arguments import DEFAULT_ORDER, X_MATCH, match_of, read_arguments, refuse_unreal_numbers
from oxproxy.routing.bindings.binding import UNREACHABLE, Binding, by_name
from oxproxy.routing.bindings.compiled import CompiledBinding, Draft, Match, MatchAll, MatchAny, count_regexes
from oxproxy.routing.bindings.operators import (
    HeaderEquals,
    HeaderIsPresent,
    HeaderOperator,
    KeyEquals,
    KeyFits,
    Operator,
    Topic,
)
from oxproxy.routing.bindings.routes import Effects
from oxproxy.routing.error_texts import TYPE_NAMES, format_binary, format_term, precondition_failed
from oxproxy.values import Value

OPEN: Final = "x-open"

Compiler: TypeAlias = Callable[[Binding, tzinfo | None], CompiledBinding]

_OPERATOR_PREFIX = b"x-"


def compile_open(binding: Binding, local_time: tzinfo | None) -> CompiledBinding:
    """Compile a binding of an open exchange, whose arguments specify conditions, routes and order."""
    if binding.routing_key:
        raise precondition_failed("Forbidden declaration of binding's routing key")
    destination = (binding.destination_type, binding.destination)
    draft = Draft(destination, local_time, extensions=binding.extensions)
    match_type = read_arguments(by_name(binding.arguments), draft)
    effects = {result: effects_draft.finished() for result, effects_draft in draft.effects.items()}
    main = None if draft.queue_of_routing_key else destination
    if binding.last:  # without a valid signature, a binding affects only its own destination
        deletes_own = True in effects and destination in effects[True].delete
        effects = {True: Effects(delete=frozenset((destination,)))} if deletes_own else {}
        main = main or UNREACHABLE
    return CompiledBinding(
        binding,
        draft.order or DEFAULT_ORDER,
        match_type,
        match_of(match_type, draft),
        (*draft.others, *draft.headers),
        main,
        effects.get(True),
        effects.get(False),
        count_regexes(binding.arguments),
    )


def compile_fanout(binding: Binding, _local_time: tzinfo | None) -> CompiledBinding:
    return _standard(binding, "all", MatchAll(()), ())


def compile_direct(binding: Binding, _local_time: tzinfo | None) -> CompiledBinding:
    operator = KeyEquals(b"routing key", Value("S", binding.routing_key))
    return _standard(binding, "all", MatchAll((operator,)), (operator,))


def compile_topic(binding: Binding, _local_time: tzinfo | None) -> CompiledBinding:
    operator = KeyFits(b"topic", Value("S", binding.routing_key), Topic(binding.routing_key))
    return _standard(binding, "all", MatchAll((operator,)), (operator,))


def compile_headers(binding: Binding, _local_time: tzinfo | None) -> CompiledBinding:
    """Compile a binding of a headers exchange.

    Depending on ``x-match``, all arguments or at least one must be equal to the header of the same name. A void
    argument tests for presence.
    """
    arguments = by_name(binding.arguments)
    match_type = "all"
    for key, value in arguments:
        if key == X_MATCH:
            match_type = _headers_match_type(value)
            break
    with_operators = match_type.endswith("-with-x")
    operators = tuple(
        _header(key, value)
        for key, value in arguments
        if key != X_MATCH and (with_operators or not key.startswith(_OPERATOR_PREFIX))
    )
    match = MatchAll(operators) if match_type.startswith("all") else MatchAny(operators)
    return _standard(binding, match_type, match, operators)


def _header(key: bytes, value: Value) -> HeaderOperator:
    return HeaderIsPresent(key, value, key) if value.letter == "V" else HeaderEquals(key, value, key)


def _headers_match_type(value: Value) -> str:
    if value.letter != "S":
        kind = TYPE_NAMES[value.letter]
        opening = f"Invalid x-match field type {kind} (value "
        raise precondition_failed(f"{opening}{format_term(value, len(opening))}); expected longstr")
    name = cast("bytes", value.value)
    if name not in (b"all", b"any", b"all-with-x", b"any-with-x"):
        opening = "Invalid x-match field value "
        raise precondition_failed(
            f"{opening}{format_binary(name, len(opening))}; expected all, any, all-with-x, or any-with-x"
        )
    return name.decode()


def _standard(binding: Binding, match_type: str, match: Match, operators: tuple[Operator, ...]) -> CompiledBinding:
    destination = (binding.destination_type, binding.destination)
    return CompiledBinding(binding, DEFAULT_ORDER, match_type, match, operators, destination)


COMPILERS: dict[str, Compiler] = {
    OPEN: compile_open,
    "fanout": compile_fanout,
    "direct": compile_direct,
    "topic": compile_topic,
    "headers": compile_headers,
}


def compile_binding(exchange_type: str, binding: Binding, local_time: tzinfo | None) -> CompiledBinding:
    """Check and compile a binding for an exchange type.

    Args:
        exchange_type: a key of COMPILERS.
        local_time: the time zone of ``dtl`` operators; None for the system's time zone.

    Raises:
        ProtocolError: the binding is not valid; 406 on the channel, with the text of RabbitMQ or of the open-exchange
            plugin.
    """
    compiled = COMPILERS[exchange_type](binding, local_time)
    refuse_unreal_numbers(binding.arguments)
    return compiled
