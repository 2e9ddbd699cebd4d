"""Translates between the two spellings of a binding: the readable keys of rules files, and open-exchange arguments.

The tables in this module are the only definition of the readable spelling. Each readable line (`Line`) stands for one
operator, and `arguments_of` translates lines into the arguments that clients declare over AMQP. A binding therefore has
the same identity in both spellings. `lines_of` translates arguments back, and returns None if the result would not be
translated into equal arguments: for example, a plain key that occurs twice has no readable form.

A condition's key is ``[SUBJECT] NAME [OPERATOR]``. The operator is the longest operator at the end of the key, after a
space. A key without an operator tests for equality. If a name at the end of such a key resembles an operator, the key
is an error, since it was probably meant as this operator.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple, cast

from oxproxy.routing.bindings.arguments import X_MATCH, X_ORDER
from oxproxy.routing.bindings.binding import typed_arguments
from oxproxy.rules.message import PROPERTIES, value_words
from oxproxy.values import Table, Value

HEADER, PROPERTY, KEY, UTC, LOCAL = "header", "property", "key", "utc", "local"
#: Subjects that are followed by a name; the other subjects are facts of their own.
_NAMED: Final = (HEADER, PROPERTY)
_SUBJECTS: Final = (HEADER, PROPERTY, KEY, UTC, LOCAL)
TRUE, FALSE = Value("t", True), Value("t", False)
#: Sections of a binding that contain lines, besides the binding's own keys.
WHEN, THEN, ELSE = "when", "then", "else"
_RESULTS: Final = {THEN: b"-ontrue", ELSE: b"-onfalse"}
_FLAG: Final = Value("S", b"")


class Line(NamedTuple):
    """One line of a readable binding: the section (empty for a key of the binding itself), the key, and the value."""

    section: str
    key: str
    value: Value

    @property
    def text(self) -> str:
        """The key as shown in a list of lines of several sections."""
        return self.key if self.section in ("", WHEN) else f"{self.section} {self.key}"


class SpellingError(ValueError):
    """A line that has no meaning. The message states what was seen and what was expected."""

    def __init__(self, line: Line, message: str) -> None:
        super().__init__(message)
        self.line = line


# -- the tables --------------------------------------------------------------------------------------------------------


class WrittenOperator(NamedTuple):
    """An operator of conditions.

    Args:
        words: the operator at the end of a readable key.
        heads: by subject, the argument's key without the name.
        choices: by subject, for an operator whose argument contains the name as its value: the argument's key for each
            readable value.
    """

    words: str
    heads: Mapping[str, bytes] = {}
    choices: Mapping[str, Mapping[Value, bytes]] = {}

    @property
    def subjects(self) -> tuple[str, ...]:
        return tuple(self.heads or self.choices)

    def head(self, subject: str, value: str = "") -> bytes:
        """Return the argument's key without the name.

        Args:
            value: the readable value, if it determines the argument; by default, the first one.
        """
        if self.heads:
            return self.heads[subject]
        heads = self.choices[subject]
        chosen = FALSE if value == "false" else Value("S", value.encode())
        return heads.get(chosen) or next(iter(heads.values()))

    @property
    def wants_list(self) -> bool:
        return self.words.endswith(" in") or self.words == "in"


def _comparison(words: str, sign: str, *subjects: str, optional: bool = False) -> WrittenOperator:
    family = {HEADER: "x-?hk?v" if optional else "x-?hkv", PROPERTY: "x-?pr", KEY: "x-?rk", UTC: "x-?dtu"}
    family[LOCAL] = "x-?dtl"
    return WrittenOperator(words, {subject: (family[subject] + sign).encode() for subject in subjects})


#: Words and their signs in argument keys, with the subjects that have the operator.
_COMPARISONS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "=": ("=", (HEADER, PROPERTY, KEY)),
    "!=": ("!=", (HEADER, PROPERTY, KEY)),
    "<": ("<", (HEADER, PROPERTY)),
    "<=": ("<=", (HEADER, PROPERTY)),
    ">=": (">=", (HEADER, PROPERTY)),
    ">": (">", (HEADER, PROPERTY)),
    "in": ("in", (HEADER, PROPERTY, KEY)),
    "not in": ("!in", (HEADER, PROPERTY, KEY)),
    "matches": ("re", _SUBJECTS),
    "not matches": ("!re", _SUBJECTS),
}
_TYPES: Final = {"string": "s", "number": "n", "boolean": "b", "integer": "i", "list": "a"}


def _typed(negation: str) -> dict[str, dict[Value, bytes]]:
    return {
        HEADER: {Value("S", name.encode()): f"x-?hkex{negation}{letter}".encode() for name, letter in _TYPES.items()}
    }


#: The operator of a key that consists of a subject and a name.
_EQUALS: Final = _comparison("", "=", HEADER, PROPERTY, KEY)
#: The argument's key is the name of the header alone, as in bindings of headers exchanges.
PLAIN: Final = WrittenOperator("equals", {HEADER: b""})
OPERATORS: Final[dict[str, WrittenOperator]] = {
    operator.words: operator
    for operator in (
        _EQUALS,
        *(_comparison(words, sign, *subjects) for words, (sign, subjects) in _COMPARISONS.items()),
        WrittenOperator("topic", {KEY: b"x-?rkta"}),
        WrittenOperator("not topic", {KEY: b"x-?rk!ta"}),
        WrittenOperator("topic (any case)", {KEY: b"x-?rktaci"}),
        WrittenOperator("not topic (any case)", {KEY: b"x-?rk!taci"}),
        WrittenOperator(
            "exists",
            choices={
                HEADER: {TRUE: b"x-?hkex", FALSE: b"x-?hk!ex"},
                PROPERTY: {TRUE: b"x-?prex", FALSE: b"x-?pr!ex"},
            },
        ),
        WrittenOperator("is", choices=_typed("")),
        WrittenOperator("is not", choices=_typed("!")),
        *(_comparison(f"missing or {words}", sign, HEADER, optional=True) for words, (sign, _) in _COMPARISONS.items()),
        _comparison("share", "%", HEADER, PROPERTY, KEY),
        PLAIN,
    )
}
#: Effects under `then` and `else`, and their argument keys without the suffix.
EFFECTS: Final = {
    "add queue": b"x-addq",
    "add exchange": b"x-adde",
    "remove queue": b"x-delq",
    "remove exchange": b"x-dele",
    "add queues matching": b"x-addqre",
    "add queues not matching": b"x-addq!re",
    "add one queue matching": b"x-add1qre",
    "add one queue not matching": b"x-add1q!re",
    "remove queues matching": b"x-delqre",
    "remove queues not matching": b"x-delq!re",
    "goto": b"x-goto",
    "stop": b"x-stop",
}
#: The effect whose value lists permissions.
MAY: Final = "producer may"
#: Elements of `producer may`, and their argument keys without the suffix.
PERMISSIONS: Final = {
    "add queues": b"x-msg-addq",
    "add exchanges": b"x-msg-adde",
    "remove queues": b"x-msg-delq",
    "remove exchanges": b"x-msg-dele",
    "add queues matching": b"x-msg-addqre",
    "remove queues matching": b"x-msg-delqre",
}
#: Keys of the binding itself, and their arguments.
OWN_KEYS: Final = {
    "match": X_MATCH,
    "order": X_ORDER,
    "queue from key": b"x-msg-destq-rk",
    "drop destination": b"x-del-dest",
}
#: Keys with the value `true`, whose arguments are flags.
FLAGS: Final = frozenset(("stop", "queue from key", "drop destination"))
#: All keys of a readable binding.
READABLE_KEYS: Final = (*OWN_KEYS, WHEN, THEN, ELSE)

#: By argument key without the name: subject, operator, and readable value if it is determined by the key.
_OF_HEAD: Final[dict[bytes, tuple[str, WrittenOperator, Value | None]]] = {}
for _operator in OPERATORS.values():
    for _subject, _head in _operator.heads.items():
        _OF_HEAD.setdefault(_head, (_subject, _operator, None))
    for _subject, _choices in _operator.choices.items():
        for _value, _head in _choices.items():
            _OF_HEAD[_head] = (_subject, _operator, _value)
#: By argument key: section and key of an effect, a flag or a key of the binding itself.
_OF_ROUTE: Final = {
    **{argument: ("", key) for key, argument in OWN_KEYS.items()},
    **{head + suffix: (section, key) for section, suffix in _RESULTS.items() for key, head in EFFECTS.items()},
}
#: By argument key: section and element of `producer may`.
_OF_PERMISSION: Final = {
    head + suffix: (section, name) for section, suffix in _RESULTS.items() for name, head in PERMISSIONS.items()
}


# -- reading a condition's key -----------------------------------------------------------------------------------------

#: Words that other rule languages use, and the operators that correspond to them.
_OTHER_WORDS: Final = {
    **dict.fromkeys(("==", "===", "eq", "equal", "equal to", "is equal to"), "="),
    **dict.fromkeys(("<>", "=!", "!==", "ne", "neq", "not equal", "not equals", "not", "not =", "differs"), "!="),
    **dict.fromkeys(("gt", "greater", "greater than", "more than", "above", "over"), ">"),
    **dict.fromkeys(("lt", "less", "less than", "below", "under"), "<"),
    **dict.fromkeys(("=>", "gte", "ge", "at least", "min", "from", "between", "range"), ">="),
    **dict.fromkeys(("=<", "lte", "le", "at most", "max", "to"), "<="),
    **dict.fromkeys(("one of", "any of", "is one of", "is in", "is any of", "one_of", "any_of"), "in"),
    **dict.fromkeys(("none of", "is not in", "not one of", "!in", "notin", "not_in", "nin"), "not in"),
    **dict.fromkeys(
        ("=~", "~", "~=", "re", "regex", "regexp", "match", "like", "contains", "starts with", "startswith",
         "ends with", "endswith", "begins with"),
        "matches",
    ),
    **dict.fromkeys(("!~", "!re", "not like", "not match", "not contains"), "not matches"),
    **dict.fromkeys(("exist", "present", "is present", "is set", "defined", "is defined", "ex"), "exists"),
    **dict.fromkeys(("type", "is a", "is an", "has type", "typeof"), "is"),
    **dict.fromkeys(("percent", "%", "sample", "fraction"), "share"),
}  # fmt: skip
#: Words for a header that does not exist.
_ABSENT: Final = frozenset(
    ("missing", "is missing", "absent", "is absent", "not exists", "not exist", "does not exist", "not present",
     "is not present", "not set", "is not set", "unset", "undefined", "not defined", "is not defined")
)  # fmt: skip
#: Other names of types, and the types that correspond to them.
_OTHER_TYPES: Final = {
    "text": "string", "str": "string", "int": "integer", "bool": "boolean", "array": "list", "float": "number",
}  # fmt: skip
#: An operator together with its value, as in ``is a string``.
_TYPED_WORDS: Final = re.compile(rf"(is(?: not)?)(?: an?)? ({'|'.join((*_TYPES, *_OTHER_TYPES))})")
#: Prefixes that other rule languages put before a name, with the subject that they mean.
_OTHER_PREFIX: Final = re.compile(
    r"(?:message\.|msg\.|properties\.)?(?:(headers?)|(property|properties|props?))"
    r"(?:\.|: ?| |\[['\"]?)(?P<name>.+?)['\"\]]*"
)
#: A name written as a variable, as in templates.
_VARIABLE: Final = re.compile(r"\$\{?\.?(?P<name>[^{}$]+)\}?")
#: Properties whose names are hardly used as names of headers.
_SURELY_PROPERTIES: Final = frozenset(
    ("content_type", "content_encoding", "correlation_id", "reply_to", "message_id", "delivery_mode", "cluster_id")
)
#: Characters without a width, and characters that are not visible.
INVISIBLE: Final = re.compile("[\u00a0\u00ad\u200b-\u200f\u2028-\u202e\u2060\ufeff\x00-\x1f\x7f]")
#: Names of the routing key in other rule languages and in the API.
_OTHER_KEY: Final = re.compile(r"(?:message\.)?(?:routing[ _.-]?key|rk)", re.IGNORECASE)
_SIGNS: Final = re.compile(r"(?P<name>.*[^\s<>=!~])(?P<sign>\s*[<>=!~]+)")
_COMPARED: Final = re.compile(r"(?P<name>[^\s<>=!~?]+) *(?P<sign>[<>=!~]{1,3}) *(?P<value>[^\s<>=!~].*)")
_JOINED: Final = re.compile(r"&&|\|\|| (?:and|or) ", re.IGNORECASE)


class Condition(NamedTuple):
    """A condition's key: the subject, the name (empty for subjects without a name), and the operator."""

    subject: str
    name: str
    operator: WrittenOperator


