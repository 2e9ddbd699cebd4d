"""Warns about bindings that never match, are never visited, add nothing or are not true in any test; about gotos
without effect; and about patterns that reach the match limit on simple strings.

The findings are warnings because such rules are valid. Only provable cases are reported. Bindings that are never
visited are found by following every path that a message can take through an exchange, with both results of a binding if
both are possible.

Source: the open-exchange specification, section 8 (order, goto, stop).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

from oxproxy.routing.bindings.binding import typed_arguments
from oxproxy.routing.bindings.compiled import CompiledBinding, is_regex_key
from oxproxy.routing.bindings.patterns import Budget, InvalidPattern, compile_pattern
from oxproxy.routing.bindings.routes import STOP
from oxproxy.rules.file_tests import evaluate_tests
from oxproxy.rules.lint.satisfiability import always_true, contradiction, unsatisfiable_reason
from oxproxy.rules.loader import LoadedRules
from oxproxy.rules.schema import ParsedBinding, ParsedFile
from oxproxy.values import strings, text
from oxproxy.yamlfile.document import ConfigWarning

#: This argument sets the position of a binding in its exchange, and is not a condition.
_ORDER = b"x-order"


def never_visited(entries: Sequence[CompiledBinding]) -> Iterator[tuple[CompiledBinding, CompiledBinding]]:
    """Yield the bindings that are never visited, each with the binding whose goto or stop skips it."""
    if not entries:
        return
    # Gotos do not skip bindings with the flag `last`.
    orders = [STOP if entry.binding.last else entry.order for entry in entries]
    reached = {0}
    leaves_out: dict[int, int] = {}
    for index, compiled in enumerate(entries):
        if index not in reached:
            continue
        for jump in _jumps(compiled):
            following = max(index + 1, bisect_left(orders, jump)) if jump != STOP else len(entries)
            reached.add(following)
            leaves_out.update(dict.fromkeys((index + 1,) if following > index + 1 else (), index))
    last = 0
    for index, compiled in enumerate(entries):
        last = leaves_out.get(index, last)
        if index not in reached:
            yield compiled, entries[last]


_NO_JUMP = frozenset((0,))


def _jumps(compiled: CompiledBinding) -> Set[int]:
    """Return the orders at which the evaluation may continue after a binding."""
    if compiled.on_true is None and compiled.on_false is None:
        return _NO_JUMP
    results = {True} if always_true(compiled) else {True, False}
    if unsatisfiable_reason(compiled) is not None:
        results = {False}
    effects = {True: compiled.on_true, False: compiled.on_false}
    return {0 if (effect := effects[result]) is None else effect.jump for result in results}


def invalid_gotos(entries: Sequence[CompiledBinding]) -> Iterator[tuple[CompiledBinding, str, str]]:
    """Yield the binding, the argument and the reason for each goto that has no effect."""
    greatest = max((entry.order for entry in entries), default=0)
    for compiled in entries:
        for effects, key in ((compiled.on_true, "x-goto-ontrue"), (compiled.on_false, "x-goto-onfalse")):
            jump = 0 if effects is None else effects.jump
            if jump in (0, STOP):
                continue
            if jump > greatest:
                yield compiled, key, f"no binding has order {jump} or greater, so the evaluation ends here"
            elif jump <= compiled.order:
                yield compiled, key, f"order {jump} is not greater than the order of this binding, {compiled.order}"


def redundant(entries: Sequence[CompiledBinding]) -> Iterator[tuple[CompiledBinding, CompiledBinding]]:
    """Yield the redundant bindings, each with the binding that makes it redundant.

    Only exchanges whose bindings do nothing but add their destination are considered. In such exchanges, the order of
    bindings does not matter.
    """
    if not all(entry.destination_only for entry in entries):
        return
    unconditional: dict[Hashable, CompiledBinding] = {}
    same: dict[int, CompiledBinding] = {}
    for compiled in entries:
        if always_true(compiled):
            unconditional.setdefault(compiled.destination, compiled)
    for compiled in entries:
        first = unconditional.get(compiled.destination)
        if first is None:
            key = _effect(compiled)
            # Only hashes are stored. The keys of a hundred thousand bindings would use as much memory as the bindings.
            first = same.setdefault(hash(key), compiled)
            if first is not compiled and _effect(first) != key:
                continue
        if first is not compiled:
            yield compiled, first


def _effect(compiled: CompiledBinding) -> Hashable:
    """Return a key for the destination and the condition of a binding."""
    arguments = compiled.binding.arguments
    if not compiled.match_type.endswith("-with-x"):  # types with this suffix use the key as a header name
        arguments = tuple(argument for argument in arguments if argument[0] != _ORDER)
    return compiled.destination, compiled.binding.routing_key, typed_arguments(arguments)


#: Strings that a pattern should handle within the limit: one or two repeated characters, followed by another character.
_SIMPLE = (b"a" * 200 + b"!", b"0" * 200 + b"!", b" " * 200 + b"!", b"a." * 100 + b"!", b"a b " * 50 + b"!")
#: Number of times that a character of the pattern is repeated in a trial string.
_REPEATED = 200


@dataclass(frozen=True, slots=True)
class LintedExchange:
    """One exchange: its bindings in visiting order, with their positions."""

    vhost: str
    entries: Sequence[CompiledBinding]
    bindings: dict[str, ParsedBinding]

    def parsed(self, compiled: CompiledBinding) -> ParsedBinding:
        return self.bindings[compiled.id]

    def warning(self, compiled: CompiledBinding, message: str) -> ConfigWarning:
        parsed = self.parsed(compiled)
        return ConfigWarning(parsed.place, parsed.path, message)


def linted_exchanges(files: Sequence[ParsedFile], loaded: LoadedRules) -> Iterator[LintedExchange]:
    """Combine parsed files with their compiled exchanges."""
    for file in files:
        for parsed in file.exchanges:
            entries = loaded.routers[file.vhost].exchanges[parsed.rule.name].entries
            bindings = {binding.binding.id: binding for binding in parsed.bindings}
            yield LintedExchange(file.vhost, entries, bindings)


def lint_bindings(files: Sequence[ParsedFile], loaded: LoadedRules) -> list[ConfigWarning]:
    """Return warnings about bindings and gotos that have no effect, and about patterns that reach the match limit."""
    warnings: list[ConfigWarning] = []
    for exchange in linted_exchanges(files, loaded):
        warnings += _bindings(exchange)
        for parsed in exchange.bindings.values():
            warnings += _patterns(parsed)
    for file in files:
        for declared in file.exchanges:
            contract = loaded.routers[file.vhost].exchanges[declared.rule.name].contract
            reason = None if contract is None else contradiction(contract)
            if reason is not None:
                message = f"no message satisfies this contract: {reason}"
                warnings.append(
                    ConfigWarning(declared.fields.place_of("require"), declared.fields.at("require"), message)
                )
    return sorted(warnings, key=lambda warning: warning.place)


def _bindings(exchange: LintedExchange) -> Iterator[ConfigWarning]:
    for compiled in exchange.entries:
        reason = unsatisfiable_reason(compiled)
        if reason is not None:
            yield exchange.warning(compiled, f"this binding never matches: {reason}")
    for compiled, other in never_visited(exchange.entries):
        line = exchange.parsed(other).place.line
        yield exchange.warning(compiled, f"this binding is never visited: the binding on line {line} skips it")
    for compiled, key, reason in invalid_gotos(exchange.entries):
        place, path = exchange.parsed(compiled).argument_at(key.encode())
        yield ConfigWarning(place, path, f"this goto has no effect: {reason}")
    for compiled, other in redundant(exchange.entries):
        line = exchange.parsed(other).place.line
        message = f"the binding on line {line} already sends these messages to the same destination"
        yield exchange.warning(compiled, f"this binding is redundant: {message}")


def _patterns(parsed: ParsedBinding) -> Iterator[ConfigWarning]:
    for name, value in parsed.binding.arguments:
        if not is_regex_key(name):
            continue
        for source in strings(value):
            subject = exceeds_match_limit(source)
            if subject is not None:
                shown = f"{text(subject[:12])}... ({len(subject)} bytes)"
                message = f"this pattern reaches the match limit on {shown}, which counts as no match"
                yield ConfigWarning(*parsed.argument_at(name), message)


def exceeds_match_limit(pattern: bytes) -> bytes | None:
    """Return a simple string on which a pattern reaches the match limit, if any."""
    try:
        compiled = compile_pattern(pattern)
    except InvalidPattern:
        return None
    own = sorted({character for character in pattern if 0x30 <= character < 0x7F})
    trials: Iterable[bytes] = (*_SIMPLE, *(bytes((character,)) * _REPEATED + b"\x01" for character in own))
    return next((subject for subject in trials if compiled.search(subject, Budget()) is None), None)


def untested_bindings(files: Sequence[ParsedFile], loaded: LoadedRules) -> Iterator[ParsedBinding]:
    """Yield the bindings that are not true in any test in the files. If there are no tests, these are all bindings."""
    touched = _tested(loaded)
    for file in files:
        for exchange in file.exchanges:
            for parsed in exchange.bindings:
                if (file.vhost, exchange.rule.name, parsed.binding.id) not in touched:
                    yield parsed


def _tested(loaded: LoadedRules) -> set[tuple[str, bytes, str]]:
    """Return virtual host, exchange and id of every binding that is true in at least one test."""
    touched = set()
    for test, evaluation in evaluate_tests(loaded.tests, loaded.rules, loaded.routers, loaded.books):
        if evaluation.decision is not None:
            touched |= {(test.vhost, exchange, ident) for exchange, ident in evaluation.decision.matched}
    return touched
