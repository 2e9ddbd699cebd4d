-- The tables of a day, $day, from the views p_NAME over partials. `proxy.report.tables` fills in $NAME.

-- name: begin
CREATE MACRO IF NOT EXISTS utc(x) AS make_timestamptz(epoch_us(x));
-- A quantile of values x, each of which may occur several times (upto: number of values up to and including x). It is
-- interpolated like quantile_cont.
CREATE MACRO IF NOT EXISTS percentile(x, upto, total, share) AS min(x) FILTER (upto > floor((total - 1) * share))
    + (min(x) FILTER (upto > ceil((total - 1) * share)) - min(x) FILTER (upto > floor((total - 1) * share)))
    * any_value((total - 1) * share - floor((total - 1) * share));
CREATE OR REPLACE TEMP TABLE m_known (vhost VARCHAR, exchange VARCHAR, binding VARCHAR, rules VARCHAR);
CREATE OR REPLACE TEMP TABLE m_hours
    (date DATE, hour INTEGER, vhost VARCHAR, exchange VARCHAR, outcome VARCHAR, n DOUBLE);

-- name: prepare
-- `m_pairs` contains each return with the latest earlier publish that has the same number. `m_returned` contains each
-- of these publishes once.
CREATE OR REPLACE TEMP TABLE m_pairs AS
    WITH told AS (SELECT DISTINCT proxy, conn, ch, seq, told FROM p_returned
        WHERE told >= $day AND told < $day + INTERVAL 25 HOUR),
    sent AS (FROM p_candidates WHERE t >= $day - 1 AND t < $day + INTERVAL 25 HOUR)
    SELECT told.told, first(sent ORDER BY sent.t DESC) AS publish, count(sent.t) AS n
    FROM told LEFT JOIN sent ON sent.t <= told.told AND (told.proxy, told.conn, told.ch, told.seq)
        = (sent.proxy, sent.conn, sent.ch, sent.seq)
    GROUP BY told.proxy, told.conn, told.ch, told.seq, told.told;
CREATE OR REPLACE TEMP TABLE m_returned AS SELECT unnest(publish) FROM (
    SELECT DISTINCT ON (publish.proxy, publish.conn, publish.ch, publish.seq, publish.t) publish FROM m_pairs
    WHERE n > 0 AND publish.t::DATE = $day);
-- Ids are first compared by hash, which takes a third of the memory and leaves few candidates.
CREATE OR REPLACE TEMP TABLE m_repeated AS FROM p_ids
    WHERE hour // 24 = $day - DATE '1970-01-01' AND hash(message_id) IN (
        SELECT hash(message_id) FROM p_ids WHERE hour // 24 = $day - DATE '1970-01-01'
        GROUP BY ALL HAVING count(*) > 1);
DELETE FROM m_hours WHERE date = $day;
INSERT INTO m_hours SELECT $day, clock // 60 % 24, vhost, exchange, outcome, sum(n) FROM p_traffic
    WHERE clock // 1440 = $day - DATE '1970-01-01' GROUP BY ALL;
-- Compares hours with the same hour of earlier days. The log of these days may no longer exist, so their tables are
-- read. An hour without publishes counts as 0 on every day with publishes. A value whose modified z-score exceeds 3.5
-- is an outlier; 1.4826 makes the median absolute deviation comparable to a standard deviation. If the earlier days
-- hardly differ, the greatest of 1, the square root of the median, and 5 % of the median is used instead of the
-- deviation. Source: Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993.
CREATE OR REPLACE TEMP TABLE m_deviations AS
    WITH hours AS (FROM m_hours WHERE date BETWEEN $day - $history_days AND $day),
    known AS (SELECT DISTINCT date FROM hours),
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
    SELECT hour, what, subject, n AS seen, expected, abs(n - expected) / greatest(mad * 1.4826, 1.0, sqrt(expected),
            expected * 0.05) AS score,
        CASE WHEN n > expected THEN 'more than usual' ELSE 'less than usual' END AS example
    FROM filled JOIN medians USING (hour, what, subject) JOIN spread USING (hour, what, subject)
    WHERE date = $day AND days >= 3 AND $day + INTERVAL 1 HOUR * (hour + 1) <= $now AND score > 3.5;

-- name: earlier hours
INSERT INTO m_hours SELECT date, hour, vhost, exchange, outcome, sum(publishes)
FROM read_parquet($files, hive_partitioning = true, union_by_name = true) GROUP BY ALL

-- name: table _rejected
SELECT path AS file, why, line FROM p_rejected JOIN live USING (sid) WHERE $here
UNION ALL SELECT path, 'damaged file', NULL FROM live WHERE damaged AND $here ORDER BY ALL

