-- The output of a task for a group of segments. `proxy.report.partials` fills in $NAME.

-- name: setup
SET threads = 1;
SET preserve_insertion_order = false;
SET memory_limit = '512MB';
SET TimeZone = 'UTC';
-- A value rounded to significant digits. The error is at most 0.05 % for 4 digits (times), and 0.5 % for 3 (sizes).
CREATE MACRO rounded(x, digits) AS CASE WHEN x = 0 THEN 0.0 ELSE
    round(x / pow(10.0, floor(log10(x)) - (digits - 1))) * pow(10.0, floor(log10(x)) - (digits - 1)) END;

-- name: begin
CREATE OR REPLACE TEMP TABLE files (sid BIGINT, path VARCHAR, name VARCHAR, content VARCHAR, size BIGINT,
    modified BIGINT, folder DATE, damaged BOOLEAN, traced BOOLEAN, bloom BLOB);
CREATE OR REPLACE TEMP TABLE wrong (sid BIGINT, why VARCHAR, line VARCHAR);
CREATE OR REPLACE TEMP TABLE lines AS FROM ($parse) LIMIT 0;
CREATE OR REPLACE TEMP VIEW publishes AS FROM lines WHERE kind = 'publish';
CREATE OR REPLACE TEMP VIEW settles AS FROM lines WHERE kind = 'settle';
CREATE OR REPLACE TEMP VIEW back AS SELECT DISTINCT sid, proxy, conn, ch, seq, t AS told FROM settles
    WHERE result = 'returned';

-- name: parse
-- The parsed lines of a file. Fields with an unexpected type are null, like missing fields. `nr` counts lines that are
-- not blank; a single thread reads them in order. `sender` identifies a connection, and `id` a message id. They are
-- numbers, which are cheaper to compare, and `id` is the same with every version of DuckDB. Times outside the years
-- 1970 to 2999 are treated as missing, since they would overflow in partials and tables.
WITH parsed AS (
    SELECT row_number() OVER () AS nr, * FROM read_json('$file', format = 'newline_delimited', ignore_errors = true,
        maximum_object_size = $longest, columns = {
            v: 'BIGINT', kind: 'VARCHAR', ts: 'VARCHAR', proxy: 'VARCHAR', conn: 'VARCHAR', ch: 'BIGINT', seq: 'BIGINT',
            "user": 'VARCHAR', vhost: 'VARCHAR', exchange: 'VARCHAR', rk: 'VARCHAR', message_id: 'VARCHAR',
            size: 'BIGINT', outcome: 'VARCHAR', queues: 'VARCHAR[]', exchanges: 'VARCHAR[]', remotes: 'VARCHAR[]',
            bindings: 'VARCHAR[]', rules: 'VARCHAR', reason: 'VARCHAR', decide_us: 'DOUBLE', result: 'VARCHAR',
            confirm_us: 'DOUBLE', dropped: 'BIGINT', "from": 'VARCHAR', "to": 'VARCHAR'})),
timed AS (
    SELECT * EXCLUDE ts, CASE WHEN length(ts) BETWEEN 20 AND 27 AND ts[11] = 'T' AND ts[-1] = 'Z'
        AND ts BETWEEN '1970' AND '3000' THEN TRY_CAST(ts AS TIMESTAMP) END AS t FROM parsed)
SELECT $sid::BIGINT AS sid, *, t::DATE AS date, hash(proxy, vhost, "user", conn) AS sender,
    md5_number_lower(message_id) AS id,
    coalesce(v = $version AND t IS NOT NULL AND proxy IS NOT NULL AND CASE kind
        WHEN 'publish' THEN conn IS NOT NULL AND "user" IS NOT NULL AND vhost IS NOT NULL AND ch IS NOT NULL
            AND exchange IS NOT NULL AND rk IS NOT NULL AND outcome IS NOT NULL AND size >= 0 AND seq >= 1
        WHEN 'settle' THEN conn IS NOT NULL AND ch IS NOT NULL AND seq >= 1 AND result IS NOT NULL
        WHEN 'gap' THEN dropped IS NOT NULL ELSE false END, false) AS is_record
