-- The tables of a day, $day, from the views p_NAME over the tables of its hours; their column `hour` is the hour of the
-- day. `oxproxy.report.days` (in tasks) and `oxproxy.report.tables` (anomalies) fill in $NAME.

-- name: begin
CREATE MACRO IF NOT EXISTS utc(x) AS make_timestamptz(epoch_us(x));
-- A quantile of values x, each of which may occur several times (upto: number of values up to and including x). It is
-- interpolated like quantile_cont.
CREATE MACRO IF NOT EXISTS percentile(x, upto, total, share) AS min(x) FILTER (upto > floor((total - 1) * share))
    + (min(x) FILTER (upto > ceil((total - 1) * share)) - min(x) FILTER (upto > floor((total - 1) * share)))
    * any_value((total - 1) * share - floor((total - 1) * share));
CREATE TEMP TABLE m_known (vhost VARCHAR, exchange VARCHAR, binding VARCHAR, rules VARCHAR)

-- name: main counts
-- Page data that no table contains. A segment with several copies counts once.
WITH files AS (SELECT any_value(COLUMNS(*)) FROM (FROM p_ledger WHERE is_home ORDER BY path) GROUP BY content)
SELECT (SELECT coalesce(sum(late), 0)::BIGINT FROM files) AS late,
    (SELECT count(*) FROM files) AS segments,
    (SELECT count(*) FILTER (damaged) FROM files) AS "damaged file",
    (SELECT coalesce(sum("foreign"), 0)::BIGINT FROM files) AS "foreign",
    (SELECT coalesce(sum(torn), 0)::BIGINT FROM files) AS torn,
    (SELECT coalesce(sum(version), 0)::BIGINT FROM files) AS version

-- name: copies
-- The paths of segments with the same content.
SELECT list(DISTINCT path ORDER BY path) AS paths FROM p_ledger WHERE has_records GROUP BY content
HAVING count(DISTINCT path) > 1 ORDER BY paths

-- name: results
SELECT result, total(n) FROM p_results GROUP BY ALL ORDER BY ALL

-- name: ways
SELECT message_id, list({'ts': t::VARCHAR, 'proxy': proxy, 'exchange': exchange, 'rk': rk, 'outcome': outcome,
    'queues': queues} ORDER BY t, proxy)[:50] AS steps FROM p_sample
GROUP BY message_id HAVING min(proxy) <> max(proxy) ORDER BY count(*) DESC, message_id LIMIT $ways

-- name: repeated
-- Message ids that occur several times. They are first compared by hash, which takes little memory and leaves few.
SELECT max(hour)::INTEGER AS hour, proxy, vhost, exchange, message_id, count(*) AS n FROM p_ids
WHERE hash(id, proxy, vhost, exchange) IN (
    SELECT hash(id, proxy, vhost, exchange) AS key FROM p_ids GROUP BY key HAVING count(*) > 1)
GROUP BY proxy, vhost, exchange, message_id HAVING n > 1

-- name: repeated counts
SELECT hour, 'duplicate message_id' AS what, format('{} exchange {} in {}', proxy, exchange, vhost) AS subject,
    sum(n - 1)::DOUBLE AS seen, 0.0 AS expected, sum(n - 1)::DOUBLE AS score, min(message_id) AS example,
FROM ($repeated) GROUP BY hour, proxy, vhost, exchange

-- name: audit gaps
SELECT hour, 'audit gap' AS what, proxy AS subject, total(dropped)::DOUBLE AS seen, 0.0 AS expected,
    total(dropped)::DOUBLE AS score, concat_ws(' to ', min("from"), max("to")) AS example FROM p_gaps
GROUP BY hour, proxy