-- name: rejected counts
SELECT why, n FROM (UNPIVOT (SELECT count(*) FILTER (damaged) AS "damaged file", sum("foreign")::BIGINT AS "foreign",
    sum(torn)::BIGINT AS torn, sum(version)::BIGINT AS version FROM live WHERE $here)
    ON COLUMNS(*) INTO NAME why VALUE n) WHERE n > 0 ORDER BY why

-- name: late
SELECT coalesce(sum(late), 0)::BIGINT FROM live WHERE $here

-- name: unmatched
SELECT count(*) FROM m_pairs WHERE n = 0 AND told::DATE = $day

-- name: results
SELECT result, total(n) FROM p_results WHERE date = $day GROUP BY ALL

-- name: ways
SELECT message_id, list({'ts': t::VARCHAR, 'proxy': proxy, 'exchange': exchange, 'rk': rk, 'outcome': outcome,
    'queues': queues} ORDER BY t, proxy)[:50] AS steps FROM p_sample WHERE t::DATE = $day
AND message_id IN (SELECT message_id FROM m_repeated) GROUP BY message_id HAVING min(proxy) <> max(proxy)
ORDER BY count(*) DESC, message_id LIMIT $ways

-- Tables.

-- name: table traffic
SELECT (clock // 60 % 24)::INTEGER AS hour, (clock % 60)::INTEGER AS minute, vhost, exchange, outcome, proxy,
    total(n) AS publishes, total(bytes) AS bytes FROM p_traffic
WHERE clock // 1440 = $day - DATE '1970-01-01' GROUP BY ALL ORDER BY ALL

-- name: table destinations
SELECT vhost, destination, kind, total(n) AS publishes, total(bytes) AS bytes, utc(min(first)) AS first_seen,
    utc(max(last)) AS last_seen FROM p_destinations WHERE date = $day GROUP BY ALL ORDER BY ALL

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
    WHERE date = $day GROUP BY ALL)
SELECT alive.*, CASE WHEN $is_known THEN files.binding IS NOT NULL END AS in_file
FROM alive LEFT JOIN files USING (vhost, exchange, binding)
UNION ALL SELECT vhost, exchange, binding, rules, 0, NULL, true FROM m_known
    ANTI JOIN alive USING (vhost, exchange, binding)
