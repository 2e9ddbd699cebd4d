"""The address table, which matches an address against patterns, selects a rule and applies its translation.

The first rule whose pattern matches wins, and its result is final. `targets` resolves results.

In a pattern, ``*`` matches any run of bytes, ``%`` matches any run without a slash, and every other byte matches
itself. If there are several ways to match, the first wildcard takes its longest run, then the second, and so on. There
is no recursion, no regular expression and no backtracking: the cost is at most proportional to the length of the
pattern times the length of the address. If all wildcards of a pattern are ``*``, its literals are matched one after
another from the right. For other patterns, the set of offsets from which the rest of the pattern can match is computed
for each wildcard, starting at the end of the pattern. Each set is stored as the bits of one large integer. A single
pass from the left then extends each wildcard to the farthest of these offsets.

`AddressIndex` preselects patterns by their prefix, then by their suffix, then by a few bytes of an inner literal. An
address is looked up by its prefixes, suffixes and substrings. The patterns found are only candidates, which are then
matched.

Source: the messenger-addressing specification, 1.1 to 1.3, and 1.6 for the limit on the cost.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from oxproxy.addressing.address import Address, InvalidAddress, parse_address, without_password

#: Maximum number of wildcards whose runs are captured. Further wildcards match, but their runs are not captured.
MOST_VARIABLES = 64
_WILDCARD = re.compile(rb"[*%]")
_STAR, _PERCENT = b"*%"
_SLASH = b"/"


class AddressPattern:
    """A compiled pattern.

    Attributes:
        source: the pattern as written.
        prefix: literal that every matching address begins with.
        suffix: literal that every matching address ends with; it does not overlap the prefix.
        literals: literals between the wildcards.
        wildcards: the wildcards, one byte each; empty if only the source itself matches.
    """

    __slots__ = ("_least", "_only_stars", "literals", "prefix", "source", "suffix", "wildcards")

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.wildcards = b"".join(_WILDCARD.findall(source))
        literals = _WILDCARD.split(source)
        self.prefix = literals[0]
        self.suffix = literals[-1] if self.wildcards else b""
        self.literals = tuple(literals[1:-1])
        self._least = len(source) - len(self.wildcards)
        self._only_stars = b"%" not in self.wildcards

    def match(self, address: bytes) -> tuple[bytes, ...] | None:
        """Return the runs matched by the first 64 wildcards; None if the address does not match."""
        return self._match(address, _SLASH)

    def covers(self, other: AddressPattern) -> bool:
        """Return True only if every address that matches `other` matches this pattern.

        Wildcards of the other pattern must lie within wildcards of this pattern, and ``*`` must not lie within ``%``.
        """
        return self._match(other.source, b"/*") is not None

    def may_fit(self, beginning: bytes) -> bool:
        """Return False only if no address that begins with `beginning` can match."""
        return self.prefix.startswith(beginning) or (bool(self.wildcards) and beginning.startswith(self.prefix))

    def _match(self, address: bytes, barriers: bytes) -> tuple[bytes, ...] | None:
        end = len(address) - len(self.suffix)
        if len(address) < self._least or not (address.startswith(self.prefix) and address.endswith(self.suffix)):
            return None
        if not self.wildcards:
            return () if len(address) == self._least else None
        if not self._only_stars:
            taken = self._fit_any(address, end, barriers)
        else:
            taken = self._fit_stars(address, end)
        return tuple(taken[:MOST_VARIABLES]) if taken is not None else None

    def _fit_stars(self, address: bytes, end: int) -> list[bytes] | None:
        """Place each literal as far right as possible, starting with the last literal.

        As a result, earlier wildcards take the longest possible runs.
        """
        start = len(self.prefix)
        taken: list[bytes] = []
        for literal in reversed(self.literals):
            at = address.rfind(literal, start, end)
            if at < 0:
                return None
            taken.append(address[at + len(literal) : end])
            end = at
        taken.append(address[start:end])
        taken.reverse()
        return taken

    def _fit_any(self, address: bytes, end: int, barriers: bytes) -> list[bytes] | None:
        """Match any mix of wildcards. In sets of offsets, bit n stands for the offset n bytes before the end."""
        middle = address[len(self.prefix) : end]
        size = len(middle)
        passable = _offsets(middle, _passable(barriers))
        places: dict[int, int] = {}
        reachable = 1  # the offsets from which the rest of the pattern can match, initially only the end
        rests: list[int] = []
        for index in range(len(self.wildcards) - 1, -1, -1):
            rests.append(reachable)
            reachable = _before_wildcard(self.wildcards[index], reachable, passable, size)
            for byte in reversed(self.literals[index - 1] if index else b""):
                if byte not in places:
                    places[byte] = _offsets(middle, _only(byte))
                reachable = reachable << 1 & places[byte]
            if not reachable:
                return None
        return self._walk(middle, rests, barriers) if reachable >> size & 1 else None

    def _walk(self, middle: bytes, rests: list[int], barriers: bytes) -> list[bytes]:
        """Extend each wildcard, starting at the left, to the farthest offset from which the rest still matches."""
        size, at = len(middle), 0
        taken: list[bytes] = []
        for wildcard, literal in zip(self.wildcards, [*self.literals, b""], strict=True):
            rest = rests.pop()
            nearest = size - _next_barrier(middle, at, barriers) if wildcard == _PERCENT else 0
            rest >>= nearest
            stop = size - nearest - ((rest & -rest).bit_length() - 1)
            taken.append(middle[at:stop])
            at = stop + len(literal)
        return taken


def _before_wildcard(wildcard: int, reachable: int, passable: int, size: int) -> int:
    """Return the offsets from which a wildcard can extend to one of the reachable offsets."""
    if wildcard == _STAR:
        return ((2 << size) - 1) & -(reachable & -reachable)
    # The carry of an addition propagates through consecutive 1 bits, up to the next barrier.
    starts = reachable << 1 & passable
    return reachable | starts | ((passable + starts) ^ passable) & passable


def _next_barrier(text: bytes, at: int, barriers: bytes) -> int:
    places = [text.find(barrier, at) for barrier in barriers]
    return min((place for place in places if place >= 0), default=len(text))


def _offsets(text: bytes, table: bytes) -> int:
    """Return the set of offsets of all bytes that `table` maps to ``1``."""
    return int(text.translate(table) + b"0", 2)


@cache
def _only(byte: int) -> bytes:
    return b"0" * byte + b"1" + b"0" * (255 - byte)


@cache
def _passable(barriers: bytes) -> bytes:
    return bytes(0x30 if byte in barriers else 0x31 for byte in range(256))


_VARIABLE = re.compile(rb"\$(?:([0-9]+)|(\$))?")
#: Replaces each variable when the literal parts of a translation are parsed.
_PLACEHOLDER = b"v"
#: Lengths of the substrings used to distinguish patterns, in order of preference.
_PIECES = (4, 2)
#: Up to this many patterns with the same prefix and suffix are tried without an index.
_FEW = 4


@dataclass(frozen=True, slots=True)
class AddressRule:
    """One rule as written by the operator.

    Args:
        pattern: matched against the whole address.
        translation: the new address; None if the rule has no translation.
        name: the operator's name for the rule, or empty.
        hosts: hosts permitted in results, ``*`` for any; None if the host in the translation is fixed.
    """

    pattern: bytes
    translation: bytes | None = field(repr=False)
    name: str = ""
    hosts: tuple[bytes, ...] | None = None

    @property
    def shown(self) -> bytes:
        """The translation without its password, for display."""
        return without_password(self.translation or b"")

    @property
    def shown_pattern(self) -> bytes:
        """The pattern without its password, for display."""
        return without_password(self.pattern)


class Translation(NamedTuple):
    """The result of the table for an address. It may contain a password, so only ``shown`` may be displayed.

    Args:
        rule: index of the rule.
        captures: runs matched by the wildcards.
        address: the result; None if the rule has no translation.
    """

    rule: int
    captures: tuple[bytes, ...]
    address: bytes | None

    @property
    def shown(self) -> bytes:
        """The result without its password, for display."""
        return without_password(self.address or b"")

    def __repr__(self) -> str:
        return f"Translation(rule={self.rule}, address={self.shown!r})"


class TranslationTemplate:
    """A translation split at its variables. ``$`` stands for the whole address if neither a digit nor ``$`` follows.

    Attributes:
        parts: literals and variable numbers, in order; number 0 is the whole original address.
    """

    __slots__ = ("parts",)

    def __init__(self, translation: bytes) -> None:
        parts: list[bytes | int] = []
        end = 0
        for variable in _VARIABLE.finditer(translation):
            parts.append(translation[end : variable.start()])
            # There are at most `MOST_VARIABLES` variables, so a variable whose number has four or more digits is empty.
            digits = (variable[1] or b"").lstrip(b"0")
            parts.append(b"$" if variable[2] else int(digits or b"0") if len(digits) < 4 else MOST_VARIABLES + 1)
            end = variable.end()
        parts.append(translation[end:])
        self.parts = tuple(part for part in parts if part != b"")

    def fill(self, address: bytes, captures: Sequence[bytes]) -> bytes:
        return b"".join([part if isinstance(part, bytes) else _value(part, address, captures) for part in self.parts])


def _value(number: int, address: bytes, captures: Sequence[bytes]) -> bytes:
    if not number:
        return address
    return captures[number - 1] if number <= len(captures) else b""


def fixed_domain(rule: AddressRule) -> Address | None:
    """Return the domain that all results of a rule share; None if the domain has a variable or can't be parsed."""
    if rule.translation is None or has_variable_domain(TranslationTemplate(rule.translation)):
        return None
    try:
        return parse_address(with_placeholders(TranslationTemplate(rule.translation)))
    except InvalidAddress:
        return None


