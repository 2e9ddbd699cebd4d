"""Searches bytes for regular expressions with unmodified PCRE2, and limits the cost of each search.

Patterns are written in PCRE2's own language, pcre2pattern(3), and are not translated. They are compiled with character
tables for Latin-1. The system's ``libpcre2-8``, called through ctypes, runs them.

**Cost of a search.** Producers choose subjects, and clients choose patterns, so both may be hostile. PCRE2's match
limit counts match steps, which are calls to PCRE2's internal ``match()``. The count restarts at every offset at which a
match could begin. Between match steps, a repeat may scan the rest of the subject, and this scan is not counted. A
pattern therefore has two forms:

1. The *written* form is the pattern as written, compiled to machine code if the system permits executable memory. The
   worst case of a search is the product of the match limit, the number of offsets and the length of a scan; the limit
   is chosen so that this product is small. PCRE2 skips offsets at which no match can begin, so most searches take less
   than a microsecond, but only the worst case is known in advance.
2. The *counted* form is the pattern, preceded by ``(?s:.*?)`` unless it is anchored, and compiled with
   ``PCRE2_ANCHORED`` and ``PCRE2_NO_AUTO_POSSESS``. It is a single search from one offset, in which each scanned
   character that backtracking gives back counts as a match step. The limit applies to the whole search. Only the
   interpreter counts in this way: machine code does not count scanned characters that the next literal can't follow
   (measured: 3 s for ``[a-y]*z|q`` on 131,000 bytes). If a pattern contains constructs that scan without match steps
   (``_SCANS``, ``_COMPARES``), each step is charged as a scan of the whole subject, so such patterns reach the limit on
   shorter subjects. Patterns with backtracking verbs or recursion into the whole pattern (``_WHOLE``) have no counted
   form; the worst case of their written form is charged instead.

**Cost of a decision.** A `Budget` has the same unit as the match limit: one match step, about 10 ns. A search is tried
with increasing limits, each of which is charged. The charge therefore exceeds the actual cost by at most a constant
factor, and equal searches have equal charges. Searches that cost little more than the call itself (``_FREE_UNITS``) are
free, so a budget does not limit the number of patterns. Other searches try the written form first, until the worst
cases of these attempts add up to a quarter of the budget (``Budget.unproven``). Therefore, all searches with one budget
together cost at most 1.25 times the budget, plus four microseconds per search. The number of searches that a client or
a message can cause is limited by the budget's steps, together with other work whose amount they choose (`Budget.take`).

Every call holds the interpreter lock (``PyDLL``), since most searches take less time than releasing and reacquiring the
lock, and the limits bound the others. All patterns can therefore share one match data block and one JIT stack.

Sources: pcre2api(3), "The match context"; pcre2jit(3), "Controlling the JIT stack"; pcre2_chartables.c for the layout
of character tables.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import re
from functools import cache, lru_cache
from math import prod
from typing import Final

_LIBRARY = "libpcre2-8.so.0"
_ANCHORED, _NO_AUTO_POSSESS, _NO_START_OPTIMIZE = 0x80000000, 0x00004000, 0x00010000
_INFO_ALLOPTIONS, _INFO_JITSIZE, _INFO_SIZE, _INFO_FRAMESIZE = 0, 10, 22, 24
_JIT_COMPLETE = 1
#: Number of the version in pcre2_config(3), and a size that is sufficient for its text.
_CONFIG_VERSION, _LONGEST_VERSION = 11, 64
_NO_MATCH = -1
#: Return codes that mean that a search was abandoned: JIT stack, match limit, memory, depth limit, heap limit.
_GAVE_UP = frozenset({-46, -47, -48, -53, -63})

#: Maximum length of a pattern and of a cached pattern, in bytes, and maximum number of cached patterns. The limits are
#: required because producers may send patterns.
_LONGEST_PATTERN, _LONGEST_KEPT, _KEPT = 16384, 1024, 512
#: Patterns with larger compiled code are interpreted, since machine code takes up to fifteen times the memory.
_LARGEST_JIT = 4096
#: Maximum depth of nested groups.
_NESTING_LIMIT = 1000
#: Heap for the interpreter and stack for machine code. They are kept between searches, since allocating memory costs
#: more than a search.
_HEAP_KIB = 4096
_STACK_BYTES = 4 << 20

#: Estimated work for a match step; number of bytes of the interpreter's frame that are copied per unit of work; and
#: work for a scanned character in the written form if the pattern contains a `_SLOW` construct. In other patterns, a
#: scanned character counts as one unit. A compared character always counts as one unit.
_DECISION, _FRAME_BYTES, _SLOW_WALK = 40, 6, 8
#: Cost per character of scans that the counted form makes without match steps: normally, and with a construct in
#: `_SLOW_SCANS`.
_SCAN, _SLOW_SCAN = 3, 16
#: Default budget for one owner's searches in a decision, in units; about 10 ms.
DEFAULT_BUDGET = 1_000_000
#: Cost of a step (see `Budget.take`) in units; a step takes about 0.2 us. Steps that a free search takes.
_STEP_UNITS: Final = 20
FREE_SEARCH_STEPS: Final = 5
#: Largest charge for one search.
_SEARCH_UNITS = 330_000
#: Searches that cost no more than this are free.
_FREE_UNITS = 400
_FREE_WORK = _FREE_UNITS * _DECISION
#: Maximum worst-case cost of a search in the written form with a match limit of one.
_LONGEST_PLAIN_UNITS = 250_000
#: Factor between successive match limits of a search, and the largest limit.
_GROWTH, _LARGEST_LIMIT = 8, 1 << 20

#: Constructs that can make a search scan further than the length of the pattern.
_WALKS = re.compile(rb"[*+]|,\}|\\[XRkg1-9]|\(\?[P&R(0-9+-]")
#: Lookarounds. Patterns that contain them are compiled without PCRE2's start optimization, which is wrong for some of
#: them: PCRE2 10.42 finds no match for ``(?=b)b|(?=b)ab`` in ``b``.
_LOOKAROUNDS = re.compile(rb"\(\?<?[=!*]|\(\*[a-z]")
#: Constructs that take longer for each scanned character: Unicode properties, back references, subroutine calls.
_SLOW = re.compile(rb"\(\*U|\\[XRkg1-9]|\(\?[P&R0-9+-]")
_COUNTS = re.compile(rb"\{([0-9]{1,9})(?:,([0-9]{1,9}))?")
#: Constructs that scan without match steps even in the counted form: possessive repeats, atomic groups, lookarounds,
#: subroutine calls and conditional groups; also free spacing and quoting, which may hide such constructs.
_SCANS = re.compile(rb"[*+?}]\+|\(\?(?!:|#|\||P?<[^=!]|P=|'|[imsUJ-]+[:)])|\\[QEX]|\\g[<']")
#: Back references, which compare characters without match steps.
_COMPARES = re.compile(rb"\\[1-9gk]|\(\?P=")
#: Constructs that make the scans without match steps slower.
_SLOW_SCANS = re.compile(rb"\(\*U|\\[XRpP]|\\g[<']|\(\?(?:P>|[&0-9+-])")
#: Constructs whose meaning would change in the counted form: backtracking verbs, and recursion into the whole pattern.
_WHOLE = re.compile(rb"\(\*|\(\?(?:R|0)|\\g[<'][+-]?0")
#: Settings, which must come first in a pattern.
_SETTINGS = re.compile(rb"\A(?:\(\*(?:UTF|UCP)\))*")

_SIZES = tuple(ctypes.c_size_t(size) for size in range(256))
#: Number of subject sizes that share a match context for free searches, and its logarithm.
_SIZE_STEP, _SIZE_BITS = 16, 4
_START, _NO_OPTIONS = _SIZES[0], ctypes.c_uint32(0)


class InvalidPattern(ValueError):  # noqa: N818 - describes the pattern, not an internal error
    """An invalid pattern. The message is the reason, such as PCRE2's message with an offset, without the pattern."""


