"""Matches an address with a pattern of the address table, and gives what each wildcard took.

``*`` takes any run of bytes, ``%`` any run without a slash, all else stands for itself; of several ways to fit,
the first wildcard takes its longest run, then the second, and so on. Independent of rules and translations.

No recursion, no regular expression, no trying out: the work is at most the product of the two lengths. A pattern
with only ``*`` is placed literal by literal from the right. Else, from the pattern's end, the set of offsets from which
the rest can match is kept as one big integer, and one walk from the left gives each wildcard the farthest of them.
Source: the messenger-addressing specification, 1.2 and 1.6.
"""

from __future__ import annotations

import re
from functools import cache

#: Wildcards that are numbered; later ones match and are not stored.
MOST_VARIABLES = 64
_WILDCARD = re.compile(rb"[*%]")
_STAR, _PERCENT = b"*%"
_SLASH = b"/"


class AddressPattern:
    """A compiled pattern.

    Attributes:
        source: the pattern's text.
        prefix: what every fitting address begins with.
        suffix: what every fitting address ends with, after the prefix.
        literals: what stands between the wildcards.
        wildcards: the wildcards, one byte each; empty where only the source itself fits.
    """

    __slots__ = ("_least", "_only_stars", "literals", "prefix", "source", "suffix", "wildcards")

    def __init__(self, source: bytes) -> None:
        """Split the pattern at its wildcards."""
        self.source = source
        self.wildcards = b"".join(_WILDCARD.findall(source))
        literals = _WILDCARD.split(source)
        self.prefix = literals[0]
        self.suffix = literals[-1] if self.wildcards else b""
        self.literals = tuple(literals[1:-1])
        self._least = len(source) - len(self.wildcards)
        self._only_stars = b"%" not in self.wildcards

    def match(self, address: bytes) -> tuple[bytes, ...] | None:
        """What the wildcards took, the first 64 of them; None where the address does not fit."""
        return self._match(address, _SLASH)

    def covers(self, other: AddressPattern) -> bool:
        """Whether certainly every address that fits `other` fits this pattern.

        A wildcard of the other pattern can only be part of what one of ours takes, and ``%`` can't take in a ``*``.
        """
        return self._match(other.source, b"/*") is not None

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
        """Each literal at its last possible place, the last one first: then every wildcard's run is its longest."""
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
        """Any wildcards, by sets of offsets. Bit n of a set stands for the offset n before the end."""
        middle = address[len(self.prefix) : end]
        size = len(middle)
        passable = _offsets(middle, _passable(barriers))
        places: dict[int, int] = {}
        reachable = 1  # the offsets from which the rest of the pattern can match: so far the end itself
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
        """Give each wildcard, from the left, the farthest offset from which the rest still matches."""
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
    """Offsets from which a wildcard can run to one of the reachable offsets."""
    if wildcard == _STAR:
        return ((2 << size) - 1) & -(reachable & -reachable)
    # The carry of an addition runs through a stretch of ones from where it starts: a flood up to the next barrier.
    starts = reachable << 1 & passable
    return reachable | starts | ((passable + starts) ^ passable) & passable


def _next_barrier(text: bytes, at: int, barriers: bytes) -> int:
    found = [text.find(barrier, at) for barrier in barriers]
    return min((place for place in found if place >= 0), default=len(text))


def _offsets(text: bytes, table: bytes) -> int:
    """The offsets whose bytes `table` makes a one, the others a zero."""
    return int(text.translate(table) + b"0", 2)


@cache
def _only(byte: int) -> bytes:
    return b"0" * byte + b"1" + b"0" * (255 - byte)


@cache
def _passable(barriers: bytes) -> bytes:
    return bytes(0x30 if byte in barriers else 0x31 for byte in range(256))