FROM timed

-- name: routes
-- The common input of destinations and bindings.
CREATE OR REPLACE TEMP TABLE routes AS SELECT sid, date, vhost, exchange, rules, queues, exchanges, remotes, bindings,
    count(*) AS n, total(size) AS bytes, min(t) AS first, max(t) AS last FROM publishes GROUP BY ALL;
-- `sampled` is the greatest id of the 1,000 publishes whose whole path through several sidecars is kept. These are the
-- publishes with the smallest hashes of the message id, so that the same messages are chosen in all segments. `tail` is
-- the time from which publishes can still be matched to a return in a later segment. This applies to the last 2,000
-- publishes or, if there were more in the last 60 seconds, to all publishes of that period, up to 20,000.
CREATE OR REPLACE TEMP TABLE limits AS SELECT sid, list_max(min(id, 1000)) AS sampled,
    greatest(list_min(max(t, 20000)), least(list_min(max(t, 2000)), max(t) - INTERVAL 60 SECOND)) AS tail
    FROM publishes GROUP BY sid;

-- name: bloom
UPDATE files SET bloom = (SELECT bitstring_agg(place, 0::BIGINT, $size::BIGINT - 1)::BLOB FROM (
    SELECT unnest(bloom_places(id, $size)) AS place FROM (SELECT DISTINCT id FROM publishes
    WHERE sid = $sid AND id IS NOT NULL))) WHERE sid = $sid

-- Partial tables.

