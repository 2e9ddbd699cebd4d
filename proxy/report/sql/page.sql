-- The data of a page, read from the tables of its days through the views t_NAME, and from the list of segments.

-- name: segments
-- The number of segments with records of the given days, or without any records.
SELECT count(*) FROM live WHERE list_has_any(days, ?::DATE[])
    OR (len(days) = 0 AND path IN (SELECT path FROM present))

-- name: duplicates
-- The names of the given days' segments that have the same content as another segment.
SELECT name FROM (SELECT unnest(list(parse_filename(path) ORDER BY path)[2:]) AS name
    FROM latest SEMI JOIN present USING (path) WHERE records > 0 AND list_has_any(days, ?::DATE[]) GROUP BY content)
ORDER BY name

-- name: span
-- Minutes between the first and the last minute with publishes.
SELECT coalesce(date_diff('minute', min(begin), max(begin)), 0)
FROM (SELECT date + INTERVAL 1 HOUR * hour + INTERVAL 1 MINUTE * minute AS begin FROM t_traffic)

-- name: steps
-- The columns of the time-series chart, each of which covers $minutes minutes.
SELECT begin, map_from_entries(list((outcome, publishes))) AS outcomes, total(bytes) AS bytes
FROM (SELECT time_bucket(INTERVAL $minutes MINUTE, date + INTERVAL 1 HOUR * hour + INTERVAL 1 MINUTE * minute,
        TIMESTAMP '1970-01-01') AS begin, outcome, total(publishes) AS publishes, total(bytes) AS bytes
    FROM t_traffic GROUP BY ALL)
GROUP BY begin ORDER BY begin

-- name: rules
SELECT DISTINCT rules FROM t_bindings WHERE rules <> '' ORDER BY ALL

-- name: exchanges
SELECT CASE exchange WHEN '' THEN '(default)' ELSE exchange END || ' in ' || vhost AS name,
    total(publishes) AS publishes, total(bytes) AS bytes FROM t_traffic GROUP BY ALL

-- name: proxies
SELECT proxy AS name, total(publishes) AS publishes, total(bytes) AS bytes FROM t_traffic GROUP BY ALL

-- name: destinations
SELECT vhost, destination, kind, total(publishes) AS publishes, min(first_seen)::TIMESTAMP AS first_seen,
    max(last_seen)::TIMESTAMP AS last_seen FROM t_destinations GROUP BY ALL

-- name: hot
SELECT vhost, exchange, binding, total(matches) AS matches FROM t_bindings GROUP BY ALL HAVING matches > 0

-- name: dead
SELECT vhost, exchange, binding, total(matches) AS matches FROM t_bindings GROUP BY ALL HAVING matches = 0

-- name: unroutable
SELECT * EXCLUDE example, example.rk AS example_rk, example.id AS example_message_id, example.t::TIMESTAMP AS first_seen
FROM (SELECT vhost, exchange, rk_pattern, total(publishes) AS publishes, total(returned) AS returned,
    min({'t': first_seen, 'rk': example_rk, 'id': example_message_id}) AS example
    FROM t_unroutable GROUP BY vhost, exchange, rk_pattern)

-- name: latency
SELECT date + INTERVAL 1 HOUR * hour AS begin, what, p50_us, p95_us, p99_us, samples FROM t_latency ORDER BY 1, 2

-- name: producers
SELECT "user", conn, proxy, total(publishes) AS publishes, total(bytes) AS bytes, max(p95_size) AS p95_size,
    max(peak_per_second) AS peak_per_second FROM t_producers GROUP BY "user", conn, proxy

-- name: sizes
SELECT size.up_to, total(size.publishes) FROM (SELECT unnest(sizes) AS size FROM t_producers)
GROUP BY ALL ORDER BY 1 NULLS LAST

-- name: anomalies
SELECT date + INTERVAL 1 HOUR * hour AS begin, what, subject, seen, expected, score, example FROM t_anomalies
