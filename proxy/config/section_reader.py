"""Keys of the configuration: how they are declared, read, listed, compared and overridden by the environment.

The dataclasses of `settings` are made of these: ``Annotated[int, Key(whole_number(1, 10), "what it does")]`` is a key,
a field of a dataclass type is a section (with ``| None`` an optional one), a tuple of them a list of sections.

``OXPROXY_UPSTREAM__ADDRESS`` overrides ``upstream.address``. Values of variables are put into the tree of the file
before it is read, so the same checks and messages apply; the place of such a node is the name of the variable.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from collections.abc import Mapping as Environment
from dataclasses import dataclass
from functools import lru_cache
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from proxy.yamlfile.document import Faults, Mapping, Node, Place, Scalar, Sequence, describe, join
from proxy.yamlfile.fields import Fields, warn_of_variables
from proxy.yamlfile.kinds import UnexpectedError, ValueKind, parse_inline

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

D = TypeVar("D", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class Key:
    """One key.

    Args:
        kind: how its value is written.
        doc: what it does, in one sentence for the documentation.
        name: the key in the file, where it differs from the attribute.
    """

    kind: ValueKind[Any]  # of whatever type the attribute has
    doc: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Member:
    """One attribute of a section: a key, a section, or a list of sections."""

    attribute: str
    name: str
    key: Key | None = None
    section: type[DataclassInstance] | None = None
    several: bool = False
    #: None where it is not written
    optional: bool = False


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """One key as the documentation lists it: ``limits.frame_max`` or ``listen[].address``."""

    path: str
    default: str
    doc: str


@lru_cache
def members(kind: type[DataclassInstance]) -> tuple[Member, ...]:
    """Give what can stand in a section."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(found for name, hint in hints.items() if (found := _member(name, hint)) is not None)


def _member(name: str, hint: object) -> Member | None:
    for mark in getattr(hint, "__metadata__", ()):
        if isinstance(mark, Key):
            return Member(name, mark.name or name, key=mark)
    item = get_args(hint)[0] if get_args(hint) else hint
    if isinstance(item, type) and dataclasses.is_dataclass(item):
        return Member(name, name, None, item, get_origin(hint) is tuple, get_origin(hint) is UnionType)
    return None


def entries(section: DataclassInstance, path: str = "") -> Iterator[KeyEntry]:
    """List every key under a section that holds the defaults."""
    for member in members(type(section)):
        value = getattr(section, member.attribute)
        here = join(path, member.name)
        if member.key is not None:
            yield KeyEntry(here, member.key.kind.write(value), member.key.doc)
        elif member.several and member.section is not None:
            yield from entries(value[0] if value else member.section(), here + "[]")
        elif value is None and member.section is not None:
            yield from entries(member.section(), here)
        else:
            yield from entries(value, here)


def differences(before: DataclassInstance, after: DataclassInstance, path: str = "") -> Iterator[str]:
    """Give the dotted path of every key whose value differs between two sections of one kind."""
    same = True
    for member in members(type(before)):
        old, new = getattr(before, member.attribute), getattr(after, member.attribute)
        if old == new:
            continue
        same = False
        here = join(path, member.name)
        if member.key is not None or old is None or new is None or (member.several and len(old) != len(new)):
            yield here
        elif member.several:
            for index, (one, other) in enumerate(zip(old, new, strict=True)):
                yield from differences(one, other, f"{here}[{index}]") if one != other else ()
        else:
            yield from differences(old, new, here)
    if same and before != after:  # what a key leads to, such as the content of a file
        yield path


def read_section(kind: type[D], fields: Fields, places: dict[str, Place]) -> D:
    """Read one section; keys that are not there, or not as expected, get their defaults.

    Args:
        kind: the dataclass of the section.
        fields: the mapping to read; takes the faults.
        places: filled with the place of every key that was written.
    """
    values: dict[str, object] = {}
    for member in members(kind):
        node = fields.take(member.name)
        if node is None:
            continue
        path = fields.at(member.name)
        places[path] = fields.place_of(member.name)
        if member.key is not None:
            warn_of_variables(node, path, fields.faults)
        try:
            values[member.attribute] = _read(member, node, path, fields.faults, places)
        except UnexpectedError as error:
            fields.faults.error(error.place or node.place, path + error.path, str(error))
    fields.finish()
    return kind(**values)


