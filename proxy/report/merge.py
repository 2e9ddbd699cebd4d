"""Makes the tables of one day from the partials of its segments.

Each table is one statement over the views ``p_NAME`` (`proxy.report.store`). Sums add up, histograms are added and
percentiles taken from them, ranges of numbers are joined, returns find their publishes across segments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import duckdb

from proxy.report import tables as names
from proxy.report.partials import DAMAGED, FOREIGN, NEWER, SIZE_CLASSES, TORN
from proxy.report.request import KnownBinding
from proxy.report.tables import Tables

#: Days before that hours are compared with, and the least number of them that means anything.
HISTORY_DAYS, LEAST_DAYS = 28, 3
#: A modified z-score above it is an outlier; the factor makes the median absolute deviation comparable to a standard
#: deviation. Source: Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993.
LIMIT, _FACTOR = 3.5, 1.4826
#: Less than this share of the median is no deviation, however regular the days before were.
_LEAST_SHARE = 0.05
#: Messages whose way through several sidecars is kept for the page, and steps of each.
WAYS, STEPS = 10, 50
#: A return may come so long after the day of its publish.
_LATE = timedelta(hours=1)

_MACROS = """
    CREATE MACRO IF NOT EXISTS total(x) AS least(sum(x), 9223372036854775807)::BIGINT;
    CREATE MACRO IF NOT EXISTS utc(x) AS make_timestamptz(epoch_us(x));
    CREATE MACRO IF NOT EXISTS pattern(rk) AS array_to_string(list_transform(string_split(rk, '.'), lambda word:
        CASE WHEN regexp_matches(word, '[0-9]|^[a-fA-F0-9-]{16,}$') THEN '*' ELSE word END), '.');
