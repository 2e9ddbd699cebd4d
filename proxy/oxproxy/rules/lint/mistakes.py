"""Warns about valid definitions that look like a mistake, and suggests what was probably meant.

A header may have any name and any value, so `amount >=` is a valid header name and `">= 1000"` a valid string. In the
readable spelling, most of these keys are errors (see `oxproxy.rules.spelling.lines`). Arguments have to stay valid,
since clients declare the same arguments over AMQP.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from oxproxy.routing.bindings.arguments import X_MATCH
from oxproxy.routing.filters import ALTERNATE, ARGUMENTS
from oxproxy.rules.schema import ParsedBinding, ParsedExchange, ParsedFile
from oxproxy.rules.spelling.lines import (
    ELSE,
    HEADER,
    INVISIBLE,
    THEN,
    WHEN,
    Correction,
    corrected_key,
    is_joined,
    lines_by_argument,
    read_key,
    visible,
)
from oxproxy.values import QUEUE, Value, strings, text
from oxproxy.yamlfile.document import Faults, join

#: Comparisons at the beginning of a value, as in ``amount: ">= 1000"``.
_COMPARED = re.compile(r"\s*(==|!=|>=|<=|<>|=~|>|<)\s*(\S.*)")
#: A pattern between slashes, as in many languages, with an anchor or with flags.
_SLASHES = re.compile(r"/(?:(\^.*|.*\$)/|(.*)/([imsx]+))")
#: An hour from 24 to 99 after the date; it is followed by the minute, so it is no week.
_HOUR = re.compile(r" (2[4-9]|[3-9][0-9])(?=[0-9\[\\.(])")
#: Other characters for the dash in `x-`; `oxproxy.rules.lint.files` names these keys.
_DASHES = frozenset("\u2010\u2011\u2012\u2013\u2212")
#: Maximum length of all names of queues that are compared, in bytes; see `_meant_queues`.
_MOST_BYTES = 250_000
#: Wildcards of other systems, and wildcards that are only a part of a word.
_WILDCARD_WORDS = re.compile(rb"\*\*+|[>+]|[*#]+[^*#]+|[^*#]+[*#]+")
_TYPOGRAPHIC = frozenset("\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb")
#: Keys of a readable binding that contain a mapping, and values of `match`.
_SECTIONS = (WHEN, THEN, ELSE)
_MATCH_TYPES = (b"all", b"any", b"eq", b"set")
#: Arguments of queues that RabbitMQ knows.
QUEUE_ARGUMENTS = (
    *("x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-overflow", "x-max-priority", "x-max-age"),
    *("x-dead-letter-exchange", "x-dead-letter-routing-key", "x-dead-letter-strategy", "x-single-active-consumer"),
    *("x-queue-type", "x-queue-mode", "x-queue-version", "x-queue-master-locator", "x-queue-leader-locator"),
    *("x-delivery-limit", "x-quorum-initial-group-size", "x-quorum-target-group-size", "x-initial-cluster-size"),
    *("x-stream-max-segment-size-bytes", "x-stream-filter-size-bytes", "x-consumer-timeout", "x-cancel-on-ha-failover"),
    *("x-max-in-memory-length", "x-max-in-memory-bytes", "x-ha-policy", "x-consumer-disconnected-timeout"),
)


def warn_of_mistakes(files: Sequence[ParsedFile], faults: Faults) -> None:
    """Warn about probable mistakes in the files of one virtual host."""
    meant = _meant_queues(files)
    for file in files:
        for queue in file.queues:
            for name, _ in queue.rule.arguments:
                near = _misspelt(text(name))
                if near:
                    path = join(f"{queue.path}.arguments", text(name))
                    faults.warn(queue.place, path, f"unknown argument of a queue; did you mean {near}?")
        for exchange in file.exchanges:
            _destinations(exchange, meant, faults)
            _idle_violations(exchange, faults)
            if exchange.rule.type == "x-open":
                for parsed in exchange.bindings:
                    _binding(parsed, faults)


@lru_cache(1024)
def _misspelt(name: str) -> str:
    if name in QUEUE_ARGUMENTS or not name.startswith("x-"):
        return ""
    return next(iter(difflib.get_close_matches(name, QUEUE_ARGUMENTS, 1, 0.85)), "")


# -- destinations ------------------------------------------------------------------------------------------------------


def _meant_queues(files: Sequence[ParsedFile]) -> dict[bytes, bytes]:
    """Return the declared queue for each destination that is not declared and whose name is nearly the queue's name.

    The time and the memory are proportional to the length of all names.
    """
    declared = {queue.rule.name for file in files for queue in file.queues}
    bindings = (parsed.binding for file in files for exchange in file.exchanges for parsed in exchange.bindings)
    named = {binding.destination for binding in bindings if binding.destination_type == QUEUE}
    undeclared = named.difference(declared)
    if sum(map(len, (*declared, *undeclared))) > _MOST_BYTES:
        return {}
    # Two names that differ in one letter, or in the order of two letters, are equal without one letter each.
    by_rest: dict[bytes, list[bytes]] = {}
    for name in declared:
        for rest in _without_one_letter(name):
            by_rest.setdefault(rest, []).append(name)
    meant: dict[bytes, bytes] = {}
    for name in undeclared:
        similar = {other for rest in _without_one_letter(name) for other in by_rest.get(rest, ())}
        near = min((other for other in similar if _one_letter_off(name, other)), default=None)
        if near is not None:
            meant[name] = near
    return meant


def _without_one_letter(name: bytes) -> Iterator[bytes]:
    """Yield a name, and the name without each of its letters."""
    yield name
    for index in range(len(name)):
        yield name[:index] + name[index + 1 :]


def _destinations(exchange: ParsedExchange, meant: Mapping[bytes, bytes], faults: Faults) -> None:
    for parsed in exchange.bindings:
        near = meant.get(parsed.binding.destination) if parsed.binding.destination_type == QUEUE else None
        if near is not None:
            message = f"this queue is not declared under queues; did you mean {text(near)}?"
            faults.warn(parsed.place, f"{parsed.path}.queue", message)


def _idle_violations(exchange: ParsedExchange, faults: Faults) -> None:
    """Warn about ``violations: observe`` if there is nothing to observe."""
    filters = [name for name, _ in exchange.rule.arguments if name in ARGUMENTS and name != ALTERNATE]
    loud = any(not name.endswith(b"-silent") for name in filters)
    if exchange.rule.observes and not exchange.rule.require and not loud:
        exchange.fields.warn("violations", "has no effect without conditions under require, or filters under arguments")


def _one_letter_off(name: bytes, other: bytes) -> bool:
    """Return True if one letter is missing, added or different, or two letters are swapped. Digits may differ."""
    if abs(len(name) - len(other)) > 1 or min(len(name), len(other)) < 4:
        return False
    start = 0
    while start < min(len(name), len(other)) and name[start] == other[start]:
        start += 1
    left, right = name[start:], other[start:]
    if (left[:1] + right[:1]).isdigit():
        return False
    swapped = left[:2] == right[1::-1] and left[2:] == right[2:]
    return swapped or left[1:] == right[1:] or left[1:] == right or left == right[1:]


# -- bindings ----------------------------------------------------------------------------------------------------------


def _binding(parsed: ParsedBinding, faults: Faults) -> None:
    for key, value in parsed.binding.arguments:
        if key == X_MATCH:
            continue
        message = (
            _key_mistake(text(key))
            or _readable_key(text(key), value)
            or next(filter(None, _value_mistakes(parsed, key, value)), "")
        )
        if message:
            faults.warn(*parsed.argument_at(key), message)


@lru_cache(4096)
def _key_mistake(key: str) -> str:
    """Return a warning if an argument's key tests a header whose name was probably meant differently."""
    head, _, name = key.partition(" ")
    if not key.startswith("x-"):
        name = key
        meant = "" if key.startswith("x") and key[1:2] in _DASHES else _meant(key)
        if meant:
            return f'tests a header named "{key}"; did you mean "{meant}"? If not, write "x-?hkv= {key}"'
        if is_joined(key):
            return f'tests a header named "{key}"; expected one condition for each key, such as "x-?hkv= a": 5'
    elif not head.startswith("x-?hk"):
        return ""
    if name.encode() in ARGUMENTS:
        kind = "alternate-exchange is an argument" if name == "alternate-exchange" else "filters are arguments"
        return f"tests a header named {name}; {kind} of the exchange, not of a binding"
    if INVISIBLE.search(name) and name == name.strip(" "):
        return f'the name of the header contains an invisible character: "{visible(name)}"'
    return ""


