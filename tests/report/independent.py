"""Computes the report's numbers for a day with DuckDB from the raw lines, independently of the report's code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import pytest

#: Fields by name; other fields of a line are ignored.
_FIELDS = {
    **dict.fromkeys(("v", "ch", "seq", "size", "dropped", "reply_code"), "BIGINT"),
    **dict.fromkeys(("kind", "ts", "proxy", "conn", "user", "vhost", "exchange", "rk", "message_id"), "VARCHAR"),
    **dict.fromkeys(("outcome", "reason", "rules", "result"), "VARCHAR"),
    **dict.fromkeys(("queues", "exchanges", "remotes", "bindings"), "VARCHAR[]"),
    **dict.fromkeys(("decide_us", "confirm_us"), "DOUBLE"),
}

Row = tuple[Any, ...]  # values of any column

#: The error stated in docs/reference/audit.md, with a margin for rounding.
ERRORS = {"latency": 0.0005 + 1e-9, "producers": 0.005 + 1e-9, "producers by user": 0.005 + 1e-9}
#: Used instead of a number of percentiles if the report's rows are a subset of the log's rows.
PART = -1
#: Variable words of a routing key, as defined in docs/reference/audit.md.
_IDENTITY = re.compile(r"(?<![^.])(?:[^.]*[0-9][^.]*|[0-9a-fA-F-]{16,})(?![^.])")

TABLES = (
    "traffic",
    "destinations",
    "bindings",
    "flows",
    "unroutable",
    "latency",
    "confirms",
    "producers",
    "anomalies",
    "trace",
)
#: Queries on both: a name, the query on the log, the query on the report's tables, and how many of the
#: last columns are percentiles, which may differ by the error that is stated (`ERRORS`).
QUESTIONS: tuple[tuple[str, str, str, int], ...] = (
    (
        "traffic by minute",
        """SELECT t::DATE, hour(t), minute(t), vhost, exchange, outcome, proxy, count(*), sum(size)
           FROM publishes GROUP BY ALL""",
        "SELECT date, hour, minute, vhost, exchange, outcome, proxy, publishes, bytes FROM {traffic}",
        0,
    ),
    (
        "destinations",
        """SELECT t::DATE, vhost, name, kind, count(*), sum(size), min(t), max(t) FROM (
             SELECT DISTINCT * FROM (
               SELECT id, vhost, t, size, 'queue' AS kind, unnest(queues) AS name FROM publishes
               UNION ALL SELECT id, vhost, t, size, 'exchange', unnest(exchanges) FROM publishes
               UNION ALL SELECT id, vhost, t, size, 'remote', unnest(remotes) FROM publishes)) GROUP BY ALL""",
        """SELECT date, vhost, destination, kind, publishes, bytes, first_seen::TIMESTAMP, last_seen::TIMESTAMP
           FROM {destinations}""",
        0,
    ),
    (
        "bindings",
        """SELECT t::DATE, vhost, exchange, name, rules, count(*), max(t)
           FROM (SELECT vhost, exchange, rules, t, unnest(list_distinct(bindings)) AS name FROM publishes)
           GROUP BY ALL""",
        """SELECT date, vhost, exchange, binding, rules, matches, last_match::TIMESTAMP FROM {bindings}
           WHERE matches > 0""",
        0,
    ),
    (
        "unroutable",
        """SELECT t::DATE, vhost, exchange, as_pattern(rk), outcome, reason, count(*), 0, min(t) FROM publishes
           WHERE outcome IN ('unrouted', 'filtered', 'rejected') GROUP BY ALL
           UNION ALL SELECT t::DATE, vhost, exchange, as_pattern(rk), 'returned', reply_code::VARCHAR,
             count(*) FILTER (outcome NOT IN ('unrouted', 'filtered', 'rejected')), count(*), min(t)
           FROM settles WHERE result = 'returned' GROUP BY ALL""",
        """SELECT date, vhost, exchange, rk_pattern, outcome, reason, publishes, returned, first_seen::TIMESTAMP
           FROM {unroutable}""",
        0,
    ),
    (
        "flows",
        """SELECT t::DATE, hour(t), vhost, user, exchange, name, kind, outcome, reason, rules, count(*), sum(size)
           FROM (SELECT DISTINCT * FROM (
               SELECT id, vhost, user, exchange, outcome, reason, rules, t, size, 'queue' AS kind,
                 unnest(queues) AS name FROM publishes
               UNION ALL SELECT id, vhost, user, exchange, outcome, reason, rules, t, size, 'exchange',
                 unnest(exchanges) FROM publishes
               UNION ALL SELECT id, vhost, user, exchange, outcome, reason, rules, t, size, 'remote', unnest(remotes)
                 FROM publishes)) GROUP BY ALL""",
        """SELECT date, hour, vhost, "user", exchange, destination, kind, outcome, reason, rules, publishes, bytes
           FROM {flows} WHERE destination IS NOT NULL""",
        0,
    ),
    (
        "flows of publishes",
        """SELECT t::DATE, hour(t), vhost, user, exchange, outcome, reason, rules, count(*), sum(size) FROM publishes
           GROUP BY ALL""",
        """SELECT date, hour, vhost, "user", exchange, outcome, reason, rules, sum(messages), sum(message_bytes)
           FROM {flows} GROUP BY ALL""",
        0,
    ),
    (
        "results of confirms",
        "SELECT t::DATE, hour(t), result, count(*) FROM settles GROUP BY ALL",
        "SELECT date, hour, result, records FROM {confirms}",
        0,
    ),
    (
        "examples of unroutable publishes",
        "SELECT DISTINCT t::DATE, vhost, exchange, rk, message_id, t FROM lines",
        """SELECT date, vhost, exchange, example_rk, example_message_id, first_seen::TIMESTAMP FROM {unroutable}""",
        PART,
    ),
    (
        "latency",
        """SELECT t::DATE, hour(t), what, count(*), quantile_cont(us, 0.5), quantile_cont(us, 0.95),
             quantile_cont(us, 0.99)
           FROM (
             SELECT t, 'decide' AS what, decide_us AS us FROM publishes
             UNION ALL SELECT t, 'confirm', confirm_us FROM settles) WHERE us IS NOT NULL GROUP BY ALL""",
        "SELECT date, hour, what, samples, p50_us, p95_us, p99_us FROM {latency}",
        3,
    ),
    (
        "producers",
        """SELECT day, proxy, vhost, user, conn, sum(n), sum(b), max(n), min(a), max(z), any_value(largest),
             any_value(p50), any_value(p95)
           FROM (
             SELECT t::DATE AS day, proxy, vhost, user, conn, date_trunc('second', t) AS s, count(*) AS n,
               sum(size) AS b, min(t) AS a, max(t) AS z
             FROM publishes GROUP BY ALL)
           JOIN (SELECT t::DATE AS day, proxy, vhost, user, conn, quantile_cont(size, 0.5) AS p50,
               quantile_cont(size, 0.95) AS p95, max(size)::DOUBLE AS largest FROM publishes GROUP BY ALL)
           USING (day, proxy, vhost, user, conn) GROUP BY ALL""",
        """SELECT date, c.proxy, vhost, "user", c.conn, c.publishes, c.bytes, c.peak_per_second,
             c.first_seen::TIMESTAMP, c.last_seen::TIMESTAMP, c.max_size, c.p50_size, c.p95_size
           FROM (SELECT date, vhost, "user", unnest(connections) AS c FROM {producers})""",
        2,
    ),
    (
        "producers by user",
        """SELECT day, vhost, user, sum(n), sum(b), max(n), min(a), max(z), any_value(largest), any_value(p50),
             any_value(p95)
           FROM (
             SELECT t::DATE AS day, vhost, user, date_trunc('second', t) AS s, count(*) AS n,
               sum(size) AS b, min(t) AS a, max(t) AS z
             FROM publishes GROUP BY ALL)
           JOIN (SELECT t::DATE AS day, vhost, user, quantile_cont(size, 0.5) AS p50,
               quantile_cont(size, 0.95) AS p95, max(size)::DOUBLE AS largest FROM publishes GROUP BY ALL)
           USING (day, vhost, user) GROUP BY ALL""",
        """SELECT date, vhost, "user", publishes, bytes, peak_per_second, first_seen::TIMESTAMP,
             last_seen::TIMESTAMP, max_size, p50_size, p95_size FROM {producers}""",
        2,
    ),
    (
        "size classes",
        """SELECT t::DATE, CASE WHEN size <= 100 THEN 100 WHEN size <= 1000 THEN 1000 WHEN size <= 10000 THEN 10000
             WHEN size <= 100000 THEN 100000 WHEN size <= 1000000 THEN 1000000 END AS up_to, count(*)
           FROM publishes GROUP BY ALL""",
        """SELECT date, size.up_to, sum(size.publishes) AS n FROM (SELECT date, unnest(sizes) AS size FROM {producers})
           GROUP BY ALL HAVING n > 0""",
        0,
    ),
    (
        "gaps of numbers",
        """WITH days AS (SELECT t::DATE AS day, proxy, conn, ch, min(seq) AS first, max(seq) AS last,
             count(DISTINCT seq) AS n FROM publishes GROUP BY ALL)
           SELECT day, format('{} connection {} channel {}', proxy, conn, ch), (last - first + 1 - n + greatest(0,
             first - 1 - coalesce((SELECT eve.last FROM days eve WHERE eve.day = days.day - 1 AND
             (eve.proxy, eve.conn, eve.ch) = (days.proxy, days.conn, days.ch)), first)))::DOUBLE AS missing
           FROM days WHERE missing > 0""",
        "SELECT date, subject, sum(score) FROM {anomalies} WHERE what = 'seq gap' GROUP BY ALL",
        0,
    ),
    (
        "dropped lines",
        "SELECT t::DATE, hour(t), proxy, sum(dropped)::DOUBLE FROM gaps GROUP BY ALL",
        "SELECT date, hour, subject, seen FROM {anomalies} WHERE what = 'audit gap'",
        0,
    ),
    (
        "message ids that came again",
        """SELECT day, h, format('{} exchange {} in {}', proxy, exchange, vhost), sum(n - 1)::DOUBLE, min(message_id)
           FROM (SELECT t::DATE AS day, hour(max(t)) AS h, proxy, vhost, exchange, message_id, count(*) AS n
             FROM publishes WHERE message_id IS NOT NULL
             GROUP BY t::DATE, proxy, vhost, exchange, message_id HAVING n > 1)
           GROUP BY day, h, proxy, vhost, exchange""",
        "SELECT date, hour, subject, seen, example FROM {anomalies} WHERE what = 'duplicate message_id'",
        0,
    ),
    (
        "ways of messages",
        """SELECT message_id, t, proxy, vhost, exchange, rk, outcome, queues, exchanges, remotes, conn, ch, seq
           FROM publishes WHERE message_id IS NOT NULL""",
        """SELECT message_id, ts::TIMESTAMP, proxy, vhost, exchange, rk, outcome, queues, exchanges, remotes, conn, ch,
             seq FROM {trace}""",
        0,
    ),
)


class Computed:
    """Queries a log and the tables of a report with DuckDB.

    Args:
        log: directory of the log.
        report: directory of the report.
    """

    def __init__(self, log: Path, report: Path) -> None:
        self._report = report
        self._duck = duckdb.connect()
        self._duck.execute("SET TimeZone = 'UTC'")
        text = duckdb.sqltypes.VARCHAR
        self._duck.create_function("as_pattern", lambda key: _IDENTITY.sub("*", key), [text], text)
        columns = ", ".join(f"{name}: '{kind}'" for name, kind in _FIELDS.items())
        self._duck.execute(
            f"""CREATE TABLE lines AS SELECT *, ts::TIMESTAMP AS t, row_number() OVER () AS id FROM read_json(
                '{log}/**/audit-*', format = 'newline_delimited', columns = {{{columns}}}, ignore_errors = true)"""
        )
        for kind in ("publish", "settle", "gap"):
            name = {"publish": "publishes", "settle": "settles", "gap": "gaps"}[kind]
            whole = " AND outcome IS NOT NULL" if kind == "publish" else ""
            self._duck.execute(f"CREATE VIEW {name} AS FROM lines WHERE kind = '{kind}'{whole}")

    def questions(self) -> Iterator[tuple[str, str, str, int]]:
        """Yield the questions about the report's tables as in `QUESTIONS`, with the names of files filled in."""
        names = {path.name: f"read_parquet('{path}/*/*.parquet')" for path in self._report.iterdir() if path.is_dir()}
        for name, of_log, of_report, percentiles in QUESTIONS:
            if all(f"{{{table}}}" not in of_report or table in names for table in TABLES):
                yield name, of_log, of_report.format_map(names), percentiles

    def compare(self) -> set[str]:
        """Compare all rows.

        Returns:
            The names of the questions that have rows.
        """
        full = set()
        for name, of_log, of_report, percentiles in self.questions():
            report_rows = self.ask(of_report)
            full |= {name} if report_rows else set()
            if percentiles == PART:
                assert self.ask(f"{of_report} EXCEPT ({of_log})") == [], name
                continue
            log_rows = self.ask(of_log)
            assert [row[: len(row) - percentiles] for row in report_rows] == [
                row[: len(row) - percentiles] for row in log_rows
            ], name
            for report_row, log_row in zip(report_rows, log_rows, strict=True):
                rest = len(report_row) - percentiles
                assert report_row[rest:] == pytest.approx(log_row[rest:], rel=ERRORS.get(name, 0)), name
        return full

    def days(self) -> list[date]:
        """Return the days with publishes in the log."""
        return [row[0] for row in self.ask("SELECT DISTINCT t::DATE FROM publishes")]

    def ask(self, question: str) -> list[Row]:
        """Return the sorted rows of a query."""
        return sorted(self._duck.execute(question).fetchall(), key=str)
