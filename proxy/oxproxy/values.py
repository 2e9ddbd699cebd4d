"""Python types for AMQP field values and for the destinations of messages, and their form in logs and error messages.

The secrets that these logs and messages must not contain are also stored here, since every package writes messages.

A field value is hashable and keeps its type letter, so that it can be encoded again without loss. For conditions,
``I 1``, ``l 1`` and ``d 1.0`` are the same number. As arguments of a binding, they are three different values. The type
letters are RabbitMQ's (AMQP 0-9-1 errata, "Field types").

=========  ==========================================================
letter     Python value
=========  ==========================================================
t          bool
b B s u    int (8 bits signed, unsigned, 16 bits signed, unsigned)
I i        int (32 bits signed, unsigned)
l L        int (64 bits; RabbitMQ also reads ``L`` as signed)
T          int (seconds)
f d        float (also represents every single-precision ``f`` exactly)
D          (scale: int, unsigned: int)
S x        bytes (text, byte array)
A          tuple of Value
F          Table
V          None
=========  ==========================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias


class Value(NamedTuple):
    """One typed field value."""

    letter: str
    value: object


def strings(value: Value) -> Iterator[bytes]:
    """Yield the content of a value, or of each element of an array, if it is a byte string."""
    elements = value.value if value.letter == "A" and isinstance(value.value, tuple) else (value,)
    for element in elements:
        if isinstance(element.value, bytes):
            yield element.value


#: Entries in wire order; a name may occur more than once.
Table: TypeAlias = tuple[tuple[bytes, Value], ...]

#: Prefixes of our own routing keys on carriers. The second prefix contains no dots, since every dot in a routing key
#: costs time on a topic exchange.
RESERVED_PREFIX: Final = b"x.o.p.e.n.x."
RESERVED_WORD: Final = RESERVED_PREFIX.replace(b".", b"-")
#: Both reserved prefixes. Routing keys and CC entries from producers must not begin with them.
RESERVED_PREFIXES = (RESERVED_PREFIX, RESERVED_WORD)

#: AMQP 0-9-1 spec, 4.2.5.3: names, routing keys and the names of table entries are short strings.
LONGEST_NAME_BYTES: Final = 255

#: The kinds of destinations.
QUEUE: Final = "queue"
EXCHANGE: Final = "exchange"

#: A destination of a message: its kind (QUEUE or EXCHANGE) and its name.
Destination: TypeAlias = tuple[str, bytes]


def reserved_prefix(name: bytes) -> bytes:
    """Return the reserved prefix with which a name or routing key begins; b"" if there is none."""
    for prefix in RESERVED_PREFIXES:
        if name.startswith(prefix):
            return prefix
    return b""


def can_exist(name: bytes) -> bool:
    """Return True if a queue or exchange can have this name: up to 255 bytes of UTF-8.

    A longer name can't be encoded, and the broker closes the connection (501) on a name that is not UTF-8.
    """
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return len(name) <= LONGEST_NAME_BYTES


def text(name: bytes) -> str:
    r"""Decode a name; bytes that are not UTF-8 become ``\xNN``."""
    return name.decode(errors="backslashreplace")


def shown(name: bytes) -> str:
    """Format a name for logs and error messages."""
    return name.decode(errors="replace")


def counted(number: int, noun: str) -> str:
    """Format a count with its noun, such as ``1 binding`` or ``2 bindings``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def describe(destination: Destination) -> str:
    """Format a destination for logs and error messages, such as ``queue orders``."""
    kind, name = destination
    return f"{kind} {shown(name)}"


#: Passwords and other secrets that files and environment variables have given to this process.
_SECRETS: set[str] = set()
#: Shorter secrets, and these words, are not masked by value: errors would become unreadable. `guest` is RabbitMQ's
#: public default; the other words are values of YAML without quotes.
_SHORTEST_SECRET, _PUBLIC = 4, frozenset(("guest", "true", "false", "null"))


def is_masked_by_value(secret: str) -> bool:
    """Return True if a secret is also masked elsewhere than in its own place."""
    return len(secret) >= _SHORTEST_SECRET and secret.lower() not in _PUBLIC


def remember_secret(secret: str) -> None:
    """Mask a secret in errors and in the text of rules files, wherever an operator has also written it."""
    if is_masked_by_value(secret):
        _SECRETS.add(secret)


def known_secrets() -> list[str]:
    """Return the remembered secrets, the longest first."""
    return sorted(_SECRETS, key=len, reverse=True)


def shown_user(name: str) -> str:
    """Return a user name for display. A password that an operator has appended, as in ``user:password``, is masked."""
    user, colon, _ = name.partition(":")
    return f"{user}:***" if colon else name


def without_passwords(string: str) -> str:
    """Mask a possible password in user:password@host, with or without a scheme. Masking too much is safe.

    The time is proportional to the length of the string.
    """
    end = string.rfind("@")
    start = string.find(":", 0, max(end, 0))
    if string.startswith("://", start):
        later = string.find(":", start + 1, string.index("@"))
        start = later if later >= 0 else start
    return string if start < 0 else f"{string[:start]}:***{string[end:]}"
