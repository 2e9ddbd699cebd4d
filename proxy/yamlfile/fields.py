"""The fields of a mapping by type, with a fault for each that is not as expected, and for unknown keys.

The configuration, rules files, the tests in them and messages to explain are read with it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from proxy.values import RESERVED_PREFIX
from proxy.yamlfile.document import Faults, Mapping, Node, Place, Scalar, Sequence, describe, join

#: AMQP 0-9-1 spec, 4.2.5.3: names and routing keys are short strings.
MAX_SHORT_BYTES = 255
#: Variables of a shell, of Kubernetes and of templates.
_VARIABLE = re.compile(r"\$\{\w[^}]*\}|\$\(\w+\)|\{\{.+?\}\}")


class Fields:
    """One mapping that is being read; `finish` reports the keys that were not asked for.

    Args:
        node: the mapping, or what stands in its place.
        path: its dotted path, empty for the whole file.
        faults: takes every fault.
    """

    __slots__ = ("_asked", "_entries", "faults", "node", "path", "place")

    def __init__(self, node: Node, path: str, faults: Faults) -> None:
        """Begin to read a mapping."""
        self.node = node
        self.path = path
        self.place = node.place
        self.faults = faults
        self._asked: set[str] = set()
        self._entries: dict[str, tuple[Scalar, Node]] = {}
        if isinstance(node, Mapping):
            self._entries = {key.text: (key, child) for key, child in node.entries}
        else:
            # Not the text itself: a password may stand where its mapping should.
            seen = "a single value" if isinstance(node, Scalar) and not node.absent else describe(node)
            faults.error(node.place, path, f"seen {seen}, expected a mapping")

    def __contains__(self, key: str) -> bool:
        """Whether the key was written."""
        return key in self._entries

    def at(self, key: str) -> str:
        """Dotted path of a key."""
        return join(self.path, key)

    def place_of(self, key: str) -> Place:
        """Where the key was written, or the mapping where it was not."""
        entry = self._entries.get(key)
        return entry[0].place if entry else self.place

    def take(self, key: str) -> Node | None:
        """Give what stands under the key, None where it was not written."""
        self._asked.add(key)
        entry = self._entries.get(key)
        return entry[1] if entry else None

    def wrong(self, key: str, expected: str) -> None:
        """Report the key's value as not what was expected."""
        entry = self._entries.get(key)
        place = entry[1].place if entry else self.place
        self.faults.error(place, self.at(key), f"seen {describe(entry[1] if entry else None)}, expected {expected}")

    def error(self, key: str, message: str) -> None:
        """Report a fault at the key."""
        self.faults.error(self.place_of(key), self.at(key), message)

    def text(self, key: str, expected: str = "a text", required: bool = False) -> str | None:
        """Read a text; None where it is missing or wrong."""
        node = self.take(key)
        if node is None:
            if required:
                self.faults.error(self.place, self.at(key), f"seen nothing, expected {expected}")
            return None
        text = text_of(node)
        if text is None:
            self.wrong(key, expected if text_like(node) is None else f"{expected}: put it in quotes")
        return text

    def choice(self, key: str, allowed: Iterable[str], default: str) -> str:
        """Read one of a few words."""
        allowed = tuple(allowed)
        expected = allowed[0] if len(allowed) == 1 else "one of " + ", ".join(allowed)
        text = self.text(key, expected)
        if text is not None and text not in allowed:
            self.wrong(key, expected)
            return default
        return default if text is None else text

    def name(self, key: str, what: str, required: bool = False) -> bytes | None:
        """Read the name of a queue or an exchange; None where it is missing or wrong."""
        text = self.text(key, what, required)
        if text is None:
            return None
        fault = name_fault(text)
        if fault:
            self.faults.error(self._entries[key][1].place, self.at(key), f"seen {fault}, expected {what}")
            return None
        return text.encode()

    def integer(self, key: str, default: int, low: int, high: int) -> int:
        """Read a whole number within bounds."""
        node = self.take(key)
        if node is None:
            return default
        value = node.value if isinstance(node, Scalar) and node.plain else None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.wrong(key, f"a whole number from {low} to {high}")
            return default
        return value

    def items(self, key: str) -> list[tuple[str, Node]]:
        """Read a list: each item with its dotted path."""
        node = self.take(key)
        if node is None:
            return []
        if not isinstance(node, Sequence):
            self.wrong(key, "a list")
            return []
        return [(f"{self.at(key)}[{index}]", item) for index, item in enumerate(node.items)]

    def texts(self, key: str, expected: str = "a list of texts") -> list[tuple[str, Scalar]]:
        """Read a list of texts; what is not a text is reported and left out."""
        found = []
        for path, item in self.items(key):
            if text_of(item) is None or not isinstance(item, Scalar):
                self.faults.error(item.place, path, f"seen {describe(item)}, expected {expected}")
            else:
                found.append((path, item))
        return found

    def mapping(self, key: str) -> Mapping | None:
        """Read a mapping as it is; None where it is missing or wrong."""
        node = self.take(key)
        if node is None or isinstance(node, Mapping):
            return node
        self.wrong(key, "a mapping")
        return None

    def section(self, key: str) -> Fields | None:
        """Read a mapping with fields of its own; None where it is missing or wrong."""
        node = self.mapping(key)
        return None if node is None else Fields(node, self.at(key), self.faults)

    def finish(self) -> None:
        """Report every key that was never asked for, with what it may have meant."""
        for name, (key, _) in self._entries.items():
            if name in self._asked:
                continue
            near = _nearest(name, self._asked)
            meant = f"; did you mean {near}?" if near else f", expected one of {', '.join(sorted(self._asked))}"
            self.faults.error(key.place, join(self.path, name), f"unknown key{meant}")


def _nearest(name: str, known: Iterable[str]) -> str | None:
    """Give the key that was probably meant: one that is much alike, or the only one that begins so."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, 1, 0.75)
    if near:
        return near[0]
    begun = [key for key in known if len(name) > 1 and key.startswith(name)]
    return begun[0] if len(begun) == 1 else None


def warn_of_variables(node: Node | None, path: str, faults: Faults) -> None:
    """Point at text that looks like a variable of a shell or a template, which nothing replaces here; never show it."""
    for item in node.items if isinstance(node, Sequence) else [node]:
        if isinstance(item, Scalar) and item.place.line and _VARIABLE.search(item.text):
            ways = "use password_env or password_file" if path.endswith("password") else "write the value itself"
            faults.warn(item.place, path, f"seen what looks like a variable, which is not replaced here: {ways}")


def text_of(node: Node) -> str | None:
    """Give the text of a scalar that is one under the core schema, None for everything else."""
    if isinstance(node, Scalar) and node.tag is None and isinstance(node.value, str):
        return node.text
    return None


def text_like(node: Node) -> str | None:
    """Give what was written for a scalar that would be a text in quotes (``5``, ``true``, ``!a``), else None."""
    return node.text if isinstance(node, Scalar) and not node.absent else None


def name_fault(text: str) -> str | None:
    """Say what is wrong with a name of a queue or an exchange, None if it can be used."""
    name = text.encode()
    if not name:
        return "an empty name"
    return short_fault(name)


def short_fault(name: bytes) -> str | None:
    """Say what is wrong with a name or routing key that rules may use, None if nothing is."""
    if len(name) > MAX_SHORT_BYTES:
        return f"{len(name)} bytes, the protocol allows {MAX_SHORT_BYTES}"
    if name.startswith(RESERVED_PREFIX):
        return f"a name under the prefix {RESERVED_PREFIX.decode()}, which is reserved for the proxy"
    return None
