"""Runs an SQL query on the tables of a report, for ``oxproxy report --query``."""

from __future__ import annotations

import json
from typing import Any

import duckdb

from proxy.errors import ConfigError
from proxy.report.request import Request
from proxy.report.session import LazySession, opened
from proxy.report.storage import folder_day
from proxy.report.tables import TABLES

Row = dict[str, Any]  # as in JSON


def query(request: Request, statement: str) -> tuple[list[str], list[Row]]:
    """Return the columns and rows of a query on the tables of the requested days, which are views with their names.

    Raises:
        ConfigError: there is no report, or the query is invalid.
    """
    with LazySession(request) as session, opened(session, request, of_input=False) as run:
        found = False
        for name in TABLES:
            folder = run.work / name
            folder.mkdir()
            files = []
            for entry in run.storage.entries(f"{run.output}/{name}"):
                day = folder_day(f"{entry.name}/")
                if day is not None and request.wants(day):
                    (folder / entry.name).mkdir()
                    parts = run.storage.entries(entry.path)
                    files += [str(run.storage.fetch(part.path, folder / entry.name)) for part in parts]
            if files:
                found = True
                source = f"read_parquet({files}, hive_partitioning = true, union_by_name = true)"
                run.duck.execute(f"CREATE VIEW {name} AS FROM {source}")
        if not found:
            raise ConfigError(request.output, 0, "--query", "no tables; run oxproxy report first")
        try:
            statements = run.duck.extract_statements(statement)
            if [part.type for part in statements] != [duckdb.StatementType.SELECT]:
                raise ConfigError("oxproxy report", 0, "--query", "expected one SELECT statement")
            run.duck.execute("SET preserve_insertion_order = true")  # keeps the order of the query
            content = f"({statements[0].query.rstrip().rstrip(';')})"
            columns = [column[0] for column in run.duck.execute(f"FROM {content} LIMIT 0").description]
            # As JSON, values of all types can be printed.
            rows = run.duck.execute(f"SELECT to_json(found)::VARCHAR FROM {content} AS found").fetchall()
            return columns, [json.loads(text) for (text,) in rows]
        except duckdb.Error as error:
            raise ConfigError("oxproxy report", 0, "--query", str(error).splitlines()[0]) from error
