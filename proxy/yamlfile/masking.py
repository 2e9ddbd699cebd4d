"""Masks the secrets in the text of a rules file, which otherwise stays as it was written: comments, order, blanks.

Secrets are the values of keys named ``password``, wherever they are, and the password in ``user:password@host``. Text
that is no YAML (yet) is masked line by line.
"""

from __future__ import annotations

import re

import yaml

MASK = "***"
_KEY = "password"
#: The password in an address, which may lack its scheme: what follows the user, up to the last ``@`` before a slash.
_ADDRESS = re.compile(r"(?P<before>:)(?!//)[^\s/'\"][^/'\"\r\n]*(?=@)")
#: A password in text that is no YAML, or in a comment.
_WRITTEN = re.compile(rf"(?P<before>\b{_KEY}[\"']?\s*:[ \t]*)(?=\S)[^\r\n]+", re.IGNORECASE)
_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\n]*", re.MULTILINE)


def masked(text: str) -> str:
    """Return the text with every secret replaced by three asterisks."""
    try:
        spans = _secrets(text)
    except yaml.YAMLError:
        return _masked_lines(text)
    parts, end = [], 0
    for start, stop in spans:
        # A block scalar has the line break at its end.
        parts += [_comments_masked(text[end:start]), MASK + "\n" * text[start:stop].endswith("\n")]
        end = stop
    return "".join([*parts, _comments_masked(text[end:])])


def _comments_masked(text: str) -> str:
    """Mask what may be a secret in comments; the text between two secret values has no other secret."""
    return _COMMENT.sub(lambda comment: _masked_lines(comment[0]), text)


def _masked_lines(text: str) -> str:
    return _ADDRESS.sub(rf"\g<before>{MASK}", _WRITTEN.sub(rf"\g<before>{MASK}", text))


def _secrets(text: str) -> list[tuple[int, int]]:
    """Return where the values of secret keys begin and end."""
    if _KEY not in text.lower() and "@" not in text:  # a file of ten thousand bindings is not parsed for nothing
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
                (start + found.end("before"), start + found.end()) for found in _ADDRESS.finditer(text[start:end])
            ]
    return sorted(spans)
