"""Which of many patterns can an address fit at all?

Patterns are sorted by what they begin with, then by what they end with, then by a few bytes that they hold in
between; an address is looked up by its own beginnings, endings and pieces, so that only patterns that share all three
with it are tried. Knows nothing of rules; says nothing final: a candidate may still not fit.
Source: the messenger-addressing specification, 1.6 (the bound for a table).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from proxy.addressing.patterns import AddressPattern

#: Lengths of the pieces by which patterns are told apart, the better one first.
_PIECES = (4, 2)
#: Up to so many patterns that begin and end alike are simply tried.
_FEW = 4


class AddressIndex:
    """An index over patterns, by their positions."""

    def __init__(self, patterns: Sequence[AddressPattern]) -> None:
        """Sort the patterns into buckets."""
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
        """Positions of the patterns that an address may fit, ascending; none behind the one that is equal to it."""
        found: list[int] = []
        pieces: dict[int, set[bytes]] = {}
        for bucket in self._buckets_of(address):
            bucket.add_candidates(address, pieces, found)
        exact = self._exact.get(address)
        if exact is not None:
            found = [position for position in found if position < exact]
            found.append(exact)
        found.sort()
        return found

    def _buckets_of(self, address: bytes) -> Iterator[_Bucket]:
        size = len(address)
        for length in self._prefix_lengths:
            if length > size:
                return
            prefix = address[:length]
            if (suffixes := self._buckets.get(prefix)) is None:
                continue
            for length_behind in self._suffix_lengths[prefix]:
                bucket = suffixes.get(address[size - length_behind :]) if length_behind <= size else None
                if bucket is not None:
                    yield bucket


class _Bucket:
    """Patterns that begin alike and end alike."""

    __slots__ = ("_by_piece", "_others")

    def __init__(self, positions: list[int], patterns: Sequence[AddressPattern]) -> None:
        self._others: list[int] = []
        self._by_piece: dict[int, dict[bytes, list[int]]] = {}
        if len(positions) <= _FEW:
            self._others = positions
            return
        pieces = {position: _pieces_of(patterns[position]) for position in positions}
        frequency = Counter(piece for found in pieces.values() for piece in found)
        for position, found in pieces.items():
            if not found:
                self._others.append(position)
                continue
            piece = min(found, key=lambda piece: (frequency[piece], piece))
            self._by_piece.setdefault(len(piece), {}).setdefault(piece, []).append(position)

    def add_candidates(self, address: bytes, pieces: dict[int, set[bytes]], found: list[int]) -> None:
        """Add the positions of the patterns whose piece the address has; `pieces` keeps those of the address."""
        found += self._others
        for length, by_piece in self._by_piece.items():
            if length not in pieces:
                pieces[length] = _cut(address, length)
            for piece in by_piece.keys() & pieces[length]:
                found += by_piece[piece]


def _pieces_of(pattern: AddressPattern) -> set[bytes]:
    """The pieces of a pattern's inner literals, of the best length that it has."""
    for length in _PIECES:
        if found := {piece for literal in pattern.literals for piece in _cut(literal, length)}:
            return found
    return set()


def _cut(text: bytes, length: int) -> set[bytes]:
    return {text[at : at + length] for at in range(len(text) - length + 1)}


def _lengths(texts: dict[bytes, dict[bytes, list[int]]] | dict[bytes, list[int]]) -> tuple[int, ...]:
    return tuple(sorted({len(text) for text in texts}))
