"""Merges partials into the tables of an hour. This module runs in Spark tasks, on any machine.

The tables of an hour contain the records of one hour (UTC), or in the unit `storage.LOOSE` the list of the segments
outside date directories. The table ``ledger`` lists the segments that the tables contain: a segment is counted if its
content is not in the ledger yet. The tables of a day are created from those of its hours, without reading segments.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

import duckdb

from oxproxy.report.files.storage import LocalFiles, unit_folder
from oxproxy.report.files.temporary import temporary
from oxproxy.report.partials import MACROS, PARTIALS, SAMPLED, TRACE, statements

#: Directory of the hours in an output directory. The number identifies the format.
FOLDER = "_partials/2"
#: Number of parts into which the message ids of an hour are divided if there are more than `_UNDIVIDED`.
BUCKETS, _UNDIVIDED = 8, 50_000
IDS = "ids"
_SQL = statements("hours.sql", sampled=SAMPLED)
#: Statements that create empty tables, s_NAME.
SCHEMA = _SQL["schema"]
#: Maximum number of units that are merged together. DuckDB has at most 100 files of partitions open.
MOST_UNITS = 64
#: Tables that a merge creates, in order.
_TABLES = [name.removeprefix("table ") for name in _SQL if name.startswith("table ")]
#: Level 1 makes message ids no larger than the default level 3, at twice the speed.
_PARQUET, _BY_HOUR = "FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1", "PARTITION_BY (hour)"


@dataclass(frozen=True, slots=True)
class Hour:
    """The description of a version of the tables of a unit, which is kept in the index."""

    unit: int
    version: str
    tables: tuple[str, ...] = ()  # names of the tables' files
    publishes: int = 0
    days: tuple[int, ...] = ()  # days of the records in the unit's directory, counted since 1970

    @property
    def folder(self) -> str:
        """The directory of the tables, relative to the output directory."""
        return f"{FOLDER}/{unit_folder(self.unit)}/{self.version}"


@dataclass(slots=True)
class Merge:
    """The input of a merge: files of new partial tables, by table name, and the previous versions of the hours."""

    units: list[int]
    new: dict[str, list[Path]] = field(default_factory=dict)
    old: dict[str, list[tuple[int, Path]]] = field(default_factory=dict)

    def add(self, name: str, file: Path) -> None:
        self.new.setdefault(name, []).append(file)

    def add_old(self, unit: int, name: str, file: Path) -> None:
        self.old.setdefault(name.partition("-")[0], []).append((unit, file))


def merged_files(merge: Merge, output: str) -> list[Hour]:
    """Merge files on this machine, and put the tables into their place in an output directory on this machine."""
    with temporary() as folder:
        hours = merged(merge, folder, folder / "merged")
        for hour in hours:
            LocalFiles().put(folder / "merged" / str(hour.unit), f"{output}/{hour.folder}")
    return hours


def merged_contents(
    rows: Iterable[tuple[int, Iterable[tuple[str, bytes, bool]]]],
) -> Iterator[tuple[Hour, dict[str, bytes]]]:
    """Merge tables given by unit as name, content, and whether they are of the previous version."""
    for unit, parts in rows:
        merge = Merge([unit])
        with temporary() as folder:
            for number, (name, content, is_old) in enumerate(parts):
                file = folder / f"part-{number}.parquet"
                file.write_bytes(content)
                if is_old:
                    merge.add_old(unit, name, file)
                else:
                    merge.add(name, file)
            for hour in merged(merge, folder, folder / "merged"):
                yield hour, {file.name: file.read_bytes() for file in (folder / "merged" / str(unit)).iterdir()}


def merged(merge: Merge, work: Path, target: Path) -> list[Hour]:
    """Write the tables of hours to new directories named after the units, and return their descriptions.

    Args:
        work: directory for temporary files.
    """
    for unit in merge.units:
        (target / str(unit)).mkdir(parents=True)
    with duckdb.connect(config={"temp_directory": str(work / "spill")}) as duck:
        duck.execute("SET threads = 1; SET preserve_insertion_order = false; SET memory_limit = '512MB'")
        duck.execute(f"SET TimeZone = 'UTC'; {MACROS}{SCHEMA}")
        values = _sources(merge, work)
        for statement in ("fresh", "rates"):
            duck.execute(Template(_SQL[statement]).substitute(values))
        for name in _TABLES:
            statement = Template(_SQL[f"table {name}"]).substitute(values)
            if len(merge.units) == 1:
                folder, rows = target / str(merge.units[0]), f"SELECT * EXCLUDE hour FROM ({statement})"
                if name == IDS and _count(duck, rows) > _UNDIVIDED:
                    _copy_divided(duck, rows, folder)
                else:
                    _copy(duck, rows, folder / f"{name}.parquet")
            else:
                duck.execute(f"COPY ({statement}) TO '{target}/{name}' ({_PARQUET}, {_BY_HOUR})")
                for file in (target / name).rglob("*.parquet"):
                    _place(file, target / file.parent.name.removeprefix("hour=") / f"{name}.parquet")
                shutil.rmtree(target / name)
        return [_described(duck, unit, target / str(unit)) for unit in merge.units]


def _count(duck: duckdb.DuckDBPyConnection, statement: str) -> int:
    [(rows,)] = duck.execute(f"SELECT count(*) FROM ({statement})").fetchall()
    return int(rows)


def _copy_divided(duck: duckdb.DuckDBPyConnection, statement: str, folder: Path) -> None:
    """Write message ids to several files, in one pass: they are most of the data of an hour."""
    parts, options = folder / IDS, f"{_PARQUET}, PARTITION_BY (bucket)"
    duck.execute(f"COPY (SELECT *, id % {BUCKETS} AS bucket FROM ({statement})) TO '{parts}' ({options})")
    for file in parts.rglob("*.parquet"):
        _place(file, folder / f"{IDS}-{file.parent.name.removeprefix('bucket=')}.parquet")
    shutil.rmtree(parts)


def _place(file: Path, target: Path) -> None:
    """Move the file of a partition to its place."""
    if target.exists():
        raise FileExistsError(f"more than one file of a partition: {target}")
    file.rename(target)


def _described(duck: duckdb.DuckDBPyConnection, unit: int, folder: Path) -> Hour:
    publishes, days = 0, []
    ids = folder / f"{IDS}.parquet"
    if ids.exists() and _count(duck, f"FROM '{ids}'") > _UNDIVIDED:
        _copy_divided(duck, f"FROM '{ids}'", folder)
        ids.unlink()
    if (traffic := folder / "traffic.parquet").exists():
        [(publishes,)] = duck.execute(f"SELECT sum(n)::BIGINT FROM '{traffic}'").fetchall()
    if (ledger := folder / "ledger.parquet").exists():
        numbers = f"SELECT DISTINCT unnest(hours) // 24 AS day FROM '{ledger}' WHERE is_home ORDER BY day"
        days = [day for (day,) in duck.execute(numbers).fetchall()]
    return Hour(unit, uuid.uuid4().hex, tuple(sorted(file.stem for file in folder.iterdir())), publishes, tuple(days))


def _copy(duck: duckdb.DuckDBPyConnection, statement: str, file: Path) -> None:
    """Write the rows of a query to a file; no file if there are no rows."""
    [(rows,)] = duck.execute(f"COPY ({statement}) TO '{file}' ({_PARQUET})").fetchall()
    if not rows:
        file.unlink()


def _sources(merge: Merge, work: Path) -> dict[str, str]:
    """Return the SQL for the rows of each table."""
    here = f"hour IN ({', '.join(map(str, merge.units))})"
    values = {}
    for name in PARTIALS:
        schema = f"SELECT NULL::INTEGER AS hour, * FROM s_{name}"
        new, old = [schema], [schema]
        if name in merge.new:
            new.append(f"SELECT * FROM read_parquet({[str(file) for file in merge.new[name]]}) WHERE {here}")
        for number, (unit, file) in enumerate(merge.old.get(name, ())):
            link = work / f"old-{name}-{number}.parquet"  # DuckDB would treat characters in other names as patterns
            link.symlink_to(file)
            old.append(f"SELECT {unit} AS hour, * FROM '{link}'")
        values[f"new_{name}"] = f"({' UNION ALL BY NAME '.join(new)})"
        values[f"old_{name}"] = f"({' UNION ALL BY NAME '.join(old)})"
        chosen = "untraced" if name == TRACE else "fresh"
        fresh = f"SELECT * EXCLUDE sid FROM {values[f'new_{name}']} SEMI JOIN {chosen} USING (hour, sid)"
        values[f"rows_{name}"] = f"({fresh} UNION ALL BY NAME FROM {values[f'old_{name}']})"
        if name not in merge.new:
            values[f"rows_{name}"] = values[f"old_{name}"]
    return values