def _read(member: Member, node: Node, path: str, faults: Faults, places: dict[str, Place]) -> object:
    if member.key is not None:
        return member.key.kind.read(node)
    if member.section is None:
        raise TypeError(f"{member.attribute} is neither a key nor a section")
    if member.optional and isinstance(node, Scalar) and not node.absent and node.value is None:
        return None
    unfolded = parse_inline(node, faults)
    if unfolded is None:
        raise UnexpectedError("seen something else, expected a list or a mapping as in YAML")
    if not member.several:
        return read_section(member.section, Fields(unfolded, path, faults), places)
    if not isinstance(unfolded, Sequence) or not unfolded.items:
        seen = "an empty list" if isinstance(unfolded, Sequence) else describe(unfolded)
        raise UnexpectedError(f"seen {seen}, expected a list with at least one item")
    return tuple(
        read_section(member.section, Fields(item, f"{path}[{index}]", faults), places)
        for index, item in enumerate(unfolded.items)
    )


PREFIX = "OXPROXY_"
#: What Kubernetes gives to each pod for a Service of our name: addresses of that Service, not settings.
_KUBERNETES = re.compile(r"OXPROXY_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")
#: Keys that end so name a variable, and so does the key of this name.
_NAMES_VARIABLE, _VARIABLE = "_env", "env"


class _NoSuchKeyError(Exception):
    """The tree has something else where a variable's name leads."""


def override(root: Node, environ: Environment[str, str], faults: Faults) -> Node:
    """Put the values of all our variables into the tree; empty ones count as not set.

    Args:
        root: what the file says.
        environ: the environment.
        faults: takes the variables that lead nowhere.

    Returns:
        The tree to read.
    """
    named = set(_named_variables(root)) | {environ[name] for name in environ if name.endswith(_NAMES_VARIABLE.upper())}
    for name in sorted(environ):
        if not name.startswith(PREFIX) or not environ[name] or _KUBERNETES.fullmatch(name) or name in named:
            continue
        keys = name.removeprefix(PREFIX).lower().split("__")
        leaf = Scalar(Place(name, 0), environ[name], plain=True)
        try:
            root = _with(root, keys, leaf, faults)
        except _NoSuchKeyError:
            faults.error(leaf.place, ".".join(keys), "there is no such key")
    return root


def _named_variables(node: Node) -> Iterator[str]:
    """Find the variables that the file itself asks for: a password may be kept in one that looks like ours."""
    if isinstance(node, Mapping):
        for key, child in node.entries:
            if (key.text == _VARIABLE or key.text.endswith(_NAMES_VARIABLE)) and isinstance(child, Scalar):
                yield child.text
            yield from _named_variables(child)
    elif isinstance(node, Sequence):
        for item in node.items:
            yield from _named_variables(item)


def _with(node: Node | None, keys: list[str], leaf: Scalar, faults: Faults) -> Node:
    """Give the node with the leaf under the keys, making what is not there."""
    if not keys:
        return leaf
    if isinstance(node, Scalar):
        node = None if node.value is None else parse_inline(node, faults)
    key, rest = keys[0], keys[1:]
    if node is None:
        node = Sequence(leaf.place, []) if key.isdigit() else Mapping(leaf.place, [])
    if isinstance(node, Mapping):
        written = [text.text for text, _ in node.entries]
        index = written.index(key) if key in written else len(written)
        old = node.entries[index][1] if index < len(written) else None
        node.entries[index : index + 1] = [(Scalar(leaf.place, key, True), _with(old, rest, leaf, faults))]
    elif isinstance(node, Sequence) and re.fullmatch(r"[0-9]{1,4}", key) and int(key) <= len(node.items):
        old = node.items[int(key)] if int(key) < len(node.items) else None
        node.items[int(key) : int(key) + 1] = [_with(old, rest, leaf, faults)]
    else:
        raise _NoSuchKeyError
    return node
