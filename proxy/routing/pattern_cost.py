"""How far can the matcher walk through a pattern between two decisions?

PCRE2 limits decisions: the places where it notes another way to go on. What it does between two of them is not
counted: trying single characters, and running a repeat over the subject. Here that is bounded from the pattern
alone, so that a limit on decisions becomes a limit on time. Pure arithmetic, without a word of syntax.

Source: pcre2_match.c, which notes a way at each branch but the last, at each turn of a repeated group, at look-around
and at calls.
"""

from __future__ import annotations

from typing import NamedTuple

#: Trying one item of the pattern, in half nanoseconds or so; a scan costs one of these a character.
STEP = 3
#: Costs above this are all the same: too much.
_ENORMOUS = 1 << 40


class Walk(NamedTuple):
    """A way through a part of a pattern, cut at its decisions.

    A length is a pair: steps of a fixed cost, and scans, each of which may cost as much as the subject is long.

    Args:
        head: what comes before the first decision.
        tail: what comes after the last one.
        longest: the longest stretch without a decision, head and tail among them.
        decided: whether there is a decision at all; without one, head and tail are the whole.
    """

    head: tuple[int, int] = (0, 0)
    tail: tuple[int, int] = (0, 0)
    longest: tuple[int, int] = (0, 0)
    decided: bool = False

    def then(self, other: Walk) -> Walk:
        """This way, and another one behind it."""
        across = _sum(self.tail, other.head)
        return Walk(
            self.head if self.decided else across,
            other.tail if other.decided else _sum(self.tail, other.tail),
            _max(_max(self.longest, other.longest), across),
            self.decided or other.decided,
        )

    def times(self, count: int) -> Walk:
        """This way, `count` times."""
        if count < 2:
            return self if count else NOWHERE
        if self.decided:
            return self._replace(longest=_max(self.longest, _sum(self.tail, self.head)))
        return straight(self.head[0] * count, self.head[1] * count)

    def beside(self, other: Walk) -> Walk:
        """This way or another one, where a decision lies between them."""
        return Walk((0, 0), _max(self.tail, other.tail), _max(self.longest, other.longest), True)

    def repeated(self, minimum: int, maximum: int | None) -> Walk:
        """A group's way, as often as a quantifier allows."""
        times = self.times(minimum)
        if maximum is None:
            return times.then(DECISION).then(self).then(DECISION)
        return times if maximum == minimum else times.then(DECISION).then(self)


def straight(steps: int, scans: int = 0) -> Walk:
    """A way without decisions."""
    length = (min(steps, _ENORMOUS), min(scans, _ENORMOUS))
    return Walk(length, length, length)


def _sum(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return min(one[0] + other[0], _ENORMOUS), min(one[1] + other[1], _ENORMOUS)


def _max(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return max(one[0], other[0]), max(one[1], other[1])


NOWHERE = Walk()
DECISION = Walk(decided=True)
