"""Generates the reference for settings, metrics, operators and commands in docs: ``python -m deploy.reference``."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from pydantic import SecretStr

from deploy.manual import manuals
from oxproxy.config.settings import Settings
from oxproxy.observe.metrics import METRICS
from oxproxy.rules.operator_reference import FILTERS, MATCH_TYPES, SECTIONS, OperatorSection
from oxproxy.yamlfile.document import join
from oxproxy.yamlfile.models import FileModel, key_names, key_type

DOCS = Path(__file__).resolve().parents[1] / "docs"


class KeyEntry(NamedTuple):
    """One key as listed in the documentation, such as ``limits.frame_max`` or ``listen[].address``."""

    path: str
    default: str
    doc: str


def entries(section: FileModel, path: str = "") -> Iterator[KeyEntry]:
    """Yield every key of a section; the values in the section are the defaults."""
    for key, (attribute, field) in key_names(type(section)).items():
        value, entry_path = getattr(section, attribute, None), join(path, key)
        kind = key_type(type(section), key)
        if not kind.is_section:
            default = "" if field.is_required() else f"`{_written(attribute, value)}`"
            yield KeyEntry(entry_path, default, field.description or "")
        elif kind.several:
            yield from entries(value[0] if value else kind.item.model_construct(), entry_path + "[]")
        else:
            yield from entries(kind.item() if value is None else value, entry_path)


def _written(attribute: str, value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, tuple):
        return str(value[0]) if len(value) == 1 else f"[{', '.join(map(str, value))}]"
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return f"{value:g}s" if attribute.endswith("_seconds") else str(value)


def settings() -> str:
    """Return the rows of every key of the configuration."""
    return _rows((f"`{entry.path}`", entry.default, entry.doc) for entry in entries(Settings()))


def metrics() -> str:
    """Return the rows of all metrics of the sidecar."""
    return _rows((f"`{metric.name}`", metric.kind, ", ".join(metric.labels), metric.help) for metric in METRICS)


def _operators(section: OperatorSection) -> tuple[str, str, Callable[[], str]]:
    """Return the page, head and rows of the table for a section."""
    if section is MATCH_TYPES:
        head = f"| {section.first} | {section.column} |\n|---|---|\n"
        return (
            "reference/rules.md",
            head,
            lambda: _rows((_codes(entry.keys), entry.meaning) for entry in section.entries),
        )
    if section is FILTERS:
        head = f"| {section.first} | value | {section.column} | example |\n|---|---|---|---|\n"
        return (
            "reference/rules.md",
            head,
            lambda: _rows(
                (_codes(entry.keys), entry.value, entry.meaning, _codes([entry.example])) for entry in section.entries
            ),
        )
    head = f"| {section.first} | argument | value | {section.column} | example |\n|---|---|---|---|---|\n"
    return (
        "reference/rules.md",
        head,
        lambda: _rows(
            (
                _codes(entry.readable),
                _codes(entry.keys),
                entry.value,
                entry.meaning,
                _codes([entry.readable_example, entry.example]),
            )
            for entry in section.entries
        ),
    )


def _codes(texts: Iterable[str]) -> str:
    return ", ".join(f"`{text}`" for text in texts)


#: The page, the head of its table, and a function that returns its rows.
TABLES = (
    ("reference/configuration.md", "| key | default | meaning |\n|---|---|---|\n", settings),
    ("reference/metrics.md", "| metric | type | labels | meaning |\n|---|---|---|---|\n", metrics),
    *map(_operators, SECTIONS),
)


def _rows(cells: Iterable[tuple[str, ...]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


def pages() -> dict[Path, str]:
    """Return every page with its generated part replaced."""
    texts: dict[Path, str] = {}
    for name, head, rows in TABLES:
        text = texts.get(DOCS / name) or (DOCS / name).read_text()
        before, _, after = text.partition(head)
        texts[DOCS / name] = before + head + rows() + re.sub(r"\A(\|.*\n)*", "", after)
    return {**texts, **manuals()}


def main() -> int:
    for path, text in pages().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
