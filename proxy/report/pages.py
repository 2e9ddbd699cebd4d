"""Writes a page for each day and each requested range, an index, and the latest page at the top level."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date

from proxy.report.figures import Figures
from proxy.report.page import Days, relinked, render, render_index
from proxy.report.storage import Storage

#: The page of the latest run, and the directory of all pages.
PAGE, PAGES = "report.html", "pages"
#: File with the index data for each day, kept between runs.
_COUNTS = "_counts.json"
_ENDING = ".html"


class Pages:
    """The pages of one output directory."""

    def __init__(self, storage: Storage, output: str) -> None:
        self._storage = storage
        self._output = output
        self._folder = f"{output}/{PAGES}"
        names = {entry.name.removesuffix(_ENDING) for entry in storage.entries(self._folder) if _is_page(entry.name)}
        self._ranges = {name for name in names if _day(name) is None} - {"index"}
        self._days = {day for name in names if (day := _day(name)) is not None}

    def has(self, day: date) -> bool:
        return day in self._days

    def write(self, newest: Figures, single: Sequence[Figures]) -> None:
        """Write the page for a run and the pages for single days, and update the links in adjacent pages."""
        new = {figures.days[0]: figures for figures in (*single, newest) if len(figures.days) == 1}
        before = self._days
        self._days = before | new.keys()
        self._storage.make(self._folder)
        for day, figures in new.items():
            self._put(str(day), render(figures, self._around(day, day)))
        for day in self._neighbours(new.keys() - before) - new.keys():
            path = f"{self._folder}/{day}{_ENDING}"
            self._put(str(day), relinked(self._storage.read(path), self._around(day, day)))
        if len(newest.days) > 1:
            first, last = newest.days[0], newest.days[-1]
            self._ranges.add(f"{first}_{last}")
            self._put(f"{first}_{last}", render(newest, self._around(first, last)))
        self._write_index(new)
        ends = (newest.days[0], newest.days[-1]) if newest.days else (date.max, date.max)
        self._storage.write(f"{self._output}/{PAGE}", render(newest, self._around(*ends, f"{PAGES}/")))

    def _write_index(self, new: dict[date, Figures]) -> None:
        path = f"{self._folder}/{_COUNTS}"
        counts = self._storage.read_json(path)
        counts |= {str(day): _counts(figures) for day, figures in new.items()}
        days = sorted(self._days, reverse=True)
        rows = [counts.get(str(day), {}) | {"name": str(day)} for day in days]
        self._storage.write(path, json.dumps(counts))
        self._put("index", render_index(rows, sorted(self._ranges, reverse=True)))

    def _neighbours(self, days: set[date]) -> set[date]:
        around = [self._around(day, day) for day in days]
        return {day for links in around for day in (links.previous, links.next) if day is not None}

    def _around(self, first: date, last: date, folder: str = "") -> Days:
        return Days.around(first, last, self._days, folder)

    def _put(self, name: str, page: str) -> None:
        self._storage.write(f"{self._folder}/{name}{_ENDING}", page)


def _counts(figures: Figures) -> dict[str, int]:
    return {
        "publishes": figures.publishes,
        "undelivered": figures.undelivered,
        "returned": figures.results.get("returned", 0),
        "anomalies": len(figures.anomalies),
    }


def _is_page(name: str) -> bool:
    return name.endswith(_ENDING) and not name.startswith("_")


def _day(name: str) -> date | None:
    try:
        return date.fromisoformat(name)
    except ValueError:
        return None
