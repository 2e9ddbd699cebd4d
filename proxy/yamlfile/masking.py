"""Masks the secrets in the text of a rules file; comments, order and whitespace are unchanged.

Secrets are the values of all keys named ``password``, and the password in ``user:password@host``. Text that is not
valid YAML is masked line by line.
"""

from __future__ import annotations

import re

import yaml

MASK = "***"
_KEY = "password"
#: The password in an address, with or without a scheme: the text from the colon up to the last ``@`` before a slash.
_ADDRESS = re.compile(r"(?P<before>:)(?!//)[^\s/'\"][^/'\"\r\n]*(?=@)")
#: A password in text that is not valid YAML, or in a comment.
_WRITTEN = re.compile(rf"(?P<before>\b{_KEY}[\"']?\s*:[ \t]*)(?=\S)[^\r\n]+", re.IGNORECASE)
_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\n]*", re.MULTILINE)


def masked(text: str) -> str:
    try:
        spans = _secrets(text)
    except yaml.YAMLError:
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
    return _ADDRESS.sub(rf"\g<before>{MASK}", _WRITTEN.sub(rf"\g<before>{MASK}", text))


def _secrets(text: str) -> list[tuple[int, int]]:
    """Return the start and end of each secret value."""
    if _KEY not in text.lower() and "@" not in text:  # a file with ten thousand bindings is not parsed needlessly
        return []
    spans = []
    seen: set[int] = set()
    nodes = [(yaml.compose(text, Loader=yaml.SafeLoader), False)]
    while nodes:
        node, is_secret = nodes.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            nodes += [(value, is_secret or str(key.value).lower() == _KEY) for key, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            nodes += [(value, is_secret) for value in node.value]
        elif is_secret and node.value:
            spans.append((node.start_mark.index, node.end_mark.index))
        elif "@" in node.value:
            start, end = node.start_mark.index, node.end_mark.index
            spans += [
                (start + match.end("before"), start + match.end()) for match in _ADDRESS.finditer(text[start:end])
            ]
    return sorted(spans)
