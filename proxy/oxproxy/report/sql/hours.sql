-- Merges partial tables into the tables of hours. `oxproxy.report.hours` fills in $rows_TABLE: the rows of a partial table
-- for `fresh` segments, and those of the previous versions of the hours.

-- name: schema
-- The tables of an hour. `ledger` lists the segments: `home` is the hour of the segment's directory, `hours` are the
-- hours of its records, and `content` is the digest of its text.
CREATE TEMP TABLE s_ledger (path VARCHAR, content VARCHAR, size BIGINT, modified BIGINT, home INTEGER, damaged BOOLEAN,
    traced BOOLEAN, bloom BLOB, records BIGINT, publishes BIGINT, late BIGINT, torn BIGINT, "foreign" BIGINT,
    version BIGINT, hours INTEGER[], is_home BOOLEAN, has_records BOOLEAN);
CREATE TEMP TABLE s_rejected (path VARCHAR, why VARCHAR, line VARCHAR);
CREATE TEMP TABLE s_traffic (minute TINYINT, vhost VARCHAR, exchange VARCHAR, outcome VARCHAR, proxy VARCHAR, n BIGINT,
    bytes BIGINT);
CREATE TEMP TABLE s_flows (vhost VARCHAR, "user" VARCHAR, exchange VARCHAR, destination VARCHAR, kind VARCHAR,
    outcome VARCHAR, reason VARCHAR, rules VARCHAR, n BIGINT, bytes BIGINT, messages BIGINT, message_bytes BIGINT,
    first TIMESTAMP, last TIMESTAMP);
CREATE TEMP TABLE s_bindings (vhost VARCHAR, exchange VARCHAR, binding VARCHAR, rules VARCHAR, n BIGINT, last TIMESTAMP);
CREATE TEMP TABLE s_lost (vhost VARCHAR, exchange VARCHAR, rk_pattern VARCHAR, outcome VARCHAR, reason VARCHAR, n BIGINT,
    returned BIGINT, example STRUCT(t TIMESTAMP, message_id VARCHAR, rk VARCHAR));
CREATE TEMP TABLE s_results (result VARCHAR, n BIGINT);
CREATE TEMP TABLE s_latency (what VARCHAR, us DOUBLE, n BIGINT);
CREATE TEMP TABLE s_rates (proxy VARCHAR, vhost VARCHAR, "user" VARCHAR, conn VARCHAR, second SMALLINT, n BIGINT);
CREATE TEMP TABLE s_peaks (proxy VARCHAR, vhost VARCHAR, "user" VARCHAR, conn VARCHAR, peak BIGINT);
CREATE TEMP TABLE s_producers (proxy VARCHAR, vhost VARCHAR, "user" VARCHAR, conn VARCHAR, n BIGINT, bytes BIGINT,
    first TIMESTAMP, last TIMESTAMP, largest BIGINT, sizes STRUCT(size BIGINT, class TINYINT, n BIGINT)[]);
CREATE TEMP TABLE s_ranges (proxy VARCHAR, conn VARCHAR, ch BIGINT, first BIGINT, last BIGINT);
CREATE TEMP TABLE s_gaps (proxy VARCHAR, dropped BIGINT, "from" VARCHAR, "to" VARCHAR);
CREATE TEMP TABLE s_ids (id UBIGINT, proxy VARCHAR, vhost VARCHAR, exchange VARCHAR, message_id VARCHAR);
CREATE TEMP TABLE s_sample (id UBIGINT, message_id VARCHAR, t TIMESTAMP, proxy VARCHAR, exchange VARCHAR, rk VARCHAR,
    outcome VARCHAR, queues VARCHAR[]);
CREATE TEMP TABLE s_trace (t TIMESTAMP, message_id VARCHAR, proxy VARCHAR, vhost VARCHAR, exchange VARCHAR, rk VARCHAR,
    outcome VARCHAR, queues VARCHAR[], exchanges VARCHAR[], remotes VARCHAR[], conn VARCHAR, ch BIGINT, seq BIGINT)

-- name: fresh
-- `arrived` are the segments of the new partials, and `before` those of the previous versions. `fresh` are the segments
-- to be added: those whose content is not in the hour yet, once for each content. `untraced` are those to be added to
-- the table of all publishes.
CREATE TEMP TABLE arrived AS FROM $new_ledger;
CREATE TEMP TABLE before AS FROM $old_ledger;
CREATE TEMP TABLE fresh AS SELECT hour, sid FROM arrived
    WHERE has_records AND (hour, content) NOT IN (SELECT (hour, content) FROM before WHERE has_records)
    QUALIFY row_number() OVER (PARTITION BY hour, content ORDER BY path) = 1;