-- name: table traffic
SELECT sid, (epoch_us(t) // 60000000)::INTEGER AS clock, vhost, exchange, outcome, proxy, count(*) AS n,
    total(size) AS bytes FROM publishes GROUP BY ALL

-- name: table destinations
SELECT sid, date, vhost, destination, kind, total(n) AS n, total(bytes) AS bytes, min(first) AS first,
    max(last) AS last
FROM (SELECT *, unnest(list_distinct(queues)) AS destination, 'queue' AS kind FROM routes
    UNION ALL SELECT *, unnest(list_distinct(exchanges)), 'exchange' FROM routes
    UNION ALL SELECT *, unnest(list_distinct(remotes)), 'remote' FROM routes)
WHERE destination IS NOT NULL GROUP BY ALL

-- name: table bindings
SELECT sid, date, vhost, exchange, binding, rules, total(n) AS n, max(last) AS last
FROM (SELECT *, unnest(list_distinct(bindings)) AS binding FROM routes) WHERE binding IS NOT NULL GROUP BY ALL

-- name: table unrouted
SELECT sid, date, vhost, exchange, pattern(rk) AS rk_pattern, count(*) AS n,
    min({'t': t, 'message_id': message_id, 'rk': rk, 'outcome': outcome, 'reason': reason}) AS example
FROM publishes WHERE outcome = 'unrouted' GROUP BY ALL

-- name: table returned
SELECT * FROM back

-- name: table candidates
SELECT sid, proxy, conn, ch, seq, t, vhost, exchange, rk, message_id, outcome, reason
FROM publishes JOIN limits USING (sid)
WHERE t >= tail OR (sid, proxy, conn, ch, seq) IN (SELECT (sid, proxy, conn, ch, seq) FROM back)

-- name: table results
SELECT sid, date, result, count(*) AS n FROM settles GROUP BY ALL

-- name: table latency
SELECT sid, date, hour(t)::INTEGER AS hour, what, rounded(us, 4) AS us, count(*) AS n
FROM (SELECT sid, date, t, 'decide' AS what, decide_us AS us FROM publishes WHERE decide_us IS NOT NULL
    UNION ALL SELECT sid, date, t, 'confirm', confirm_us FROM settles WHERE confirm_us IS NOT NULL)
WHERE us = 0 OR us BETWEEN 1e-9 AND 1e15 GROUP BY ALL

-- name: table producers
SELECT * EXCLUDE sender
FROM (SELECT sid, date, sender, list(second ORDER BY second) AS seconds, list(n ORDER BY second) AS rates,
        max(n) AS peak
    FROM (SELECT sid, date, sender, (epoch_us(t) // 1000000 % 86400)::INTEGER AS second, count(*) AS n
        FROM publishes GROUP BY ALL) GROUP BY ALL)
JOIN (SELECT sid, date, sender, list(rough ORDER BY rough) AS roughly, list(n ORDER BY rough) AS counts
    FROM (SELECT sid, date, sender, rounded(size, 3)::BIGINT AS rough, count(*) AS n
        FROM publishes GROUP BY ALL) GROUP BY ALL) USING (sid, date, sender)
JOIN (SELECT sid, date, sender, proxy, vhost, "user", conn, count(*) AS n, total(size) AS bytes, min(t) AS first,
        max(t) AS last, max(size) AS largest, [
            count(*) FILTER (size <= 100), count(*) FILTER (size BETWEEN 101 AND 1000),
            count(*) FILTER (size BETWEEN 1001 AND 10000), count(*) FILTER (size BETWEEN 10001 AND 100000),
            count(*) FILTER (size BETWEEN 100001 AND 1000000), count(*) FILTER (size > 1000000)] AS classes
    FROM publishes GROUP BY ALL)
USING (sid, date, sender)

-- name: table ranges
SELECT sid, date, proxy, conn, ch, min(seq) AS first, max(seq) AS last, min(t) AS t
FROM (SELECT sid, date, proxy, conn, ch, seq, t, seq - dense_rank() OVER (
    PARTITION BY sid, date, proxy, conn, ch ORDER BY seq) AS island FROM publishes)
GROUP BY sid, date, proxy, conn, ch, island

-- name: table gaps
SELECT sid, date, hour(t)::INTEGER AS hour, proxy, dropped, "from", "to" FROM lines WHERE kind = 'gap'

-- name: table ids
SELECT sid, (epoch_us(t) // 3600000000)::INTEGER AS hour, proxy, vhost, exchange, message_id
FROM publishes WHERE message_id IS NOT NULL

-- name: table sample
SELECT sid, message_id, t, proxy, exchange, rk, outcome, queues FROM publishes JOIN limits USING (sid)
WHERE id <= sampled

-- name: table rejected
SELECT sid, why, line FROM wrong WHERE line IS NOT NULL

-- name: table segments
-- `days` are the days whose tables a segment affects: the days of its records, the day of its directory, and the
-- previous day if the segment has a return within the first hour of a day.
SELECT files.*, now()::TIMESTAMP AS made, seen.* EXCLUDE (sid, days), coalesce(torn, 0) AS torn,
    coalesce("foreign", 0) AS "foreign", coalesce(version, 0) AS version, list_sort(list_distinct(
        list_concat(coalesce(days, []), CASE WHEN folder IS NULL THEN [] ELSE [folder] END))) AS days
FROM files
LEFT JOIN (SELECT sid, count(*) AS records, count(*) FILTER (kind = 'publish') AS publishes,
        count(*) FILTER (kind <> 'settle' AND date <> folder) AS late, min(t) AS first, max(t) AS last,
        list_concat(list(DISTINCT date), coalesce(list(DISTINCT (t - INTERVAL 1 HOUR)::DATE)
            FILTER (result = 'returned'), [])) AS days
    FROM lines JOIN files USING (sid) GROUP BY sid) AS seen USING (sid)
LEFT JOIN (SELECT sid, count(*) FILTER (why = 'torn') AS torn, count(*) FILTER (why = 'foreign') AS "foreign",
        count(*) FILTER (why = 'version') AS version FROM wrong GROUP BY sid) USING (sid)

-- name: table trace
-- This table is as large as the log, and is therefore created only on request.
SELECT sid, t, message_id, proxy, vhost, exchange, rk, outcome, queues, exchanges, remotes, conn, ch, seq
FROM publishes WHERE message_id IS NOT NULL
