"""How is the system's PCRE2 called? The ctypes side of ``patterns``; nothing else knows its symbols.

It compiles ready PCRE2 text and hands out match contexts; dialects and the size of limits are not its concern.
Every call is made holding the interpreter lock (``PyDLL``): a search is shorter than giving the lock away and
getting it back, and one match block can then serve all patterns.

Sources: pcre2api(3); pcre2_chartables.c for the layout of character tables.
"""

from __future__ import annotations

import ctypes
from functools import cache

_LIBRARY = "libpcre2-8.so.0"

ANCHORED = 0x80000000
NO_START_OPTIMIZE = 0x00010000
#: Return codes that say "gave up", not "no": match limit, out of memory, depth limit, heap limit.
LIMITS = frozenset({-47, -48, -53, -63})

#: Groups in each other; Erlang's stack ends it at about as many.
_NESTING_LIMIT = 1000
_CONFIG_VERSION = 11
_TABLES_BYTES = 1088
_INFO_ALLOPTIONS = 0
_INFO_FIRSTCODETYPE = 6
_INFO_FRAMESIZE = 24


#: Ready arguments of ``match``: an offset or a size, and the options.
SIZES = tuple(ctypes.c_size_t(size) for size in range(256))
NO_OPTIONS = ctypes.c_uint32(0)


class MissingLibraryError(ImportError):
    """PCRE2 is not installed."""


def _span(*ranges: tuple[int, int]) -> frozenset[int]:
    return frozenset(byte for first, last in ranges for byte in range(first, last + 1))


_UPPER = _span((0x41, 0x5A), (0xC0, 0xD6), (0xD8, 0xDE))
_LOWER = _span((0x61, 0x7A), (0xAA, 0xAA), (0xB5, 0xB5), (0xBA, 0xBA), (0xDF, 0xF6), (0xF8, 0xFF))
_DIGIT = _span((0x30, 0x39))
_SPACE = _span((0x09, 0x0D), (0x20, 0x20))
_GRAPH = _span((0x21, 0x7E), (0xA0, 0xFF))
_WORD = _UPPER | _LOWER | _DIGIT | {0x5F}
#: Latin-1 as Erlang's regular expressions see it, in the order of PCRE2's class bitmaps.
_CLASSES = (
    _SPACE,
    _DIGIT | _span((0x41, 0x46), (0x61, 0x66)),
    _DIGIT,
    _UPPER,
    _LOWER,
    _WORD,
    _GRAPH,
    _GRAPH | {0x20},
    _GRAPH - _UPPER - _LOWER - _DIGIT,
    _span((0x00, 0x1F), (0x7F, 0x9F)),
)
_TYPES = ((_SPACE, 0x01), (_UPPER | _LOWER, 0x02), (_LOWER, 0x04), (_DIGIT, 0x08), (_WORD, 0x10))
#: Lower-case letters without an upper-case partner in Latin-1.
_SINGLE = frozenset({0xAA, 0xB5, 0xBA, 0xDF, 0xFF})


def latin1_tables() -> bytes:
    """Character tables for Latin-1, as ``pcre2_maketables`` would build them under such a locale.

    Built here since hardly any installation has a Latin-1 locale.

    Returns:
        lower-case table, case-flip table, class bitmaps, type bits: 1,088 bytes.
    """
    lower = bytes(byte + 0x20 if byte in _UPPER else byte for byte in range(256))
    flip = bytes(
        byte - 0x20 if byte in _LOWER - _SINGLE else lowered for byte, lowered in zip(range(256), lower, strict=True)
    )
    bitmaps = b"".join(
        sum(1 << byte for byte in members).to_bytes(32, "little") for members in _CLASSES
    )  # bit n of a bitmap is byte n
    types = bytes(sum(bit for members, bit in _TYPES if byte in members) for byte in range(256))
    return lower + flip + bitmaps + types


