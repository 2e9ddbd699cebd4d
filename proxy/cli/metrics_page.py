"""Parses the metrics page of a running sidecar into names, labels and values.

Source: Prometheus' text exposition format 0.0.4.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)(?: -?\d+)?")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {r"\n": "\n", r"\"": '"', r"\\": "\\"}


class Sample(NamedTuple):
    """One line of the page, with labels sorted by name."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float

    def label(self, name: str) -> str:
        """Return the value of a label; empty if it is absent."""
        return dict(self.labels).get(name, "")


def samples(page: str) -> Iterator[Sample]:
    for line in page.splitlines():
        match = None if line.startswith("#") else _SAMPLE.fullmatch(line)
        if match is not None:
            labels = sorted((name, _unescaped(text)) for name, text in _LABEL.findall(match["labels"] or ""))
            yield Sample(match["name"], tuple(labels), float(match["value"]))


def _unescaped(text: str) -> str:
    return re.sub(r"\\.", lambda escape: _ESCAPES.get(escape[0], escape[0]), text)
