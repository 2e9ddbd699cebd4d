"""Masks the secrets in the text of a rules file, including its comments; everything else is unchanged.

Secrets are the values of all keys named ``password``, and the password in ``user:password@host``. Text that is not
valid YAML is masked line by line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.events import CollectionEndEvent, CollectionStartEvent, MappingStartEvent, NodeEvent, ScalarEvent

#: The parser with which the file is loaded. PyYAML's other parser rejects some files that this parser accepts.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MARK = "\ufeff"
MASK = "***"
_KEY = "password"
#: A part of an address between slashes, and the colon before a password in such a part. The password ends at the last
#: ``@`` of the part.
_PART, _COLON = re.compile(r"[^/]+"), re.compile(":.", re.DOTALL)
_AT = re.compile(r"@|\\(?:x40|u0040|U00000040)")
#: The same for text that is not valid YAML, and for comments.
_PART_OF_LINE, _COLON_IN_LINE = re.compile(r"[^/\r\n]+"), re.compile(r":\S")
#: A line, in text that is not valid YAML, that may continue the value of an earlier line: it begins neither an item nor
#: a key.
_MORE = r"(?:\r?\n(?![ \t]*(?:-[ \t]|[\"']?[\w.-]+[\"']?[ \t]*:(?:\s|$)))[^\r\n]+)"
#: A password in text that is not valid YAML, or in a comment.
_WRITTEN = re.compile(rf"(?P<before>\b{_KEY}[\"']?\s*:[ \t]*)(?:(?=\S)[^\r\n]+{_MORE}*|{_MORE}+)", re.IGNORECASE)
_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\n]*", re.MULTILINE)


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
    parts, end = [], 0
    for start, stop in _in_addresses(text, _PART_OF_LINE, _COLON_IN_LINE):
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
        under_password: whether the value of the last key is secret.
    """

    is_secret: bool
    is_mapping: bool
    expects_key: bool
    under_password: bool = False


def _secrets(text: str) -> list[tuple[int, int]]:
    """Return the start and end of each secret value."""
    if _KEY not in text.lower() and not _AT.search(text):  # avoids parsing, which is slow for ten thousand bindings
        return []
    begin = len(text) - len(text.removeprefix(_MARK))
    spans: list[tuple[int, int]] = []
    levels: list[_Level] = []
    for event in yaml.parse(text[begin:], Loader=_LOADER):
        if isinstance(event, CollectionEndEvent):
            levels.pop()
        if not isinstance(event, NodeEvent):
            continue
        is_secret = levels[-1].is_secret if levels else False
        is_key = bool(levels) and levels[-1].expects_key
        if is_key:
            name = event.value if isinstance(event, ScalarEvent) else ""
            levels[-1].under_password, levels[-1].expects_key = name.lower() == _KEY, False
        elif levels:
            is_secret = is_secret or levels[-1].under_password
            levels[-1].expects_key = levels[-1].is_mapping
        if isinstance(event, CollectionStartEvent):
            is_mapping = isinstance(event, MappingStartEvent)
            levels.append(_Level(is_secret, is_mapping, is_mapping))
        elif isinstance(event, ScalarEvent) and not is_key:
            start, end = _extent(event, begin)
            spans += [(start, end)] if is_secret and event.value else _passwords(text, start, end, event)
    return spans


def _extent(event: Any, begin: int) -> tuple[int, int]:
    return begin + event.start_mark.index, begin + event.end_mark.index


def _passwords(text: str, start: int, end: int, event: ScalarEvent) -> list[tuple[int, int]]:
    """Return the start and end of each password in the addresses in a scalar."""
    if not any(_in_addresses(event.value, _PART, _COLON)):
        return []
    # If the scalar contains an escape or a line break, the text of the file differs from the value.
    if event.value not in (text[start:end], text[start + 1 : end - 1]):
        return [(start, end)]
    return [(start + begin, start + stop) for begin, stop in _in_addresses(text[start:end], _PART, _COLON)]