def has_variable_domain(template: TranslationTemplate) -> bool:
    """Return True if a variable can be part of the scheme, credentials, host or port."""
    literal = b""
    for part in template.parts:
        if isinstance(part, int):
            return True
        literal += part
        # ``:/`` becomes ``://``, the end of a scheme, if the value of the next variable begins with a slash.
        may_become_scheme = literal.endswith(b":/") and literal.count(b"/") == 1
        if b"/" in _after_scheme(literal) and not may_become_scheme:
            return False
    return False


def _after_scheme(text: bytes) -> bytes:
    slash = text.find(b"/")
    return text[slash + 2 :] if slash > 0 and text[slash - 1 : slash + 2] == b"://" else text


def with_placeholders(template: TranslationTemplate) -> bytes:
    """Return the translation with a placeholder for each variable, so that the fixed parts can be parsed."""
    return b"".join(_PLACEHOLDER if isinstance(part, int) else part for part in template.parts)


class AddressTable:
    """An ordered, compiled table of rules.

    Attributes:
        rules: the rules, in the given order.
        patterns: the compiled patterns, in the order of the rules.
    """

    def __init__(self, rules: Sequence[AddressRule]) -> None:
        self.rules = tuple(rules)
        self.patterns = tuple(AddressPattern(rule.pattern) for rule in rules)
        self._templates = tuple(
            TranslationTemplate(rule.translation) if rule.translation is not None else None for rule in rules
        )
        self._index = AddressIndex(self.patterns)

    def __bool__(self) -> bool:
        return bool(self.rules)

    def translate(self, address: bytes | None) -> Translation | None:
        """Translate an address; return None if no rule matches. A missing address is matched as the empty string."""
        address = address or b""
        for position in self._index.candidates(address):
            captures = self.patterns[position].match(address)
            if captures is not None:
                template = self._templates[position]
                return Translation(position, captures, template.fill(address, captures) if template else None)
        return None

    def may_fit(self, beginning: bytes) -> bool:
        """Return False only if no rule can match an address that begins with `beginning`."""
        return any(pattern.may_fit(beginning) for pattern in self.patterns)

    def shadowed(self) -> Iterator[tuple[int, int]]:
        """For each rule that can never apply, yield its index and that of an earlier rule that covers its pattern."""
        for position, pattern in enumerate(self.patterns):
            for earlier in self._index.candidates(pattern.source):
                if earlier < position and self.patterns[earlier].covers(pattern):
                    yield position, earlier
                    break


