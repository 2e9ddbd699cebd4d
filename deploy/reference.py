"""Writes what docs has of settings, metrics, operators and commands from the code: ``python -m deploy.reference``."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from deploy.manual import manuals
from proxy.config.keys import entries
from proxy.config.settings import Settings
from proxy.observe.metrics import METRICS
from proxy.rules.operator_reference import MATCH_TYPES, SECTIONS, OperatorSection

DOCS = Path(__file__).resolve().parents[1] / "docs"


def settings() -> str:
    """Return the rows of every key of the configuration."""
    return _rows((f"`{one.path}`", f"`{one.default}`", one.doc) for one in entries(Settings()))


def metrics() -> str:
    """Return the rows of every metric of our own."""
    return _rows((f"`{one.name}`", one.kind.value, ", ".join(one.labels), one.help) for one in METRICS)


def _operators(section: OperatorSection) -> tuple[str, str, Callable[[], str]]:
    """Return where the table of some operators is, its head, and its rows."""
    if section is MATCH_TYPES:
        head = f"| {section.first} | {section.column} |\n|---|---|\n"
        return (
            "reference/rules.md",
            head,
            lambda: _rows((_codes(entry.keys), entry.meaning) for entry in section.entries),
        )
    head = f"| {section.first} | value | {section.column} | example |\n|---|---|---|---|\n"
    return (
        "reference/rules.md",
        head,
        lambda: _rows(
            (_codes(entry.keys), entry.value, entry.meaning, _codes([entry.example])) for entry in section.entries
        ),
    )


def _codes(texts: Iterable[str]) -> str:
    return ", ".join(f"`{text}`" for text in texts)


#: The page, the head of its table, and what gives its rows.
TABLES = (
    ("reference/configuration.md", "| key | default | what it does |\n|---|---|---|\n", settings),
    ("reference/metrics.md", "| metric | type | labels | meaning |\n|---|---|---|---|\n", metrics),
    *map(_operators, SECTIONS),
)


def _rows(cells: Iterable[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


def pages() -> dict[Path, str]:
    """Return every page with what is made of it as it should be."""
    found: dict[Path, str] = {}
    for name, head, rows in TABLES:
        text = found.get(DOCS / name) or (DOCS / name).read_text()
        before, _, after = text.partition(head)
        found[DOCS / name] = before + head + rows() + re.sub(r"\A(\|.*\n)*", "", after)
    return {**found, **manuals()}


def main() -> int:
    """Write the pages."""
    for path, text in pages().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
