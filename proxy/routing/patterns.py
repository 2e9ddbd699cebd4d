"""Does a regular expression match? PCRE as RabbitMQ's Erlang has it, on bytes, in bounded time."""

from __future__ import annotations

from functools import lru_cache

from proxy.routing.pattern_library import LIMITS, library


class InvalidPattern(ValueError):  # noqa: N818 - reads as a verdict on a pattern, not as a fault of ours
    """A pattern that the broker's PCRE would not compile, or an empty one."""


class Pattern:
    """A compiled pattern."""

    __slots__ = ("_code", "_context", "_data", "_free", "_match", "source")

    def __init__(self, source: bytes) -> None:
        """See ``compile_pattern``, which is how patterns are made."""
        pcre2 = library()
        self._free = pcre2.free
        self._code = None
        text = source.partition(b"\0")[0]  # PCRE 8 reads a C string
        code = pcre2.compile(text.replace(b"(*UTF8)", b"(*UTF)", 1), 0)
        if isinstance(code, str):
            raise InvalidPattern(code)
        self.source = source
        self._code = code
        self._match = pcre2.match
        self._data = pcre2.match_data
        self._context = pcre2.match_context(5000, 5000, 16384)

    def __del__(self) -> None:
        """Give the compiled code back."""
        if self._code is not None:
            self._free(self._code)

    def search(self, subject: bytes) -> bool | None:
        """Whether the pattern matches somewhere in `subject`; None where that took too long to find out."""
        found = self._match(self._code, subject, len(subject), 0, 0, self._data, self._context)
        if found >= 0:
            return True
        return None if found in LIMITS else False


@lru_cache(maxsize=4096)
def compile_pattern(source: bytes) -> Pattern:
    """Compile `source`.

    Raises:
        InvalidPattern: it is empty, or PCRE does not compile it.
    """
    if not source:
        raise InvalidPattern("empty pattern")
    return Pattern(source)