@lru_cache(maxsize=4096)
def read_key(text: str) -> Condition:
    """Read the key of a condition.

    Raises:
        ValueError: the key is not valid; the message states the reason and suggests a correction.
    """
    first, _, rest = text.partition(" ")
    if first in (KEY, UTC, LOCAL):
        return Condition(first, "", _operator_of(first, rest))
    subject = HEADER
    if first in _NAMED:
        if not rest:
            raise ValueError(f'got no name after {first}, expected "{first} NAME"; {_escape(first)}')
        subject = first
    else:
        _refuse_argument(text)
        _refuse_upper_case(text, first)
        rest = text
    name, operator = _split(rest)
    if not name:
        raise ValueError(f"got an empty name, expected the name of a {subject}")
    if subject == PROPERTY:
        _check_property(name, operator)
    elif rest is text:
        _refuse_other_subject(name, operator)
        _refuse_other_operator(name, operator)
    if subject not in operator.subjects:
        wanted = ", ".join(operator.subjects)
        raise ValueError(f"got a header before {operator.words}, which is an operator for {wanted}")
    if operator is _EQUALS and subject == HEADER:
        _refuse_doubtful(name)
    if operator is PLAIN and name.startswith("x-"):
        raise ValueError(f'got equals after {name}, expected "{name} =", since the name begins with x-')
    return Condition(subject, name, operator)


