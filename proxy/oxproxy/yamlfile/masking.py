"""Masks the secrets in the text of a rules file, including its comments; everything else is unchanged.

Secrets are the values of all keys named ``password`` or similarly, everything equal to such a value or to a secret that
has been read, the password in ``user:password@host``, and whatever follows a colon in a user name. Text that is not
valid YAML is masked line by line.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml
from yaml.events import CollectionEndEvent, CollectionStartEvent, MappingStartEvent, NodeEvent, ScalarEvent

from oxproxy.values import is_masked_by_value, known_secrets

#: The parser with which the file is loaded. PyYAML's other parser rejects some files that this parser accepts.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MARK = "\ufeff"
MASK = "***"
_KEY = "password"
#: Other names of passwords. Misspelt names are recognized by their similarity.
_OTHER_KEYS = frozenset(("pass", "passwd", "passphrase", "pwd", "pw", "secret"))
#: `passport` has this similarity, and is no secret.
_SIMILAR = 0.75
_NOT_SECRET = ("password_env", "password_file")
_USER_KEYS = ("username", "user")
_MAYBE = re.compile(r"p\w*(?:w|ss)\w*|secret|user", re.IGNORECASE)
#: The colon before a password in an address. The password ends at the last ``@``, since it may contain slashes.
_PART, _COLON = re.compile(r".+", re.DOTALL), re.compile(":(?!//).", re.DOTALL)
_AT = re.compile(r"@|\\(?:x40|u0040|U00000040)")
#: The same for text that is not valid YAML, and for comments.
_PART_OF_LINE, _COLON_IN_LINE = re.compile(r"[^/\r\n]+"), re.compile(r":\S")
#: A word, in which a password in an address may contain slashes.
_WORD = re.compile(r"[^\s\"']+")
#: A line, in text that is not valid YAML, that may continue the value of an earlier line: it begins neither an item nor
#: a key.
_MORE = r"(?:\r?\n(?![ \t]*(?:-[ \t]|[\"']?[\w.-]+[\"']?[ \t]*:(?:\s|$)))[^\r\n]+)"
_WRITTEN_KEYS = "pa?s{1,2}wo?rd|pas{1,2}|passwd|passwort|passphrase|pwd|pw|secret"
#: A password in text that is not valid YAML, or in a comment.
_WRITTEN = re.compile(
    rf"(?P<before>\b(?:{_WRITTEN_KEYS})[\"']?\s*:[ \t]*)(?:(?=\S)[^\r\n]+{_MORE}*|{_MORE}+)", re.IGNORECASE
)
_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\n]*", re.MULTILINE)


@lru_cache(4096)
def is_secret_key(name: str) -> bool:
    """Return True if a key is named ``password``, or similarly."""
    lower = name.lower()
    if lower in _NOT_SECRET or not lower.startswith(("p", "s")):
        return False
    return lower in _OTHER_KEYS or difflib.SequenceMatcher(None, lower, _KEY).ratio() > _SIMILAR


def masked(text: str) -> str:
    try:
        spans = _secrets(text)
    except (yaml.YAMLError, ValueError):  # ValueError: an escape for an invalid character
        return _masked_lines(text)
    parts, end = [], 0
    for start, stop in spans:
        # A block scalar includes its final line break.
        parts += [_comments_masked(text[end:start]), MASK + "\n" * text[start:stop].endswith("\n")]
        end = stop
    return "".join([*parts, _comments_masked(text[end:])])


def _comments_masked(text: str) -> str:
    """Mask possible secrets in the text between two secret values. Only comments in this text can contain secrets."""
    return _COMMENT.sub(lambda comment: _masked_lines(comment[0]), text)


def _masked_lines(text: str) -> str:
    text = _WRITTEN.sub(rf"\g<before>{MASK}", text)
    for secret in known_secrets():
        text = text.replace(secret, MASK)
    text = masked_words(text)
    return _cut(text, _in_addresses(text, _PART_OF_LINE, _COLON_IN_LINE))


def masked_words(text: str) -> str:
    """Mask the password in each word of the form ``user:password@host``."""
    return _cut(text, _in_addresses(text, _WORD, _COLON))


def _cut(text: str, spans: Iterable[tuple[int, int]]) -> str:
    parts, end = [], 0
    for start, stop in spans:
        parts += [text[end:start], MASK]
        end = stop
    return "".join([*parts, text[end:]])


def _in_addresses(text: str, part: re.Pattern[str], colon: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Return the start and end of each password in an address. The time is proportional to the length of the text."""
    for match in part.finditer(text):
        end = text.rfind("@", match.start(), match.end())
        begin = colon.search(text, match.start(), max(end, 0))
        if begin is not None:
            yield begin.start() + 1, end


