"""A strict YAML parser, which returns a file as a tree of nodes with their positions, or all errors in the file.

It uses PyYAML's events, not its loaders. The loaders resolve aliases and merge keys, and drop duplicate keys, so that
a file may have a meaning that its author did not intend. Here, aliases, merge keys and duplicate keys are errors, as
are keys that are not strings. Scalars are resolved according to the core schema of YAML 1.2 (YAML 1.2.2, 10.3.2),
whereas PyYAML's constructors use YAML 1.1. With the core schema, ``no``, ``on``, dates and ``1:30`` are strings, and
``010`` is ten. All errors in the files that are loaded together are collected before any of them is raised.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import yaml
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from oxproxy.errors import ConfigError, ConfigErrors, located
from oxproxy.values import counted, known_secrets, remember_secret, without_passwords
from oxproxy.yamlfile.masking import MASK, is_secret_key, masked_words

#: Suffixes of test files, which contain tests of rules but no rules.
_TESTS_ENDINGS = ("_test.yaml", "_test.yml")


def is_tests_file(name: str) -> bool:
    """Return True if the file is a test file, which no sidecar loads."""
    return name.endswith(_TESTS_ENDINGS)


class Place(NamedTuple):
    """Position of a value: the file or environment variable, and the line and column, which are 0 if unknown."""

    source: str
    line: int
    column: int = 0

    def error(self, key: str, message: str) -> ConfigError:
        return ConfigError(self.source, self.line, *_without_secrets(key, message), self.column)


class ConfigWarning(NamedTuple):
    """A warning about a valid definition that is probably not intended."""

    place: Place
    key: str
    message: str

    def __str__(self) -> str:
        """Return ``file:line:column: key: warning: message``."""
        position = located(*self.place)
        return (
            f"{position}: {self.key}: warning: {self.message}" if self.key else f"{position}: warning: {self.message}"
        )


#: Maximum number of errors that are collected in one file.
MAX_ERRORS = 100


@dataclass(slots=True)
class Faults:
    """Collects errors and warnings while files are read; `check` raises the errors.

    Args:
        secrets_required: whether passwords and files that only the sidecar needs must exist. False is for checks on
            other machines, where a missing password or file is only a warning. With None, it is not reported.
    """

    errors: list[ConfigError] = field(default_factory=list)
    warnings: list[ConfigWarning] = field(default_factory=list)
    secrets_required: bool | None = True
    #: number of errors beyond `MAX_ERRORS`
    more: int = 0

    def error(self, place: Place, key: str, message: str) -> None:
        """Add an error at the key with the given dotted path. The message must not contain a secret."""
        self.add(place.error(key, message))

    def add(self, error: ConfigError) -> None:
        """Add an error. Beyond `MAX_ERRORS`, errors are only counted, in an error at the position of the last one."""
        if len(self.errors) < MAX_ERRORS:
            self.errors.append(error)
        else:
            self._count(error, 1)

    def extend(self, other: Faults) -> None:
        """Add the errors, but not the warnings, that have been collected separately."""
        for error in other.errors[:MAX_ERRORS]:
            self.add(error)
        if other.more:
            self._count(other.errors[-1], other.more)

    def _count(self, last: ConfigError, errors: int) -> None:
        del self.errors[MAX_ERRORS:]
        self.more += errors
        message = f"and {counted(self.more, 'more error')}"
        self.errors.append(ConfigError(last.file, last.line, "", message, last.column))

    def warn(self, place: Place, key: str, message: str) -> None:
        self.warnings.append(ConfigWarning(place, *_without_secrets(key, message)))

    def missing(self, place: Place, key: str, message: str) -> None:
        """Report that a password or file that only the sidecar needs is missing or can't be read."""
        if self.secrets_required is not None:
            report = self.error if self.secrets_required else self.warn
            report(place, key, message)

    def check(self) -> None:
        if self.errors:
            raise ConfigErrors(self.errors)


#: The last key of a dotted path.
_LAST_KEY = re.compile(r"(?:^|\.)(?P<word>[\w-]+)$|\[\"(?P<quoted>.*)\"\]$", re.DOTALL)


def _without_secrets(path: str, message: str) -> tuple[str, str]:
    """Mask the secrets that an operator has written as the name of an unknown key, or where another value belongs."""
    secrets = known_secrets()
    for secret in secrets:
        message = message.replace(f'"{secret}"', f'"{MASK}"')
    last = _LAST_KEY.search(path)
    if last is not None:
        group = "quoted" if last["word"] is None else "word"
        name = last[group]
        if message.startswith("unknown key"):
            path = path[: last.start(group)] + shown_key(name) + path[last.end(group) :]
    return masked_words(path), masked_words(message)