"""


def _percentiles(histogram: str, keys: str, shares: Mapping[str, float]) -> str:
    """Percentiles of a histogram with columns ``x`` and ``n``, between neighbours as `quantile_cont` has them."""
    at = {name: f"(total - 1) * {share}" for name, share in shares.items()}
    low = {name: f"min(x) FILTER (upto > floor({place}))" for name, place in at.items()}
    high = {name: f"min(x) FILTER (upto > ceil({place}))" for name, place in at.items()}
    columns = ", ".join(
        f"{low[name]} + ({high[name]} - {low[name]}) * any_value({place} - floor({place})) AS {name}"
        for name, place in at.items()
    )
    return f"""SELECT {keys}, {columns}, any_value(total)::BIGINT AS samples FROM (
        SELECT {keys}, x::DOUBLE AS x, sum(n) OVER (PARTITION BY {keys} ORDER BY x) AS upto,
            sum(n) OVER (PARTITION BY {keys}) AS total
        FROM (SELECT {keys}, x, sum(n) AS n FROM ({histogram}) GROUP BY ALL)) GROUP BY {keys}"""


_SENDER = 'proxy, vhost, "user", conn'
_CHANNEL = "proxy, conn, ch"
_SIZES = ", ".join(
    f"{{'up_to': {'NULL' if bound is None else bound}::BIGINT, 'publishes': total(classes[{place}])}}"
    for place, bound in enumerate(SIZE_CLASSES, 1)
)

#: Tables of a day, ``$day``; `_prepare` makes what begins with ``m_``.
STATEMENTS = {
    names.TRAFFIC: """SELECT (clock // 60 % 24)::INTEGER AS hour, (clock % 60)::INTEGER AS minute, vhost, exchange,
        outcome, proxy, total(n) AS publishes, total(bytes) AS bytes FROM p_traffic
        WHERE clock // 1440 = $day - DATE '1970-01-01' GROUP BY ALL ORDER BY ALL""",
    names.DESTINATIONS: """SELECT vhost, destination, kind, total(n) AS publishes, total(bytes) AS bytes,
        utc(min(first)) AS first_seen, utc(max(last)) AS last_seen FROM p_destinations WHERE date = $day
        GROUP BY ALL ORDER BY ALL""",
    names.BINDINGS: """
        WITH alive AS (SELECT vhost, exchange, binding, rules, total(n) AS matches, utc(max(last)) AS last_match
            FROM p_bindings WHERE date = $day GROUP BY ALL),
        files AS (SELECT DISTINCT vhost, exchange, binding FROM m_known)
        SELECT alive.*, CASE WHEN (SELECT is_known FROM m_request) THEN files.binding IS NOT NULL END AS in_file
        FROM alive LEFT JOIN files USING (vhost, exchange, binding)
        UNION ALL SELECT vhost, exchange, binding, rules, 0, NULL, true FROM m_known
            ANTI JOIN alive USING (vhost, exchange, binding)
        WHERE EXISTS (FROM p_traffic WHERE clock // 1440 = $day - DATE '1970-01-01') ORDER BY ALL""",
    names.UNROUTABLE: """SELECT vhost, exchange, rk_pattern, total(n) AS publishes, total(came_back) AS returned,
            min(example).message_id AS example_message_id, min(example).rk AS example_rk,
            utc(min(example).t) AS first_seen, min(example).outcome AS outcome, min(example).reason AS reason FROM (
        SELECT vhost, exchange, rk_pattern, n, 0 AS came_back, example FROM p_unrouted WHERE date = $day
        UNION ALL SELECT vhost, exchange, pattern(rk), CASE outcome WHEN 'unrouted' THEN 0 ELSE 1 END, 1,
            {'t': t, 'message_id': message_id, 'rk': rk, 'outcome': outcome, 'reason': reason} FROM m_returned)
        GROUP BY vhost, exchange, rk_pattern ORDER BY ALL""",
    names.LATENCY: "SELECT hour, what, p50_us, p95_us, p99_us, samples FROM ("
    + _percentiles(
        "SELECT hour, what, us AS x, n FROM p_latency WHERE date = $day",
        "hour, what",
        {"p50_us": 0.5, "p95_us": 0.95, "p99_us": 0.99},
    )
    + ") ORDER BY ALL",
    names.PRODUCERS: f"""
        WITH numbered AS (SELECT *, dense_rank() OVER (ORDER BY {_SENDER}) AS id FROM p_producers WHERE date = $day),
        sums AS (SELECT id, {_SENDER}, total(n) AS publishes, total(bytes) AS bytes, max(largest)::DOUBLE AS max_size,
            max(peak) AS peak, [{_SIZES}] AS sizes, utc(min(first)) AS first_seen, utc(max(last)) AS last_seen
            FROM numbered GROUP BY id, {_SENDER}),
        overlapping AS (SELECT id, seconds, rates FROM numbered
            WINDOW whole AS (PARTITION BY id ORDER BY seconds[1], sid), earlier AS (PARTITION BY id
                ORDER BY seconds[1], sid ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
            QUALIFY seconds[1] <= max(seconds[-1]) OVER earlier OR lead(seconds[1]) OVER whole <= seconds[-1]),
        joint AS (SELECT id, max(rate) AS peak FROM (SELECT id, second, total(n) AS rate FROM (
            SELECT id, unnest(seconds) AS second, unnest(rates) AS n FROM overlapping) GROUP BY ALL) GROUP BY id),
        shares AS ({
        _percentiles(
            "SELECT id, unnest(roughly) AS x, unnest(counts) AS n FROM numbered",
            "id",
            {"p50_size": 0.5, "p95_size": 0.95},
        )
    })
        SELECT {_SENDER}, publishes, bytes, p50_size, p95_size, max_size,
            greatest(sums.peak, coalesce(joint.peak, 0))::BIGINT AS peak_per_second, sizes, first_seen, last_seen
        FROM sums JOIN shares USING (id) LEFT JOIN joint USING (id) ORDER BY ALL""",
    names.ANOMALIES: f"""
        WITH ordered AS (SELECT *, max(last) OVER (PARTITION BY {_CHANNEL} ORDER BY first, last
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM p_ranges WHERE date = $day),
        holes AS (SELECT *, first - before - 1 AS missing FROM ordered WHERE first > before + 1),
        held AS (SELECT {_CHANNEL}, max(last) - min(first) + 1 - (SELECT coalesce(sum(missing), 0) FROM holes h
            WHERE (h.proxy, h.conn, h.ch) = (o.proxy, o.conn, o.ch)) AS seen FROM ordered o
            SEMI JOIN holes USING (proxy, conn, ch) GROUP BY {_CHANNEL}),
        found AS (SELECT hour(t)::INTEGER AS hour, {_CHANNEL}, sum(missing) AS missing, min(before) AS place
            FROM holes GROUP BY ALL)
        SELECT hour, 'seq gap' AS what, format('{{}} connection {{}} channel {{}}', proxy, conn, ch) AS subject,
            seen::DOUBLE AS seen, (seen + missing)::DOUBLE AS expected, missing::DOUBLE AS score,
            format('after number {{}}', place) AS example FROM found JOIN held USING (proxy, conn, ch)
        UNION ALL SELECT hour, 'audit gap', proxy, total(dropped)::DOUBLE, 0.0, total(dropped)::DOUBLE,
            concat_ws(' to ', min("from"), max("to")) FROM p_gaps WHERE date = $day GROUP BY hour, proxy
        UNION ALL SELECT hour, 'duplicate message_id', format('{{}} exchange {{}} in {{}}', proxy, exchange, vhost),
            sum(n - 1)::DOUBLE, 0.0, sum(n - 1)::DOUBLE, min(message_id) FROM (
            SELECT proxy, vhost, exchange, message_id, count(*) AS n, (max(hour) % 24)::INTEGER AS hour FROM m_repeated
            GROUP BY ALL HAVING n > 1) GROUP BY hour, proxy, vhost, exchange
        UNION ALL FROM m_deviations ORDER BY ALL""",
    names.TRACE: """SELECT message_id, utc(t) AS ts, proxy, vhost, exchange, rk, outcome, queues, exchanges, remotes,
        conn, ch, seq FROM p_trace WHERE t::DATE = $day ORDER BY message_id, ts""",
}