def _readable_key(key: str, value: Value) -> str:
    """Return a warning if an argument's key is a key of the readable spelling."""
    if key in _SECTIONS and value.letter == "F":
        return f"tests a header named {key}; a binding has either arguments, or {', '.join(_SECTIONS)} and so on"
    if key == "match" and value.value in _MATCH_TYPES:
        return 'tests a header named match; did you mean "x-match"? If not, write "x-?hkv= match"'
    if key.startswith("x?"):
        return f'tests a header with this name; did you mean "x-{key[1:]}"? If not, write "x-?hkv= {key}"'
    return ""


def _meant(key: str) -> str:
    """Return the argument that a plain key was probably meant as; "" if it is unsuspicious."""
    correction: Correction | None = Correction(key)
    try:
        condition = read_key(key)
    except ValueError:
        correction = corrected_key(key)
        try:
            condition = read_key("" if correction is None else correction.key)
        except ValueError:
            return ""
    else:
        if condition.subject == HEADER and condition.operator.words in ("", "equals"):
            return ""
    value = "" if correction is None else correction.value
    head = text(condition.operator.head(condition.subject, value))
    separator = ": " if condition.operator.choices else " "
    return f"{head}{separator}{condition.name}" if condition.name else head


def _value_mistakes(parsed: ParsedBinding, key: bytes, value: Value) -> Iterator[str]:
    head = key.partition(b" ")[0]
    plain = not key.startswith(b"x-")
    equality = plain or head in (b"x-?hkv=", b"x-?hk?v=", b"x-?rk=", b"x-?pr=")
    name = "" if plain else text(key.partition(b" ")[2])
    for content in strings(value):
        written = text(content)
        if len(written) > 1 and written[0] in _TYPOGRAPHIC and written[-1] in _TYPOGRAPHIC:
            quotes = f"{written[0]}{written[-1]}"
            yield f"the typographic quotes {quotes} are part of the value; did you mean {written[1:-1]}?"
        if equality:
            yield _compared(parsed, key, name or text(key), written)
            yield _wildcards(parsed, head if not plain else b"x-?hkv=", name or text(key), written)
        elif head in (b"x-?rkta", b"x-?rk!ta", b"x-?rktaci", b"x-?rk!taci"):
            if any(map(_WILDCARD_WORDS.fullmatch, content.split(b"."))):
                yield f'"{written}" is compared literally: in a topic, # is any number of words, and * is one word'
        elif head.endswith(b"re") and head.startswith(b"x-?"):
            slashes = _SLASHES.fullmatch(written)
            if slashes is not None:
                flags = f"(?{slashes[3]})" if slashes[3] else ""
                meant = f"{flags}{slashes[1] or slashes[2]}"
                yield f"the slashes are part of the pattern; did you mean {meant}?"
            hour = _HOUR.search(written) if head.startswith(b"x-?dt") else None
            if hour is not None:
                yield f'the hour "{hour[1]}" never occurs: hours are 00 to 23'