def has_operator(key: str) -> bool:
    """Return True if a condition's key is valid and ends in an operator."""
    try:
        return bool(read_key(key).operator.words)
    except ValueError:
        return False


def _split(text: str) -> tuple[str, WrittenOperator]:
    """Separate a name from the longest operator at its end."""
    at = text.find(" ")
    while at >= 0:
        operator = OPERATORS.get(text[at + 1 :])
        if operator is not None and operator is not _EQUALS and at > 0:
            return text[:at], operator
        at = text.find(" ", at + 1)
    return text, _EQUALS


def _operator_of(subject: str, words: str) -> WrittenOperator:
    operator = OPERATORS.get(words)
    if operator is not None and subject in operator.subjects:
        return operator
    known = [words or "=" for words, operator in OPERATORS.items() if subject in operator.subjects]
    if not words:
        raise ValueError(f'got {subject} without an operator, expected "{subject} matches" with a pattern')
    meant = _meant(words)
    if meant not in known:
        meant = next(iter(difflib.get_close_matches(words, known, 1, 0.6)), "") if words[0].isalpha() else ""
    expected = f'did you mean "{subject} {meant}"?' if meant else f"expected one of {', '.join(dict.fromkeys(known))}."
    raise ValueError(f'got "{words}" after {subject}, {expected} {_escape(f"{subject} {words}")}')