class MissingLibraryError(ImportError):
    """PCRE2 is not installed."""


class Budget:
    """Limits the cost of one owner's searches in one decision.

    Args:
        units: see the module docstring.

    Attributes:
        left: remaining units.
        unproven: units left for the worst cases of searches in the written form.
        spent: whether a search was abandoned because the budget was too small. No further searches are then started.
        exceeded: whether a search was abandoned or not started because the budget was too small. Callers reset it to
            False.
        match_limit_hits: number of searches that were abandoned although the budget was sufficient.
        steps: remaining steps for work other than charged searches (see `take`).
    """

    __slots__ = ("exceeded", "left", "match_limit_hits", "spent", "steps", "unproven")

    def __init__(self, units: int = DEFAULT_BUDGET) -> None:
        self.left: int = units
        self.unproven: int = units >> 2
        self.spent: bool = False
        self.exceeded: bool = False
        self.match_limit_hits: int = 0
        self.steps: int = units // _STEP_UNITS

    def take(self, steps: int) -> bool:
        """Take steps for visited bindings, names in messages and free searches; return False if too few are left.

        From then on, no more steps can be taken. Charged searches use other units, and may continue.
        """
        self.steps -= steps
        return self.steps >= 0


def _power(limit: int) -> int:
    """Return the largest power of two up to a limit, or 0 for 0. This keeps the number of match contexts small."""
    return 1 << (min(limit, _LARGEST_LIMIT).bit_length() - 1) if limit else 0