def shown_key(name: str) -> str:
    """Return the name of an unknown key for display. A password in its place, or appended to it, is masked."""
    if name in known_secrets():
        return MASK
    before, colon, _ = name.partition(":")
    return f"{before}:{MASK}" if colon and is_secret_key(before.strip()) else name


#: Numbers with more digits are out of range for every key. The limit protects against hostile input.
_MAX_DIGITS = 64
_BEYOND: int = 10**_MAX_DIGITS

#: Integers and floats in decimal notation, according to the core schema.
INTEGER = re.compile(r"[-+]?[0-9]+")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_OCTAL = re.compile(r"0o[0-7]+")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
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

#: Types of scalars in the core schema.
Plain: TypeAlias = bool | int | float | str | None


@dataclass(slots=True, eq=False)
class Scalar:
    """A scalar, with its text, notation and position."""

    place: Place
    text: str
    plain: bool
    tag: str | None = None

    @property
    def absent(self) -> bool:
        """True if the value is empty, as after ``key:``."""
        return self.plain and not self.text

    @property
    def value(self) -> Plain:
        """The value according to the core schema. Callers resolve local tags (``!bytes``)."""
        return resolve(self.text) if self.plain and self.tag is None else self.text


@dataclass(slots=True, eq=False)
class Sequence:
    """A list."""

    place: Place
    items: list[Node]


@dataclass(slots=True, eq=False)
class Mapping:
    """A mapping, in file order. Keys are strings and unique."""

    place: Place
    entries: list[tuple[Scalar, Node]]

    def entry(self, key: str) -> tuple[Scalar, Node] | None:
        """Return a key and its value; None if the key is missing."""
        return next((entry for entry in self.entries if entry[0].text == key), None)


Node: TypeAlias = Scalar | Sequence | Mapping
#: Returns the replacement for an item of ``exchanges[].bindings``, given the item, the index of the exchange and
#: the index of the item.
BindingReader: TypeAlias = Callable[[Node, int, int], Any]


def resolve(text: str) -> Plain:
    """Return the value of a plain scalar according to the core schema of YAML 1.2."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMBER_START:
        return text
    if INTEGER.fullmatch(text):
        return _integer(text, 10)
    if _OCTAL.fullmatch(text):
        return _integer(text[2:], 8)
    if _HEXADECIMAL.fullmatch(text):
        return _integer(text[2:], 16)
    return float(text) if FLOAT.fullmatch(text) else text


def _integer(text: str, base: int) -> int:
    # int() of a long string takes quadratic time and raises a different error.
    if len(text) > _MAX_DIGITS:
        return -_BEYOND if text[0] == "-" else _BEYOND
    return int(text, base)


def join(path: str, key: str | int) -> str:
    """Append a key or the index of an item to a dotted path. A key that is not a plain word is quoted."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    if re.fullmatch(r"[A-Za-z_][\w-]*", key):
        return f"{path}.{key}" if path else key
    return f'{path}["{key}"]'


def walk(node: Node, path: str = "", place: Place | None = None) -> Iterator[tuple[str, Place, Node]]:
    """Yield a node and all nodes within it, each with its dotted path and the position of its key or item."""
    yield path, place or node.place, node
    if isinstance(node, Mapping):
        for key, child in node.entries:
            yield from walk(child, join(path, key.text), key.place)
    elif isinstance(node, Sequence):
        for index, item in enumerate(node.items):
            yield from walk(item, join(path, index))


def describe(node: Node | None) -> str:
    """Describe a node for an error message."""
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
    text = without_passwords(node.text)
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
            return f'the string "{text}"'


def escaped(json_text: str, keep: Container[str] = "") -> str:
    """Escape the characters in JSON text that YAML forbids or treats as line breaks, except those in `keep`."""
    return "".join(char if char.isprintable() or char in keep else f"\\U{ord(char):08x}" for char in json_text)


def release_tree(root: Node) -> None:
    """Release a tree in steps, since freeing a large tree at once would block the interpreter for too long."""
    pending: list[Node] = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, Mapping):
            pending.extend(child for _, child in node.entries)
            node.entries.clear()
        elif isinstance(node, Sequence):
            pending.extend(node.items)
            node.items.clear()


#: The C parser if PyYAML was built with libyaml. It is about ten times as fast. The Python parser returns the same
#: events, except that within {} and [], every question mark is an indicator. It therefore rejects {x-?rk=: a}.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: Nesting limit for lists and mappings, since the readers are recursive. A rules file needs about eight levels.
MAX_DEPTH = 64

#: The byte order mark that editors on Windows write.
_MARK = b"\xef\xbb\xbf"
_STR_TAG = "tag:yaml.org,2002:str"
#: Problems reported by libyaml that are usually caused by an unquoted value.
_WANT_QUOTES = ("mapping values are not allowed", "cannot start any token", "alphabetic or numeric", "',' or")
#: A comparison after a key, as in ``amount: >= 1000``, where YAML expects a value.
_COMPARISON = re.compile(r"(?P<name>[\w.-]+):\s+(?P<sign>>=|>|!=)\s*(?P<value>[^\s,}]+)")
_QUOTE = "put a value in quotes if it begins with one of # * & ! | > % @ ` [ { or contains ': ' or ' #'"