def _check_property(name: str, operator: WrittenOperator) -> None:
    if name not in PROPERTIES:
        fixed = name.lower().replace("-", "_").replace(" ", "_")
        near = difflib.get_close_matches(fixed, PROPERTIES, 1, 0.75)
        if not near and " " in name:  # a known name and an unknown operator
            head, _, words = name.partition(" ")
            meant = _meant(words)
            if head in PROPERTIES:
                known = [known for known, operator in OPERATORS.items() if PROPERTY in operator.subjects and known]
                meant = meant or next(iter(difflib.get_close_matches(words, known, 1, 0.6)), "")
                hint = f'did you mean "property {head} {meant}"?' if meant else f"expected one of {', '.join(known)}"
                raise ValueError(f'got the operator "{words}", {hint}')
        expected = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(PROPERTIES)}"
        raise ValueError(f'there is no property "{name}"; {expected}')
    if PROPERTY not in operator.subjects:
        known = [words for words, other in OPERATORS.items() if PROPERTY in other.subjects and words]
        raise ValueError(f"got {operator.words} after a property, expected one of {', '.join(known)}")


def _escape(name: str) -> str:
    return f'For a header named "{name}", write "{HEADER} {name} ="'


def _meant(words: str) -> str:
    """Return the operator that words from another rule language mean; "" if there is none."""
    words = " ".join(words.lower().split()).replace("doesn't", "not").replace("isn't", "not")
    return _OTHER_WORDS.get(words) or (words if words in OPERATORS else "")


def _meaning(words: str) -> tuple[str, str]:
    """Return the operator, and the value if there is one, that words from another rule language mean."""
    plain = " ".join(words.lower().split()).replace("doesn't", "not").replace("isn't", "is not")
    if plain in _ABSENT:
        return "exists", "false"
    typed = _TYPED_WORDS.fullmatch(plain)
    if typed is not None:
        return typed[1], _OTHER_TYPES.get(typed[2], typed[2])
    return _meant(words), ""


class Correction(NamedTuple):
    """What a key was probably meant as: a key, and its value if the key contained it."""

    key: str
    value: str = ""

    def __str__(self) -> str:
        return f'"{self.key}": {self.value}' if self.value else f'"{self.key}"'


def visible(name: str) -> str:
    """Return a name with escapes for characters that are not visible."""
    return INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", name)


def _refuse_argument(text: str) -> None:
    """Refuse an argument that clients declare over AMQP; the subject `header` permits such a name."""
    head, _, name = text.partition(" ")
    encoded = head.encode()
    if encoded in _OF_HEAD and head:
        subject, operator, choice = _OF_HEAD[encoded]
        key = _key_of(subject, name or "NAME", operator.words) if subject in _NAMED else f"{subject} {operator.words}"
        meant = f'"{key.rstrip()}"' if choice is None else documented_form(head)
    elif encoded in _OF_ROUTE or encoded in _OF_PERMISSION:
        meant = f"{documented_form(head)} in the binding"
    elif text.startswith("x-?"):
        meant = "a key such as amount >="
    else:
        return
    raise ValueError(
        f'got the argument "{text}", did you mean {meant}? For a header of that name, write "header {text}"'
    )


