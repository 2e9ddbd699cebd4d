"""Creates the tables of a day from the tables of its hours. This module runs in Spark tasks, on any machine.

Each task creates some of the tables, or a part of their data (`Part`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from string import Template
from typing import Any

import duckdb

from oxproxy.report.files.storage import local_path
from oxproxy.report.files.temporary import temporary
from oxproxy.report.hours import BUCKETS, IDS, SCHEMA, Hour
from oxproxy.report.partials import MACROS, TRACE, statements
from oxproxy.report.request import KnownBinding

#: Invalid lines, as JSON lines, and the last publish number of each channel.
REJECTED, LAST = "_rejected", "_last"
#: Maximum number of messages whose path through several sidecars is shown.
WAYS = 10
_SQL = statements("tables.sql", ways=WAYS)
_PARQUET, _JSON = ("parquet", "FORMAT parquet, COMPRESSION zstd"), ("json.gz", "FORMAT json, COMPRESSION gzip")


@dataclass(frozen=True, slots=True)
class Part:
    """A task: a part of the tables of a day.

    Args:
        name: name of the part, see `_PARTS`.
        hours: the tables to read, as hour of the day and name.
        number: number of a part of the message ids; -1: all. Otherwise, the number of an hour.
        known: bindings in the rules files; None if there are no rules files.
    """

    day: date | None
    name: str
    hours: tuple[tuple[int, str], ...]
    number: int = -1
    known: tuple[KnownBinding, ...] | None = None


@dataclass(slots=True)
class Made:
    """The result of a task: files by path in the output directory of the tables, findings, and page data."""

    files: dict[str, bytes] = field(default_factory=dict)
    findings: list[tuple[Any, ...]] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)
    rows: int = 0  # number of rows in all files


def parts(day: date | None, hours: Sequence[Hour], known: tuple[KnownBinding, ...] | None, traced: bool) -> list[Part]:
    """Return the tasks for a day."""

    def part(name: str, chosen: Sequence[Hour] = hours, number: int = -1) -> Part:
        tables = [*_READ[name], *([f"{IDS}-{number}"] if name == IDS else ())]
        read = [(hour.unit % 24, table) for hour in chosen for table in tables if table in hour.tables]
        return Part(day, name, tuple(read), number, known if name == "main" else None)

    if day is None:
        return [part("loose")]
    divided = any(f"{IDS}-0" in hour.tables for hour in hours)
    return [
        *map(part, ("main", "producers", "numbers")),
        *(part(IDS, hours, bucket) for bucket in (range(BUCKETS) if divided else (-1,))),
        *(part(TRACE, [hour], hour.unit % 24) for hour in hours if traced and TRACE in hour.tables),
    ]


#: Tables that each part reads.
_READ = {
    "main": ("traffic", "flows", "bindings", "lost", "latency", "results", "gaps", "ledger", "rejected", "sample"),
    "loose": ("ledger", "rejected", "results"),
    "producers": ("producers", "peaks"),
    "numbers": ("ranges",),
    IDS: (IDS,),
    TRACE: (TRACE,),
}


def made_files(part: Part, directories: Mapping[int, str], eve: str, target: Path) -> Made:
    """Create a part of the tables from files on this machine. Write the tables to a directory.

    Args:
        directories: the directory of each hour's tables.
        eve: file with the last publish numbers of the previous day, or an empty string.
    """
    with temporary() as folder:
        sources = [(hour, table, local_path(f"{directories[hour]}/{table}.parquet")) for hour, table in part.hours]
        return _made(part, sources, local_path(eve) if eve else None, folder, target)


def made_contents(
    rows: Iterable[tuple[Part, Iterable[tuple[int, str, bytes]]]],
) -> Iterator[Made]:
    """Create parts of the tables from contents, given as hour, table and content. The hour of `LAST` is not used."""
    for part, contents in rows:
        with temporary() as folder:
            sources, eve = [], None
            for number, (hour, table, content) in enumerate(contents):
                path = folder / f"source-{number}"
                path.write_bytes(content)
                if table == LAST:
                    eve = path
                else:
                    sources.append((hour, table, path))
            made = _made(part, sources, eve, folder, folder / "made")
            if (folder / "made").exists():
                made.files = {
                    str(file.relative_to(folder / "made")): file.read_bytes()
                    for file in (folder / "made").rglob("part-*")
                }
            yield made


def _made(part: Part, sources: Sequence[tuple[int, str, Path]], eve: Path | None, work: Path, target: Path) -> Made:
    with duckdb.connect(config={"temp_directory": str(work / "spill")}) as duck:
        duck.execute("SET threads = 1; SET preserve_insertion_order = false; SET memory_limit = '512MB'")
        duck.execute("SET TimeZone = 'UTC'")
        duck.execute(MACROS + _SQL["begin"] + ";" + SCHEMA)
        links: dict[str, list[str]] = {}
        for number, (hour, table, path) in enumerate(sources):
            link = work / f"{hour}-{number}.parquet"  # DuckDB would treat characters in other names as patterns
            link.symlink_to(path)
            links.setdefault(table.partition("-")[0], []).append(str(link))
        for table in dict.fromkeys(table.partition("-")[0] for table in _READ[part.name]):
            files = ""
            if paths := links.get(table):
                files = f"""UNION ALL BY NAME SELECT * EXCLUDE filename,
                    split_part(parse_filename(filename), '-', 1)::INTEGER AS hour
                    FROM read_parquet({paths}, filename = true)"""
            duck.execute(f"CREATE TEMP VIEW p_{table} AS SELECT *, NULL::INTEGER AS hour FROM s_{table} {files}")
        if eve is not None:
            (work / "eve.parquet").symlink_to(eve)
        return _PARTS[part.name](_Task(duck, part, work, target))


@dataclass(frozen=True, slots=True)
class _Task:
    duck: duckdb.DuckDBPyConnection
    part: Part
    work: Path
    target: Path

    def ask(self, statement: str, **more: object) -> list[tuple[Any, ...]]:
        return self.duck.execute(self.filled(statement, **more)).fetchall()

    def filled(self, statement: str, **more: object) -> str:
        return Template(_SQL[statement]).substitute(more)

    def write(self, name: str, form: tuple[str, str] = _PARQUET, number: int = 0, **more: object) -> int:
        """Write a table; return the number of rows."""
        ending, options = form
        folder = self.target / name
        folder.mkdir(parents=True, exist_ok=True)
        statement = self.filled(f"table {name}", **more)
        [(rows,)] = self.duck.execute(f"COPY ({statement}) TO '{folder}/part-{number}.{ending}' ({options})").fetchall()
        return int(rows)


def _main(task: _Task) -> Made:
    known = task.part.known or ()
    columns = [[getattr(binding, name) for binding in known] for name in KnownBinding.__slots__]
    task.duck.execute("INSERT INTO m_known SELECT" + ", ".join([" unnest(?::VARCHAR[])"] * len(columns)), columns)
    names = ("traffic", "flows", "destinations", "unroutable", "confirms", "latency")
    rows = sum(task.write(name) for name in names) + task.write("bindings", is_known=task.part.known is not None)
    made = _loose(task)
    made.rows = rows
    made.findings = task.ask("audit gaps")
    made.state |= {"results": dict(task.ask("results")), "ways": task.ask("ways")}
    return made


def _loose(task: _Task) -> Made:
    """Create the data of the segments in the directories of the day."""
    rejected = task.write(REJECTED, _JSON)
    if not rejected:
        next((task.target / REJECTED).iterdir()).unlink()
        (task.target / REJECTED).rmdir()
    late, segments, *wrong = task.ask("main counts")[0]
    reasons = zip(("damaged file", "foreign", "torn", "version"), wrong, strict=True)
    state = {
        "late": late,
        "segments": segments,
        "rejected": {why: count for why, count in reasons if count},
        "copies": [paths for (paths,) in task.ask("copies")],
    }
    return Made(state=state)


def _producers(task: _Task) -> Made:
    return Made(rows=task.write("producers"))


def _numbers(task: _Task) -> Made:
    path = task.work / "eve.parquet"
    nothing = "(SELECT '' AS proxy, '' AS conn, 0::BIGINT AS ch, 0::BIGINT AS last LIMIT 0)"
    source = f"'{path}'" if path.exists() else nothing
    task.duck.execute(f"CREATE TEMP TABLE eve AS FROM {source}")
    task.write(LAST)
    content = (task.target / LAST / "part-0.parquet").read_bytes()
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    return Made(findings=task.ask("seq gaps"), state={"last": digest})


def _repeated(task: _Task) -> Made:
    if not task.part.hours:
        return Made()
    if task.part.number >= 0:
        task.duck.execute(f"ALTER VIEW p_{IDS} RENAME TO p_all")
        task.duck.execute(f"CREATE TEMP VIEW p_{IDS} AS FROM p_all WHERE id % {BUCKETS} = {task.part.number}")
    return Made(findings=task.ask("repeated counts", repeated=_SQL["repeated"]))


def _trace(task: _Task) -> Made:
    return Made(rows=task.write(TRACE, number=task.part.number))


_PARTS: dict[str, Callable[[_Task], Made]] = {
    "main": _main,
    "loose": _loose,
    "producers": _producers,
    "numbers": _numbers,
    IDS: _repeated,
    TRACE: _trace,
}
