-- The output of a task for a group of segments. In each table, `sid` identifies the segment of a row, and `hour` the hour
-- of its records, counted since 1970. `oxproxy.report.partials` fills in $NAME.

-- name: setup
SET threads = 1;
SET preserve_insertion_order = false;
SET memory_limit = '512MB';
SET TimeZone = 'UTC';
-- A value rounded to significant digits. The error is at most 0.05 % for 4 digits (times), and 0.5 % for 3 (sizes).
CREATE MACRO rounded(x, digits) AS CASE WHEN x = 0 THEN 0.0 ELSE
    round(x / pow(10.0, floor(log10(x)) - (digits - 1))) * pow(10.0, floor(log10(x)) - (digits - 1)) END;
-- The destinations of a kind, from a JSON list of their names.
CREATE MACRO destinations(names, kind) AS list_transform(
    coalesce(list_distinct(TRY_CAST(names AS VARCHAR[])), []), lambda name: {'destination': name, 'kind': kind});

-- name: parse
-- The parsed lines of a file. The text of each segment follows a line with its `sid`, which is from $first to $last.
-- Fields with an unexpected type are null, like missing fields. `nr` counts lines that are not blank; a single thread
-- reads them in order. `sender` identifies a connection, and `id` a message id. They are numbers, which are cheaper to
-- compare, and `id` is the same with every version of DuckDB. Times outside the years 1970 to 2999 are treated as
-- missing, since they would overflow in partials and tables. `hour` counts hours since 1970. Lists of names are JSON,
-- which is cheaper to compare than lists.
CREATE OR REPLACE TEMP TABLE lines AS WITH parsed AS (
    SELECT row_number() OVER () AS nr, * REPLACE (CASE WHEN segment BETWEEN $first AND $last THEN segment END AS segment)
    FROM read_json('$file', format = 'newline_delimited', ignore_errors = true, maximum_object_size = $longest,
        columns = {
            segment: 'BIGINT', v: 'BIGINT', kind: 'VARCHAR', ts: 'VARCHAR', proxy: 'VARCHAR', conn: 'VARCHAR',
            ch: 'BIGINT', seq: 'BIGINT', "user": 'VARCHAR', vhost: 'VARCHAR', exchange: 'VARCHAR', rk: 'VARCHAR',
            message_id: 'VARCHAR', size: 'BIGINT', outcome: 'VARCHAR', queues: 'JSON', exchanges: 'JSON',
            remotes: 'JSON', bindings: 'JSON', rules: 'VARCHAR', reason: 'VARCHAR', decide_us: 'DOUBLE',
            result: 'VARCHAR', reply_code: 'BIGINT', confirm_us: 'DOUBLE', dropped: 'BIGINT', "from": 'VARCHAR',
            "to": 'VARCHAR'})),
timed AS (
    SELECT * EXCLUDE ts, last_value(segment IGNORE NULLS) OVER (ROWS UNBOUNDED PRECEDING) AS sid,
        CASE WHEN length(ts) BETWEEN 20 AND 27 AND ts LIKE '__________T%Z'
        AND ts BETWEEN '1970' AND '3000' THEN TRY_CAST(ts AS TIMESTAMP) END AS t FROM parsed)