def _refuse_upper_case(text: str, first: str) -> None:
    """Refuse a key that is valid if its first word is in lower case; the subject `header` permits such a name."""
    lower = first.lower()
    if lower == first or lower not in _SUBJECTS:
        return
    meant = lower + text[len(first) :]
    try:
        read_key(meant)
    except ValueError:
        return
    raise ValueError(f'got "{text}", did you mean "{meant}"? For a header named "{first}", write "{HEADER} {text}"')


def _refuse_doubtful(name: str) -> None:
    """Refuse the name of a header, in a key without an operator, that was probably meant as a name and an operator."""
    hint = _correction(name)
    if hint is not None:
        raise ValueError(f'got "{visible(name)}", did you mean {hint}? {_escape(visible(name))}')
    if is_joined(name):
        expected = "expected one condition for each key; with match: any, one of them is sufficient"
        raise ValueError(f"got several conditions in one key, {expected}. {_escape(name)}")


def _refuse_other_operator(name: str, operator: WrittenOperator) -> None:
    """Refuse a name whose last words and operator together are another operator, such as ``not exists`` or ``> =``."""
    words = name.split(" ")
    for first in range(1, len(words) if operator.words else 0):
        tail = " ".join((*words[first:], operator.words))
        meant, value = _meaning(tail)
        if not meant and not re.search(r"[^<>=!~ ]", tail):
            meant = _meant(tail.replace(" ", ""))
        if meant:
            hint = Correction(f"{' '.join(words[:first])} {meant}", value)
            own = f'For a header named "{name}", write "{HEADER} {name} {operator.words}"'
            raise ValueError(f'got "{name} {operator.words}", did you mean {hint}? {own}')


def _correction(name: str) -> Correction | None:
    """Return the name and the operator that were probably meant; None if the name is unsuspicious."""
    if name in OPERATORS or (name in _OTHER_WORDS and not name[0].isalpha()):
        return Correction(f"NAME {_meant(name)}")
    negated = name.removeprefix("not ").removeprefix("!")
    if negated and negated != name and " " not in negated:
        return Correction(f"{negated} !=")
    signs = _SIGNS.fullmatch(name)
    if signs is not None:
        sign = signs["sign"].strip()
        return Correction(f"{signs['name'].rstrip()} {_OTHER_WORDS.get(sign, sign if sign in OPERATORS else '=')}")
    compared = _COMPARED.fullmatch(name)
    if compared is not None and _meant(compared["sign"]):
        return Correction(f"{compared['name']} {_meant(compared['sign'])}", compared["value"])
    words = name.split(" ")
    for first in range(1, len(words)):
        tail = " ".join(words[first:])
        meant, value = _meaning(tail)
        if not meant and first == len(words) - 1:
            meant = next(iter(difflib.get_close_matches(tail.lower(), _LAST_WORDS, 1, 0.75)), "")
        if meant:
            return Correction(f"{' '.join(words[:first])} {meant}", value)
    return None


def _other_subject(name: str) -> str:
    """Return the subject and name that other rule languages write as `name`; "" if there are none."""
    prefix = _OTHER_PREFIX.fullmatch(name)
    if prefix is not None:
        return f"{PROPERTY} {prefix['name'].replace('-', '_')}" if prefix[2] else str(prefix["name"])
    variable = _VARIABLE.fullmatch(name)
    if variable is not None:
        return str(variable["name"])
    if name in _SURELY_PROPERTIES:
        return f"{PROPERTY} {name}"
    return KEY if _OTHER_KEY.fullmatch(name) else ""


def is_joined(key: str) -> bool:
    """Return True if a key looks like several conditions that are joined by `&&`, `and` and so on."""
    return _JOINED.search(key) is not None


def corrected_key(key: str) -> Correction | None:
    """Return what a key that `read_key` refuses was probably meant as; None if unknown."""
    name, operator = _split(key)
    words = f" {operator.words}" if operator.words else ""
    return Correction(f"{_other_subject(name)}{words}") if _other_subject(name) else _correction(key)


def _refuse_other_subject(name: str, operator: WrittenOperator) -> None:
    """Refuse a name that names the subject as other rule languages do; the subject `header` permits such a name."""
    words = f" {operator.words}" if operator.words else ""
    meant = _other_subject(name)
    if meant:
        own = f' For a header named "{name}", write "{HEADER} {name}{words}"' if HEADER in operator.subjects else ""
        raise ValueError(f'got "{name}{words}", did you mean "{meant}{words}"?{own}')


