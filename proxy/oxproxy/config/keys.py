"""Compares keys of the configuration, and overrides them with environment variables.

``OXPROXY_UPSTREAM__ADDRESS`` overrides ``upstream.address``. Values of variables are inserted into the parsed tree of
the file before settings are read from it, so the checks and messages for the file also apply to variables. The position
of an inserted node is the name of the variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Mapping as Environment

from pydantic import SecretStr

from oxproxy.config.settings import Settings
from oxproxy.yamlfile.document import Faults, Mapping, Node, Place, Scalar, Sequence, join, read_document, walk
from oxproxy.yamlfile.models import FileModel, key_names, key_type
from oxproxy.yamlfile.secret_sources import TOKEN_VARIABLE


def differences(before: FileModel, after: FileModel, path: str = "") -> Iterator[str]:
    """Yield the dotted path of every key whose value differs between two sections of the same model."""
    same = True
    for key, (attribute, _) in key_names(type(before)).items():
        old, new, here = getattr(before, attribute), getattr(after, attribute), join(path, key)
        if old == new:
            continue
        same = False
        if isinstance(old, FileModel) and isinstance(new, FileModel):
            yield from differences(old, new, here)
        elif _sections(old) and _sections(new) and len(old) == len(new):
            for index, (old_section, new_section) in enumerate(zip(old, new, strict=True)):
                yield from (
                    differences(old_section, new_section, f"{here}[{index}]") if old_section != new_section else ()
                )
        else:
            yield here
    if same and path:  # data to which a key refers has changed, such as the content of a file
        yield path


def _sections(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, FileModel) for item in value)


PREFIX = "OXPROXY_"
#: Variables with addresses, which Kubernetes sets in each pod for a Service named oxproxy; they are not settings.
_KUBERNETES = re.compile(r"OXPROXY_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")
#: Keys whose values are names of environment variables: keys with the suffix ``_env``, and the key ``env``.
_NAMES_VARIABLE, _VARIABLE = "_env", "env"

#: The index of a list item.
_INDEX = re.compile("[0-9]{1,4}")


class _NoSuchKeyError(Exception):
    """The tree has no mapping at the key that a variable names."""


def override(root: Node, environ: Environment[str, str], faults: Faults) -> Node:
    """Insert the values of all ``OXPROXY_`` variables into the tree of a file, and return the tree.

    Empty variables are ignored. A variable whose key does not exist is an error.
    """
    named = set(_named_variables(root)) | {environ[name] for name in environ if name.endswith(_NAMES_VARIABLE.upper())}
    for name in sorted(environ):
        if not name.startswith(PREFIX) or not environ[name] or name in named:
            continue
        if name == TOKEN_VARIABLE or _KUBERNETES.fullmatch(name):
            continue
        keys = name.removeprefix(PREFIX).lower().split("__")
        try:
            environ[name].encode()
        except UnicodeEncodeError:
            faults.error(Place(name, 0), ".".join(keys), "got bytes that are not UTF-8, expected UTF-8 text")
            continue
        leaf = _leaf(keys, name, environ[name], faults)
        try:
            root = _with(root, keys, leaf) if leaf is not None else root
        except _NoSuchKeyError:
            faults.error(Place(name, 0), ".".join(keys), "there is no such key")
    return root


def _leaf(keys: list[str], name: str, text: str, faults: Faults) -> Node | None:
    """Parse a variable as its key requires: lists and sections are YAML, and strings are used unchanged."""
    kind = key_type(Settings, *(int(key) if _INDEX.fullmatch(key) else key for key in keys))
    if kind.is_section or (kind.several and text.lstrip().startswith("[")):
        return read_document(text, name, faults)
    leaf = Scalar(Place(name, 0), text, plain=True)
    if kind.item in (str, SecretStr) and not (kind.optional and leaf.value is None):
        return Scalar(leaf.place, text, plain=False)
    return leaf


def _named_variables(root: Node) -> Iterator[str]:
    """Yield the variables that the file refers to. Even with the prefix ``OXPROXY_``, they do not override keys."""
    for path, _, node in walk(root):
        key = path.rpartition(".")[2]
        if (key == _VARIABLE or key.endswith(_NAMES_VARIABLE)) and isinstance(node, Scalar):
            yield node.text


def _with(node: Node | None, keys: list[str], leaf: Node) -> Node:
    """Set the leaf at the path `keys`, creating missing mappings and lists; return the node."""
    if not keys:
        return leaf
    key, rest = keys[0], keys[1:]
    if node is None or (isinstance(node, Scalar) and node.value is None):
        node = Sequence(leaf.place, []) if _INDEX.fullmatch(key) else Mapping(leaf.place, [])
    if isinstance(node, Mapping):
        written = [text.text for text, _ in node.entries]
        index = written.index(key) if key in written else len(written)
        old = node.entries[index][1] if index < len(written) else None
        node.entries[index : index + 1] = [(Scalar(leaf.place, key, True), _with(old, rest, leaf))]
    elif isinstance(node, Sequence) and _INDEX.fullmatch(key) and int(key) <= len(node.items):
        old = node.items[int(key)] if int(key) < len(node.items) else None
        node.items[int(key) : int(key) + 1] = [_with(old, rest, leaf)]
    else:
        raise _NoSuchKeyError
    return node