@dataclass(slots=True)
class _Level:
    """A list or mapping that is being read.

    Args:
        is_secret: whether all values in it are secret.
        expects_key: whether a key follows.
        key: the last key; "" if it is not a scalar, or in a list.
    """

    is_secret: bool
    is_mapping: bool
    expects_key: bool
    key: str = ""


def _secrets(text: str) -> list[tuple[int, int]]:
    """Return the start and end of each secret value."""
    # Parsing is slow for ten thousand bindings. A secret key begins with one of these letters.
    if not _MAYBE.search(text) and not _AT.search(text) and not any(secret in text for secret in known_secrets()):
        return []
    begin = len(text) - len(text.removeprefix(_MARK))
    spans: list[tuple[int, int]] = []
    scalars: list[ScalarEvent] = []
    values = set(known_secrets())
    levels: list[_Level] = []
    for event in yaml.parse(text[begin:], Loader=_LOADER):
        if isinstance(event, CollectionEndEvent):
            levels.pop()
        if not isinstance(event, NodeEvent):
            continue
        is_secret = levels[-1].is_secret if levels else False
        is_key = bool(levels) and levels[-1].expects_key
        of_user = False
        if is_key:
            name = event.value if isinstance(event, ScalarEvent) else ""
            levels[-1].key, levels[-1].expects_key = name, False
        elif levels:
            is_secret = is_secret or is_secret_key(levels[-1].key)
            of_user = levels[-1].key.lower() in _USER_KEYS
            levels[-1].expects_key = levels[-1].is_mapping
        if isinstance(event, CollectionStartEvent):
            is_mapping = isinstance(event, MappingStartEvent)
            levels.append(_Level(is_secret, is_mapping, is_mapping))
        elif isinstance(event, ScalarEvent):
            if is_secret and event.value:
                spans.append(_extent(event, begin))
                values |= {event.value} if is_masked_by_value(event.value) else set()
            else:
                scalars.append(event)
                spans += _passwords(text, *_extent(event, begin), event, of_user)
    spans += [_extent(event, begin) for event in scalars if event.value in values]
    return _apart(sorted(spans))


def _apart(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge overlapping spans."""
    merged: list[tuple[int, int]] = []
    for start, end in spans:
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _extent(event: Any, begin: int) -> tuple[int, int]:
    return begin + event.start_mark.index, begin + event.end_mark.index


def _passwords(text: str, start: int, end: int, event: ScalarEvent, of_user: bool) -> list[tuple[int, int]]:
    """Return the start and end of each password in the addresses in a scalar, or after a user name."""
    colon = event.value.find(":") if of_user else -1
    if colon < 0 and not any(_in_addresses(event.value, _PART, _COLON)):
        return []
    # If the scalar contains an escape or a line break, the text of the file differs from the value.
    quotes = 0 if event.value == text[start:end] else 1
    if event.value != text[start + quotes : end - quotes]:
        return [(start, end)]
    if colon >= 0:
        return [(start + quotes + colon + 1, end - quotes)]
    return [(start + begin, start + stop) for begin, stop in _in_addresses(text[start:end], _PART, _COLON)]
