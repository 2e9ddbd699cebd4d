"""Writes a tree of nodes as YAML, so that `read_document` returns an equal tree. Comments are not part of a tree."""

from __future__ import annotations

from collections.abc import Callable

import yaml
import yaml.resolver

from oxproxy.yamlfile.document import Mapping, Node, Scalar, Sequence, resolve

_WIDTH = 120
#: A mapping or a list is written on one line if its text has at most this many characters.
_ONE_LINE = 96
_STR = "tag:yaml.org,2002:str"
#: Returns the tag that YAML 1.1 gives to a plain scalar.
_RESOLVE: Callable[[type[yaml.Node], str, tuple[bool, bool]], str] = yaml.resolver.Resolver().resolve


def write_document(root: Node) -> str:
    """Return a tree as YAML. Strings that YAML 1.1 would read as another type are put in quotes."""
    return str(yaml.serialize(_node(root, 0), Dumper=yaml.SafeDumper, width=_WIDTH, allow_unicode=True))


def _node(node: Node, depth: int) -> yaml.Node:
    if isinstance(node, Scalar):
        return _scalar(node)
    flow = depth > 1 and _length(node) <= _ONE_LINE and not _lists_mappings(node)
    if isinstance(node, Mapping):
        entries = [(_scalar(key), _node(child, depth + 1)) for key, child in node.entries]
        return yaml.MappingNode("tag:yaml.org,2002:map", entries, flow_style=flow or not entries)
    items = [_node(item, depth + 1) for item in node.items]
    return yaml.SequenceNode("tag:yaml.org,2002:seq", items, flow_style=flow or not items)


def _scalar(node: Scalar) -> yaml.ScalarNode:
    if node.tag is not None:
        return yaml.ScalarNode(node.tag, node.text)
    implied = _RESOLVE(yaml.ScalarNode, node.text, (True, False))
    if node.plain and not isinstance(resolve(node.text), str):
        return yaml.ScalarNode(implied, node.text)
    return yaml.ScalarNode(
        _STR, node.text, style=None if implied == _STR and isinstance(resolve(node.text), str) else "'"
    )


def _lists_mappings(node: Node) -> bool:
    """Return True if a node is or contains a list of mappings, whose items are written on lines of their own."""
    if isinstance(node, Mapping):
        return any(_lists_mappings(child) for _, child in node.entries)
    return isinstance(node, Sequence) and any(isinstance(item, Mapping) or _lists_mappings(item) for item in node.items)


def _length(node: Node) -> int:
    if isinstance(node, Scalar):
        return len(node.text) + 2 * (not node.plain) + len(node.tag or "")
    if isinstance(node, Mapping):
        return sum(_length(key) + _length(child) + 4 for key, child in node.entries)
    return sum(_length(item) + 2 for item in node.items)