def _compared(parsed: ParsedBinding, key: bytes, name: str, written: str) -> str:
    found = _COMPARED.fullmatch(written)
    if found is None:
        return ""
    sign = {"==": "=", "<>": "!=", "=~": "matches"}.get(found[1], found[1])
    if parsed.binding.readable:
        line = lines_by_argument(parsed.binding.arguments).get(key)
        subject = name if line is None else line.key.removesuffix(" =")
        meant = f"{subject} {sign}"
    else:
        prefix = text(key.partition(b" ")[0].removesuffix(b"=")) if key.startswith(b"x-") else "x-?hkv"
        meant = f"{prefix}{sign.replace('matches', 're')} {name}".rstrip()
    return f'compares with the string "{written}"; did you mean "{meant}": {found[2]}?'


def _wildcards(parsed: ParsedBinding, head: bytes, name: str, written: str) -> str:
    readable = parsed.binding.readable
    if head == b"x-?rk=":
        if any(word in ("*", "#", "**") for word in written.split(".")):
            meant = "key topic" if readable else "x-?rkta"
            return f'"{written}" is compared literally; for wildcards, write "{meant}": "{written}"'
        return ""
    if head not in (b"x-?hkv=", b"x-?hk?v="):
        return ""
    if written in ("*", "#"):
        meant = f"{name} exists: true" if readable else f"x-?hkex: {name}"
        return f'"{written}" is compared literally; if any value is meant, write {meant}'
    literal = written.removesuffix("*").removeprefix("*")
    if literal != written and literal and "*" not in literal:
        pattern = f"{'' if written.startswith('*') else '^'}{re.escape(literal)}{'' if written.endswith('*') else '$'}"
        meant = f"{name} matches" if readable else f"x-?hkvre {name}"
        return f'"{written}" is compared literally; did you mean "{meant}": {pattern}?'
    return ""
