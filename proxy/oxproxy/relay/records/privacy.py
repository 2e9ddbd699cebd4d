"""Defines which data of a message may be written: which headers, and which fields only as keyed hashes.

Audit records, the admin address and the list of failed publishes use it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from math import isfinite
from typing import Final

from oxproxy.amqp.tables import decode_value
from oxproxy.errors import ConfigError, ProtocolError
from oxproxy.values import Value, text

#: Fields that may be written as keyed hashes (setting `audit.hash`).
HASHABLE: Final = frozenset(("message_id", "user", "rk"))
#: Maximum length of a header value; longer values are truncated. Headers used for routing are usually shorter.
HEADER_CHARACTERS: Final = 1024
#: Size of a hash in bytes. 96 bits suffice to distinguish ten billion values.
HASH_BYTES: Final = 12
#: Smallest and largest size of a key in bytes. A shorter key could be guessed, and BLAKE2b accepts at most 64 bytes.
KEY_BYTES = (16, 64)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Privacy:
    """Defines which data may appear in lines.

    Args:
        headers: names of the headers whose values may be written.
        hashed: fields that are written as keyed hashes, a subset of HASHABLE.
        key: key for the hashes. Without the key, guessed values can't be tested against a hash.

    Raises:
        ConfigError: a field can't be hashed, or the key is missing, too short or too long.
    """

    headers: frozenset[bytes] = frozenset()
    hashed: frozenset[str] = frozenset()
    key: bytes = b""

    def __post_init__(self) -> None:
        unknown = sorted(self.hashed - HASHABLE)
        if unknown:
            expected = ", ".join(sorted(HASHABLE))
            raise ConfigError("audit", 0, "audit.hash", f"can't hash {', '.join(unknown)}; expected {expected}")
        least, most = KEY_BYTES
        if self.hashed and not least <= len(self.key) <= most:
            raise ConfigError(
                "audit", 0, "audit.hash", f"got a key of {len(self.key)} bytes, expected {least} to {most}"
            )

    def hash(self, field: str, value: bytes) -> str:
        """Return the keyed hash of a field's value. Equal values of different fields have different hashes."""
        return blake2b(value, digest_size=HASH_BYTES, key=self.key, person=field.encode()).hexdigest()

    def shown(self, field: str, value: bytes | str) -> str:
        """Return a field's value as it may be written: its keyed hash if the field is hashed, otherwise its text."""
        if field not in self.hashed:
            return text(value) if isinstance(value, bytes) else value
        return self.hash(field, value if isinstance(value, bytes) else value.encode())

    def header_values(self, entries: Iterable[tuple[bytes, bytes]]) -> dict[str, object]:
        """Return the headers whose values may be written, as JSON values by name.

        Args:
            entries: pairs of a name and an encoded value with its type letter, as returned by
                `oxproxy.amqp.tables.pick`. If several headers have the same name, only the first header is included.
        """
        values: dict[str, object] = {}
        for name, raw in entries:
            if name in self.headers and text(name) not in values:
                try:
                    value = header_value(decode_value(raw))
                except ProtocolError:
                    value = text(raw)[:HEADER_CHARACTERS]
                values[text(name)] = value
        return values


def header_value(value: Value) -> object:
    """Convert a header's value to JSON, so that the number 2000 and the string "2000" differ.

    Strings, lists and tables are truncated at HEADER_CHARACTERS; a truncated value becomes a string. Times are in RFC
    3339 format.
    """
    content = _as_json(value)
    if isinstance(content, str):
        return content[:HEADER_CHARACTERS]
    if isinstance(content, list | dict):
        rendered = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
        return content if len(rendered) <= HEADER_CHARACTERS else rendered[:HEADER_CHARACTERS]
    return content


def _as_json(value: Value) -> object:
    content = value.value
    if isinstance(content, bytes):
        return text(content)
    if value.letter == "T" and isinstance(content, int):
        return _time(content)
    if value.letter == "D" and isinstance(content, Sequence):
        scale, unsigned = content
        return f"{unsigned}e-{scale}"
    if value.letter == "A" and isinstance(content, tuple):
        return [_as_json(item) for item in content]
    if value.letter == "F" and isinstance(content, tuple):
        return {text(name): _as_json(item) for name, item in content}
    if isinstance(content, float) and not isfinite(content):
        return str(content)  # JSON can't represent infinity and NaN
    return content


def _time(seconds: int) -> object:
    try:
        return (_EPOCH + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return seconds
