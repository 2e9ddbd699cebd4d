"""Which bindings of an exchange are never visited, and which jumps and bindings change nothing?

Every way that a message can take through the bindings is followed, with both results wherever both may occur; so what
no way comes by is certainly never visited. It must not know files.

Source: the open-exchange specification, section 8 (order, goto, stop).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator, Sequence

from proxy.routing.bindings.binding import typed_arguments
from proxy.routing.bindings.compiled import CompiledBinding
from proxy.routing.bindings.routes import STOP
from proxy.rules.lint.contradiction import always, why_never

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