CREATE TEMP TABLE untraced AS SELECT hour, sid FROM arrived
    WHERE has_records AND traced AND (hour, content) NOT IN (SELECT (hour, content) FROM before WHERE has_records AND traced)
    QUALIFY row_number() OVER (PARTITION BY hour, content ORDER BY path) = 1

-- name: table ledger
-- A content stays traced if its segment is read again without a trace, since its rows are kept.
SELECT * EXCLUDE sid REPLACE (traced OR (hour, content) IN (SELECT (hour, content) FROM before WHERE traced) AS traced)
FROM arrived UNION ALL BY NAME FROM before
WHERE (hour, path) NOT IN (SELECT (hour, path) FROM arrived)

-- name: table rejected
SELECT hour, path, why, line FROM $new_rejected UNION ALL SELECT hour, path, why, line FROM $old_rejected
WHERE (hour, path) NOT IN (SELECT (hour, path) FROM arrived)

-- name: table traffic
SELECT hour, minute, vhost, exchange, outcome, proxy, total(n) AS n, total(bytes) AS bytes FROM $rows_traffic
GROUP BY ALL

-- name: table flows
SELECT hour, vhost, "user", exchange, destination, kind, outcome, reason, rules, total(n) AS n, total(bytes) AS bytes,
    total(messages) AS messages, total(message_bytes) AS message_bytes, min(first) AS first, max(last) AS last
FROM $rows_flows GROUP BY ALL

-- name: table bindings
SELECT hour, vhost, exchange, binding, rules, total(n) AS n, max(last) AS last FROM $rows_bindings GROUP BY ALL

-- name: table lost
SELECT hour, vhost, exchange, rk_pattern, outcome, reason, total(n) AS n, total(returned) AS returned, min(example) AS example
FROM $rows_lost GROUP BY ALL

-- name: table results
SELECT hour, result, total(n) AS n FROM $rows_results GROUP BY ALL

-- name: table latency
SELECT hour, what, us, total(n) AS n FROM $rows_latency GROUP BY ALL

-- name: table rates
FROM rates

-- name: rates
CREATE TEMP TABLE rates AS SELECT hour, proxy, vhost, "user", conn, second, total(n) AS n FROM $rows_rates GROUP BY ALL

-- name: table peaks
-- The largest number of publishes in a second, by user and connection. The connection is null for the whole user.
SELECT hour, proxy, vhost, "user", conn, max(n) AS peak FROM rates GROUP BY ALL
UNION ALL SELECT hour, NULL, vhost, "user", NULL, max(n) FROM (
    SELECT hour, vhost, "user", second, total(n) AS n FROM rates GROUP BY ALL) GROUP BY ALL

-- name: table producers
WITH merged AS NOT MATERIALIZED (FROM $rows_producers),
histograms AS (SELECT hour, proxy, vhost, "user", conn, list({'size': size, 'class': class, 'n': n}) AS sizes
    FROM (SELECT hour, proxy, vhost, "user", conn, part.size, part.class, total(part.n) AS n
        FROM (SELECT hour, proxy, vhost, "user", conn, unnest(sizes) AS part FROM merged) GROUP BY ALL)
    GROUP BY ALL),
sums AS (SELECT hour, proxy, vhost, "user", conn, total(n) AS n, total(bytes) AS bytes, min(first) AS first,
    max(last) AS last, max(largest) AS largest FROM merged GROUP BY ALL)
FROM sums JOIN histograms USING (hour, proxy, vhost, "user", conn)

-- name: table ranges
-- Adjacent and overlapping ranges of numbers are joined.
SELECT hour, proxy, conn, ch, min(first) AS first, max(last) AS last
FROM (SELECT *, count(*) FILTER (starts) OVER (PARTITION BY hour, proxy, conn, ch ORDER BY first, last) AS island
    FROM (SELECT *, first > coalesce(max(last) OVER (PARTITION BY hour, proxy, conn, ch ORDER BY first, last
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), first) + 1 AS starts FROM $rows_ranges))
GROUP BY hour, proxy, conn, ch, island

-- name: table gaps
SELECT hour, proxy, total(dropped) AS dropped, min("from") AS "from", max("to") AS "to" FROM $rows_gaps GROUP BY ALL

-- name: table ids
SELECT hour, id, proxy, vhost, exchange, message_id FROM $rows_ids

-- name: table sample
SELECT * EXCLUDE greatest FROM $rows_sample
JOIN (SELECT hour, list_max(min(id, $sampled)) AS greatest FROM $rows_sample GROUP BY hour) USING (hour)
WHERE id <= greatest

-- name: table trace
SELECT * FROM $rows_trace