_RETURNED = f"""
    CREATE OR REPLACE TEMP TABLE m_pairs AS
        WITH told AS (SELECT DISTINCT {_CHANNEL}, seq, told FROM p_returned WHERE told >= $day AND told < $end),
        sent AS (FROM p_candidates WHERE t >= $begin AND t < $end)
        SELECT told.told, first(sent ORDER BY sent.t DESC) AS publish, count(sent.t) AS n
        FROM told LEFT JOIN sent ON sent.t <= told.told AND (told.proxy, told.conn, told.ch, told.seq)
            = (sent.proxy, sent.conn, sent.ch, sent.seq)
        GROUP BY told.proxy, told.conn, told.ch, told.seq, told.told
"""
_ONCE = """
    CREATE OR REPLACE TEMP TABLE m_returned AS SELECT unnest(publish) FROM (
        SELECT DISTINCT publish.proxy, publish.conn, publish.ch, publish.seq, publish.t, publish FROM m_pairs
        WHERE n > 0 AND publish.t::DATE = $day
        QUALIFY row_number() OVER (PARTITION BY publish.proxy, publish.conn, publish.ch, publish.seq, publish.t) = 1)
"""
#: Ids are compared by hash first, which takes a third of the memory; few remain.
_REPEATED = """
    CREATE OR REPLACE TEMP TABLE m_repeated AS FROM p_ids
    WHERE hour // 24 = $day - DATE '1970-01-01' AND hash(message_id) IN (
        SELECT hash(message_id) FROM p_ids WHERE hour // 24 = $day - DATE '1970-01-01'
        GROUP BY ALL HAVING count(*) > 1)
"""
_WAYS = f"""
    SELECT message_id, list({{'ts': t::VARCHAR, 'proxy': proxy, 'exchange': exchange, 'rk': rk, 'outcome': outcome,
        'queues': queues}} ORDER BY t, proxy)[:{STEPS}] AS steps FROM p_sample WHERE t::DATE = $day
    AND message_id IN (SELECT message_id FROM m_repeated) GROUP BY message_id HAVING min(proxy) <> max(proxy)
    ORDER BY count(*) DESC, message_id LIMIT {WAYS}
"""
#: Hours compared with the same hour of the days before, of which only tables may remain. An hour without any publish
#: counts as 0 on every day that has a log.
_HOURS = """
    CREATE TEMP TABLE m_hours (date DATE, hour INTEGER, vhost VARCHAR, exchange VARCHAR, outcome VARCHAR, n DOUBLE)
"""
_DEVIATIONS = f"""
    CREATE OR REPLACE TEMP TABLE m_deviations AS
    WITH hours AS (FROM m_hours WHERE date BETWEEN $day - {HISTORY_DAYS} AND $day),
    known AS (SELECT DISTINCT date FROM hours),
    counted AS (SELECT date, hour, what, subject, sum(n) AS n FROM (
        SELECT date, hour, 'publishes' AS what, 'all' AS subject, n FROM hours
        UNION ALL SELECT date, hour, 'publishes', format('exchange {{}} in {{}}', exchange, vhost), n FROM hours
        UNION ALL SELECT date, hour, 'unrouted publishes', 'all', n FROM hours WHERE outcome = 'unrouted')
        GROUP BY ALL),
    filled AS (SELECT date, hour, what, subject, coalesce(n, 0) AS n
        FROM known CROSS JOIN (SELECT unnest(range(24))::INTEGER AS hour)
        CROSS JOIN (SELECT DISTINCT what, subject FROM counted) LEFT JOIN counted USING (date, hour, what, subject)),
    medians AS (SELECT hour, what, subject, median(n) AS expected, count(*) AS days FROM filled WHERE date < $day
        GROUP BY ALL),
    spread AS (SELECT hour, what, subject, median(abs(n - expected)) AS mad
        FROM filled JOIN medians USING (hour, what, subject) WHERE date < $day GROUP BY ALL)
    SELECT hour, what, subject, n AS seen, expected, abs(n - expected) / greatest(mad * {_FACTOR}, 1.0, sqrt(expected),
            expected * {_LEAST_SHARE}) AS score,
        CASE WHEN n > expected THEN 'more than usual' ELSE 'less than usual' END AS example
    FROM filled JOIN medians USING (hour, what, subject) JOIN spread USING (hour, what, subject)
    WHERE date = $day AND days >= {LEAST_DAYS} AND $day + INTERVAL 1 HOUR * (hour + 1) <= $now AND score > {LIMIT}
"""


