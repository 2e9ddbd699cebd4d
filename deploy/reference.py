"""Writes the tables of settings and metrics in docs from the code that has them: ``python -m deploy.reference``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from proxy.config.section_reader import entries
from proxy.config.settings import Settings
from proxy.observe.metrics import METRICS

DOCS = Path(__file__).resolve().parents[1] / "docs"


def settings() -> str:
    """Return the rows of every key of the configuration."""
    return _rows((f"`{one.path}`", f"`{one.default}`", one.doc) for one in entries(Settings()))


def metrics() -> str:
    """Return the rows of every metric of our own."""
    return _rows((f"`{one.name}`", one.kind.value, ", ".join(one.labels), one.help) for one in METRICS)


#: The page, the head of its table, and what gives its rows.
TABLES = (
    ("configuration.md", "| key | default | what it does |\n|---|---|---|\n", settings),
    ("metrics.md", "| metric | type | labels | meaning |\n|---|---|---|---|\n", metrics),
)


def _rows(cells: Iterable[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


def pages() -> dict[Path, str]:
    """Return every page with its table as it should be."""
    found = {}
    for name, head, rows in TABLES:
        text = (DOCS / name).read_text()
        before, _, after = text.partition(head)
        found[DOCS / name] = before + head + rows() + re.sub(r"\A(\|.*\n)*", "", after)
    return found


def main() -> int:
    """Write the pages."""
    for path, text in pages().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