class AddressIndex:
    """Finds the patterns that an address may match. Patterns are identified by their positions."""

    def __init__(self, patterns: Sequence[AddressPattern]) -> None:
        self._exact: dict[bytes, int] = {}
        groups: dict[bytes, dict[bytes, list[int]]] = {}
        for position, pattern in enumerate(patterns):
            if pattern.wildcards:
                groups.setdefault(pattern.prefix, {}).setdefault(pattern.suffix, []).append(position)
            else:
                self._exact.setdefault(pattern.source, position)
        self._prefix_lengths = _lengths(groups)
        self._suffix_lengths = {prefix: _lengths(suffixes) for prefix, suffixes in groups.items()}
        self._buckets = {
            prefix: {suffix: _Bucket(positions, patterns) for suffix, positions in suffixes.items()}
            for prefix, suffixes in groups.items()
        }

    def candidates(self, address: bytes) -> list[int]:
        """Return, in ascending order, the positions of patterns that may match.

        If a pattern without wildcards is equal to the address, the list ends with the position of this pattern.
        """
        positions: list[int] = []
        pieces: dict[int, set[bytes]] = {}
        for bucket in self._buckets_of(address):
            bucket.add_candidates(address, pieces, positions)
        exact = self._exact.get(address)
        if exact is not None:
            positions = [position for position in positions if position < exact]
            positions.append(exact)
        positions.sort()
        return positions

    def _buckets_of(self, address: bytes) -> Iterator[_Bucket]:
        size = len(address)
        for length in self._prefix_lengths:
            if length > size:
                return
            prefix = address[:length]
            if (suffixes := self._buckets.get(prefix)) is None:
                continue
            for suffix_length in self._suffix_lengths[prefix]:
                bucket = suffixes.get(address[size - suffix_length :]) if suffix_length <= size else None
                if bucket is not None:
                    yield bucket


