"""Checks that rules files are consistent with each other and with a broker's features, without connecting to a broker.

Each check gets the parsed files of one virtual host. Sources: the interface specification ("one exchange in two files
is an error") and docs/explanation/delivery.md (carriers, ``unmatched: pass``, the reserved prefix).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TypeVar

from oxproxy.relay.tokens import FEW_DESTINATIONS
from oxproxy.routing.bindings.arguments import X_MATCH
from oxproxy.routing.bindings.binding import typed_arguments
from oxproxy.routing.bindings.exchange_types import OPEN
from oxproxy.routing.filters import ALTERNATE
from oxproxy.rules.lint.mistakes import warn_of_mistakes
from oxproxy.rules.operator_reference import OPERATORS
from oxproxy.rules.schema import CARRIER, ParsedBinding, ParsedExchange, ParsedFile, ParsedQueue
from oxproxy.values import EXCHANGE, Value
from oxproxy.yamlfile.document import Faults, Place, join

T = TypeVar("T")

#: Filters are arguments of open exchanges. As on a broker, exchanges of other types ignore them.
_FILTERS = (b"min-payload-size", b"max-payload-size", b"max-headers-size", b"max-headers-depth")
#: ``unmatched: pass`` forwards messages as the producer published them, not as another exchange routed them.
_UNREACHABLE = "an exchange with unmatched: pass cannot be the destination of another evaluated exchange"
#: Prefix of operator keys; every other key is the name of a header.
_RESERVED = "x-"
_EXISTS = ("x-?hkex", "x-?hk!ex")
_TYPOGRAPHIC = frozenset("\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb")
#: Replaces typographic characters that editors insert in operators.
_TYPED = str.maketrans(
    {**dict.fromkeys(_TYPOGRAPHIC, ""), **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-"), "\u00a0": " "}
)
#: Everything in a pattern that is not a literal character: escapes, character classes, quantifiers in braces, the
#: beginnings of groups, and backtracking verbs.
_NOT_LITERAL = re.compile(
    rb"\\[pPxogkNu]\{[^}]*\}|\\[pPc].|\\x[0-9A-Fa-f]{0,2}|\\[gk](?:<[^>]*>|'[^']*')|\\.|\[\^?\]?[^]]*\]|\{[^}]*\}"
    rb"|\(\?P>\w+\)|\(\?[^()]*?[:=!>)]|\(\*[^)]*\)",
    re.DOTALL,
)
#: The option `x`, which permits comments in a pattern.
_EXTENDED = re.compile(rb"\(\?[a-zJU]*x")
_ODD_IN_CLOCK = re.compile(rb"[-/:A-Za-z]")


def check_vhost(files: Sequence[ParsedFile], faults: Faults) -> None:
    """Report contradictions between the files of one virtual host."""
    _queues([queue for file in files for queue in file.queues], faults)
    for broker, first in _repeated((broker for file in files for broker in file.brokers), lambda broker: broker.name):
        message = f"{first.place.source}:{first.place.line} already defines a broker with this name"
        faults.error(broker.place, join("brokers", broker.name.decode()), message)
    exchanges = [exchange for file in files for exchange in file.exchanges]
    for exchange, other in _repeated(exchanges, lambda exchange: exchange.rule.name):
        exchange.fields.error("name", f"{_where(other)} already defines an exchange with this name")
    _carriers(exchanges)
    owned = {exchange.rule.name: exchange for exchange in exchanges}
    for exchange in exchanges:
        _binding_names(exchange, faults)
        _alternate(exchange, owned, faults)
        _carrier_type(exchange)
        _without_effect(exchange, faults)
        _doubtful_keys(exchange, faults)
        _clocks(exchange, faults)
        _destinations(exchange, owned, faults)
    warn_of_mistakes(files, faults)


def _where(parsed: ParsedExchange | ParsedQueue) -> str:
    place = parsed.place if isinstance(parsed, ParsedQueue) else parsed.fields.place_of("name")
    return f"{place.source}:{place.line}"


def _repeated(items: Iterable[T], key: Callable[[T], Hashable]) -> Iterator[tuple[T, T]]:
    """Yield the items with the same key as an earlier item, each with the first item that has this key."""
    first: dict[Hashable, T] = {}
    for item in items:
        other = first.setdefault(key(item), item)
        if other is not item:
            yield item, other


def _queues(queues: Iterable[ParsedQueue], faults: Faults) -> None:
    for queue, other in _repeated(queues, lambda queue: queue.rule.name):
        if other.place.source == queue.place.source:
            faults.error(queue.place, queue.path, f"the same queue as on line {other.place.line}")
        elif typed_arguments(other.rule.arguments) != typed_arguments(queue.rule.arguments):
            faults.error(queue.place, queue.path, f"{_where(other)} declares the same queue with different arguments")


def _carriers(exchanges: Sequence[ParsedExchange]) -> None:
    names = {exchange.rule.name: exchange for exchange in exchanges}
    first: dict[bytes, ParsedExchange] = {}
    for exchange in exchanges:
        if exchange.rule.delivery != CARRIER:
            continue
        other = first.setdefault(exchange.rule.carrier, exchange)
        if other is exchange and exchange.rule.carrier != exchange.rule.name:
            other = names.get(exchange.rule.carrier, exchange)
        if other is not exchange and other.rule.name != exchange.rule.name:
            exchange.fields.error("carrier", f"this name is used by the exchange in {_where(other)}")


def _binding_names(exchange: ParsedExchange, faults: Faults) -> None:
    named = (parsed for parsed in exchange.bindings if parsed.named)
    for parsed, other in _repeated(named, lambda parsed: parsed.binding.id):
        message = f"the same name as on line {other.name_place.line}"
        faults.error(parsed.name_place, f"{parsed.path}.name", message)


def _alternate(exchange: ParsedExchange, owned: dict[bytes, ParsedExchange], faults: Faults) -> None:
    alternate = exchange.rule.alternate
    if alternate is None:
        return
    place, path = exchange.argument_at(ALTERNATE)
    if alternate == exchange.rule.name:
        faults.error(place, path, "got the exchange itself, expected another exchange")
    elif exchange.rule.unmatched_pass and alternate in owned:
        message = "an exchange with unmatched: pass can't have an alternate exchange that the sidecar evaluates"
        faults.error(place, path, message)
    elif exchange.rule.unmatched_pass:
        faults.warn(
            place,
            path,
            "`unmatched: pass` takes precedence, so only messages dropped by a `-silent` filter are sent to the "
            "alternate exchange",
        )
    elif alternate in owned and owned[alternate].rule.unmatched_pass:
        faults.error(place, path, _UNREACHABLE)


def _carrier_type(exchange: ParsedExchange) -> None:
    """Warn about a carrier type that costs the broker more than the other type."""
    rule = exchange.rule
    if rule.carrier_type == "auto" or rule.delivery != CARRIER:
        return
    named = {(binding.destination_type, binding.destination) for binding in rule.bindings}
    if rule.carrier_type == "direct" and len(named) > FEW_DESTINATIONS:
        exchange.fields.warn(
            "carrier_type",
            f"a direct carrier with {len(named)} destinations: RabbitMQ before 3.13 compares all of them with every "
            f"message; a topic carrier is cheaper for more than {FEW_DESTINATIONS} destinations; "
            "set carrier_type: auto",
        )


def _without_effect(exchange: ParsedExchange, faults: Faults) -> None:
    """Warn about keys that have no effect for the exchange's type."""
    if exchange.rule.type == OPEN:
        return
    for name, _ in exchange.rule.arguments:
        if name.removesuffix(b"-silent") in _FILTERS:
            faults.warn(*exchange.argument_at(name), f"has no effect for type {exchange.rule.type}")
    for parsed in exchange.bindings:
        if parsed.binding.routing_key and exchange.rule.type in ("headers", "fanout"):
            faults.warn(parsed.key_place, f"{parsed.path}.routing_key", f"has no effect for type {exchange.rule.type}")
        for name, _ in parsed.binding.arguments:
            if exchange.rule.type != "headers":
                message = f"arguments have no effect for type {exchange.rule.type}"
            elif name.startswith(b"x-?") and not _tests_x_headers(parsed):
                message = f"is an operator of type {OPEN} and has no effect for type headers"
            else:
                continue
            faults.warn(*parsed.argument_at(name), message)