SELECT * EXCLUDE segment, (epoch_us(t) // 3600000000)::INTEGER AS hour, hash(proxy, vhost, "user", conn) AS sender,
    number_of(message_id) AS id,
    coalesce(v = $version AND t IS NOT NULL AND proxy IS NOT NULL AND CASE kind
        WHEN 'publish' THEN conn IS NOT NULL AND "user" IS NOT NULL AND vhost IS NOT NULL AND ch IS NOT NULL
            AND exchange IS NOT NULL AND rk IS NOT NULL AND outcome IS NOT NULL AND size >= 0 AND seq >= 1
        WHEN 'settle' THEN conn IS NOT NULL AND ch IS NOT NULL AND seq >= 1 AND result IS NOT NULL
        WHEN 'gap' THEN dropped IS NOT NULL WHEN 'admin' THEN true WHEN 'facts' THEN true ELSE false END, false) AS is_record
FROM timed WHERE segment IS NULL

-- name: wrong lines
-- The invalid lines: number, segment and version.
SELECT nr, sid, v FROM lines WHERE NOT is_record

-- name: tables
CREATE OR REPLACE TEMP TABLE files (sid BIGINT, path VARCHAR, content VARCHAR, size BIGINT, modified BIGINT,
    home INTEGER, damaged BOOLEAN, traced BOOLEAN, bloom BLOB);
CREATE OR REPLACE TEMP TABLE wrong (sid BIGINT, why VARCHAR, line VARCHAR)

-- name: views
CREATE OR REPLACE TEMP VIEW publishes AS FROM lines WHERE kind = 'publish';
CREATE OR REPLACE TEMP VIEW settles AS FROM lines WHERE kind = 'settle';
CREATE OR REPLACE TEMP TABLE routes AS SELECT hour, sid, vhost, "user", exchange, outcome, reason, rules, queues,
    exchanges, remotes, count(*) AS n, total(size) AS bytes, min(t) AS first, max(t) AS last FROM publishes GROUP BY ALL;
-- The connections. Other tables are grouped by `sender`, since grouping by texts takes longer.
CREATE OR REPLACE TEMP TABLE senders AS SELECT sender, proxy, vhost, "user", conn
FROM lines SEMI JOIN (SELECT min(nr) AS nr FROM publishes GROUP BY sender) USING (nr)

-- name: bloom sizes
-- The numbers of bits of bloom filters, each with its segments.
SELECT size, list(sid) FROM (
    SELECT sid, greatest(64, 1 << ceil(log2(count(DISTINCT id) * $bits))::INTEGER) AS size FROM lines
    WHERE kind = 'publish' AND id IS NOT NULL GROUP BY sid)
GROUP BY size

-- name: bloom
UPDATE files SET bloom = filled.bloom FROM (SELECT sid, bitstring_agg(place, 0::BIGINT, $size::BIGINT - 1)::BLOB AS bloom
    FROM (SELECT sid, unnest(bloom_places(id, $size)) AS place FROM (SELECT DISTINCT sid, id FROM lines
        WHERE sid IN $sids AND kind = 'publish' AND id IS NOT NULL)) GROUP BY sid) AS filled
WHERE files.sid = filled.sid

-- name: segments
-- A row for each segment. `hours` are the hours of its records.
CREATE OR REPLACE TEMP TABLE segments AS
SELECT files.*, coalesce(records, 0) AS records, coalesce(publishes, 0) AS publishes, coalesce(late, 0) AS late,
    coalesce(torn, 0) AS torn, coalesce("foreign", 0) AS "foreign", coalesce(version, 0) AS version,
    coalesce(hours, []) AS hours
FROM files
LEFT JOIN (SELECT sid, count(*) AS records, count(*) FILTER (kind = 'publish') AS publishes,
        count(*) FILTER (kind <> 'settle' AND home >= 0 AND hour // 24 <> home // 24) AS late,
        list_sort(list(DISTINCT hour)) AS hours
    FROM lines JOIN files USING (sid) GROUP BY sid) AS seen USING (sid)
LEFT JOIN (SELECT sid, count(*) FILTER (why = 'torn') AS torn, count(*) FILTER (why = 'foreign') AS "foreign",
        count(*) FILTER (why = 'version') AS version FROM wrong GROUP BY sid) USING (sid)

-- name: units
-- The units to which the group contributes: hours of records, and the hours of the segments' directories.
SELECT DISTINCT hour FROM (SELECT unnest(list_append(hours, home)) AS hour FROM segments) ORDER BY hour

-- name: records
SELECT coalesce(sum(records), 0)::BIGINT FROM segments

-- Partial tables.

-- name: table ledger
-- The segments with records of the hour, and those in its directory (`is_home`).
SELECT * REPLACE (CASE WHEN home = hour THEN bloom END AS bloom), home = hour AS is_home,
    list_contains(hours, hour) AS has_records
FROM (SELECT unnest(list_distinct(list_append(hours, home))) AS hour, * FROM segments)

-- name: table rejected
SELECT home AS hour, sid, path, why, line FROM wrong JOIN files USING (sid) WHERE line IS NOT NULL

-- name: table traffic
SELECT hour, sid, (epoch_us(t) // 60000000 % 60)::TINYINT AS minute, vhost, exchange, outcome, proxy, count(*) AS n,
    total(size) AS bytes FROM publishes GROUP BY ALL

-- name: table flows
-- The first destination of each publish also counts the publish (`messages`), so that sums count each publish once.
WITH lists AS (SELECT DISTINCT queues, exchanges, remotes FROM routes),
reached AS (SELECT *, list_concat(list_concat(destinations(queues, 'queue'), destinations(exchanges, 'exchange')),
    destinations(remotes, 'remote')) AS all_of_them FROM lists),
numbered AS (SELECT * EXCLUDE all_of_them, unnest(all_of_them) AS reach, generate_subscripts(all_of_them, 1) AS place
    FROM reached UNION ALL BY NAME SELECT * EXCLUDE all_of_them, 1 AS place FROM reached WHERE len(all_of_them) = 0)
SELECT hour, sid, vhost, "user", exchange, reach.destination, reach.kind, outcome, reason, rules, n, bytes,
    CASE place WHEN 1 THEN n ELSE 0 END AS messages, CASE place WHEN 1 THEN bytes ELSE 0 END AS message_bytes, first, last
FROM routes JOIN numbered ON routes.queues IS NOT DISTINCT FROM numbered.queues
    AND routes.exchanges IS NOT DISTINCT FROM numbered.exchanges AND routes.remotes IS NOT DISTINCT FROM numbered.remotes

-- name: table bindings
WITH grouped AS (SELECT hour, sid, vhost, exchange, bindings, rules, count(*) AS n, max(t) AS last FROM publishes
    GROUP BY ALL),
lists AS (SELECT bindings, unnest(list_distinct(TRY_CAST(bindings AS VARCHAR[]))) AS binding
    FROM (SELECT DISTINCT bindings FROM grouped))
SELECT hour, sid, vhost, exchange, binding, rules, n, last FROM grouped JOIN lists USING (bindings)
WHERE binding IS NOT NULL

-- name: table lost
-- Publishes without a destination, and returns. `n` counts each of these publishes once.
SELECT hour, sid, vhost, exchange, pattern(rk) AS rk_pattern, outcome, reason, count(*) AS n, 0 AS returned,
    min({'t': t, 'message_id': message_id, 'rk': rk}) AS example
FROM publishes WHERE outcome IN ('unrouted', 'filtered', 'rejected') GROUP BY ALL
UNION ALL SELECT hour, sid, vhost, exchange, pattern(rk), 'returned', reply_code::VARCHAR,
    count(*) FILTER (outcome IS NULL OR outcome NOT IN ('unrouted', 'filtered', 'rejected')), count(*),
    min({'t': t, 'message_id': message_id, 'rk': rk})
FROM settles WHERE result = 'returned' AND vhost IS NOT NULL AND exchange IS NOT NULL AND rk IS NOT NULL GROUP BY ALL

-- name: table results
SELECT hour, sid, result, count(*) AS n FROM settles GROUP BY ALL

-- name: table latency
SELECT hour, sid, what, rounded(us, 4) AS us, count(*) AS n
FROM (SELECT hour, sid, 'decide' AS what, decide_us AS us FROM publishes WHERE decide_us IS NOT NULL
    UNION ALL SELECT hour, sid, 'confirm', confirm_us FROM settles WHERE confirm_us IS NOT NULL)
WHERE us = 0 OR us BETWEEN 1e-9 AND 1e15 GROUP BY ALL

-- name: table producers
-- `sizes` is a histogram of rounded sizes. A size class is that of the exact sizes.
SELECT hour, sid, proxy, vhost, "user", conn, sums.n, bytes, first, last, largest, sizes
FROM (SELECT hour, sid, sender, total(n) AS n, total(bytes) AS bytes, min(first) AS first, max(last) AS last,
        max(largest) AS largest, list({'size': rough, 'class': class, 'n': n}) AS sizes
    FROM (SELECT hour, sid, sender, CASE WHEN size < 1000 THEN size ELSE rounded(size, 3)::BIGINT END AS rough,
            CASE WHEN size <= 100 THEN 1 WHEN size <= 1000 THEN 2 WHEN size <= 10000 THEN 3 WHEN size <= 100000 THEN 4
                WHEN size <= 1000000 THEN 5 ELSE 6 END::TINYINT AS class,
            count(*) AS n, total(size) AS bytes, min(t) AS first, max(t) AS last, max(size) AS largest
        FROM publishes GROUP BY hour, sid, sender, rough, class)
    GROUP BY hour, sid, sender) AS sums JOIN senders USING (sender)

-- name: table rates
-- The number of publishes per second of each connection.
SELECT hour, sid, proxy, vhost, "user", conn, second, n
FROM (SELECT hour, sid, sender, (epoch_us(t) // 1000000 % 3600)::SMALLINT AS second, count(*) AS n FROM publishes
    GROUP BY hour, sid, sender, second) JOIN senders USING (sender)

-- name: table ranges
SELECT hour, sid, proxy, conn, ch, min(seq) AS first, max(seq) AS last
FROM (SELECT hour, sid, proxy, conn, ch, seq, seq - dense_rank() OVER (
    PARTITION BY hour, sid, proxy, conn, ch ORDER BY seq) AS island FROM publishes)
GROUP BY hour, sid, proxy, conn, ch, island

-- name: table gaps
SELECT hour, sid, proxy, dropped, "from", "to" FROM lines WHERE kind = 'gap'

-- name: table ids
SELECT hour, sid, id, proxy, vhost, exchange, message_id FROM publishes WHERE message_id IS NOT NULL

-- name: table sample
-- The publishes with the smallest hashes of the message id, so that the same messages are chosen in all segments.
SELECT hour, sid, id, message_id, t, proxy, exchange, rk, outcome, TRY_CAST(queues AS VARCHAR[]) AS queues FROM publishes
JOIN (SELECT hour, list_max(min(id, $sampled)) AS greatest FROM publishes GROUP BY hour) USING (hour)
WHERE id <= greatest

-- name: table trace
-- This table is as large as the log, and is therefore created only on request.
SELECT hour, sid, t, message_id, proxy, vhost, exchange, rk, outcome, TRY_CAST(queues AS VARCHAR[]) AS queues,
    TRY_CAST(exchanges AS VARCHAR[]) AS exchanges, TRY_CAST(remotes AS VARCHAR[]) AS remotes, conn, ch, seq
FROM publishes WHERE message_id IS NOT NULL
