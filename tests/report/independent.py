"""The numbers of a day computed a second time, by DuckDB and without a line of the report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb

#: Fields by name; what a line has beside them does not matter here.
_FIELDS = {
    **dict.fromkeys(("v", "ch", "seq", "size", "dropped"), "BIGINT"),
    **dict.fromkeys(("kind", "ts", "proxy", "conn", "user", "vhost", "exchange", "rk", "message_id"), "VARCHAR"),
    **dict.fromkeys(("outcome", "rules", "result"), "VARCHAR"),
    **dict.fromkeys(("queues", "exchanges", "remotes", "bindings"), "VARCHAR[]"),
    **dict.fromkeys(("decide_us", "confirm_us"), "DOUBLE"),
}

Row = tuple[Any, ...]  # values of any column

#: What is asked of both: a name, the question to the log, the question to the report's tables, and how many of the
#: last columns are percentiles, which may differ by 1 %.
QUESTIONS: tuple[tuple[str, str, str, int], ...] = (
    (
        "traffic by minute",
        """SELECT hour(t), minute(t), vhost, exchange, outcome, proxy, count(*), sum(size)
           FROM publishes GROUP BY ALL""",
        "SELECT hour, minute, vhost, exchange, outcome, proxy, publishes, bytes FROM {traffic}",
        0,
    ),
    (
        "destinations",
        """SELECT vhost, name, kind, count(*), min(t), max(t) FROM (
             SELECT DISTINCT * FROM (
               SELECT id, vhost, t, 'queue' AS kind, unnest(queues) AS name FROM publishes
               UNION ALL SELECT id, vhost, t, 'exchange', unnest(exchanges) FROM publishes
               UNION ALL SELECT id, vhost, t, 'remote', unnest(remotes) FROM publishes)) GROUP BY ALL""",
        """SELECT vhost, destination, kind, publishes, first_seen::TIMESTAMP, last_seen::TIMESTAMP
           FROM {destinations}""",
        0,
    ),
    (
        "bindings",
        """SELECT vhost, exchange, name, rules, count(*), max(t)
           FROM (SELECT vhost, exchange, rules, t, unnest(bindings) AS name FROM publishes) GROUP BY ALL""",
        "SELECT vhost, exchange, binding, rules, matches, last_match::TIMESTAMP FROM {bindings} WHERE matches > 0",
        0,
    ),
    (
        "unroutable by exchange",
        """SELECT vhost, exchange, count(*), count(*) FILTER (came_back) FROM (
             SELECT *, EXISTS (FROM settles s WHERE s.result = 'returned' AND s.proxy = p.proxy AND s.conn = p.conn
                               AND s.ch = p.ch AND s.seq = p.seq) AS came_back FROM publishes p)
           WHERE came_back OR outcome = 'unrouted' GROUP BY ALL""",
        "SELECT vhost, exchange, sum(publishes), sum(returned) FROM {unroutable} GROUP BY ALL",
        0,
    ),
    (
        "latency",
        """SELECT hour(t), what, count(*), quantile_cont(us, 0.5), quantile_cont(us, 0.95), quantile_cont(us, 0.99)
           FROM (
             SELECT t, 'decide' AS what, decide_us AS us FROM publishes
             UNION ALL SELECT t, 'confirm', confirm_us FROM settles) WHERE us IS NOT NULL GROUP BY ALL""",
        "SELECT hour, what, samples, p50_us, p95_us, p99_us FROM {latency}",
        3,
    ),
    (
        "producers",
        """SELECT proxy, vhost, user, conn, sum(n), sum(b), max(n), any_value(p95) FROM (
             SELECT proxy, vhost, user, conn, date_trunc('second', t) AS s, count(*) AS n, sum(size) AS b
             FROM publishes GROUP BY ALL)
           JOIN (SELECT proxy, vhost, user, conn, quantile_cont(size, 0.95) AS p95 FROM publishes GROUP BY ALL)
           USING (proxy, vhost, user, conn) GROUP BY ALL""",
        """SELECT proxy, vhost, "user", conn, publishes, bytes, peak_per_second, p95_size FROM {producers}""",
        1,
    ),
    (
        "gaps of numbers",
        """SELECT format('{} connection {} channel {}', proxy, conn, ch), (max(seq) - min(seq) + 1 - count(*))::DOUBLE
           FROM publishes GROUP BY proxy, conn, ch HAVING max(seq) - min(seq) + 1 > count(*)""",
        "SELECT subject, sum(score) FROM {anomalies} WHERE what = 'seq gap' GROUP BY ALL",
        0,
    ),
    (
        "dropped lines",
        "SELECT hour(t), proxy, sum(dropped)::DOUBLE FROM gaps GROUP BY ALL",
        "SELECT hour, subject, seen FROM {anomalies} WHERE what = 'audit gap'",
        0,
    ),
    (
        "message ids that came again",
        """SELECT sum(n - 1)::DOUBLE FROM (SELECT count(*) AS n FROM publishes WHERE message_id IS NOT NULL
           GROUP BY proxy, vhost, exchange, message_id HAVING count(*) > 1)""",
        "SELECT sum(seen) FROM {anomalies} WHERE what = 'duplicate message_id'",
        0,
    ),
    (
        "ways of messages",
        "SELECT count(*), count(DISTINCT message_id), min(t), max(t) FROM publishes WHERE message_id IS NOT NULL",
        "SELECT count(*), count(DISTINCT message_id), min(ts)::TIMESTAMP, max(ts)::TIMESTAMP FROM {trace}",
        0,
    ),
)


class Computed:
    """What DuckDB makes of a log and of the tables of a report.

    Args:
        log: folder of the log.
        report: folder of the report.
    """

    def __init__(self, log: Path, report: Path) -> None:
        self._report = report
        self._duck = duckdb.connect()
        self._duck.execute("SET TimeZone = 'UTC'")
        columns = ", ".join(f"{name}: '{kind}'" for name, kind in _FIELDS.items())
        self._duck.execute(
            f"""CREATE TABLE lines AS SELECT *, ts::TIMESTAMP AS t, row_number() OVER () AS id FROM read_json(
                '{log}/*/*/audit-*', format = 'newline_delimited', columns = {{{columns}}}, ignore_errors = true)"""
        )
        for kind in ("publish", "settle", "gap"):
            name = {"publish": "publishes", "settle": "settles", "gap": "gaps"}[kind]
            whole = " AND outcome IS NOT NULL" if kind == "publish" else ""
            self._duck.execute(f"CREATE VIEW {name} AS FROM lines WHERE kind = '{kind}'{whole}")

    def answers(self) -> Iterator[tuple[str, list[Row], list[Row], int]]:
        """Yield each question's name, what the log says, what the report says, and how many percentiles are in it."""
        names = {path.name: f"read_parquet('{path}/*/*.parquet')" for path in self._report.iterdir() if path.is_dir()}
        for name, of_log, of_report, percentiles in QUESTIONS:
            yield name, self.ask(of_log), self.ask(of_report.format_map(names)), percentiles

    def ask(self, question: str) -> list[Row]:
        """Give the rows of an answer in order."""
        return sorted(self._duck.execute(question).fetchall(), key=str)
