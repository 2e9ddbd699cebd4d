"""Translates a rules file between the two spellings of bindings, for ``oxproxy rules convert``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

from oxproxy.errors import ConfigErrors
from oxproxy.routing.bindings.exchange_types import OPEN
from oxproxy.rules.field_values import INT32, read_table
from oxproxy.rules.loader import LoadedRules, compile_rules
from oxproxy.rules.schema import binding_path, read_lines
from oxproxy.rules.spelling.lines import READABLE_KEYS, THEN, WHEN, Line, lines_of
from oxproxy.values import Table, Value, text
from oxproxy.yamlfile.document import Faults, Mapping, Node, Place, Scalar, Sequence, read_document
from oxproxy.yamlfile.writing import write_document

READABLE, ARGUMENTS = "readable", "arguments"
_NOWHERE = Place("", 0)
#: Order of the keys of a readable binding that replace its arguments.
_ORDER = ("order", "match", "queue from key", "drop destination", WHEN, THEN, "else")


@dataclass(slots=True)
class Converted:
    """A converted file. `kept` contains the paths of bindings that have no readable form and are unchanged."""

    text: str
    spelling: str
    kept: list[str] = field(default_factory=list)


def convert(name: str, data: bytes, spelling: str | None = None) -> Converted:
    """Translate the bindings of a rules file; everything else keeps its meaning, but not its layout or comments.

    Args:
        spelling: the spelling of the result; by default, arguments if all conditions of the file are readable.

    Raises:
        ConfigErrors: the file is not valid.
    """
    before = compile_rules([(name, data)])
    root = read_document(data, name, Faults())
    bindings = list(_bindings(root))
    if spelling is None:
        has_arguments = any(binding.entry("arguments") for _, binding in bindings)
        spelling = READABLE if has_arguments or not bindings else ARGUMENTS
    converted = Converted("", spelling)
    for path, binding in bindings:
        if spelling == ARGUMENTS:
            _to_arguments(binding, path)
        elif not _to_readable(binding, path):
            converted.kept.append(path)
    converted.text = write_document(cast("Node", root))
    if identities(compile_rules([(name, converted.text.encode())])) != identities(before):
        raise AssertionError(f"the translation of {name} differs from the original")  # it must never change a rule
    return converted


def identities(loaded: LoadedRules) -> list[object]:
    """Return what must not change when a file is translated: the identity and the id of each binding, in order."""
    return [
        (vhost.vhost, exchange.name, binding.identity, binding.id)
        for vhost in loaded.rules.vhosts.values()
        for exchange in vhost.exchanges
        for binding in exchange.bindings
    ]


def _bindings(root: Node | None) -> Iterator[tuple[str, Mapping]]:
    """Yield the bindings of open exchanges, with their paths."""
    exchanges = root.entry("exchanges") if isinstance(root, Mapping) else None
    items = exchanges[1].items if exchanges and isinstance(exchanges[1], Sequence) else []
    for number, exchange in enumerate(items):
        if not isinstance(exchange, Mapping):
            continue
        kind, bindings = exchange.entry("type"), exchange.entry("bindings")
        if kind is not None and isinstance(kind[1], Scalar) and kind[1].text != OPEN:
            continue
        for index, binding in enumerate(bindings[1].items if bindings and isinstance(bindings[1], Sequence) else []):
            if isinstance(binding, Mapping):
                yield binding_path(f"exchanges[{number}]", index), binding


def _to_readable(binding: Mapping, path: str) -> bool:
    """Replace the arguments of a binding; return False if they have no readable form."""
    arguments = binding.entry("arguments")
    if arguments is None or not isinstance(arguments[1], Mapping):
        return True
    lines = lines_of(read_table(arguments[1], path, Faults()))
    if lines is None:
        return False
    at = binding.entries.index(arguments)
    binding.entries[at : at + 1] = _sections(lines)
    return True


def _sections(lines: tuple[Line, ...]) -> list[tuple[Scalar, Node]]:
    sections: dict[str, Node] = {}
    for line in lines:
        if not line.section:
            sections[line.key] = value_node(line.value)
            continue
        section = sections.setdefault(line.section, Mapping(_NOWHERE, []))
        if isinstance(section, Mapping):
            section.entries.append((_text(line.key), value_node(line.value)))
    return [(_text(key), sections[key]) for key in _ORDER if key in sections]


def _to_arguments(binding: Mapping, path: str) -> None:
    readable = [entry for entry in binding.entries if entry[0].text in READABLE_KEYS]
    if not readable:
        return
    faults = Faults()
    arguments = [(key, value) for key, value, _ in read_lines(readable, path, faults)]
    if faults.errors:  # the file has been checked
        raise ConfigErrors(faults.errors)
    binding.entries[:] = [entry for entry in binding.entries if entry[0].text not in READABLE_KEYS]
    if arguments:
        binding.entries.append((_text(ARGUMENTS), _table(tuple(arguments))))


# -- values ------------------------------------------------------------------------------------------------------------

#: Tags of types that have no notation of their own.
_TAGS = {"b": "!int8", "s": "!int16", "I": "!int32", "l": "!int64", "L": "!int64", "B": "!uint8", "u": "!uint16"}
_TAGS |= {"i": "!uint32", "f": "!float32", "T": "!timestamp", "x": "!bytes"}


def value_node(value: Value) -> Node:
    """Return the node that is read as the given value."""
    letter, content = value
    if letter == "A":
        return Sequence(_NOWHERE, [value_node(element) for element in cast("tuple[Value, ...]", content)])
    if letter == "F":
        return _table(cast("Table", content))
    if letter == "S":
        return _text(text(cast("bytes", content)))
    if letter == "V":
        return Scalar(_NOWHERE, "null", plain=True)
    if letter == "t":
        return Scalar(_NOWHERE, "true" if content else "false", plain=True)
    if letter == "x":
        return Scalar(_NOWHERE, cast("bytes", content).hex(), plain=False, tag="!bytes")
    is_plain = letter == "d" or (letter in "Il" and (letter == "I") is (content in INT32))
    return Scalar(_NOWHERE, repr(content), plain=is_plain, tag=None if is_plain else _TAGS[letter])


def _table(table: Table) -> Mapping:
    return Mapping(_NOWHERE, [(_text(text(key)), value_node(value)) for key, value in table])


def _text(content: str) -> Scalar:
    return Scalar(_NOWHERE, content, plain=False)