class Merge:
    """Makes the tables of days.

    Args:
        duck: has the partials.
        tables: where tables get in place.
        known: bindings of the rules files; None where no file was given.
        now: the time of the run: hours that are not over are not compared.
        trace: whether the table of all publishes is asked for.
    """

    def __init__(
        self,
        duck: duckdb.DuckDBPyConnection,
        tables: Tables,
        known: Sequence[KnownBinding] | None,
        now: datetime,
        trace: bool,
    ) -> None:
        self._duck = duck
        self._tables = tables
        self._now = now.astimezone(UTC).replace(tzinfo=None)
        self._hours: set[date] = set()
        self._trace = trace
        duck.execute(_MACROS)
        duck.execute("CREATE TEMP TABLE m_known (vhost VARCHAR, exchange VARCHAR, binding VARCHAR, rules VARCHAR)")
        duck.execute("CREATE TEMP TABLE m_request AS SELECT ?::BOOLEAN AS is_known", [known is not None])
        for binding in known or ():
            values = [binding.vhost, binding.exchange, binding.binding, binding.rules]
            duck.execute("INSERT INTO m_known VALUES (?, ?, ?, ?)", values)
        duck.execute(_HOURS)

    def day(self, day: date) -> dict[str, Any]:
        """Write the tables of a day to the staging folder.

        Returns:
            What the page shows and no table has.
        """
        self._prepare(day)
        rows = 0
        wanted = {name: text for name, text in STATEMENTS.items() if name != names.TRACE or self._trace}
        for name, statement in wanted.items():
            file = self._tables.staging(name, day) / "part-0.parquet"
            rows += self._write(statement, file, "FORMAT parquet, COMPRESSION zstd", day)
        if not rows:
            self._tables.drop(day)
        return self.rejected(day) | self._aside(day)

    def rejected(self, day: date | None) -> dict[str, Any]:
        """Write the lines that are no records in the folder of a day, and count them."""
        here = "folder IS NULL" if day is None else f"folder = DATE '{day}'"
        file = self._tables.staging(names.REJECTED, day) / "part-0.json.gz"
        written = self._write(
            f"""SELECT path AS file, why, line FROM p_rejected JOIN live USING (sid) WHERE {here}
            UNION ALL SELECT path, '{DAMAGED}', NULL FROM live WHERE damaged AND {here} ORDER BY ALL""",
            file,
            "FORMAT json, COMPRESSION gzip",
        )
        if not written:
            self._tables.drop(day, names.REJECTED)
        [counts] = self._ask(
            f"""SELECT count(*) FILTER (damaged), sum("foreign"), sum(torn), sum(version), sum(late) FROM live
            WHERE {here}"""
        )
        reasons = zip((DAMAGED, FOREIGN, TORN, NEWER), counts[:4], strict=True)
        return {"rejected": {why: int(count) for why, count in reasons if count}, "late": int(counts[4] or 0)}

    def _aside(self, day: date) -> dict[str, Any]:
        [(unmatched,)] = self._ask("SELECT count(*) FROM m_pairs WHERE n = 0 AND told::DATE = $day", day)
        return {
            "results": dict(self._ask("SELECT result, total(n) FROM p_results WHERE date = $day GROUP BY ALL", day)),
            "unmatched": unmatched,
            "ways": self._ask(_WAYS, day),
        }

    def _prepare(self, day: date) -> None:
        for statement in (_RETURNED, _ONCE, _REPEATED):
            self._execute(statement, day)
        earlier = [
            other
            for other in self._tables.days(names.TRAFFIC)
            if 0 < (day - other).days <= HISTORY_DAYS and other not in self._hours
        ]
        for other in earlier:
            for file in self._tables.files(names.TRAFFIC, [other]):
                self._take_hours(other, f"read_parquet('{file}')")
        self._duck.execute("DELETE FROM m_hours WHERE date = ?", [day])
        self._take_hours(day, f"({STATEMENTS[names.TRAFFIC]})".replace("$day", f"DATE '{day}'"))
        self._execute(_DEVIATIONS.replace("$now", f"TIMESTAMP '{self._now}'"), day)

    def _take_hours(self, day: date, source: str) -> None:
        self._hours.add(day)
        self._duck.execute(
            f"""INSERT INTO m_hours SELECT DATE '{day}', hour, vhost, exchange, outcome, sum(publishes)
            FROM {source} GROUP BY ALL"""
        )

    def _write(self, statement: str, file: Path, form: str, day: date | None = None) -> int:
        [(rows,)] = self._execute(f"COPY ({statement}) TO '{file}' ({form})", day).fetchall()
        return int(rows)

    def _ask(self, statement: str, day: date | None = None) -> list[Any]:  # rows of any columns
        return self._execute(statement, day).fetchall()

    def _execute(self, statement: str, day: date | None) -> duckdb.DuckDBPyConnection:
        if day is not None:
            begin, end = day - timedelta(days=1), datetime.combine(day, time()) + timedelta(days=1) + _LATE
            statement = statement.replace("$begin", f"DATE '{begin}'").replace("$end", f"TIMESTAMP '{end}'")
            statement = statement.replace("$day", f"DATE '{day}'")
        return self._duck.execute(statement)
