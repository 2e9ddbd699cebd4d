"""What in these rules files is allowed and surely not meant? Each finding can be proven, and has its line.

Looked for are bindings that never match, are never visited or add nothing, gotos that lead nowhere, patterns that give
up on simple texts, and bindings that no test touches. What is found works as it is written; so it is a warning.

Which bindings of an exchange are never visited, and which jumps and bindings change nothing?

Every way that a message can take through the bindings is followed, with both results wherever both may occur; so what
no way comes by is certainly never visited. It must not know files.

Source: the open-exchange specification, section 8 (order, goto, stop).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from proxy.addressing.targets import AddressBook
from proxy.routing.bindings.binding import typed_arguments
from proxy.routing.bindings.compiled import CompiledBinding, is_regex_key
from proxy.routing.bindings.patterns import Budget, InvalidPattern, compile_pattern
from proxy.routing.bindings.routes import STOP
from proxy.routing.destination_translation import static_translations
from proxy.routing.router import Router
from proxy.rules.file_tests import decide, mentioned_queues, translated
from proxy.rules.lint.satisfiability import always, why_never
from proxy.rules.loader import LoadedRules
from proxy.rules.message import DescribedMessage
from proxy.rules.ruleset import ExchangeRule
from proxy.rules.schema import BindingDraft, FileDraft
from proxy.values import EXCHANGE, QUEUE
from proxy.yamlfile.nodes import ConfigWarning, Place

#: Arguments that say where a binding stands and how its operators are joined, not what it looks at.
_ORDER = b"x-order"


def unvisited(entries: Sequence[CompiledBinding]) -> Iterator[tuple[CompiledBinding, CompiledBinding]]:
    """Give the bindings that no message comes to, each with the one that leaves it out.

    Args:
        entries: all bindings of one exchange in visiting order.
    """
    if not entries:
        return
    orders = [each.order for each in entries]
    reached = {0}
    leaves_out: dict[int, int] = {}
    for index, compiled in enumerate(entries):
        if index not in reached:
            continue
        for jump in _jumps(compiled):
            behind = max(index + 1, bisect_left(orders, jump)) if jump != STOP else len(entries)
            reached.add(behind)
            leaves_out.update(dict.fromkeys((index + 1,) if behind > index + 1 else (), index))
    last = 0
    for index, compiled in enumerate(entries):
        last = leaves_out.get(index, last)
        if index not in reached:
            yield compiled, entries[last]


def _jumps(compiled: CompiledBinding) -> set[int]:
    """Orders at which the visit may go on behind a binding."""
    results = {True} if always(compiled) else {True, False}
    if why_never(compiled) is not None:
        results = {False}
    effects = {True: compiled.on_true, False: compiled.on_false}
    return {0 if (found := effects[result]) is None else found.jump for result in results}


def vain_jumps(entries: Sequence[CompiledBinding]) -> Iterator[tuple[CompiledBinding, str, str]]:
    """Give the gotos that lead nowhere: binding, argument, and why.

    Args:
        entries: all bindings of one exchange in visiting order.
    """
    greatest = max((each.order for each in entries), default=0)
    for compiled in entries:
        for effects, key in ((compiled.on_true, "x-goto-ontrue"), (compiled.on_false, "x-goto-onfalse")):
            jump = 0 if effects is None else effects.jump
            if jump in (0, STOP):
                continue
            if jump > greatest:
                yield compiled, key, f"no binding has order {jump} or a greater one: the visit ends here"
            elif jump <= compiled.order:
                yield compiled, key, f"order {jump} is not behind this binding's own, {compiled.order}: no jump"


def idle(entries: Sequence[CompiledBinding]) -> Iterator[tuple[CompiledBinding, CompiledBinding]]:
    """Give the bindings that add nothing to what an earlier one does, each with that one.

    Said only of exchanges whose bindings just add their destination, where no order can matter.

    Args:
        entries: all bindings of one exchange in visiting order.
    """
    if not all(each.plain for each in entries):
        return
    unconditional: dict[Hashable, CompiledBinding] = {}
    same: dict[Hashable, CompiledBinding] = {}
    for compiled in entries:
        if always(compiled):
            unconditional.setdefault(compiled.destination, compiled)
    for compiled in entries:
        first = unconditional.get(compiled.destination)
        if first is None:
            arguments = tuple(each for each in compiled.binding.arguments if each[0] != _ORDER)
            key = (compiled.destination, compiled.binding.routing_key, typed_arguments(arguments))
            first = same.setdefault(key, compiled)
        if first is not compiled:
            yield compiled, first


#: Texts that a pattern should have an answer for: one character again and again, and then another one.
_SIMPLE = (b"a" * 200 + b"!", b"0" * 200 + b"!", b" " * 200 + b"!", b"a." * 100 + b"!", b"a b " * 50 + b"!")
#: How often a character of the pattern itself is repeated for a trial.
_REPEATED = 200


@dataclass(frozen=True, slots=True)
class ExaminedExchange:
    """One exchange: its bindings in visiting order, and where each was written."""

    vhost: str
    name: bytes
    entries: Sequence[CompiledBinding]
    drafts: dict[str, BindingDraft]

    def place(self, compiled: CompiledBinding) -> Place:
        """Where a binding was written."""
        return self.drafts[compiled.mark[1]].place


def exchanges_of(files: Sequence[FileDraft], loaded: LoadedRules) -> Iterator[ExaminedExchange]:
    """Bring together what was written and what was made of it."""
    for file in files:
        for draft in file.exchanges:
            entries = [compiled for _, compiled in loaded.routers[file.vhost].exchanges[draft.name].entries]
            drafts = {each.binding.id: each for each in draft.bindings}
            yield ExaminedExchange(file.vhost, draft.name, entries, drafts)


def examine(files: Sequence[FileDraft], loaded: LoadedRules) -> list[ConfigWarning]:
    """Give everything that can be proven to be in vain."""
    found: list[ConfigWarning] = []
    for exchange in exchanges_of(files, loaded):
        found += _bindings(exchange)
        for draft in exchange.drafts.values():
            found += _patterns(draft)
    return sorted(found, key=lambda each: each.place)


def _bindings(exchange: ExaminedExchange) -> Iterator[ConfigWarning]:
    drafts = exchange.drafts
    for compiled in exchange.entries:
        why = why_never(compiled)
        if why is not None:
            draft = drafts[compiled.mark[1]]
            yield ConfigWarning(draft.place, draft.path, f"this binding never matches: {why}")
    for compiled, other in unvisited(exchange.entries):
        draft = drafts[compiled.mark[1]]
        line = exchange.place(other).line
        message = f"this binding is never visited: the one in line {line} leaves it out"
        yield ConfigWarning(draft.place, draft.path, message)
    for compiled, key, why in vain_jumps(exchange.entries):
        draft = drafts[compiled.mark[1]]
        yield ConfigWarning(draft.argument_place(key), draft.argument_path(key), f"this goto leads nowhere: {why}")
    for compiled, other in idle(exchange.entries):
        draft = drafts[compiled.mark[1]]
        line = exchange.place(other).line
        yield ConfigWarning(draft.place, draft.path, f"this binding adds nothing to the one in line {line}")


def _patterns(draft: BindingDraft) -> Iterator[ConfigWarning]:
    for name, value in draft.binding.arguments:
        if not is_regex_key(name):
            continue
        elements = value.value if value.letter == "A" and isinstance(value.value, tuple) else (value,)
        for element in elements:
            source = getattr(element, "value", None)
            subject = gives_up_on(source) if isinstance(source, bytes) else None
            if subject is not None:
                key = name.decode()
                shown = f"{subject[:12].decode('utf-8', 'backslashreplace')}... ({len(subject)} bytes)"
                message = f"this pattern runs into the match limit on {shown}, which counts as no match"
                yield ConfigWarning(draft.argument_place(key), draft.argument_path(key), message)


def gives_up_on(pattern: bytes) -> bytes | None:
    """Find a simple text on which a pattern runs into the match limit."""
    try:
        compiled = compile_pattern(pattern)
    except InvalidPattern:
        return None
    own = sorted({character for character in pattern if 0x30 <= character < 0x7F})
    trials: Iterable[bytes] = (*_SIMPLE, *(bytes((each,)) * _REPEATED + b"\x01" for each in own))
    return next((subject for subject in trials if compiled.search(subject, Budget()) is None), None)


@dataclass(frozen=True, slots=True)
class NamedDestination:
    """A destination that a binding names and that the rules do not make themselves.

    Args:
        vhost: virtual host.
        kind: ``queue`` or ``exchange``.
        name: its name.
        place: where it was written.
        path: its dotted path.
        translated: whether it is not what is written there, but what the address table puts in its place.
    """

    vhost: str
    kind: str
    name: bytes
    place: Place
    path: str
    translated: bool = False


@dataclass(frozen=True, slots=True)
class Evaluated:
    """An exchange of the rules files.

    Args:
        vhost: virtual host.
        rule: what the files say of it.
        place: where its name was written.
        path: its dotted path.
        published: exchanges that the sidecar publishes to on its behalf, since it has ``delivery: queue``.
    """

    vhost: str
    rule: ExchangeRule
    place: Place
    path: str
    published: frozenset[bytes]


_Key: TypeAlias = tuple[str, str, bytes]


def destinations(files: Sequence[FileDraft], loaded: LoadedRules) -> list[NamedDestination]:
    """Give every destination that must exist on the broker, each where it is written first."""
    found: dict[_Key, NamedDestination] = {}
    made: set[_Key] = set()
    for exchange in exchanges_of(files, loaded):
        vhost = exchange.vhost
        made |= {(vhost, QUEUE, queue.name) for queue in loaded.rules.vhosts[vhost].queues}
        made |= {(vhost, EXCHANGE, name) for name in loaded.routers[vhost].exchanges}
        for draft in exchange.drafts.values():
            binding = draft.binding
            kind, name = binding.destination_type, binding.destination
            named = [NamedDestination(vhost, kind, name, draft.place, f"{draft.path}.{kind}")]
            for key, name in draft.named_routes():
                kind = EXCHANGE if key.startswith(("x-adde-", "x-dele-")) else QUEUE
                place, path = draft.argument_place(key), draft.argument_path(key)
                named.append(NamedDestination(vhost, kind, name, place, path))
            for each in named:
                found.setdefault((each.vhost, each.kind, each.name), each)
    for vhost, book in loaded.books.items():
        found = _relocated(found, vhost, book, loaded.routers[vhost])
    return [each for key, each in found.items() if key not in made]


def _relocated(
    found: dict[_Key, NamedDestination], vhost: str, book: AddressBook, router: Router
) -> dict[_Key, NamedDestination]:
    """Put what the address table makes of destinations in their place."""
    moved = static_translations(book, [key[1:] for key in found if key[0] == vhost], router)
    kept = {key: each for key, each in found.items() if key[0] != vhost or key[1:] not in moved.away}
    for one in moved.found:
        if one.here is not None:
            kind, name = one.here
            written = found[vhost, *one.destination]
            kept.setdefault((vhost, kind, name), replace(written, kind=kind, name=name, translated=True))
    return kept


def evaluated(files: Sequence[FileDraft], loaded: LoadedRules) -> list[Evaluated]:
    """Give every exchange of the files, with its place."""
    found: list[Evaluated] = []
    for file in files:
        rules = {rule.name: rule for rule in loaded.rules.vhosts[file.vhost].exchanges}
        router = loaded.routers[file.vhost]
        for draft in file.exchanges:
            rule = rules[draft.name]
            published = {name for kind, name in router.destinations(draft.name) if kind == EXCHANGE}
            if rule.alternate is not None and rule.alternate not in router.exchanges:
                published.add(rule.alternate)
            place, path = draft.fields.place_of("name"), draft.fields.at("name")
            by_queue = rule.delivery == "queue"
            found.append(Evaluated(file.vhost, rule, place, path, frozenset(published) if by_queue else frozenset()))
    return found


def untouched(files: Sequence[FileDraft], loaded: LoadedRules) -> list[ConfigWarning]:
    """Give the bindings that are true in no test of the files."""
    touched = _touched(loaded)
    return [
        ConfigWarning(draft.place, draft.path, "no test makes this binding true")
        for exchange in exchanges_of(files, loaded)
        for draft in exchange.drafts.values()
        if (exchange.vhost, exchange.name, draft.binding.id) not in touched
    ]


def _touched(loaded: LoadedRules) -> set[tuple[str, bytes, str]]:
    """Give virtual host, exchange and id of the bindings that are true in some test."""
    known = {name: mentioned_queues(vhost, loaded.routers[name]) for name, vhost in loaded.rules.vhosts.items()}
    touched = set()
    for test in loaded.tests:
        router, vhost, book = loaded.routers[test.vhost], loaded.rules.vhosts[test.vhost], loaded.books.get(test.vhost)
        message: object = test.message
        if test.message.exchange not in router.exchanges:
            message = None if book is None else translated(test.message, vhost, book)
        if isinstance(message, DescribedMessage):
            decision = decide(router, message, test.at or 0.0, known[test.vhost] | test.queues)
            touched |= {(test.vhost, exchange, ident) for exchange, ident in decision.matched}
    return touched