def _doubtful_keys(exchange: ParsedExchange, faults: Faults) -> None:
    """Warn about keys that test a header but look like operators or have spaces around the name."""
    if exchange.rule.type not in (OPEN, "headers"):
        return
    for parsed in exchange.bindings:
        for name, value in parsed.binding.arguments:
            key = name.decode()
            message = _doubtful_key(key, exchange.rule.type) or _doubtful_name(key, value)
            if message:
                faults.warn(*parsed.argument_at(name), message)


@lru_cache(4096)
def _doubtful_key(key: str, kind: str) -> str:
    """Return a warning if a header's name may have been meant as an operator; otherwise, return ""."""
    if key.startswith(_RESERVED):
        return ""
    plain = key.translate(_TYPED).strip()
    head = plain.lower().partition(" ")[0]
    if plain == key and head == plain.partition(" ")[0]:
        return ""
    operators = OPERATORS if kind == OPEN else ("x-match",)
    if head in operators or (kind == OPEN and head.startswith("x-?")):
        message = f"operators begin with a lower-case x-: did you mean {head + plain[len(head) :]}?"
    elif _TYPOGRAPHIC & set(key):
        message = f"the key contains typographic quotes: did you mean {plain}?"
    else:
        return ""
    other_way = f'; if not, write "x-?hkv= {key}"' if kind == OPEN else ""
    return f"tests a header with this name; {message}{other_way}"


