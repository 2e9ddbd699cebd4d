"""The nodes of a YAML file with their places, the meaning of scalars, and the faults of one load.

Scalars are read by the core schema of YAML 1.2 (YAML 1.2.2, 10.3.2), not by the rules of 1.1 that PyYAML's own
constructors follow: ``no``, ``on``, dates and ``1:30`` are strings, ``010`` is ten. All faults of a load are collected
before any is raised.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from proxy.errors import ConfigError, ConfigErrors, located


class Place(NamedTuple):
    """Where something was written: file or environment variable; line and column from 1, 0 where unknown."""

    source: str
    line: int
    column: int = 0


class ConfigWarning(NamedTuple):
    """Something that works and that its author may not want."""

    place: Place
    key: str
    message: str

    def __str__(self) -> str:
        """``file:line:column: key: warning: message``."""
        where = located(*self.place)
        return f"{where}: {self.key}: warning: {self.message}" if self.key else f"{where}: warning: {self.message}"


@dataclass(slots=True)
class Faults:
    """Collects errors and warnings while files are read; `check` raises what was found."""

    errors: list[ConfigError] = field(default_factory=list)
    warnings: list[ConfigWarning] = field(default_factory=list)

    def error(self, place: Place, key: str, message: str) -> None:
        """Note a fault.

        Args:
            place: where it was seen.
            key: dotted path of the key.
            message: what was seen and what was expected; never a secret.
        """
        self.errors.append(ConfigError(place.source, place.line, key, message, place.column))

    def warn(self, place: Place, key: str, message: str) -> None:
        """Note something that works but looks unintended."""
        self.warnings.append(ConfigWarning(place, key, message))

    def check(self) -> None:
        """Raise everything noted so far.

        Raises:
            ConfigErrors: if there was any error.
        """
        if self.errors:
            raise ConfigErrors(self.errors)


#: Digits beyond which a number is out of range for every use we have; a limit against hostile input.
_MAX_DIGITS = 64
_BEYOND: int = 10**_MAX_DIGITS

#: What may be the password in user:password@host, wherever a person put an address; too much is safe.
_PASSWORD = re.compile(r":(?!//[^@]*:).*@", re.DOTALL)

_INTEGER = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: dict[str, bool | float | None] = {
    "": None,
    "~": None,
    **dict.fromkeys(("null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((sign + word for sign in ("", "+") for word in (".inf", ".Inf", ".INF")), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_NUMBER_START = frozenset("0123456789+-.")

#: What a scalar can be under the core schema.
Plain: TypeAlias = bool | int | float | str | None


@dataclass(slots=True, eq=False)
class Scalar:
    """One scalar: its text, how it was written, and where."""

    place: Place
    text: str
    plain: bool
    tag: str | None = None

    @property
    def absent(self) -> bool:
        """Nothing was written at all, as after ``key:``."""
        return self.plain and not self.text

    @property
    def value(self) -> Plain:
        """The scalar under the core schema; local tags (``!bytes``) are the caller's."""
        return resolve(self.text) if self.plain and self.tag is None else self.text


@dataclass(slots=True, eq=False)
class Sequence:
    """One list."""

    place: Place
    items: list[Node]


@dataclass(slots=True, eq=False)
class Mapping:
    """One mapping, in file order; keys are text and differ."""

    place: Place
    entries: list[tuple[Scalar, Node]]


Node: TypeAlias = Scalar | Sequence | Mapping


def resolve(text: str) -> Plain:
    """Give the value of a plain scalar under the core schema of YAML 1.2."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMBER_START:
        return text
    if _INTEGER.fullmatch(text):
        return _integer(text, 10)
    if _OCTAL.fullmatch(text):
        return _integer(text[2:], 8)
    if _HEXADECIMAL.fullmatch(text):
        return _integer(text[2:], 16)
    return float(text) if _FLOAT.fullmatch(text) else text


def _integer(text: str, base: int) -> int:
    # int() of a long text is quadratic and, in Python, an error of its own kind.
    if len(text) > _MAX_DIGITS:
        return -_BEYOND if text[0] == "-" else _BEYOND
    return int(text, base)


def join(path: str, key: str) -> str:
    """Append a key to a dotted path; one that is not a plain word is quoted."""
    if re.fullmatch(r"[A-Za-z_][\w-]*", key):
        return f"{path}.{key}" if path else key
    return f'{path}["{key}"]'


def describe(node: Node | None) -> str:
    """Say what was seen, in words for an error message."""
    match node:
        case None:
            return "nothing"
        case Sequence():
            return "a list"
        case Mapping():
            return "a mapping"
        case Scalar() if node.absent:
            return "no value"
        case Scalar():
            return _scalar_shown(node)


def _scalar_shown(node: Scalar) -> str:
    text = _PASSWORD.sub(":***@", node.text)
    text = text if len(text) <= 60 else text[:57] + "..."
    if node.tag is not None:
        return f"{node.tag} {text}"
    match node.value:
        case bool():
            return f"the boolean {text}"
        case int() | float():
            return f"the number {text}"
        case None:
            return text
        case _:
            return f'the text "{text}"'


def release_tree(root: Node) -> None:
    """Take a tree apart piece by piece: freed as a whole, a large one would hold the interpreter for long."""
    pending: list[Node] = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, Mapping):
            pending.extend(child for _, child in node.entries)
            node.entries.clear()
        elif isinstance(node, Sequence):
            pending.extend(node.items)
            node.items.clear()