_LAST_WORDS: Final = tuple(words for words in OPERATORS if words.isalpha())


#: A condition as an expression, as other rule languages write it.
_EXPRESSION: Final = re.compile(
    r"\s*(?P<name>[^\s<>=!~]+)\s*(?P<sign>[<>=!~]{1,3}|\s(?:not )?in\s|\smatches\s)\s*(?P<value>.+?)\s*", re.IGNORECASE
)


def corrected_line(text: str) -> str:
    """Return the mapping that a string such as ``amount >= 1000`` was probably meant as, in flow style."""
    lines = []
    for part in _JOINED.split(text):
        expression = _EXPRESSION.fullmatch(part)
        if expression is None:
            return "{amount >=: 1000}"
        sign = expression["sign"].strip().lower()
        name = _OTHER_PREFIX.sub(r"\g<name>", expression["name"])
        lines.append(f"{name} {_meant(sign) or '='}: {expression['value']}")
    return f"{{{', '.join(lines)}}}"


# -- readable to arguments ---------------------------------------------------------------------------------------------


def matches_all(match: Value | None) -> bool:
    """Return True if a binding with this match type requires all conditions."""
    return match is None or match == ("S", b"all")


def _raise(fault: SpellingError) -> None:
    raise fault


def arguments_of(
    lines: Iterable[Line], report: Callable[[SpellingError], None] = _raise
) -> list[tuple[Line, bytes, Value]]:
    """Translate the lines of a binding into arguments, each with the line that it comes from.

    Args:
        report: receives each line that is not valid and is omitted; by default, the first one is raised.
    """
    lines = list(lines)
    match = next((line.value for line in lines if line.section == "" and line.key == "match"), None)
    arguments: dict[bytes, tuple[Line, Value]] = {}
    for line in lines:
        try:
            for key, value in _arguments(line, matches_all(match)):
                first, earlier = arguments.get(key, (line, None))
                if earlier is not None:
                    value = _joined(line, key, value, first, earlier)
                arguments[key] = first, value
        except SpellingError as fault:
            report(fault)
    return [(line, key, value) for key, (line, value) in arguments.items()]


def _joined(line: Line, key: bytes, value: Value, first: Line, earlier: Value) -> Value:
    """Combine the values of two lines with the same argument key: tests of existence or type, which contain names."""
    if line.section == WHEN and key in _OF_HEAD and _OF_HEAD[key][2] is not None:
        return Value("A", (*_elements(earlier), value))
    raise SpellingError(line, f'the same condition as "{first.text}", expected each condition once')


def _elements(value: Value) -> tuple[Value, ...]:
    """Return the elements of a list, or the value itself if it is not a list."""
    return cast("tuple[Value, ...]", value.value) if value.letter == "A" else (value,)


def _arguments(line: Line, under_all: bool) -> Iterator[tuple[bytes, Value]]:
    section, key, value = line
    if section == WHEN:
        yield condition_argument(line, under_all)
        return
    known: Mapping[str, bytes] = EFFECTS if section else OWN_KEYS
    suffix = _RESULTS.get(section, b"")
    if section and key == MAY:
        for name in _permissions(line):
            yield PERMISSIONS[name] + suffix, _FLAG
        return
    if key not in known:
        expected = [*known, MAY] if section else list(known)
        near = difflib.get_close_matches(key.lower().replace("_", " ").replace("queues", "queue"), expected, 1, 0.6)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(expected)}"
        raise SpellingError(line, f"unknown effect; {hint}")
    if key in FLAGS:
        if value != TRUE:
            raise SpellingError(line, f"got {value_words(value)}, expected true; omit the key otherwise")
        value = _FLAG
    if section and value == ("A", ()):
        raise SpellingError(line, "got an empty list, expected a name or a list of names")
    yield known[key] + suffix, value


def _permissions(line: Line) -> list[str]:
    names: list[str] = []
    for element in _elements(line.value):
        name = element.value.decode("utf-8", "replace") if isinstance(element.value, bytes) else ""
        if name in names:
            raise SpellingError(line, f"got {value_words(element)} twice, expected it once")
        if name not in PERMISSIONS:
            near = difflib.get_close_matches(name.lower(), PERMISSIONS, 1, 0.6)
            hint = f"did you mean {near[0]}?" if near else f"expected a list of {', '.join(PERMISSIONS)}"
            raise SpellingError(line, f"got {value_words(element)}; {hint}")
        names.append(name)
    if not names:
        raise SpellingError(line, f"got an empty list, expected a list of {', '.join(PERMISSIONS)}")
    return names


