"""Which keys the environment overrides: ``OXPROXY_UPSTREAM__ADDRESS`` stands for ``upstream.address``.

The values are put into the tree of the configuration file before it is read, so the same checks and messages
hold for both; the place of such a node is the variable's name. It does not know which keys exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Mapping as Environment

from proxy.yamlfile.faults import Faults, Place
from proxy.yamlfile.kinds import unfold
from proxy.yamlfile.nodes import Mapping, Node, Scalar, Sequence

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
        node = None if node.value is None else unfold(node, faults)
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
