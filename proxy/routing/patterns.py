"""Does a regular expression match? PCRE as RabbitMQ's Erlang has it, on bytes, in bounded time.

``pattern_dialect`` says what a pattern means, ``pattern_library`` runs it; here is how long it may run. PCRE2's own
match limit is not enough: it is counted anew for every offset that a match could begin at, and it counts decisions
but not the characters that a repeat walks over in between. So a search has two attempts:

1. the pattern as it is, with a limit so small that all offsets together stay within the budget. It answers nearly
   always; patterns of fixed length get their answer here on long subjects too;
2. where that ran into its limit, the pattern written so that every repeated character is a decision, in front of it
   a lazy run over the offsets: one search from one offset, whose limit is the limit of the whole.

Who runs into the second limit gets None: PCRE gave up as well, later. Sources: pcre2api(3), "The match context";
the open-exchange specification, section 9.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from math import isqrt

from proxy.routing.pattern_dialect import Translation, translate
from proxy.routing.pattern_escapes import InvalidPattern
from proxy.routing.pattern_library import ANCHORED, LIMITS, NO_OPTIONS, NO_START_OPTIMIZE, SIZES, Library, library

__all__ = ["InvalidPattern", "Pattern", "compile_pattern"]

#: What an attempt may cost, the first and the second, in fractions of a nanosecond: each ends within five milliseconds.
_BUDGET, _CAREFUL_BUDGET = 10_000_000, 12_000_000
#: What one decision of the matcher costs, and how many bytes of its frame are copied at the cost of one.
_DECISION, _FRAME_BYTES = 20, 8
_LARGEST_LIMIT = 1 << 20
#: Heap for backtracking: some 50,000 turns of a group. Given back at once.
_HEAP_KIB = 8 * 1024
#: The same for the first attempt, whose heap is kept for the next search.
_KEPT_HEAP_KIB = 1024
#: Longer patterns are refused: reading one of this length takes some fifty milliseconds, and producers may send
#: them. (PCRE 8 ends at 32,767 literal characters.)
_LONGEST_PATTERN = 16384
#: Longer ones have no second attempt, for the same reason.
_LONGEST_CAREFUL = 4096
#: Longer patterns are not kept in the cache, which would bound it in number only.
_LONGEST_KEPT = 1024
_BIT_LENGTHS = 64
_START = SIZES[0]
_OFFSETS = b"(?s:.*?)"


def _decision_cost(said: Translation, frame_bytes: int, size: int) -> int:
    """What a decision costs with all that may follow until the next, on a subject of `size` bytes."""
    return _DECISION + frame_bytes // _FRAME_BYTES + said.steps + said.scans * size


class _Code:
    """Compiled code that gives itself back."""

    __slots__ = ("__weakref__", "_free", "handle")

    def __init__(self, pcre2: Library, text: bytes, options: int) -> None:
        compiled = pcre2.compile(text, options)
        self._free = None
        if isinstance(compiled, str):
            raise InvalidPattern(compiled)
        self.handle = compiled
        self._free = pcre2.free

    def __del__(self) -> None:
        if self._free is not None:
            self._free(self.handle)


class _CarefulSearch:
    """The second attempt: the pattern in its counted form."""

    def __init__(self, pcre2: Library, source: bytes, anchored: bool) -> None:
        self._pcre2 = pcre2
        said = translate(source, pcre2.script, unrolled=True)
        offsets = b"" if anchored else _OFFSETS
        self._code = _Code(pcre2, said.start + offsets + b"(?:" + said.body + b")", ANCHORED)
        self._said = said
        self._frame_bytes = pcre2.frame_bytes(self._code.handle)

    def search(self, subject: bytes) -> bool | None:
        pcre2 = self._pcre2
        limit = _CAREFUL_BUDGET // _decision_cost(self._said, self._frame_bytes, len(subject))
        data = pcre2.new_match_data()
        context = pcre2.match_context(1 << (max(limit, 1).bit_length() - 1), _LARGEST_LIMIT, _HEAP_KIB)
        length = ctypes.c_size_t(len(subject))
        found: int = pcre2.match(self._code.handle, subject, length, _START, NO_OPTIONS, data, context)
        pcre2.free_match_data(data)
        return True if found >= 0 else None if found in LIMITS else False


class Pattern:
    """A compiled pattern. Not for use by several threads at once without the interpreter lock.

    Attributes:
        source: as given to ``compile_pattern``.
    """

    __slots__ = ("_anchored", "_careful", "_code", "_contexts", "_data", "_handle", "_match", "_whole", "source")

    def __init__(self, source: bytes) -> None:
        """See ``compile_pattern``, which is how patterns are made."""
        if not source or len(source) > _LONGEST_PATTERN:
            raise InvalidPattern("empty pattern" if not source else "pattern is too long")
        self.source = source
        pcre2 = library()
        said = translate(source, pcre2.script)
        self._code = _Code(pcre2, said.start + said.body, 0)
        if said.verbs and not pcre2.begins_with_character(self._code.handle):
            # PCRE 8 as Erlang uses it looks for a first character, but does not study the pattern for a set of
            # them; a verb would notice the offsets that are passed over.
            self._code = _Code(pcre2, said.start + said.body, NO_START_OPTIMIZE)
        self._handle = self._code.handle
        self._match = pcre2.match
        self._data = pcre2.match_data
        self._anchored = pcre2.is_anchored(self._handle)
        self._whole = said.whole or said.verbs or len(source) > _LONGEST_CAREFUL
        self._contexts = _contexts(pcre2, said, pcre2.frame_bytes(self._handle), self._anchored)
        self._careful: _CarefulSearch | None = None

    def search(self, subject: bytes) -> bool | None:
        """Whether the pattern matches somewhere in `subject`; None where PCRE's limits were hit first.

        The broker takes that for "no match": false, and true for a negated operator.
        """
        size = len(subject)
        context = self._contexts[size.bit_length()]
        if context is not None:
            length = SIZES[size] if size < len(SIZES) else ctypes.c_size_t(size)
            found = self._match(self._handle, subject, length, _START, NO_OPTIONS, self._data, context)
            if found >= 0:
                return True
            if found not in LIMITS:
                return False
        return self._search_carefully(subject)

    def _search_carefully(self, subject: bytes) -> bool | None:
        if self._whole:
            return None
        if self._careful is None:
            try:
                self._careful = _CarefulSearch(library(), self.source, self._anchored)
            except InvalidPattern:  # its counted form is longer than PCRE2 takes
                self._whole = True
                return None
        return self._careful.search(subject)


def _contexts(
    pcre2: Library, said: Translation, frame_bytes: int, anchored: bool
) -> tuple[ctypes.c_void_p | None, ...]:
    """Match contexts by the bit length of a subject's size; None where no limit is small enough."""
    contexts: list[ctypes.c_void_p | None] = []
    for bits in range(_BIT_LENGTHS):
        size = (1 << bits) - 1
        offsets = 1 if anchored else size + 1
        limit = _BUDGET // (offsets * _decision_cost(said, frame_bytes, size))
        if said.skips_to_marks:
            limit = isqrt(limit)
        limit = min(limit, _LARGEST_LIMIT)
        if not limit:
            break
        contexts.append(pcre2.match_context(1 << (limit.bit_length() - 1), _LARGEST_LIMIT, _KEPT_HEAP_KIB))
    return tuple(contexts) + (None,) * (_BIT_LENGTHS - len(contexts))


_kept = lru_cache(maxsize=4096)(Pattern)


def compile_pattern(source: bytes) -> Pattern:
    """Compile `source`, or find it compiled.

    Raises:
        InvalidPattern: it is empty, or PCRE 8 would not compile it. The message never quotes the pattern.
    """
    return _kept(source) if len(source) <= _LONGEST_KEPT else Pattern(source)


def why_invalid(source: bytes) -> str:
    """Say why a pattern does not compile, and where, as far as that is known; "" where it compiles."""
    try:
        compile_pattern(source)
    except InvalidPattern as error:
        # What is compiled is a translation. The pattern itself mostly has the same fault, and an offset of its own.
        fault = library().fault(source) if source else None
        return str(error) if fault is None else f"{fault[0]} at offset {fault[1]}"
    return ""