def condition_argument(line: Line, under_all: bool) -> tuple[bytes, Value]:
    """Translate one condition.

    Raises:
        SpellingError: the condition is not valid.
    """
    value = line.value
    try:
        condition = read_key(line.key)
        if condition.operator.choices:
            return _choice(condition, value), Value("S", condition.name.encode())
        if condition.operator.wants_list:
            _check_list(condition, value)
        elif condition.operator.words == "share":
            _check_share(value)
        elif condition.operator is _EQUALS and value.letter == "F":
            _check_table(condition, cast("Table", value.value))
    except ValueError as error:
        raise SpellingError(line, str(error)) from None
    head = condition.operator.heads[condition.subject]
    if under_all and condition.operator.words.endswith("not in"):
        # A list of `!=` requires that the value differs from every element, and does not depend on an extension.
        head = head.removesuffix(b"!in") + b"!="
    if not head:
        return condition.name.encode(), value
    return head + b" " + condition.name.encode() if condition.subject in _NAMED else head, value


def _choice(condition: Condition, value: Value) -> bytes:
    choices = condition.operator.choices[condition.subject]
    if value in choices and value.letter in "tS":
        return choices[value]
    if TRUE in choices:
        raise ValueError(f"got {value_words(value)}, expected true or false")
    names = written_choices(condition.operator, condition.subject)
    seen = value.value.decode() if isinstance(value.value, bytes) else ""
    near = (
        [_OTHER_TYPES[seen.lower()]]
        if seen.lower() in _OTHER_TYPES
        else difflib.get_close_matches(seen.lower(), names, 1, 0.6)
    )
    expected = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(names)}"
    raise ValueError(f"got {value_words(value)}; {expected}")


def written_choices(operator: WrittenOperator, subject: str) -> list[str]:
    """Return the values of an operator that tests a type."""
    return [choice.value.decode() for choice in operator.choices[subject] if isinstance(choice.value, bytes)]


def _check_list(condition: Condition, value: Value) -> None:
    if value.letter == "A" and value.value:
        return
    if value.letter == "A":
        raise ValueError("got an empty list, expected at least one value")
    content = value.value.decode("utf-8", "replace") if isinstance(value.value, bytes) else ""
    parts = [part.strip() for part in content.strip("[]()").split(",") if part.strip()]
    hint = f", such as [{', '.join(parts)}]" if parts else ""
    raise ValueError(f"got {value_words(value)}, expected a list{hint}")


def _check_table(condition: Condition, table: Table) -> None:
    """Refuse a mapping that contains conditions, as in other rule languages; the value of a header may be a mapping."""
    names = [key.decode("utf-8", "replace") for key, _ in table]
    if condition.name.lower() in ("headers", "header", "properties", "property", "props"):
        subject = PROPERTY + " " if condition.name.lower().startswith("prop") else ""
        expected = f"{{{subject}{names[0]}: VALUE}}" if names else "{NAME: VALUE}"
        raise ValueError(f"got a mapping of conditions, expected them directly under when, such as {expected}")
    meant = [_meant(name.removeprefix("$")) for name in names]
    if meant and all(meant):
        subject = f"{condition.subject} " if condition.subject != HEADER else ""
        expected = f"{subject}{condition.name} {meant[0]}"
        raise ValueError(f'got a mapping of operators, expected one key for each, such as "{expected}"')


def _check_share(value: Value) -> None:
    if value.letter == "A":
        return  # the operator checks the numbers
    number = value.value
    hint = f"; for {number} percent, write [0, {number}]" if value.letter in "Ild" else ""
    raise ValueError(f"got {value_words(value)}, expected two percentages such as [0, 5]{hint}")


# -- arguments to readable ---------------------------------------------------------------------------------------------


def lines_of(arguments: Table) -> tuple[Line, ...] | None:
    """Translate arguments into lines; return None if they have no readable form with the same identity.

    The binding's own keys come first, then conditions, then effects.
    """
    match = next((value for key, value in arguments if key == X_MATCH), None)
    lines: list[Line] = []
    permissions: dict[str, list[Value]] = {}
    try:
        for key, value in arguments:
            if key in _OF_PERMISSION and value == _FLAG:
                section, name = _OF_PERMISSION[key]
                permissions.setdefault(section, []).append(Value("S", name.encode()))
            else:
                lines += _lines(key, value, matches_all(match))
        lines += (Line(section, MAY, Value("A", tuple(names))) for section, names in permissions.items())
        lines.sort(key=_section_order)
        translated = tuple((key, value) for _, key, value in arguments_of(lines))
    except ValueError:
        return None
    distinct = {(line.section, line.key) for line in lines}
    same = typed_arguments(translated) == typed_arguments(arguments)
    return tuple(lines) if same and len(distinct) == len(lines) else None


