"""Which groups of a pattern are open, which numbers do they have, and what could match nothing?

The bookkeeping of ``pattern_dialect``, without a word of syntax. Emptiness is needed because PCRE 8 refuses a
recursion that could come back to itself without having read anything; ``pattern_cost`` is kept up on the way.
Source: pcrepattern(3) of PCRE 8.44, "Duplicate subpattern numbers" and "Recursive patterns".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from proxy.routing.pattern_cost import DECISION, NOWHERE, STEP, Walk, straight
from proxy.routing.pattern_escapes import InvalidPattern


class Opening(Enum):
    """What kind of group stands open."""

    PLAIN = auto()
    CAPTURE = auto()
    ASSERTION = auto()
    CONDITION = auto()
    DEFINE = auto()


class Repeat(Enum):
    """How a quantifier behind an item is taken."""

    SINGLE = auto()
    SPAN = auto()  # no group, and of no fixed length
    GROUP = auto()
    ASSERTION = auto()  # once or not at all
    IGNORED = auto()


class Item(NamedTuple):
    """What a quantifier would apply to.

    Args:
        repeat: how it would apply.
        start: where the item begins in the output.
        was_empty: whether the branch could match nothing before the item.
        before: the branch's walk before it.
        walk: its own.
    """

    repeat: Repeat
    start: int
    was_empty: bool
    before: Walk
    walk: Walk


@dataclass(slots=True)
class Level:
    """One open group.

    Args:
        opening: its kind.
        options: those in force before it, to be restored behind it.
        start: where it begins in the output.
        number: its capture number, 0 if it has none (the whole pattern is number 0).
        reset: groups opened before it, for a group whose branches share numbers.
        lookbehind: what it matches is part of a look-behind.
        conditional: it, or a group around it, is a condition's.
        awaits_assertion: a condition whose assertion has not been read yet.
        highest: greatest number in its branches so far.
        empty: whether the branch so far can match nothing.
        any_empty: whether a finished branch can.
        branches: how many it has.
        walk: the way through the branch so far.
        other_walks: those through its finished branches.
    """

    opening: Opening
    options: int
    start: int
    number: int = 0
    reset: int | None = None
    lookbehind: bool = False
    conditional: bool = False
    awaits_assertion: bool = False
    highest: int = 0
    empty: bool = True
    any_empty: bool = False
    branches: int = 1
    walk: Walk = NOWHERE
    other_walks: Walk | None = None

    def through(self) -> Walk:
        """The way through the group as a whole."""
        if self.other_walks is None:
            return self.walk
        if self.opening is Opening.CONDITION:  # its branch is chosen without a decision
            return self.other_walks.then(self.walk)
        return DECISION.then(self.other_walks.beside(self.walk))


class Groups:
    """All groups of one pattern while it is read."""

    def __init__(self) -> None:
        """Begin with the pattern itself as the only open group."""
        self.levels = [Level(Opening.PLAIN, 0, 0)]
        self.captures = 0
        self._names: dict[bytes, int] = {}
        self._closed: dict[int, bool] = {}

    @property
    def top(self) -> Level:
        """The innermost open group."""
        return self.levels[-1]

    def open(self, opening: Opening, options: int, start: int, name: bytes = b"") -> Level:
        """Open a group; a capture gets the next number."""
        level = Level(opening, options, start)
        level.lookbehind = self.top.lookbehind and opening is not Opening.ASSERTION
        level.conditional = self.top.conditional or opening in (Opening.CONDITION, Opening.DEFINE)
        if opening is Opening.CAPTURE:
            self.captures += 1
            level.number = self.captures
            if name:
                self._names.setdefault(name, level.number)
        self.levels.append(level)
        return level

    def branch(self) -> None:
        """An alternative begins."""
        level = self.top
        level.any_empty |= level.empty
        level.empty = True
        level.other_walks, level.walk = level.through(), NOWHERE
        level.branches += 1
        if level.reset is not None:
            level.highest = max(level.highest, self.captures)
            self.captures = level.reset

    def close(self) -> tuple[Level, Item | None]:
        """Close the innermost group.

        Returns:
            the group, and the item that it is now; None where it can't be repeated.
        """
        if len(self.levels) == 1:
            raise InvalidPattern("unmatched )")
        level = self.levels.pop()
        self.captures = max(self.captures, level.highest)
        empty = level.empty or level.any_empty or (level.opening is Opening.CONDITION and level.branches == 1)
        if level.number:
            self._closed[level.number] = empty
        repeat = {
            Opening.ASSERTION: Repeat.ASSERTION,
            Opening.DEFINE: Repeat.IGNORED,
        }.get(level.opening, Repeat.GROUP)
        walk = straight(2 * STEP).then(level.through())
        if repeat is Repeat.ASSERTION:
            walk = DECISION.then(walk)
        item = self.item(repeat, level.start, empty or repeat is not Repeat.GROUP, walk)
        if self.top.awaits_assertion:
            self.top.awaits_assertion = False
            return level, None
        return level, item

    def item(self, repeat: Repeat, start: int, empty: bool, walk: Walk) -> Item:
        """Add an item to the innermost group.

        Args:
            repeat: how a quantifier would apply.
            start: where it begins in the output.
            empty: whether it can match nothing.
            walk: the way through it.
        """
        level = self.top
        item = Item(repeat, start, level.empty, level.walk, walk)
        level.empty &= empty
        level.walk = level.walk.then(walk)
        return item

    def repeated(self, item: Item, minimum: int, walk: Walk) -> None:
        """A quantifier applies to the item.

        Args:
            item: the last item.
            minimum: least number of times.
            walk: the way through its repeats.
        """
        level = self.top
        level.walk = item.before.then(walk)
        if not minimum:
            level.empty = item.was_empty
            if level.lookbehind and item.repeat in (Repeat.GROUP, Repeat.ASSERTION):
                raise InvalidPattern("look-behind of variable length")

    def called(self, group: bytes) -> bool:
        """A subroutine call.

        Args:
            group: number, signed number, or ``&`` and a name.

        Returns:
            whether what is called can match nothing.

        Raises:
            InvalidPattern: it could come back to this call without having read anything.
        """
        number = self._number(group)
        numbers = [level.number for level in self.levels]  # the first is 0: the pattern itself, always open
        if number not in numbers:
            return self._closed.get(number, True)
        around = self.levels[numbers.index(number) :] if number else self.levels
        if all(level.empty for level in around) and not self.top.conditional:
            raise InvalidPattern("recursive call could loop indefinitely")
        return True

    def numbered_or_false(self, condition: bytes) -> bool:
        """Whether ``R`` and digits, used as a condition, names a group or a number that exists."""
        return condition in self._names or int(condition[1:][-9:] or b"0") <= self.captures

    def _number(self, group: bytes) -> int:
        if group.startswith(b"&"):
            return self._names.get(group[1:], -1)
        if group.startswith(b"+"):
            return self.captures + int(group[-10:])
        if group.startswith(b"-"):
            return self.captures + 1 - int(group[-10:].lstrip(b"-"))
        return int(group[-10:])