def _doubtful_name(key: str, value: Value) -> str:
    """Return a warning if the tested header's name begins or ends with a space; otherwise, return ""."""
    name = key
    if key.startswith(_RESERVED):
        head, space, name = key.partition(" ")
        if head.startswith(_EXISTS) and not space and isinstance(value.value, bytes):
            name = value.value.decode("utf-8", "replace")
        elif not head.startswith("x-?hk"):
            return ""
    if name == name.strip():
        return ""
    return f'tests the header "{name}", whose name begins or ends with a space'


def _clocks(exchange: ParsedExchange, faults: Faults) -> None:
    """Warn about clock operators whose pattern contains characters that never occur in the formatted time."""
    if exchange.rule.type != OPEN:
        return
    for parsed in exchange.bindings:
        for name, value in parsed.binding.arguments:
            if not name.startswith(b"x-?dt") or not isinstance(value.value, bytes) or _EXTENDED.search(value.value):
                continue
            odd = _ODD_IN_CLOCK.search(_NOT_LITERAL.sub(b"", value.value))
            if odd is not None:
                message = (
                    f'"{odd[0].decode()}" never occurs in the matched string: date, time, weekday and week as digits '
                    'with spaces between them, such as "20261121 080000 6 47"'
                )
                faults.warn(*parsed.argument_at(name), message)


def _tests_x_headers(parsed: ParsedBinding) -> bool:
    match = next((value.value for name, value in parsed.binding.arguments if name == X_MATCH), b"")
    return isinstance(match, bytes) and match.endswith(b"-with-x")


def _destinations(exchange: ParsedExchange, owned: dict[bytes, ParsedExchange], faults: Faults) -> None:
    carriers = {other.rule.carrier for other in owned.values() if other.rule.delivery == CARRIER}
    for parsed in exchange.bindings:
        for place, path, name in _named_exchanges(parsed):
            target = owned.get(name)
            if target is None and name in carriers:
                faults.error(place, path, "the target is a carrier; expected the exchange that it represents")
            elif target is not None and target.rule.unmatched_pass and target is not exchange:
                faults.error(place, path, _UNREACHABLE)


def _named_exchanges(parsed: ParsedBinding) -> Iterator[tuple[Place, str, bytes]]:
    if parsed.binding.destination_type == EXCHANGE:
        yield parsed.place, f"{parsed.path}.exchange", parsed.binding.destination
    for key, name in parsed.named_routes():
        if key.startswith(b"x-adde-"):
            yield *parsed.argument_at(key), name