def read_document(
    data: str | bytes, source: str, faults: Faults, read_binding: BindingReader | None = None
) -> Node | None:
    """Return the root node of a file's single document; None if the file is empty or has a syntax error.

    Args:
        data: the file's content; bytes must be UTF-8.
        source: the file's name for error messages.
        faults: receives all errors. Reading stops at a syntax error.
        read_binding: replaces bindings during reading, to keep the tree small, since there may be 100,000 bindings.
    """
    data = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data.removeprefix(_MARK)
    try:
        data.decode()
    except UnicodeDecodeError as error:
        message = "got bytes that are not UTF-8, expected UTF-8 text"
        faults.error(_end(source, data[: error.start].decode()), "", message)
        return None
    try:
        parser = _LOADER(data)
        try:
            return _Composer(parser.get_event, source, faults, read_binding).document()
        finally:
            parser.dispose()
    # No partial tree is returned, since errors found in it would only be consequences of this error.
    except ConfigError as error:
        faults.add(error)
    except yaml.YAMLError as error:
        place, message = _syntax_fault(error, source, data.decode())
        faults.error(place, "", f"YAML syntax: {message}")
    return None


def top_level_values(data: bytes, key: str) -> list[Plain]:
    """Return the values of a top-level key in a file that may be invalid, up to the first syntax error.

    A value that is a list or a mapping is returned as None.
    """
    values: list[Plain] = []
    depth, reads_key, found = 0, True, False
    parser = _LOADER(data.removeprefix(_MARK))
    try:
        while (event := parser.get_event()) is not None:
            opens = isinstance(event, MappingStartEvent | SequenceStartEvent)
            depth += opens - isinstance(event, MappingEndEvent | SequenceEndEvent)
            if not isinstance(event, NodeEvent) or depth - opens != 1:
                continue
            value: Plain = None
            if isinstance(event, ScalarEvent):
                value = resolve(event.value) if event.implicit[0] and not event.style else event.value
            if reads_key:
                found = value == key
            elif found:
                values.append(value)
            reads_key = not reads_key
    except yaml.YAMLError:
        pass  # reported by `read_document`
    finally:
        parser.dispose()
    return values


