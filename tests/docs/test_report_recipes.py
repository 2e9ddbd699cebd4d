"""Runs the queries of docs/how-to/report-recipes.md on a report."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import duckdb
import pytest

from oxproxy.cli.main import main
from tests.report.lines import publish, segment, settle

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/how-to/report-recipes.md").read_text()
#: Indented blocks that are queries.
QUERIES = [
    textwrap.dedent(block)
    for block in re.findall(r"(?:^ {4}.*\n)+", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL), re.MULTILINE)
    if re.match(r"\s*(SELECT|WITH|FROM)", block)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a report for two days, whose records concern the names on the page."""
    folder = tmp_path_factory.mktemp("recipes")
    for day in ("2026-11-20", "2026-11-21"):
        ts = f"{day}T07:00:00Z"
        lines = [
            publish(ts=ts, user="user1", queues=["queue.17"]),
            publish(ts=ts, seq=2, outcome="filtered", reason="max-size", queues=[], bindings=[]),
            settle(ts=ts, result="nacked"),
        ]
        segment(folder / "in", lines, day)
    assert main(["report", "--input", str(folder / "in"), "--output", str(folder / "report")]) == 0
    return folder


@pytest.mark.parametrize("query", QUERIES, ids=[" ".join(query.split())[:40] for query in QUERIES])
def test_a_query_returns_rows(
    folder: Path, query: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    if "read_parquet" in query:
        with duckdb.connect() as duck:
            assert len(duck.execute(query).fetchall()) > 0
    else:
        capsys.readouterr()
        assert main(["report", "--output", "report", "--query", query]) == 0
        assert len(capsys.readouterr().out.splitlines()) > 1


def test_the_page_has_queries() -> None:
    assert len(QUERIES) >= 10


def test_the_example_for_notebooks_returns_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)
    assert names["talkers"]
