"""Writes the generated files of the chart: ``python -m deploy.chart.build``.

A chart can read only its own files, so it contains copies of recording rules, alerts and dashboards.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from deploy.chart.readme import CHART, ROOT, readme

_SOURCES = {
    "prometheus": ("deploy/prometheus", "*/*.yaml"),
    "dashboards": ("deploy/grafana/dashboards", "*.json"),
}


def copies() -> Iterator[tuple[Path, str]]:
    """Yield each copied file of the chart, and its text."""
    for name, (folder, pattern) in _SOURCES.items():
        for source in sorted((ROOT / folder).glob(pattern)):
            yield CHART / "files" / name / source.relative_to(ROOT / folder), source.read_text()


def made() -> dict[Path, str]:
    """Return every generated file of the chart, with its text."""
    return {**dict(copies()), CHART / "README.md": readme()}


def orphans() -> set[Path]:
    """Return copies whose source no longer exists."""
    return {path for name in _SOURCES for path in (CHART / "files" / name).rglob("*.*")} - made().keys()


def main() -> int:
    for path in orphans():
        path.unlink()
    for path, text in made().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