def _section_order(line: Line) -> int:
    return ("", WHEN, THEN, ELSE).index(line.section)


def _lines(key: bytes, value: Value, under_all: bool) -> Iterator[Line]:
    """Yield the lines for one argument; raise ValueError if it has no readable form."""
    if key in _OF_ROUTE:
        section, name = _OF_ROUTE[key]
        if name in FLAGS and value != _FLAG:
            raise ValueError(name)
        yield Line(section, name, TRUE if name in FLAGS else value)
        return
    head, _, name_bytes = key.partition(b" ")
    subject, operator, choice = _OF_HEAD.get(head) or (HEADER, PLAIN, None)
    name = (key if operator is PLAIN else name_bytes).decode()
    if choice is not None:
        for element in _elements(value):
            tested = element.value if element.letter == "S" else None
            if not isinstance(tested, bytes) or key != head:
                raise ValueError(key)
            yield Line(WHEN, _key_of(subject, tested.decode(), operator.words), choice)
        return
    if under_all and operator.words.endswith("!=") and value.letter == "A" and value.value:
        operator = OPERATORS[operator.words.removesuffix("!=") + "not in"]
    yield Line(WHEN, _key_of(subject, name, operator.words), value)


@lru_cache(maxsize=4096)
def _key_of(subject: str, name: str, words: str) -> str:
    """Return the shortest key that is read as the given condition."""
    operator = OPERATORS[words]
    named = [name, f"{HEADER} {name}"] if subject == HEADER else [f"{subject} {name}" if name else subject]
    for spelled in (words, "=") if operator is _EQUALS else (words,):
        for start in named:
            key = f"{start} {spelled}" if spelled else start
            try:
                read = read_key(key)
            except ValueError:
                continue
            if (
                read[:2] == (subject, name)
                and read.operator.heads == operator.heads
                and (read.operator.choices == operator.choices)
            ):
                return key
    raise ValueError(name)


def documented_form(key: str) -> str:
    """Return the readable form of an argument key as it is documented, such as ``NAME >=``; "" if there is none.

    Args:
        key: the argument's key; NAME stands for the name of a header or property.
    """
    head = key.partition(" ")[0]
    encoded = head.encode()
    if key == "NAME":
        return f"NAME {PLAIN.words}"
    if encoded in _OF_ROUTE:
        section, words = _OF_ROUTE[encoded]
        return f"{section}: {words}" if section else words
    if encoded in _OF_PERMISSION:
        section, words = _OF_PERMISSION[encoded]
        return f"{section}: {MAY}: {words}"
    if encoded not in _OF_HEAD:
        return ""
    subject, operator, choice = _OF_HEAD[encoded]
    named = {HEADER: "NAME", PROPERTY: f"{PROPERTY} NAME"}.get(subject, subject)
    key = f"{named} {operator.words}".rstrip()
    if choice is None:
        return key
    chosen = choice.value.decode() if isinstance(choice.value, bytes) else str(choice.value).lower()
    return f"{key}: {chosen}"


def documented_key(key: str) -> str:
    """Return the documented form, such as ``NAME >=``, of a condition's key that ends in an operator; otherwise ""."""
    try:
        subject, _, operator = read_key(key)
    except ValueError:
        return ""
    named = {HEADER: "NAME", PROPERTY: f"{PROPERTY} NAME"}.get(subject, subject)
    return f"{named} {operator.words}" if operator.words else ""


def lines_by_argument(arguments: Table) -> dict[bytes, Line]:
    """Return the line of each argument by its key; the first one, if several lines became one argument.

    The result is empty if the arguments have no readable form.
    """
    return {key: line for line, key, _ in arguments_of(lines_of(arguments) or ())}


def shown_line(arguments: Table, key: bytes, expected: Value) -> tuple[str, Value]:
    """Return the readable key and value of one operator of a binding; an empty key if it has no readable form.

    Args:
        arguments: the arguments of the binding.
        key: the argument's key.
        expected: the argument's value, or one element of it.
    """
    match = next((value for name, value in arguments if name == X_MATCH), None)
    choice = _OF_HEAD[key][2] if key in _OF_HEAD else None
    # A list under one key can be written differently than each of its elements.
    value = next((value for name, value in arguments if name == key), expected) if choice is None else expected
    try:
        lines = list(_lines(key, value, matches_all(match)))
    except ValueError:
        return "", expected
    return lines[0].key if lines else "", choice or expected
