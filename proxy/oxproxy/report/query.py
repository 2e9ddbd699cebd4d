"""Runs an SQL query on the tables of a report, for ``oxproxy report --query``.

DuckDB can read any file and URL with functions such as ``read_csv``. A query may come from someone else, such as a page
of recipes, so it can read only the files of the tables.
"""

from __future__ import annotations

import json
from typing import Any

import duckdb

from oxproxy.errors import ConfigError
from oxproxy.report.files.storage import folder_day
from oxproxy.report.request import Request
from oxproxy.report.session import LazySession, Run, opened
from oxproxy.report.tables import TABLES

Row = dict[str, Any]  # as in JSON


def query(request: Request, statement: str) -> tuple[list[str], list[Row]]:
    """Return the columns and rows of a query on the tables of the requested days, which are views with their names.

    Raises:
        ConfigError: there is no report, or the query is invalid.
    """
    with LazySession(request) as session, opened(session, request, of_input=False) as run:
        try:
            if not (paths := _create_views(run)):
                of_days = "" if request.since is None and request.until is None else " of these days"
                raise ConfigError(request.output, 0, "--query", f"no tables{of_days}; run oxproxy report first")
            statements = run.duck.extract_statements(statement)
            if [part.type for part in statements] != [duckdb.StatementType.SELECT]:
                raise ConfigError("oxproxy report", 0, "--query", "expected one SELECT statement")
            run.duck.execute("SET preserve_insertion_order = true")  # keeps the order of the query
            run.duck.execute("SET allowed_paths = $paths", {"paths": paths})
            run.duck.execute("SET enable_external_access = false; SET lock_configuration = true")
            # As JSON, values of all types can be printed.
            result = run.duck.execute("SELECT to_json(COLUMNS(*))::VARCHAR FROM query(?)", [statement])
            columns = [column[0] for column in result.description]
            return columns, [
                {name: None if text is None else json.loads(text) for name, text in zip(columns, row, strict=True)}
                for row in result.fetchall()
            ]
        except duckdb.PermissionException as error:
            tables = ", ".join(TABLES)
            raise ConfigError("oxproxy report", 0, "--query", f"only tables can be read: {tables}") from error
        except duckdb.Error as error:
            raise ConfigError("oxproxy report", 0, "--query", str(error).splitlines()[0]) from error


def _create_views(run: Run) -> list[str]:
    """Create a view for each table that has files for the requested days; return the paths of the files."""
    paths: list[str] = []
    for name in TABLES:
        folder = run.work / name
        folder.mkdir()
        files = []
        for entry in run.storage.entries(f"{run.output}/{name}"):
            day = folder_day(f"{entry.name}/")
            if day is not None and run.request.wants(day):
                (folder / entry.name).mkdir()
                parts = run.storage.entries(entry.path)
                files += [str(run.storage.fetch(part.path, folder / entry.name)) for part in parts]
        if files:
            paths += files
            source = f"read_parquet({files}, hive_partitioning = true, union_by_name = true)"
            run.duck.execute(f"CREATE VIEW {name} AS FROM {source}")
    return paths
