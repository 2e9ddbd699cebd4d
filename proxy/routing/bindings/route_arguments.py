"""Which argument of an open exchange's binding adds or deletes destinations, or says where the visit goes on?

As in `operator_arguments`: tables of argument key -> what reads its value into the draft, or refuses it.

Source: the open-exchange specification, sections 7 and 8; section 11 for the texts.
"""

from __future__ import annotations

from collections.abc import Callable

from proxy.routing.bindings.binding import EXCHANGE, QUEUE
from proxy.routing.bindings.comparison import INTEGERS
from proxy.routing.bindings.draft import Draft, Reader, name_of, pattern_of, unknown_key
from proxy.routing.bindings.producer_routes import PatternRoute
from proxy.routing.bindings.routes import QueueRoute
from proxy.routing.erlang_terms import refused
from proxy.values import Value

DEFAULT_ORDER = 10_000
LEAST_ORDER, GREATEST_ORDER = 100, 999_999

# Section 7: routes.


def _names(result: bool, kind: str, adds: bool) -> Reader:
    def read(draft: Draft, key: bytes, value: Value) -> None:
        effects = draft.on(result)
        (effects.add if adds else effects.delete).add((kind, name_of(key, value)))

    return read


def _add_queues(result: bool, negated: bool, only_one: bool) -> Reader:
    def read(draft: Draft, key: bytes, value: Value) -> None:
        route = QueueRoute(pattern_of(key, value), negated, only_one)
        draft.on(result).add_queues[negated] = route

    return read


def _delete_queues(result: bool, negated: bool) -> Reader:
    def read(draft: Draft, key: bytes, value: Value) -> None:
        draft.on(result).delete_queues[negated] = PatternRoute(pattern_of(key, value), negated)

    return read


def _flag(raise_flag: Callable[[Draft], None]) -> Reader:
    def read(draft: Draft, key: bytes, value: Value) -> None:
        if value != ("S", b""):
            raise unknown_key(key)
        raise_flag(draft)

    return read


def _grant(result: bool, action: bytes, *kinds: bytes) -> Reader:
    headers = [b"x-%s%s-on%s" % (action, kind, b"true" if result else b"false") for kind in kinds]

    def grant(draft: Draft) -> None:
        effects = draft.on(result)
        (effects.granted_add if action == b"add" else effects.granted_delete).update(headers)

    return _flag(grant)


def _use_routing_key(draft: Draft) -> None:
    draft.queue_of_routing_key = True


def _delete_destination(draft: Draft) -> None:
    draft.on(True).delete.add(draft.destination)


# Section 8: order, goto, stop.


def _place(what: str, key: bytes, value: Value) -> int:
    number = value.value
    if value.letter not in INTEGERS or not isinstance(number, int) or number <= 0:
        raise unknown_key(key)
    if not LEAST_ORDER <= number <= GREATEST_ORDER:
        raise refused(f"Binding's {what} must be an integer between {LEAST_ORDER} and {GREATEST_ORDER}")
    return number


def _order(draft: Draft, key: bytes, value: Value) -> None:
    order = _place("order", key, value)
    draft.order = draft.order or order


def _goto(result: bool) -> Reader:
    def read(draft: Draft, key: bytes, value: Value) -> None:
        draft.on(result).goto = _place("goto", key, value)

    return read


def _stop(result: bool) -> Reader:
    def stop(draft: Draft) -> None:
        draft.on(result).stop = True

    return _flag(stop)


#: Keys of routes and branches.
ROUTE_KEYS: dict[bytes, Reader] = {
    b"x-msg-destq-rk": _flag(_use_routing_key),
    b"x-del-dest": _flag(_delete_destination),
    b"x-order": _order,
    **{
        start + suffix: reader
        for suffix, result in ((b"-ontrue", True), (b"-onfalse", False))
        for start, reader in {
            b"x-addq": _names(result, QUEUE, True),
            b"x-adde": _names(result, EXCHANGE, True),
            b"x-delq": _names(result, QUEUE, False),
            b"x-dele": _names(result, EXCHANGE, False),
            b"x-addqre": _add_queues(result, False, False),
            b"x-addq!re": _add_queues(result, True, False),
            b"x-add1qre": _add_queues(result, False, True),
            b"x-add1q!re": _add_queues(result, True, True),
            b"x-delqre": _delete_queues(result, False),
            b"x-delq!re": _delete_queues(result, True),
            b"x-msg-addq": _grant(result, b"add", b"q"),
            b"x-msg-adde": _grant(result, b"add", b"e"),
            b"x-msg-delq": _grant(result, b"del", b"q"),
            b"x-msg-dele": _grant(result, b"del", b"e"),
            b"x-msg-addqre": _grant(result, b"add", b"q", b"qre", b"q!re"),
            b"x-msg-delqre": _grant(result, b"del", b"q", b"qre", b"q!re"),
            b"x-goto": _goto(result),
            b"x-stop": _stop(result),
        }.items()
    },
}