def latin1_tables() -> bytes:
    """Return character tables for Latin-1. PCRE2 could generate them only from a locale that few installations have.

    Returns:
        The lower-case table, case-flip table, class bitmaps and type bits, 1,088 bytes in total.
    """
    text = bytes(range(256)).decode("latin-1")
    lower = bytes(ord(char.lower()) for char in text)
    upper = {code: at for at, code in enumerate(lower) if code != at}
    flip = bytes(lower[at] if lower[at] != at else upper.get(at, at) for at in range(256))
    alpha, low, up = (bytes(map(test, text)) for test in (str.isalpha, str.islower, str.isupper))
    space, digit = (bytes(char in members for char in text) for members in ("\t\n\v\f\r ", "0123456789"))
    xdigit = bytes(char in "0123456789abcdefABCDEF" for char in text)
    word = bytes(alpha[at] or digit[at] or char == "_" for at, char in enumerate(text))
    graph = bytes(0x21 <= at <= 0x7E or at >= 0xA0 for at in range(256))
    printed = bytes(graph[at] or at == 0x20 for at in range(256))
    punct = bytes(graph[at] and not alpha[at] and not digit[at] for at in range(256))
    cntrl = bytes(at < 0x20 or 0x7F <= at <= 0x9F for at in range(256))
    classes = (space, xdigit, digit, up, low, word, graph, printed, punct, cntrl)
    # Bit n of a bitmap stands for byte n.
    bitmaps = b"".join(sum(bit << at for at, bit in enumerate(members)).to_bytes(32, "little") for members in classes)
    types = bytes(
        sum(members[at] << bit for bit, members in enumerate((space, alpha, low, digit, word))) for at in range(256)
    )
    return lower + flip + bitmaps + types


def _load() -> ctypes.PyDLL:
    """Load the library, under the name that Linux uses or another name that the system knows, as on macOS."""
    try:
        return ctypes.PyDLL(_LIBRARY)
    except OSError as error:
        found = ctypes.util.find_library("pcre2-8")
        if found is None:
            raise MissingLibraryError(f"{_LIBRARY} is missing: install PCRE2 (Debian: libpcre2-8-0)") from error
        return ctypes.PyDLL(found)