class _Composer:
    """Composes nodes from the parser's events by recursive descent."""

    def __init__(
        self, next_event: Callable[[], Any], source: str, faults: Faults, read_binding: BindingReader | None
    ) -> None:
        self._next_event = next_event
        self._source = source
        self._faults = faults
        self._read_binding = read_binding
        #: keys and indexes that lead to the current node; None in place of a key that is being read
        self._path: list[str | int | None] = []

    def document(self) -> Node | None:
        root: Node | None = None
        documents = 0
        while (event := self._next_event()) is not None:
            if isinstance(event, DocumentStartEvent):
                documents += 1
                if documents == 2:
                    self._fault(self._place(event), "got a second document, expected one per file")
            elif isinstance(event, NodeEvent):
                node = self._node(event)
                root = node if documents == 1 else root
        return root

    def _place(self, event: Any) -> Place:
        mark = event.start_mark
        return Place(self._source, mark.line + 1, mark.column + 1)

    def _node(self, event: Any) -> Node:
        if event.anchor is not None:
            kind, sign = ("alias", "*") if isinstance(event, AliasEvent) else ("anchor", "&")
            plural = "aliases" if kind == "alias" else "anchors"
            name = self._shown(event.anchor)
            message = f"got the {kind} {sign}{name}, but {plural} are not supported; put strings in quotes"
            self._fault(self._place(event), message)
        if isinstance(event, ScalarEvent):
            if event.tag is None:
                return Scalar(self._place(event), event.value, event.implicit[0] and not event.style)
            return self._tagged(event)
        if isinstance(event, AliasEvent):
            return Scalar(self._place(event), f"*{event.anchor}", plain=False)
        sequence = isinstance(event, SequenceStartEvent)
        place = self._place(event)
        if len(self._path) >= MAX_DEPTH:
            raise place.error("", f"got more than {MAX_DEPTH} levels of nested lists and mappings")
        if event.tag is not None:
            seen = "a list" if sequence else "a mapping"
            self._fault(place, f"got the tag {self._shown(_short(event.tag))} before {seen}; put strings in quotes")
        return self._sequence(place) if sequence else self._mapping(place)

    def _tagged(self, event: Any) -> Scalar:
        # "!" and !!str make any scalar a string; the caller handles local tags.
        tag = event.tag if event.tag.startswith("!") and event.tag != "!" else None
        if tag is None and event.tag not in ("!", _STR_TAG):
            self._fault(self._place(event), f"got the tag {self._shown(_short(event.tag))}, which is not supported")
        return Scalar(self._place(event), event.value, plain=False, tag=tag)

    def _sequence(self, place: Place) -> Sequence:
        items: list[Node] = []
        match self._path:
            case ["exchanges", int(exchange), "bindings"]:
                read_binding = self._read_binding
            case _:
                exchange, read_binding = 0, None
        self._path.append(0)
        while not isinstance(event := self._next_event(), SequenceEndEvent):
            self._path[-1] = len(items)
            item = self._node(event)
            items.append(item if read_binding is None else read_binding(item, exchange, len(items)))
        self._path.pop()
        return Sequence(place, items)

    def _mapping(self, place: Place) -> Mapping:
        entries: list[tuple[Scalar, Node]] = []
        seen: set[str] = set()
        path = self._path
        path.append(None)
        while not isinstance(event := self._next_event(), MappingEndEvent):
            path[-1] = None
            key = self._key(self._node(event), seen)
            path[-1] = key.text
            value = self._node(self._next_event())
            if isinstance(value, Scalar) and is_secret_key(key.text):
                remember_secret(value.text)
            if key.text not in seen:
                seen.add(key.text)
                entries.append((key, value))
        path.pop()
        return Mapping(place, entries)

    def _key(self, node: Node, seen: set[str]) -> Scalar:
        if not isinstance(node, Scalar):
            self._fault(node.place, f"got {describe(node)} as a key, expected a string")
            return Scalar(node.place, "", plain=False)  # keeps keys and values paired
        if node.text in seen:
            self._fault(node.place, "duplicate key", node.text)
        elif node.plain and node.text == "<<":
            self._fault(node.place, "merge keys are not supported", "<<")
        elif node.tag is not None or not isinstance(node.value, str):
            self._fault(node.place, f"got {describe(node)} as a key, expected a string: put it in quotes")
        return node

    def _shown(self, name: str) -> str:
        """Return the name of an anchor, alias or tag; masked if it may be a password without quotes."""
        return MASK if any(isinstance(step, str) and is_secret_key(step) for step in self._path) else name

    def _fault(self, place: Place, message: str, key: str | None = None) -> None:
        path = ""
        for step in (*self._path, key):
            if step is not None:
                path = join(path, step)
        self._faults.error(place, path, message)


def _short(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")


def _syntax_fault(error: yaml.YAMLError, source: str, text: str) -> tuple[Place, str]:
    if not isinstance(error, yaml.MarkedYAMLError):
        # A character that YAML does not permit; the two parsers report its position in different units.
        odd = yaml.reader.Reader.NON_PRINTABLE.search(text)
        return _end(source, text[: odd.start()]) if odd else Place(source, 0), str(error).splitlines()[0]
    mark = error.problem_mark or error.context_mark
    place = Place(source, mark.line + 1, mark.column + 1) if mark else Place(source, 0)
    context = f" {error.context}" if error.context else ""
    return place, f"{error.problem}{context}{_way_out(error, text)}"


def _way_out(error: yaml.MarkedYAMLError, text: str) -> str:
    """Return advice on correcting a syntax error, or ""."""
    problem, mark, begun = error.problem or "", error.problem_mark, error.context_mark
    line = (text.splitlines() or [""])[mark.line] if mark and mark.line < len(text.splitlines()) else ""
    at = line[mark.column : mark.column + 1] if mark else ""
    if at == "\t" or line[: len(line) - len(line.lstrip())].count("\t"):
        return "; indent with spaces, not with tabs"
    comparison = _COMPARISON.search(line)
    if comparison is not None:
        sign = {"==": "="}.get(comparison["sign"], comparison["sign"])
        return f"; a comparison is part of the key, as in {comparison['name']} {sign}: {comparison['value']}"
    if begun and (
        "end of stream" in problem or ("',' or" in problem and not line[mark.column if mark else 0 :].strip())
    ):
        return f"; the value that begins on line {begun.line + 1}, column {begun.column + 1} is not closed"
    if "got '?'" in problem:
        return "; since PyYAML was built without libyaml, keys and values within {} or [] that contain ? require quotes"
    if any(words in problem for words in _WANT_QUOTES):
        return f"; {_QUOTE}"
    if "expected key" in problem or "block end" in problem or "'-' indicator" in problem:
        return "; check its indentation, and whether the value before it needs quotes"
    return f"; {_QUOTE}" if at and at in "#*&!|>%@`[{" else ""


def _end(source: str, text: str) -> Place:
    """Return the position after the last character."""
    return Place(source, text.count("\n") + 1, len(text) - text.rfind("\n"))