class Library:
    """The loaded PCRE2 with its compile context, match block and match contexts."""

    def __init__(self) -> None:
        """Load it; see ``library``."""
        try:
            pcre2 = ctypes.PyDLL(_LIBRARY)
        except OSError as error:
            raise MissingLibraryError(f"{_LIBRARY} is missing: install PCRE2 (Debian: libpcre2-8-0)") from error
        self._pcre2 = pcre2
        for name in ("compile_context_create", "match_context_create", "match_data_create", "compile"):
            getattr(pcre2, f"pcre2_{name}_8").restype = ctypes.c_void_p
        pcre2.pcre2_code_free_8.argtypes = [ctypes.c_void_p]
        pcre2.pcre2_code_free_8.restype = None
        self._tables = ctypes.create_string_buffer(latin1_tables(), _TABLES_BYTES)
        self._compile_context = ctypes.c_void_p(pcre2.pcre2_compile_context_create_8(None))
        pcre2.pcre2_set_character_tables_8(self._compile_context, self._tables)
        pcre2.pcre2_set_parens_nest_limit_8(self._compile_context, ctypes.c_uint32(_NESTING_LIMIT))
        if hasattr(pcre2, "pcre2_set_max_varlookbehind_8"):  # 10.43 on: look-behind of variable length
            pcre2.pcre2_set_max_varlookbehind_8(self._compile_context, ctypes.c_uint32(0))
        #: One pair of offsets: only whether there is a match is ever asked.
        self.match_data = self.new_match_data()
        # Without argtypes, whose conversions would double the time of a call: give it
        # objects of ctypes only, and bytes.
        self.match = pcre2.pcre2_match_8
        self.match.restype = ctypes.c_int
        self.free = pcre2.pcre2_code_free_8
        #: What stands before a script's name where extensions shall not count (they do by default from 10.40 on).
        self.script = b"sc:" if self._version() >= (10, 40) else b""

    def _version(self) -> tuple[int, int]:
        text = ctypes.create_string_buffer(64)
        self._pcre2.pcre2_config_8(ctypes.c_uint32(_CONFIG_VERSION), text)
        major, minor = text.value.split()[0].split(b"-")[0].split(b".")[:2]
        return int(major), int(minor)

    def compile(self, text: bytes, options: int) -> ctypes.c_void_p | str:
        """Compile PCRE2 text.

        Returns:
            the code, to be given back to ``free``; or the library's words on why it is not valid.
        """
        code, words, _ = self._compiled(text, options)
        return words if code is None else code

    def fault(self, text: bytes) -> tuple[str, int] | None:
        """Say why text is no pattern, and at which of its bytes; None where it is one."""
        code, words, offset = self._compiled(text, 0)
        if code is None:
            return words, offset
        self.free(code)
        return None

    def _compiled(self, text: bytes, options: int) -> tuple[ctypes.c_void_p | None, str, int]:
        number, offset = ctypes.c_int(), ctypes.c_size_t()
        code = self._pcre2.pcre2_compile_8(
            ctypes.c_char_p(text),
            ctypes.c_size_t(len(text)),
            ctypes.c_uint32(options),
            ctypes.byref(number),
            ctypes.byref(offset),
            self._compile_context,
        )
        if code:
            return ctypes.c_void_p(code), "", 0
        words = ctypes.create_string_buffer(256)
        self._pcre2.pcre2_get_error_message_8(number, words, ctypes.c_size_t(256))
        return None, words.value.decode("ascii", "replace"), offset.value

    @cache  # noqa: B019 - the library lives as long as the process
    def match_context(self, match_limit: int, depth_limit: int, heap_limit_kib: int) -> ctypes.c_void_p:
        """The match context with these limits."""
        context = ctypes.c_void_p(self._pcre2.pcre2_match_context_create_8(None))
        self._pcre2.pcre2_set_match_limit_8(context, ctypes.c_uint32(match_limit))
        self._pcre2.pcre2_set_depth_limit_8(context, ctypes.c_uint32(depth_limit))
        self._pcre2.pcre2_set_heap_limit_8(context, ctypes.c_uint32(heap_limit_kib))
        return context

    def default_tables(self) -> bytes:
        """The character tables that the library makes under the current locale, to compare the layout of ours with."""
        make = self._pcre2.pcre2_maketables_8
        make.restype = ctypes.c_void_p
        tables = make(None)
        copy = ctypes.string_at(tables, _TABLES_BYTES)
        self._pcre2.pcre2_maketables_free_8(None, ctypes.c_void_p(tables))
        return copy

    def is_anchored(self, code: ctypes.c_void_p) -> bool:
        """Whether a match can begin at the subject's start only."""
        return bool(self._info(code, _INFO_ALLOPTIONS) & ANCHORED)

    def begins_with_character(self, code: ctypes.c_void_p) -> bool:
        """Whether every match begins with one known character."""
        return self._info(code, _INFO_FIRSTCODETYPE) == 1

    def frame_bytes(self, code: ctypes.c_void_p) -> int:
        """Bytes that each decision of the matcher copies; grows with the number of capture groups."""
        return self._info(code, _INFO_FRAMESIZE)

    def _info(self, code: ctypes.c_void_p, what: int) -> int:
        value = ctypes.c_size_t()  # zeroed, so that the smaller types that some answers have fit as well
        self._pcre2.pcre2_pattern_info_8(code, ctypes.c_uint32(what), ctypes.byref(value))
        return value.value

    def new_match_data(self) -> ctypes.c_void_p:
        """A match block of its own, for a search that may need much memory."""
        return ctypes.c_void_p(self._pcre2.pcre2_match_data_create_8(ctypes.c_uint32(1), None))

    def free_match_data(self, data: ctypes.c_void_p) -> None:
        """Give back what ``new_match_data`` made, with all memory it came to hold."""
        self._pcre2.pcre2_match_data_free_8(data)


@cache
def library() -> Library:
    """The one library of the process.

    Raises:
        MissingLibraryError: PCRE2 is not installed; the message names the package.
    """
    return Library()