-- name: seq gaps
-- The first publish number of a day is compared with the last number of the previous day, in the table `eve`.
WITH ordered AS (SELECT *, max(last) OVER (PARTITION BY proxy, conn, ch ORDER BY first, last
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS earlier FROM p_ranges),
holes AS (SELECT ordered.*, coalesce(earlier, eve.last) AS before, ordered.first - before - 1 AS missing
    FROM ordered LEFT JOIN eve USING (proxy, conn, ch) WHERE ordered.first > coalesce(earlier, eve.last) + 1),
held AS (SELECT proxy, conn, ch, max(last) - min(first) + 1 - (SELECT coalesce(sum(missing), 0) FROM holes h
    WHERE (h.proxy, h.conn, h.ch) = (o.proxy, o.conn, o.ch) AND h.earlier IS NOT NULL) AS seen FROM ordered o
    SEMI JOIN holes USING (proxy, conn, ch) GROUP BY proxy, conn, ch),
missed AS (SELECT hour, proxy, conn, ch, sum(missing) AS missing, min(before) AS place FROM holes GROUP BY ALL)
SELECT hour, 'seq gap' AS what, format('{} connection {} channel {}', proxy, conn, ch) AS subject,
    seen::DOUBLE AS seen, (seen + missing)::DOUBLE AS expected, missing::DOUBLE AS score,
    format('after number {}', place) AS example FROM missed JOIN held USING (proxy, conn, ch)

-- name: begin anomalies
CREATE OR REPLACE TEMP TABLE m_hours
    (date DATE, hour INTEGER, vhost VARCHAR, exchange VARCHAR, outcome VARCHAR, n DOUBLE);
CREATE OR REPLACE TEMP TABLE m_findings (hour INTEGER, what VARCHAR, subject VARCHAR, seen DOUBLE, expected DOUBLE,
    score DOUBLE, example VARCHAR)

-- name: hours
INSERT INTO m_hours SELECT date, hour, vhost, exchange, outcome, sum(publishes)
FROM read_parquet($files, hive_partitioning = true, union_by_name = true) GROUP BY ALL

-- name: deviations
-- Compares hours with the same hour of earlier days. The log of these days may no longer exist, so their tables are
-- read. A day is comparable if it has at least $least_records publishes and a hundredth of the median of all days, so
-- that stray records do not make a day. An hour without publishes counts as 0 on every comparable day. A value whose
-- modified z-score exceeds 3.5 is an outlier; 1.4826 makes the median absolute deviation comparable to a standard
-- deviation. If the earlier days hardly differ, the greatest of 1, the square root of the median, and 5 % of the median
-- is used instead of the deviation. Source: Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993.
CREATE OR REPLACE TEMP TABLE m_deviations AS
    WITH totals AS (SELECT date, sum(n) AS n FROM m_hours
        WHERE date BETWEEN $day - $history_days AND $day GROUP BY date),
    known AS (SELECT date FROM totals WHERE date = $day
        OR n >= greatest($least_records, (SELECT median(n) FROM totals) / 100)),
    hours AS (FROM m_hours SEMI JOIN known USING (date)),
    counted AS (SELECT date, hour, what, subject, sum(n) AS n FROM (
        SELECT date, hour, 'publishes' AS what, 'all' AS subject, n FROM hours
        UNION ALL SELECT date, hour, 'publishes', format('exchange {} in {}', exchange, vhost), n FROM hours
        UNION ALL SELECT date, hour, 'unrouted publishes', 'all', n FROM hours WHERE outcome = 'unrouted')
        GROUP BY ALL),
    filled AS (SELECT date, hour, what, subject, coalesce(n, 0) AS n
        FROM known CROSS JOIN (SELECT unnest(range(24))::INTEGER AS hour)
        CROSS JOIN (SELECT DISTINCT what, subject FROM counted) LEFT JOIN counted USING (date, hour, what, subject)),
    medians AS (SELECT hour, what, subject, median(n) AS expected, count(*) AS days FROM filled WHERE date < $day
        GROUP BY ALL),
    spread AS (SELECT hour, what, subject, median(abs(n - expected)) AS mad
        FROM filled JOIN medians USING (hour, what, subject) WHERE date < $day GROUP BY ALL)
    SELECT hour, what, subject, n AS seen, expected, abs(n - expected) AS score,
        CASE WHEN n > expected THEN 'more than usual' ELSE 'less than usual' END AS example,
        abs(n - expected) / greatest(mad * 1.4826, 1.0, sqrt(expected), expected * 0.05) AS deviation
    FROM filled JOIN medians USING (hour, what, subject) JOIN spread USING (hour, what, subject)
    WHERE date = $day AND days >= $least_days AND $day + INTERVAL 1 HOUR * (hour + 1) <= $now AND deviation > 3.5

-- Tables.

-- name: table anomalies
SELECT hour, what, subject, total(seen)::DOUBLE AS seen, max(expected) + 0.0 AS expected, sum(score) AS score,
    min(example) AS example, NULL::DOUBLE AS deviation FROM m_findings WHERE what = 'duplicate message_id' GROUP BY ALL
UNION ALL SELECT *, NULL FROM m_findings WHERE what <> 'duplicate message_id'
UNION ALL FROM m_deviations ORDER BY ALL

-- name: table _rejected
WITH files AS (SELECT any_value(path ORDER BY path) AS path, bool_or(damaged) AS damaged FROM p_ledger WHERE is_home
    GROUP BY content)
SELECT path AS file, why, line FROM p_rejected SEMI JOIN files USING (path)
UNION ALL SELECT path, 'damaged file', NULL FROM files WHERE damaged ORDER BY ALL

-- name: table _last
SELECT proxy, conn, ch, max(last) AS last FROM p_ranges GROUP BY ALL ORDER BY ALL

-- name: table traffic
SELECT hour, minute::INTEGER AS minute, vhost, exchange, outcome, proxy, n AS publishes, bytes FROM p_traffic
ORDER BY ALL

-- name: table flows
SELECT hour, vhost, "user", exchange, destination, kind, outcome, reason, rules, n AS publishes, bytes, messages,
    message_bytes FROM p_flows ORDER BY ALL

-- name: table destinations
SELECT vhost, destination, kind, total(n) AS publishes, total(bytes) AS bytes, utc(min(first)) AS first_seen,
    utc(max(last)) AS last_seen FROM p_flows WHERE destination IS NOT NULL GROUP BY ALL ORDER BY ALL

-- name: table bindings
-- Records contain ids of bindings without the exchange. If the exchange of the publish has no such binding in the rules
-- files, but exactly one other exchange does, the publish must have reached that exchange.
WITH files AS (SELECT DISTINCT vhost, exchange, binding FROM m_known),
single AS (SELECT vhost, binding, min(exchange) AS exchange FROM files GROUP BY ALL HAVING count(*) = 1),
alive AS (SELECT p.vhost, coalesce(own.exchange, reached.exchange, p.exchange) AS exchange, p.binding, p.rules,
        total(n) AS matches, utc(max(last)) AS last_match
    FROM p_bindings p
    LEFT JOIN files own ON (own.vhost, own.exchange, own.binding) = (p.vhost, p.exchange, p.binding)
    LEFT JOIN single reached ON own.binding IS NULL AND (reached.vhost, reached.binding) = (p.vhost, p.binding)
    GROUP BY ALL)
SELECT alive.*, CASE WHEN $is_known THEN files.binding IS NOT NULL END AS in_file
FROM alive LEFT JOIN files USING (vhost, exchange, binding)
UNION ALL SELECT vhost, exchange, binding, rules, 0, NULL, true FROM m_known
    ANTI JOIN alive USING (vhost, exchange, binding)
WHERE EXISTS (FROM p_traffic) ORDER BY ALL

-- name: table unroutable
SELECT vhost, exchange, rk_pattern, total(n) AS publishes, total(returned) AS returned,
    min(example).message_id AS example_message_id, min(example).rk AS example_rk,
    utc(min(example).t) AS first_seen, outcome, reason
FROM p_lost GROUP BY vhost, exchange, rk_pattern, outcome, reason ORDER BY ALL

-- name: table confirms
SELECT hour, result, n AS records FROM p_results ORDER BY ALL

-- name: table latency
WITH placed AS (SELECT hour, what, us AS x, n, sum(n) OVER (PARTITION BY hour, what ORDER BY us) AS upto,
    sum(n) OVER (PARTITION BY hour, what) AS total FROM p_latency)
SELECT hour, what, percentile(x, upto, total, 0.5) AS p50_us, percentile(x, upto, total, 0.95) AS p95_us,
    percentile(x, upto, total, 0.99) AS p99_us, any_value(total)::BIGINT AS samples
FROM placed GROUP BY hour, what ORDER BY ALL

-- name: table producers
WITH numbered AS (SELECT DISTINCT proxy, vhost, "user", conn FROM p_producers),
senders AS (SELECT row_number() OVER () AS id, * FROM numbered),
counted AS (SELECT id, part.size, part.class, sum(part.n) AS n FROM (SELECT id, unnest(sizes) AS part
    FROM p_producers JOIN senders USING (proxy, vhost, "user", conn)) GROUP BY ALL),
placed AS (SELECT id, size::DOUBLE AS x, sum(n) OVER (PARTITION BY id ORDER BY size) AS upto,
    sum(n) OVER (PARTITION BY id) AS total FROM counted),
shares AS (SELECT id, percentile(x, upto, total, 0.5) AS p50_size, percentile(x, upto, total, 0.95) AS p95_size
    FROM placed GROUP BY id),
sums AS (SELECT proxy, vhost, "user", conn, total(n) AS publishes, total(bytes) AS bytes,
    max(largest)::DOUBLE AS max_size, min(first) AS first, max(last) AS last FROM p_producers GROUP BY ALL),
peaks AS (SELECT proxy, vhost, "user", conn, max(peak)::BIGINT AS peak FROM p_peaks GROUP BY ALL),
connections AS (SELECT vhost, "user", list({'proxy': proxy, 'conn': conn, 'publishes': publishes, 'bytes': bytes,
        'p50_size': p50_size, 'p95_size': p95_size, 'max_size': max_size, 'peak_per_second': peak,
        'first_seen': utc(first), 'last_seen': utc(last)} ORDER BY publishes DESC, proxy, conn) AS connections,
        total(publishes) AS publishes, total(bytes) AS bytes, max(max_size) AS max_size, min(first) AS first,
        max(last) AS last
    FROM sums JOIN senders USING (proxy, vhost, "user", conn) JOIN shares USING (id)
    JOIN peaks USING (proxy, vhost, "user", conn) GROUP BY ALL),
user_counted AS (SELECT vhost, "user", size, class, sum(n) AS n FROM counted JOIN senders USING (id) GROUP BY ALL),
user_placed AS (SELECT vhost, "user", size::DOUBLE AS x, sum(n) OVER (PARTITION BY vhost, "user" ORDER BY size) AS upto,
    sum(n) OVER (PARTITION BY vhost, "user") AS total FROM user_counted),
user_shares AS (SELECT vhost, "user", percentile(x, upto, total, 0.5) AS p50_size,
    percentile(x, upto, total, 0.95) AS p95_size FROM user_placed GROUP BY ALL),
user_classes AS (SELECT vhost, "user", [
        {'up_to': 100::BIGINT, 'publishes': total(CASE class WHEN 1 THEN n ELSE 0 END)},
        {'up_to': 1000, 'publishes': total(CASE class WHEN 2 THEN n ELSE 0 END)},
        {'up_to': 10000, 'publishes': total(CASE class WHEN 3 THEN n ELSE 0 END)},
        {'up_to': 100000, 'publishes': total(CASE class WHEN 4 THEN n ELSE 0 END)},
        {'up_to': 1000000, 'publishes': total(CASE class WHEN 5 THEN n ELSE 0 END)},
        {'up_to': NULL, 'publishes': total(CASE class WHEN 6 THEN n ELSE 0 END)}] AS sizes FROM user_counted GROUP BY ALL)
SELECT vhost, "user", publishes, bytes, p50_size, p95_size, max_size, p.peak AS peak_per_second, sizes,
    utc(first) AS first_seen, utc(last) AS last_seen, connections
FROM connections JOIN user_shares USING (vhost, "user") JOIN user_classes USING (vhost, "user")
JOIN (SELECT vhost, "user", peak FROM peaks WHERE conn IS NULL) p USING (vhost, "user") ORDER BY ALL

-- name: table trace
SELECT message_id, utc(t) AS ts, proxy, vhost, exchange, rk, outcome, queues, exchanges, remotes, conn, ch, seq
FROM p_trace ORDER BY message_id, ts
