"""Renders audit records of the kind ``facts``: the headers and properties of messages that rules test.

`oxproxy backtest` evaluates other rules for recorded publishes, so it needs these values with their AMQP types. Most
publishes repeat them. A value is therefore recorded once per segment, and the records of publishes refer to its number.
Numbers are unique within one process, and the writer thread puts each record before the first reference to it in a
segment (`FactsTable.take_used`).

`FactsTable` belongs to the process, and a `FactsScope` to the plans whose rules test the same headers and properties.
Both only remember what was rendered before. If too much is remembered, everything is forgotten, and equal values get
new numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import Enum
from math import isfinite
from typing import Final, TypeAlias

from oxproxy.amqp.tables import decode_table, encode_value, pick
from oxproxy.errors import ProtocolError
from oxproxy.relay.records.privacy import Privacy
from oxproxy.routing.decision import Interest
from oxproxy.values import Table, Value, text

#: version of the record format
VERSION: Final = 1
#: Size limit for the remembered records, and the approximate memory in bytes for a record without its text and key.
REMEMBERED_BYTES: Final = 48 << 20
_RECORD_BYTES: Final = 400
#: If the headers that rules test are larger than this, they are not recorded.
HEADERS_BYTES: Final = 4096
#: Properties that are recorded with each publish.
_WITH_PUBLISH: Final = frozenset(("message_id",))
#: The broker removes this header before the exchange evaluates the message.
_BCC: Final = b"BCC"
#: This header contains further routing keys.
_CC: Final = b"CC"

#: Names and values of properties, sorted by name.
Properties: TypeAlias = tuple[tuple[str, bytes | int], ...]


class FactsMode(Enum):
    """Which headers are recorded as facts (setting ``audit.facts``)."""

    LISTED = "listed"  # headers that rules test and that `audit.headers` lists
    ALL_MENTIONED = "all-mentioned"  # all headers that rules test


class FactsRecord:
    """The record of one distinct value.

    Args:
        number: the number by which records of publishes refer to it.
        line: the record without its beginning, ``{"ts":"`` and the time.
    """

    __slots__ = ("is_new", "line", "number")

    def __init__(self, number: int, line: bytes) -> None:
        self.number: Final = number
        self.line: Final = line
        #: whether the audit log has not counted the size of this record yet
        self.is_new = True


class FactsTable:
    """The facts that one process has recorded.

    Args:
        instance: name of the sidecar.
        limit_bytes: approximate limit for the memory used.
    """

    def __init__(
        self,
        instance: str,
        privacy: Privacy,
        mode: FactsMode = FactsMode.LISTED,
        limit_bytes: int = REMEMBERED_BYTES,
    ) -> None:
        self._instance = instance
        self._privacy = privacy
        self._mode = mode
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._count = 0
        #: records by what they contain, which is faster to compute than their text
        self.by_value: dict[object, FactsRecord] = {}
        self._by_text: dict[str, FactsRecord] = {}
        self._scopes: dict[object, int] = {}
        self._scope_count = 0
        self._used: dict[int, FactsRecord] = {}

    def scope(self, interest: Interest, declared: bool) -> FactsScope:
        """Return the scope of an exchange.

        Args:
            interest: the facts that the rules of the exchange test.
            declared: whether clients declared the exchange, or bindings that apply to it.
        """
        listed = self._privacy.headers
        if self._mode is FactsMode.ALL_MENTIONED:
            names = interest.headers
        else:
            names = listed if interest.headers is None else interest.headers & listed
        properties = interest.properties - _WITH_PUBLISH
        key = (names, properties, declared)
        number = self._scopes.get(key)
        if number is None:
            self._scope_count += 1
            number = self._scopes[key] = self._scope_count
        whole = interest.headers is None and names is not None
        picked = names if whole or names != interest.headers else None
        return FactsScope(self, number, names, picked, properties, interest.properties != properties, declared)

    def note(self, record: FactsRecord) -> None:
        """Note that a line which is being appended refers to a record."""
        self._used[record.number] = record

    def take_used(self) -> tuple[dict[int, bytes], int]:
        """Return the records, by number, to which lines refer that were appended since the last call.

        Returns:
            The records, and the size in bytes of those that are returned for the first time.
        """
        if not self._used:
            return {}, 0
        lines = {}
        size = 0
        for number, record in self._used.items():
            lines[number] = record.line
            if record.is_new:
                record.is_new = False
                size += len(record.line)
        self._used = {}
        return lines, size

    def remember(self, key: object, key_bytes: int, content: dict[str, object]) -> FactsRecord:
        """Return the record with the given content, and remember it under the given key."""
        rendered = json.dumps(content, separators=(",", ":"))[1:-1]
        if self._used_bytes > self._limit_bytes:
            self.by_value.clear()
            self._by_text.clear()
            self._scopes.clear()
            self._used_bytes = 0
        record = self._by_text.get(rendered)
        if record is None:
            self._count += 1
            fields = {"v": VERSION, "kind": "facts", "proxy": self._instance, "facts": self._count}
            begin = json.dumps(fields, separators=(",", ":"))[1:-1]
            record = self._by_text[rendered] = FactsRecord(self._count, f'",{begin},{rendered}}}\n'.encode())
            self._used_bytes += len(rendered) + len(record.line)
        self.by_value[key] = record
        self._used_bytes += key_bytes + _RECORD_BYTES
        return record

    def shown_header(self, name: bytes, value: Value) -> list[object]:
        """Return a header as it may be written: name, type letter and content. A hash has no type letter."""
        if name == _CC and "rk" in self._privacy.hashed:
            return [_string(name), None, {"hash": self._privacy.hash("rk", encode_value(value))}]
        return [_string(name), *typed(value)]

    def shown_property(self, name: str, value: bytes | int) -> object:
        """Return a property as it may be written. The property ``user_id`` is the name of the user."""
        if name == "user_id" and "user" in self._privacy.hashed and isinstance(value, bytes):
            return {"hash": self._privacy.hash("user", value)}
        return value if isinstance(value, int) else _string(value)

    @property
    def hashed(self) -> list[str]:
        return sorted(self._privacy.hashed)


class FactsScope:
    """Finds the records for publishes whose rules test the same headers and properties.

    Args:
        names: names of the recorded headers; None: all headers are recorded.
        picked: names of the headers to record if not all collected entries are recorded.
        properties: names of the recorded properties.
        more_properties: whether rules test further properties, which are not recorded.
        declared: see `FactsTable.scope`.
    """

    __slots__ = ("_begin", "_declared", "_more_properties", "_names", "_picked", "_properties", "_table")

    def __init__(
        self,
        table: FactsTable,
        number: int,
        names: frozenset[bytes] | None,
        picked: frozenset[bytes] | None,
        properties: frozenset[str],
        more_properties: bool,
        declared: bool,
    ) -> None:
        self._table: Final = table
        self._begin: Final = number.to_bytes(8, "big")
        self._names: Final = names
        self._picked: Final = picked
        self._properties: Final = properties
        self._more_properties: Final = more_properties
        self._declared: Final = declared

    def find(self, entries: bytes, properties: Properties) -> FactsRecord | None:
        """Return the record for a publish; None if its headers are too large to be recorded, or malformed.

        Args:
            entries: the entries of the header table that rules test.
            properties: the properties that rules test.
        """
        if self._picked is not None and entries:
            try:
                chosen = pick(entries, 0, len(entries), self._picked)
            except ProtocolError:
                return None
            entries = b"".join([bytes((len(name),)) + name + raw for name, raw in chosen])
        value = self._begin + entries
        key: object = value
        if self._properties:
            if self._more_properties:
                properties = tuple([entry for entry in properties if entry[0] in self._properties])
            key = (value, properties)
        record = self._table.by_value.get(key)
        return self._new(key, entries, properties) if record is None else record

    def _new(self, key: object, entries: bytes, properties: Properties) -> FactsRecord | None:
        if len(entries) > HEADERS_BYTES:
            return None
        try:
            headers = decode_table(entries, 0, len(entries))
        except ProtocolError:
            return None
        table = self._table
        content: dict[str, object] = {"names": None if self._names is None else sorted(map(text, self._names))}
        content["headers"] = [table.shown_header(name, value) for name, value in headers if name != _BCC]
        content["property_names"] = sorted(self._properties)
        shown = {name: table.shown_property(name, value) for name, value in properties if name in self._properties}
        content["properties"] = shown
        if self._declared:
            content["declared"] = True
        if table.hashed:
            content["hashed"] = table.hashed
        size = len(entries)
        for _, value in properties:
            size += len(value) if isinstance(value, bytes) else 8
        return table.remember(key, size, content)


def _string(content: bytes) -> object:
    """Return a string for JSON; other bytes become ``{"hex": ...}``."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"hex": content.hex()}


def typed(value: Value) -> list[object]:
    """Return a value for JSON as its type letter and its content, without loss."""
    letter, content = value
    if isinstance(content, bytes):
        return [letter, _string(content) if letter == "S" else {"hex": content.hex()}]
    if isinstance(content, float):
        return [letter, content if isfinite(content) else str(content)]
    if letter == "A" and isinstance(content, tuple):
        return [letter, [typed(element) for element in content]]
    if letter == "F" and isinstance(content, tuple):
        return [letter, [[_string(name), *typed(element)] for name, element in content]]
    if letter == "D" and isinstance(content, tuple):
        return [letter, list(content)]
    return [letter, content]


def read_bytes(content: object) -> bytes:
    """Return the bytes of a string in a record.

    Raises:
        ValueError: it is not a string, or it is hashed.
    """
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, dict) and isinstance(digits := content.get("hex"), str):
        return bytes.fromhex(digits)
    raise ValueError("expected a string")


def read_typed(letter: object, content: object) -> Value:
    """Return the value that `typed` has rendered.

    Raises:
        ValueError: it is not a value.
    """
    if not isinstance(letter, str):
        raise ValueError("expected a type letter")
    if letter in ("S", "x"):
        return Value(letter, read_bytes(content))
    if letter in ("A", "F", "D") and isinstance(content, list):
        if letter == "F":
            return Value(letter, read_table(content))
        return Value(letter, tuple([read_typed(*element) for element in content] if letter == "A" else content))
    if letter in ("f", "d") and isinstance(content, str | int | float):
        return Value(letter, float(content))
    return Value(letter, content)


def read_table(entries: Iterable[object]) -> Table:
    """Return the header table in a record.

    Raises:
        ValueError: it is not a table that can be encoded.
    """
    table = []
    for entry in entries:
        if not isinstance(entry, list) or len(entry) != 3:
            raise ValueError("expected name, type letter and content")
        table.append((read_bytes(entry[0]), read_typed(entry[1], entry[2])))
    return tuple(table)