class _Bucket:
    """Patterns with the same prefix and suffix."""

    __slots__ = ("_by_piece", "_others")

    def __init__(self, positions: list[int], patterns: Sequence[AddressPattern]) -> None:
        self._others: list[int] = []
        self._by_piece: dict[int, dict[bytes, list[int]]] = {}
        if len(positions) <= _FEW:
            self._others = positions
            return
        pieces = {position: _pieces_of(patterns[position]) for position in positions}
        frequency = Counter(piece for substrings in pieces.values() for piece in substrings)
        for position, substrings in pieces.items():
            if not substrings:
                self._others.append(position)
                continue
            piece = min(substrings, key=lambda piece: (frequency[piece], piece))
            self._by_piece.setdefault(len(piece), {}).setdefault(piece, []).append(position)

    def add_candidates(self, address: bytes, pieces: dict[int, set[bytes]], positions: list[int]) -> None:
        """Add the positions of the patterns that may match. `pieces` caches the address's substrings, by length."""
        positions += self._others
        for length, by_piece in self._by_piece.items():
            if length not in pieces:
                pieces[length] = _cut(address, length)
            for piece in by_piece.keys() & pieces[length]:
                positions += by_piece[piece]


def _pieces_of(pattern: AddressPattern) -> set[bytes]:
    """Return the substrings of a pattern's inner literals of one length: the first in `_PIECES` that fits."""
    for length in _PIECES:
        if substrings := {piece for literal in pattern.literals for piece in _cut(literal, length)}:
            return substrings
    return set()


def _cut(text: bytes, length: int) -> set[bytes]:
    return {text[at : at + length] for at in range(len(text) - length + 1)}


def _lengths(texts: dict[bytes, dict[bytes, list[int]]] | dict[bytes, list[int]]) -> tuple[int, ...]:
    return tuple(sorted({len(text) for text in texts}))