WHERE EXISTS (FROM p_traffic WHERE clock // 1440 = $day - DATE '1970-01-01') ORDER BY ALL

-- name: table unroutable
SELECT vhost, exchange, rk_pattern, total(n) AS publishes, total(came_back) AS returned,
    min(example).message_id AS example_message_id, min(example).rk AS example_rk,
    utc(min(example).t) AS first_seen, min(example).outcome AS outcome, min(example).reason AS reason
FROM (SELECT vhost, exchange, rk_pattern, n, 0 AS came_back, example FROM p_unrouted WHERE date = $day
    UNION ALL SELECT vhost, exchange, pattern(rk), CASE outcome WHEN 'unrouted' THEN 0 ELSE 1 END, 1,
        {'t': t, 'message_id': message_id, 'rk': rk, 'outcome': outcome, 'reason': reason} FROM m_returned)
GROUP BY vhost, exchange, rk_pattern ORDER BY ALL

-- name: table latency
WITH counted AS (SELECT hour, what, us AS x, sum(n) AS n FROM p_latency WHERE date = $day GROUP BY ALL),
placed AS (SELECT hour, what, x, sum(n) OVER (PARTITION BY hour, what ORDER BY x) AS upto,
    sum(n) OVER (PARTITION BY hour, what) AS total FROM counted)
SELECT hour, what, percentile(x, upto, total, 0.5) AS p50_us, percentile(x, upto, total, 0.95) AS p95_us, percentile(x, upto, total, 0.99) AS p99_us, any_value(total)::BIGINT AS samples
FROM placed GROUP BY hour, what ORDER BY ALL

-- name: table producers
-- Together, the lists of seconds and sizes are as long as the log, so they must not be part of a window or a
-- materialized step.
WITH senders AS (SELECT row_number() OVER () AS id, *
    FROM (SELECT DISTINCT proxy, vhost, "user", conn FROM p_producers WHERE date = $day)),
numbered AS NOT MATERIALIZED (FROM p_producers JOIN senders USING (proxy, vhost, "user", conn) WHERE date = $day),
sums AS (SELECT id, proxy, vhost, "user", conn, total(n) AS publishes, total(bytes) AS bytes,
    max(largest)::DOUBLE AS max_size, max(peak) AS peak, utc(min(first)) AS first_seen, utc(max(last)) AS last_seen, [
        {'up_to': 100::BIGINT, 'publishes': total(classes[1])}, {'up_to': 1000, 'publishes': total(classes[2])},
        {'up_to': 10000, 'publishes': total(classes[3])}, {'up_to': 100000, 'publishes': total(classes[4])},
        {'up_to': 1000000, 'publishes': total(classes[5])}, {'up_to': NULL, 'publishes': total(classes[6])}] AS sizes
    FROM numbered GROUP BY ALL),
-- Rates need to be added up only for seconds that occur in several segments.
overlapping AS (SELECT id, sid FROM (SELECT id, sid, seconds[1] AS begin, seconds[-1] AS finish FROM numbered)
    WINDOW whole AS (PARTITION BY id ORDER BY begin, sid), earlier AS (PARTITION BY id ORDER BY begin, sid
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    QUALIFY begin <= max(finish) OVER earlier OR lead(begin) OVER whole <= finish),
joint AS (SELECT id, max(rate) AS peak FROM (SELECT id, second, total(n) AS rate FROM (
    SELECT id, unnest(seconds) AS second, unnest(rates) AS n FROM numbered SEMI JOIN overlapping USING (id, sid))
    GROUP BY ALL) GROUP BY id),
counted AS (SELECT id, x, sum(n) AS n FROM (SELECT id, unnest(roughly) AS x, unnest(counts) AS n FROM numbered)
    GROUP BY ALL),
placed AS (SELECT id, x::DOUBLE AS x, sum(n) OVER (PARTITION BY id ORDER BY x) AS upto,
    sum(n) OVER (PARTITION BY id) AS total FROM counted),
shares AS (SELECT id, percentile(x, upto, total, 0.5) AS p50_size, percentile(x, upto, total, 0.95) AS p95_size FROM placed GROUP BY id)
SELECT proxy, vhost, "user", conn, publishes, bytes, p50_size, p95_size, max_size,
    greatest(sums.peak, coalesce(joint.peak, 0))::BIGINT AS peak_per_second, sizes, first_seen, last_seen
FROM sums JOIN shares USING (id) LEFT JOIN joint USING (id) ORDER BY ALL

-- name: table anomalies
-- The first publish number of a day is compared with the last number of the previous day.
WITH ordered AS (SELECT *, max(last) OVER (PARTITION BY proxy, conn, ch ORDER BY first, last
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS earlier FROM p_ranges WHERE date = $day),
eve AS (SELECT proxy, conn, ch, max(last) AS last FROM p_ranges WHERE date = $day - 1 GROUP BY ALL),
holes AS (SELECT ordered.*, coalesce(earlier, eve.last) AS before, first - before - 1 AS missing
    FROM ordered LEFT JOIN eve USING (proxy, conn, ch) WHERE first > coalesce(earlier, eve.last) + 1),
held AS (SELECT proxy, conn, ch, max(last) - min(first) + 1 - (SELECT coalesce(sum(missing), 0) FROM holes h
    WHERE (h.proxy, h.conn, h.ch) = (o.proxy, o.conn, o.ch) AND h.earlier IS NOT NULL) AS seen FROM ordered o
    SEMI JOIN holes USING (proxy, conn, ch) GROUP BY proxy, conn, ch),
missed AS (SELECT hour(t)::INTEGER AS hour, proxy, conn, ch, sum(missing) AS missing, min(before) AS place
    FROM holes GROUP BY ALL)
SELECT hour, 'seq gap' AS what, format('{} connection {} channel {}', proxy, conn, ch) AS subject,
    seen::DOUBLE AS seen, (seen + missing)::DOUBLE AS expected, missing::DOUBLE AS score,
    format('after number {}', place) AS example FROM missed JOIN held USING (proxy, conn, ch)
UNION ALL SELECT hour, 'audit gap', proxy, total(dropped)::DOUBLE, 0.0, total(dropped)::DOUBLE,
    concat_ws(' to ', min("from"), max("to")) FROM p_gaps WHERE date = $day GROUP BY hour, proxy
UNION ALL SELECT hour, 'duplicate message_id', format('{} exchange {} in {}', proxy, exchange, vhost),
    sum(n - 1)::DOUBLE, 0.0, sum(n - 1)::DOUBLE, min(message_id) FROM (
    SELECT proxy, vhost, exchange, message_id, count(*) AS n, (max(hour) % 24)::INTEGER AS hour FROM m_repeated
    GROUP BY ALL HAVING n > 1) GROUP BY hour, proxy, vhost, exchange
UNION ALL FROM m_deviations ORDER BY ALL

-- name: table trace
SELECT message_id, utc(t) AS ts, proxy, vhost, exchange, rk, outcome, queues, exchanges, remotes, conn, ch, seq
FROM p_trace WHERE t::DATE = $day ORDER BY message_id, ts