class _Library:
    """The loaded PCRE2 library, with its compile context, match contexts, match data block and JIT stack."""

    def __init__(self) -> None:
        self._pcre2 = pcre2 = _load()
        for name in ("compile_context_create", "match_context_create", "match_data_create", "jit_stack_create"):
            getattr(pcre2, f"pcre2_{name}_8").restype = ctypes.c_void_p
        pcre2.pcre2_compile_8.restype = ctypes.c_void_p
        pcre2.pcre2_code_free_8.argtypes = [ctypes.c_void_p]
        pcre2.pcre2_code_free_8.restype = None
        self.free = pcre2.pcre2_code_free_8
        self._tables = ctypes.create_string_buffer(latin1_tables(), 1088)
        self._context = ctypes.c_void_p(pcre2.pcre2_compile_context_create_8(None))
        pcre2.pcre2_set_character_tables_8(self._context, self._tables)
        pcre2.pcre2_set_parens_nest_limit_8(self._context, ctypes.c_uint32(_NESTING_LIMIT))
        if hasattr(pcre2, "pcre2_set_max_varlookbehind_8"):  # PCRE2 10.43 and later support variable-length lookbehind
            pcre2.pcre2_set_max_varlookbehind_8(self._context, ctypes.c_uint32(0))
        #: None if the system forbids executable memory. The stack's pages are allocated when a search first needs them.
        self._stack = pcre2.pcre2_jit_stack_create_8(ctypes.c_size_t(1 << 15), ctypes.c_size_t(_STACK_BYTES), None)
        #: One pair of offsets suffices, since only the existence of a match matters.
        self.data = ctypes.c_void_p(pcre2.pcre2_match_data_create_8(ctypes.c_uint32(1), None))
        #: Match contexts, indexed by the bit length of the limit, which is a power of two. In `root_contexts`, each
        #: limit is replaced by its square root.
        self.contexts = [self._match_context((1 << bits) >> 1) for bits in range(_LARGEST_LIMIT.bit_length() + 1)]
        self.root_contexts = [self.contexts[(bits + 1) // 2] for bits in range(len(self.contexts))]
        # No argtypes are set, since their conversions double the time of a call. All arguments are ctypes objects or
        # bytes.
        self.match = pcre2.pcre2_match_8
        self.match.restype = ctypes.c_int

    def compile(self, text: bytes, options: int) -> ctypes.c_void_p:
        """Compile a pattern.

        Raises:
            InvalidPattern: the pattern is invalid. The message is PCRE2's reason.
        """
        number, offset = ctypes.c_int(), ctypes.c_size_t()
        code = self._pcre2.pcre2_compile_8(
            ctypes.c_char_p(text),
            ctypes.c_size_t(len(text)),
            ctypes.c_uint32(options),
            ctypes.byref(number),
            ctypes.byref(offset),
            self._context,
        )
        if code:
            return ctypes.c_void_p(code)
        words = ctypes.create_string_buffer(256)
        self._pcre2.pcre2_get_error_message_8(number, words, ctypes.c_size_t(256))
        raise InvalidPattern(f"{words.value.decode('ascii', 'replace')} at offset {offset.value}")

    def jit(self, code: ctypes.c_void_p) -> bool:
        """Compile to machine code; return True if searches will use the machine code."""
        if self.info(code, _INFO_SIZE) > _LARGEST_JIT:
            return False
        self._pcre2.pcre2_jit_compile_8(code, ctypes.c_uint32(_JIT_COMPLETE))
        return self.info(code, _INFO_JITSIZE) > 0  # a pattern may forbid it with (*NO_JIT)

    def info(self, code: ctypes.c_void_p, field: int) -> int:
        value = ctypes.c_size_t()  # initialized to zero, since the library may write a smaller integer
        self._pcre2.pcre2_pattern_info_8(code, ctypes.c_uint32(field), ctypes.byref(value))
        return value.value

    def _match_context(self, limit: int) -> ctypes.c_void_p:
        """Return a new match context. A pattern's own (*LIMIT_...) can only lower the limits."""
        context = ctypes.c_void_p(self._pcre2.pcre2_match_context_create_8(None))
        self._pcre2.pcre2_set_match_limit_8(context, ctypes.c_uint32(limit))
        self._pcre2.pcre2_set_heap_limit_8(context, ctypes.c_uint32(_HEAP_KIB))
        if self._stack:
            self._pcre2.pcre2_jit_stack_assign_8(context, None, ctypes.c_void_p(self._stack))
        return context


_library = cache(_Library)


def library_version() -> str:
    """Return the version of PCRE2, e.g. ``10.42``.

    Raises:
        MissingLibraryError: PCRE2 is not installed; the message names the package.
    """
    text = ctypes.create_string_buffer(_LONGEST_VERSION)
    _load().pcre2_config_8(ctypes.c_uint32(_CONFIG_VERSION), text)
    return text.value.decode("ascii").partition(" ")[0]  # followed by the date of the release


def jit_compiles() -> bool:
    """Return True if patterns run as machine code, and False if the system forbids executable memory.

    Raises:
        MissingLibraryError: PCRE2 is not installed; the message names the package.
    """
    return _Code(b"a", 0, b"a").jit


class _Code:
    """Compiled code, freed with the object.

    Args:
        text: the pattern to pass to PCRE2, in its written or counted form.
        source: the pattern as written, from which the repeat counts are read.
        counted: whether the interpreter has to run the code.

    Attributes:
        handle: the library's pointer to the code.
        jit: whether the code is machine code.
        anchored: whether a match can start only at the first offset.
        weight: estimated work of a match step and of everything before the next step, except for scans.
    """

    __slots__ = ("_free", "anchored", "handle", "jit", "weight")

    def __init__(self, text: bytes, options: int, source: bytes, counted: bool = False) -> None:
        pcre2 = _library()
        self._free = None
        self.handle = pcre2.compile(text, options | (_NO_START_OPTIMIZE if _LOOKAROUNDS.search(source) else 0))
        self._free = pcre2.free
        self.anchored: bool = bool(pcre2.info(self.handle, _INFO_ALLOPTIONS) & _ANCHORED)
        self.jit: bool = not counted and pcre2.jit(self.handle)
        counts = [int(most or least) for least, most in _COUNTS.findall(source)]
        straight = len(source) * prod(counts) if b"){" in source else len(source) + sum(counts)
        frame = 0 if self.jit else pcre2.info(self.handle, _INFO_FRAMESIZE)
        weight = _DECISION + frame // _FRAME_BYTES + straight
        self.weight: int = weight * 3 // 2 if text.startswith(b"(*U") else weight  # a step in Unicode takes longer

    def __del__(self) -> None:
        if self._free is not None:
            self._free(self.handle)


def _scan_work(text: bytes) -> int:
    """Return the cost per character of the counted form's scans without match steps; 0 if there are none."""
    scans = _SCANS.search(text)
    if scans is None and _COMPARES.search(text) is None:
        return 0
    if _SLOW_SCANS.search(text):
        return _SLOW_SCAN
    return _SCAN if scans else 1


class Pattern:
    """A compiled pattern. Threads may share it, since searches hold the interpreter lock.

    Attributes:
        source: the pattern as given to ``compile_pattern``.
    """

    __slots__ = (
        "_anchored",
        "_code",
        "_contexts",
        "_counted",
        "_data",
        "_free_contexts",
        "_handle",
        "_match",
        "_scan",
        "_text",
        "_walk",
        "_weight",
        "source",
    )

    def __init__(self, source: bytes) -> None:
        if not source or len(source) > _LONGEST_PATTERN:
            raise InvalidPattern("empty pattern" if not source else f"longer than {_LONGEST_PATTERN} bytes")
        self.source: Final = source
        text = source.partition(b"\0")[0]  # in the broker's library, a pattern ends at the first zero byte
        pcre2 = _library()
        self._text: Final = text
        self._code: Final = _Code(text, 0, text)
        self._match: Final = pcre2.match
        self._handle: Final = self._code.handle
        self._data: Final = pcre2.data
        # If the mark of a (*SKIP:NAME) is missing, PCRE2 restarts the search at the same offset, and the limit applies
        # to each restart.
        self._contexts: Final = pcre2.root_contexts if b"(*SKIP:" in text else pcre2.contexts
        self._anchored: Final = self._code.anchored
        self._weight: Final = self._code.weight
        self._walk: Final = 0 if _WALKS.search(text) is None else _SLOW_WALK if _SLOW.search(text) else 1
        self._scan: Final = _scan_work(text)
        #: The counted form; None until it is needed; the written form if there is no counted form.
        self._counted: _Code | None = None
        #: Match contexts for searches that are not charged to a budget, by subject size in steps of _SIZE_STEP. None:
        #: searches of this size may be charged.
        self._free_contexts: Final = tuple(
            self._free_context(self._worst_case(largest)) for largest in range(_SIZE_STEP - 1, 256, _SIZE_STEP)
        )

    def search(self, subject: bytes, budget: Budget) -> bool | None:
        """Return True if the pattern matches anywhere in the subject; None if the search was abandoned.

        Args:
            budget: the budget to which the cost is charged. If the search is abandoned, the budget records the reason.
        """
        size = len(subject)
        if size > 255 or budget.spent:
            return self._search_priced(subject, budget)
        context = self._free_contexts[size >> _SIZE_BITS]
        if context is None:
            return self._search_priced(subject, budget)
        result = self._match(self._handle, subject, _SIZES[size], _START, _NO_OPTIONS, self._data, context)
        if result == _NO_MATCH:
            return False
        if result >= 0:
            return True
        return False if result not in _GAVE_UP else self._search_charged(subject, self._worst_case(size), budget)

    def _worst_case(self, size: int) -> int:
        """Return the worst-case work of the written form with a match limit of one, on a subject of the given size."""
        work = self._weight + size * self._walk
        return work if self._anchored else work * (size + 1)

    def _free_context(self, work: int) -> ctypes.c_void_p | None:
        return self._contexts[(_FREE_WORK // work).bit_length()] if work <= _FREE_WORK else None

    def _search_priced(self, subject: bytes, budget: Budget) -> bool | None:
        """Search in the written form if its worst case is free or does not exceed `Budget.unproven`."""
        if budget.spent:
            budget.exceeded = True
            return None
        size = len(subject)
        work = self._worst_case(size)
        context = self._free_context(work)
        if context is None:
            units = work // _DECISION
            if units > budget.unproven or units > _LONGEST_PLAIN_UNITS:
                return self._search_charged(subject, work, budget)
            budget.unproven -= units
            context = self._contexts[1]
        length = ctypes.c_size_t(size)
        result = self._match(self._handle, subject, length, _START, _NO_OPTIONS, self._data, context)
        if result >= 0:
            return True
        if result not in _GAVE_UP:
            return False
        return self._search_charged(subject, work, budget)

    def _search_charged(self, subject: bytes, work: int, budget: Budget) -> bool | None:
        """Search with increasing limits. Each limit is charged before it is tried.

        Args:
            work: worst case of the written form with a match limit of one.
        """
        code = self._counted
        if code is None:
            code = self._counted = self._compile_counted()
        if code is not self._code:
            work = code.weight + len(subject) * self._scan
        limit = _power(_FREE_WORK // work)
        free = limit > 0
        limit = limit or 1
        length = ctypes.c_size_t(len(subject))
        left = _SEARCH_UNITS
        last = False
        while not last:
            units = 0 if free else work * limit // _DECISION
            most = min(left, budget.left)
            last = units > most
            if last:
                budget.spent = budget.spent or budget.left < left
                limit = _power(most * _DECISION // work)
                if limit == 0:
                    break
                units = work * limit // _DECISION
            free = False
            left -= units
            budget.left -= units
            context = self._contexts[limit.bit_length()]
            result = self._match(code.handle, subject, length, _START, _NO_OPTIONS, self._data, context)
            if result >= 0:
                return True
            if result not in _GAVE_UP:
                return False
            limit *= _GROWTH
        if budget.spent:
            budget.exceeded = True
        else:
            budget.match_limit_hits += 1
        return None

    def _compile_counted(self) -> _Code:
        """Return the counted form, or the written form if there is no counted form."""
        text = _SETTINGS.sub(b"", self._text)
        settings = self._text.removesuffix(text)
        if _WHOLE.search(text):
            return self._code
        offsets = b"" if self._code.anchored else b"(?s:.*?)"
        # The end of the pattern may be quoted (\\Q), or be a comment, which ends at a line break.
        for end in (b"\\E)", b"\n)"):
            try:
                form = b"%s%s(?:%s%s" % (settings, offsets, text, end)
                return _Code(form, _ANCHORED | _NO_AUTO_POSSESS, self._text, counted=True)
            except InvalidPattern:
                continue
        return self._code  # the counted form exceeds PCRE2's limits for size or nesting


_kept = lru_cache(maxsize=_KEPT)(Pattern)


def compile_pattern(source: bytes) -> Pattern:
    """Compile a pattern. Compiled patterns are cached.

    Raises:
        InvalidPattern: the pattern is empty, too long, or not valid in PCRE2.
    """
    return _kept(source) if len(source) <= _LONGEST_KEPT else Pattern(source)


def why_invalid(source: bytes) -> str:
    """Return the reason why a pattern does not compile; "" if it compiles."""
    try:
        compile_pattern(source)
    except InvalidPattern as error:
        return str(error)
    return ""
