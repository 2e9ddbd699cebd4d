"""The strict YAML parser: one file to a tree of nodes with their places, or all faults in it.

It works on PyYAML's events, since the loaders above them resolve aliases and merge keys and drop duplicate keys, each
of which has made a file mean something else than its author read in it. Here they are faults, as are keys that are not
strings. Scalars are read by the core schema of YAML 1.2 (YAML 1.2.2, 10.3.2), not by the rules of 1.1 that PyYAML's own
constructors follow: ``no``, ``on``, dates and ``1:30`` are strings, ``010`` is ten. All faults of a load are collected
before any is raised.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, cast

import yaml

from proxy.errors import ConfigError, ConfigErrors, located

#: How the names of files end that hold tests of rules and no rules.
_TESTS_ENDINGS = ("_test.yaml", "_test.yml")


def is_tests_file(name: str) -> bool:
    """Whether a file holds tests of rules, by its name; no sidecar reads it."""
    return name.endswith(_TESTS_ENDINGS)


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

    def entry(self, key: str) -> tuple[Scalar, Node] | None:
        """A key and its value; None where it was not written."""
        return next((entry for entry in self.entries if entry[0].text == key), None)


Node: TypeAlias = Scalar | Sequence | Mapping
#: A key, its packed place, and its value or the entries of the mapping that is its value.
FlatEntry: TypeAlias = "tuple[str, int, Plain | list[FlatEntry]]"
#: Makes something smaller than nodes of an item of a long list, which takes the place of the item's node in the tree;
#: None where it can't. It gets the item's packed place and entries.
Packer: TypeAlias = Callable[[int, list[FlatEntry]], object | None]


def pack_place(line: int, column: int) -> int:
    """Line and column, from 1, in one number."""
    return line << 32 | column


def unpack_place(source: str, packed: int) -> Place:
    return Place(source, packed >> 32, packed & 0xFFFFFFFF)


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


#: The C parser where pyyaml was built with it: some ten times faster, the same events.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: Levels of lists and mappings inside each other. A rules file needs about eight; the readers recurse.
MAX_DEPTH = 64

#: The mark that editors on Windows put before a text.
_MARK = b"\xef\xbb\xbf"
_STR_TAG = "tag:yaml.org,2002:str"
#: Words of libyaml where a value without quotes is most often the cause.
_WANT_QUOTES = ("mapping values are not allowed", "cannot start any token", "alphabetic or numeric", "',' or")
_QUOTE = "put a value in quotes where it begins with one of # * & ! | > % @ ` [ { or holds ': ' or ' #'"


def read_document(data: str | bytes, source: str, faults: Faults, pack: Packer | None = None) -> Node | None:
    """Read the one document of a file.

    Args:
        data: the file's content; bytes must be UTF-8.
        source: the file's name for error messages.
        faults: takes every fault found; a syntax error ends the reading.
        pack: gets each item of ``exchanges[].bindings``, of which there may be a hundred thousand.

    Returns:
        The root node; None where the file is empty or can't be read further.
    """
    data = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data.removeprefix(_MARK)
    try:
        data.decode()
    except UnicodeDecodeError as error:
        message = "seen bytes that are not UTF-8, expected UTF-8 text"
        faults.error(_end(source, data[: error.start].decode()), "", message)
        return None
    builder = _Builder(source, faults)
    try:
        parser = _LOADER(data)
        try:
            _build(parser.get_event, builder, pack)
        finally:
            parser.dispose()
    except (yaml.YAMLError, _TooDeepError) as error:
        # Half a tree would only give faults that follow from this one.
        faults.error(*_syntax_fault(error, source, data.decode()))
        return None
    return builder.root


def _build(next_event: Callable[[], yaml.Event | None], builder: _Builder, pack: Packer | None) -> None:
    while (event := next_event()) is not None:
        builder.take(event)
        if pack is None or not isinstance(event, yaml.SequenceStartEvent) or not builder.in_bindings():
            continue
        while (event := next_event()) is not None and not isinstance(event, yaml.SequenceEndEvent):
            events = [event]
            entries = _flat(next_event, events) if isinstance(event, yaml.MappingStartEvent) else None
            packed = pack(_packed(event), entries) if entries is not None else None
            if packed is not None:
                builder.add_packed(packed)
                continue
            _complete(next_event, events)
            for part in events:
                builder.take(part)
        if event is not None:
            builder.take(event)


def _flat(next_event: Callable[[], Any], events: list[Any]) -> list[FlatEntry] | None:
    """Read a mapping of plain values and such mappings; None for anything else, when events of it are left.

    Args:
        next_event: gives the events that follow the mapping's first one.
        events: has the first one, gets those that were read.
    """
    if events[-1].anchor is not None or events[-1].tag is not None:
        return None
    entries: list[FlatEntry] = []
    seen: set[str] = set()
    while (event := next_event()) is not None:
        events.append(event)
        if type(event) is yaml.MappingEndEvent:
            return entries
        key = _plain_value(event)
        following = next_event() if isinstance(key, str) else None
        if following is None or not isinstance(key, str):
            return None
        events.append(following)
        if key in seen or event.value == "<<":
            return None
        seen.add(key)
        mapping = type(following) is yaml.MappingStartEvent
        value = _flat(next_event, events) if mapping else _plain_value(following)
        if value is _NOT_PLAIN or (mapping and value is None):
            return None
        entries.append((key, _packed(event), value))
    return None


def _complete(next_event: Callable[[], yaml.Event | None], events: list[yaml.Event]) -> None:
    """Collect the events up to the end of the item that the first one begins."""
    begins, ends = (yaml.MappingStartEvent, yaml.SequenceStartEvent), (yaml.MappingEndEvent, yaml.SequenceEndEvent)
    depth = sum(isinstance(event, begins) - isinstance(event, ends) for event in events)
    while 0 < depth <= MAX_DEPTH and (event := next_event()) is not None:  # what is deeper the builder refuses
        events.append(event)
        depth += isinstance(event, begins) - isinstance(event, ends)


#: Stands for a scalar with a tag or an anchor, or without a text.
_NOT_PLAIN = float("nan")


def _plain_value(event: yaml.Event) -> Plain:
    if type(event) is not yaml.ScalarEvent or event.anchor is not None or event.tag is not None:
        return _NOT_PLAIN
    text: str = event.value
    if not event.implicit[0] or event.style:
        return text
    return resolve(text) if text else _NOT_PLAIN


def _packed(event: yaml.Event) -> int:
    mark = event.start_mark
    return pack_place(mark.line + 1, mark.column + 1) if mark else 0


def _syntax_fault(error: Exception, source: str, text: str) -> tuple[Place, str, str]:
    if isinstance(error, _TooDeepError):
        return error.place, "", f"seen more than {MAX_DEPTH} lists and mappings inside each other"
    if not isinstance(error, yaml.MarkedYAMLError):
        # A character that YAML does not take; the two parsers count to it in different units.
        odd = yaml.reader.Reader.NON_PRINTABLE.search(text)
        place = _end(source, text[: odd.start()]) if odd else Place(source, 0)
        return place, "", f"YAML syntax: {str(error).splitlines()[0]}"
    mark = error.problem_mark or error.context_mark
    place = Place(source, mark.line + 1, mark.column + 1) if mark else Place(source, 0)
    context = f" {error.context}" if error.context else ""
    return place, "", f"YAML syntax: {error.problem}{context}{_way_out(error, text)}"


def _way_out(error: yaml.MarkedYAMLError, text: str) -> str:
    """Say what to do about a syntax error, where that is known."""
    problem, mark, begun = error.problem or "", error.problem_mark, error.context_mark
    line = (text.splitlines() or [""])[mark.line] if mark and mark.line < len(text.splitlines()) else ""
    at = line[mark.column : mark.column + 1] if mark else ""
    if at == "\t" or line[: len(line) - len(line.lstrip())].count("\t"):
        return "; indent with blanks, not with tabs"
    if begun and (
        "end of stream" in problem or ("',' or" in problem and not line[mark.column if mark else 0 :].strip())
    ):
        return f"; what begins in line {begun.line + 1}, column {begun.column + 1} is not closed"
    if any(words in problem for words in _WANT_QUOTES):
        return f"; {_QUOTE}"
    if "expected key" in problem or "block end" in problem or "'-' indicator" in problem:
        return "; is it indented as the lines that it belongs to, and the value before it quoted where that is needed?"
    return f"; {_QUOTE}" if at and at in "#*&!|>%@`[{" else ""


def _end(source: str, text: str) -> Place:
    """Return the place after a string."""
    return Place(source, text.count("\n") + 1, len(text) - text.rfind("\n"))


class _TooDeepError(Exception):
    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.place = place


@dataclass(slots=True)
class _Frame:
    """One open list or mapping; in a mapping, the key whose value comes next, or is being read."""

    container: Sequence | Mapping
    is_key: bool
    key: Scalar | None = None
    seen: set[str] = field(default_factory=set)


class _Builder:
    """Builds the tree from the parser's events."""

    def __init__(self, source: str, faults: Faults) -> None:
        self.root: Node | None = None
        self._source = source
        self._faults = faults
        self._documents = 0
        self._open: list[_Frame] = []

    def take(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.ScalarEvent):
            self._scalar(event)
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            self._start(event)
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            frame = self._open.pop()
            if self._open and not frame.is_key:
                self._open[-1].key = None
        elif isinstance(event, yaml.AliasEvent):
            place = self._place(event)
            message = f"seen the alias *{event.anchor}; there are no aliases here: put a text in quotes"
            self._faults.error(place, self._path(), message)
            self._add(Scalar(place, f"*{event.anchor}", plain=False))
        elif isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents == 2:
                self._faults.error(self._place(event), "", "seen a second document, expected one to a file")

    def in_bindings(self) -> bool:
        """Whether the list that was just begun is ``exchanges[].bindings``."""
        if len(self._open) != 4:
            return False
        root, exchanges, exchange, bindings = self._open
        keys = root.key and root.key.text, exchange.key and exchange.key.text
        lists = isinstance(exchanges.container, Sequence) and isinstance(bindings.container, Sequence)
        return keys == ("exchanges", "bindings") and lists and not any(frame.is_key for frame in self._open)

    def add_packed(self, item: object) -> None:
        """Put what a packer made in the place of a node; its reader knows it by its type."""
        self._add(cast("Node", item))

    def _place(self, event: yaml.Event) -> Place:
        mark = event.start_mark
        if mark is None:  # events that were not parsed from text, says pyyaml's typing
            return Place(self._source, 0)
        return Place(self._source, mark.line + 1, mark.column + 1)

    def _path(self) -> str:
        path = ""
        for frame in self._open:
            if isinstance(frame.container, Sequence):
                # A container that is being read has its place in the list already.
                last = frame is self._open[-1]
                path += f"[{len(frame.container.items) - (0 if last else 1)}]"
            elif frame.key is not None:
                path = join(path, frame.key.text)
        return path

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        plain = event.implicit[0] and event.style in (None, "")
        node = Scalar(self._place(event), event.value, plain, None)
        if event.tag is not None:
            node = self._tagged(node, event.tag)
        if event.anchor is not None:
            self._anchored(node.place, event.anchor)
        self._add(node)

    def _tagged(self, node: Scalar, tag: str) -> Scalar:
        # "!" and !!str make a text of anything; local tags are left to the caller.
        if tag in ("!", _STR_TAG):
            return Scalar(node.place, node.text, plain=False)
        if not tag.startswith("!"):
            self._faults.error(node.place, self._path(), f"seen the tag {_short(tag)}, which is not supported")
            return Scalar(node.place, node.text, plain=False)
        return Scalar(node.place, node.text, plain=False, tag=tag)

    def _start(self, event: yaml.MappingStartEvent | yaml.SequenceStartEvent) -> None:
        place = self._place(event)
        if len(self._open) >= MAX_DEPTH:
            raise _TooDeepError(place)
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        node: Mapping | Sequence = Mapping(place, []) if is_mapping else Sequence(place, [])
        if event.tag is not None:
            message = f"seen the tag {_short(event.tag)} before {describe(node)}; put text in quotes"
            self._faults.error(place, self._path(), message)
        if event.anchor is not None:
            self._anchored(place, event.anchor)
        is_key = self._add(node)
        self._open.append(_Frame(node, is_key))

    def _anchored(self, place: Place, anchor: str) -> None:
        message = f"seen the anchor &{anchor}; there are no anchors here: put a text in quotes"
        self._faults.error(place, self._path(), message)

    def _add(self, node: Node) -> bool:
        """Put a node in its place; True where it was a mapping's key."""
        if not self._open:
            if self._documents < 2:
                self.root = node
            return False
        frame = self._open[-1]
        if isinstance(frame.container, Sequence):
            frame.container.items.append(node)
            return False
        if frame.key is None:
            frame.key = self._key(node, frame.seen)
            return True
        if frame.key.text not in frame.seen:
            frame.seen.add(frame.key.text)
            frame.container.entries.append((frame.key, node))
        if isinstance(node, Scalar):
            frame.key = None
        return False

    def _key(self, node: Node, seen: set[str]) -> Scalar:
        if not isinstance(node, Scalar):
            self._faults.error(node.place, self._path(), f"seen {describe(node)} as a key, expected a text")
            return Scalar(node.place, "", plain=False)  # keeps keys and values in step
        if node.plain and node.text == "<<":
            self._faults.error(node.place, join(self._path(), "<<"), "merge keys are not supported")
        elif not isinstance(node.value, str) or node.tag is not None:
            message = f"seen {describe(node)} as a key, expected a text: put it in quotes"
            self._faults.error(node.place, self._path(), message)
        elif node.text in seen:
            self._faults.error(node.place, join(self._path(), node.text), "the key is there twice")
        return node


def _short(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")
