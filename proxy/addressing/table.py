"""Which rule of the address table is for an address, and what does it make of it?

The first rule whose pattern fits decides; its result is final. Rules are compiled once; ``address_index`` says which
of them are worth a try. Where a result leads, and remembering that, is for ``address_targets``.
Source: the messenger-addressing specification, 1.1 to 1.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from proxy.addressing.address import without_password
from proxy.addressing.index import AddressIndex
from proxy.addressing.patterns import MOST_VARIABLES, AddressPattern

_VARIABLE = re.compile(rb"\$(?:([0-9]+)|(\$))?")


@dataclass(frozen=True, slots=True)
class AddressRule:
    """One rule as an operator wrote it.

    Args:
        pattern: compared with the whole address.
        translation: what the address becomes, None where the rule has none.
        name: the operator's name of it, empty where there is none.
        hosts: hosts that it may lead to, ``*`` for any; None where its translation itself names the only one.
    """

    pattern: bytes
    translation: bytes | None = field(repr=False)
    name: str = ""
    hosts: tuple[bytes, ...] | None = None

    @property
    def shown(self) -> bytes:
        """The translation for people to read, without its password."""
        return without_password(self.translation or b"")


class Translation(NamedTuple):
    """What the table made of an address. Its result may hold a password, so show it by ``shown`` only.

    Args:
        rule: index of the rule.
        captures: what the wildcards took.
        address: the result; None where the rule has no translation.
    """

    rule: int
    captures: tuple[bytes, ...]
    address: bytes | None

    @property
    def shown(self) -> bytes:
        """The result for people to read, without its password."""
        return without_password(self.address or b"")

    def __repr__(self) -> str:
        """Without the password."""
        return f"Translation(rule={self.rule}, address={self.shown!r})"


class TranslationTemplate:
    """A translation, cut at its variables.

    Attributes:
        parts: text and numbers of variables in turn; 0 is the whole original address.
    """

    __slots__ = ("parts",)

    def __init__(self, translation: bytes) -> None:
        """Read the variables; ``$`` before anything else than a digit or a dollar is the whole address."""
        parts: list[bytes | int] = []
        end = 0
        for variable in _VARIABLE.finditer(translation):
            parts.append(translation[end : variable.start()])
            # Of a number only the last digits matter: whatever is above the most variables gives nothing.
            digits = (variable[1] or b"").lstrip(b"0")
            parts.append(b"$" if variable[2] else int(digits or b"0") if len(digits) < 4 else MOST_VARIABLES + 1)
            end = variable.end()
        parts.append(translation[end:])
        self.parts = tuple(part for part in parts if part != b"")

    def fill(self, address: bytes, captures: Sequence[bytes]) -> bytes:
        """The result for an address and what the wildcards took of it."""
        return b"".join([part if isinstance(part, bytes) else _value(part, address, captures) for part in self.parts])


def _value(number: int, address: bytes, captures: Sequence[bytes]) -> bytes:
    if not number:
        return address
    return captures[number - 1] if number <= len(captures) else b""


class AddressTable:
    """An ordered table of rules, compiled.

    Attributes:
        rules: as given.
        patterns: theirs, compiled, in the same order.
    """

    def __init__(self, rules: Sequence[AddressRule]) -> None:
        """Compile the rules."""
        self.rules = tuple(rules)
        self.patterns = tuple(AddressPattern(rule.pattern) for rule in rules)
        self._templates = tuple(
            TranslationTemplate(rule.translation) if rule.translation is not None else None for rule in rules
        )
        self._index = AddressIndex(self.patterns)

    def __bool__(self) -> bool:
        """Whether there is a rule at all."""
        return bool(self.rules)

    def translate(self, address: bytes | None) -> Translation | None:
        """What the table makes of an address; None where no rule fits and the address stays as it is.

        A missing address (None) is matched as the empty text.
        """
        address = address or b""
        for position in self._index.candidates(address):
            captures = self.patterns[position].match(address)
            if captures is not None:
                template = self._templates[position]
                return Translation(position, captures, template.fill(address, captures) if template else None)
        return None

    def may_fit(self, beginning: bytes) -> bool:
        """Whether some rule may be for an address that begins like this; a False is certain."""
        return any(
            pattern.prefix.startswith(beginning) or (pattern.wildcards and beginning.startswith(pattern.prefix))
            for pattern in self.patterns
        )

    def shadowed(self) -> Iterator[tuple[int, int]]:
        """Rules that can never decide: (position, position of an earlier rule whose pattern covers theirs)."""
        for position, pattern in enumerate(self.patterns):
            for earlier in self._index.candidates(pattern.source):
                if earlier < position and self.patterns[earlier].covers(pattern):
                    yield position, earlier
                    break
