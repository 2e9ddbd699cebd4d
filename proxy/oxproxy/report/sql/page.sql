-- The data of a page, read from the tables of its days through the views t_NAME.

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
FROM (SELECT vhost, exchange, rk_pattern, outcome, coalesce(reason, '') AS reason, total(publishes) AS publishes,
    total(returned) AS returned, min({'t': first_seen, 'rk': example_rk, 'id': example_message_id}) AS example
    FROM t_unroutable GROUP BY ALL)

-- name: users
SELECT vhost, "user", total(n) AS publishes, total(bytes) AS bytes, total(sent) AS deliveries, total(sent_bytes) AS sent,
    map_from_entries(list((hour, n))) AS hours
FROM (SELECT vhost, "user", hour, total(messages) AS n, total(message_bytes) AS bytes,
        total(CASE WHEN destination IS NULL THEN 0 ELSE publishes END) AS sent,
        total(CASE WHEN destination IS NULL THEN 0 ELSE bytes END) AS sent_bytes FROM t_flows GROUP BY ALL)
GROUP BY vhost, "user"

-- name: queues
-- The destinations with their users and exchanges.
SELECT vhost, destination, kind, total(n) AS publishes, list_sort(list_distinct(flatten(list(users))))[:8] AS users,
    list_sort(list_distinct(flatten(list(exchanges))))[:8] AS exchanges, map_from_entries(list((hour, n))) AS hours
FROM (SELECT vhost, destination, kind, hour, total(publishes) AS n, list(DISTINCT "user") AS users,
        list(DISTINCT exchange) AS exchanges FROM t_flows WHERE destination IS NOT NULL GROUP BY ALL)
GROUP BY vhost, destination, kind

-- name: reasons
SELECT vhost, exchange, outcome, coalesce(reason, '') AS reason, total(messages) AS publishes,
    list_sort(list(DISTINCT "user"))[:8] AS users, string_agg(DISTINCT rules, ', ' ORDER BY rules) AS rules
FROM t_flows WHERE outcome IN ('unrouted', 'filtered', 'rejected') GROUP BY ALL

-- name: versions
-- What each version of the rules did, by exchange.
SELECT vhost, exchange, rules, total(messages) AS publishes,
    total(CASE WHEN outcome IN ('unrouted', 'filtered', 'rejected') THEN messages ELSE 0 END) AS lost,
    count(DISTINCT destination) AS destinations, min(date + INTERVAL 1 HOUR * hour) AS begin,
    max(date + INTERVAL 1 HOUR * hour) AS last
FROM t_flows SEMI JOIN (SELECT vhost, exchange FROM t_flows WHERE rules <> '' GROUP BY ALL
    HAVING count(DISTINCT rules) > 1) USING (vhost, exchange) WHERE rules <> '' GROUP BY ALL

-- name: compared
-- The last day and the day before, up to the last hour of the last day.
SELECT vhost, exchange, total(CASE WHEN date = $day THEN messages ELSE 0 END) AS today,
    total(CASE WHEN date < $day THEN messages ELSE 0 END) AS before, today - before AS change, abs(today - before) AS difference
FROM t_two_days WHERE hour <= (SELECT max(hour) FROM t_two_days WHERE date = $day) GROUP BY ALL

-- name: by hour
-- The most frequent exchanges, destinations, users and reasons of each hour of the day.
FROM (SELECT hour, 'exchanges' AS what, format('{} in {}', CASE exchange WHEN '' THEN '(default)' ELSE exchange END,
        vhost) AS name, total(messages) AS n FROM t_flows GROUP BY ALL
    UNION ALL SELECT hour, 'destinations', format('{} in {}', destination, vhost), total(publishes) FROM t_flows
        WHERE destination IS NOT NULL GROUP BY ALL
    UNION ALL SELECT hour, 'users', format('{} in {}', "user", vhost), total(messages) FROM t_flows GROUP BY ALL
    UNION ALL SELECT hour, 'reasons', concat_ws(' ', outcome, reason), total(messages) FROM t_flows
        WHERE outcome IN ('unrouted', 'filtered', 'rejected') GROUP BY ALL)
QUALIFY row_number() OVER (PARTITION BY hour, what ORDER BY n DESC, name) <= 5 ORDER BY hour, what, n DESC, name

-- name: confirms
-- Acks are recorded for a sample of the publishes only, so the shares refer to all publishes.
SELECT begin, coalesce(publishes, 0) AS publishes, coalesce(acked, 0) AS acked, coalesce(nacked, 0) AS nacked,
    coalesce(lost, 0) AS lost, coalesce(returned, 0) AS returned
FROM (SELECT date + INTERVAL 1 HOUR * hour AS begin, total(publishes) AS publishes FROM t_traffic GROUP BY ALL)
FULL JOIN (SELECT date + INTERVAL 1 HOUR * hour AS begin, total(CASE result WHEN 'acked' THEN records ELSE 0 END) AS acked,
    total(CASE result WHEN 'nacked' THEN records ELSE 0 END) AS nacked, total(CASE result WHEN 'lost' THEN records ELSE 0 END) AS lost,
    total(CASE result WHEN 'returned' THEN records ELSE 0 END) AS returned FROM t_confirms GROUP BY ALL) USING (begin)
ORDER BY begin

-- name: latency
SELECT date + INTERVAL 1 HOUR * hour AS begin, what, p50_us, p95_us, p99_us, samples FROM t_latency ORDER BY 1, 2

-- name: producers
-- The users with their connections.
SELECT vhost, "user", total(publishes) AS publishes, total(bytes) AS bytes, max(p95_size) AS p95_size,
    max(peak_per_second) AS peak_per_second, list_sort(list_transform(flatten(list(connections)), lambda it:
        {'publishes': -it.publishes, 'proxy': it.proxy, 'conn': it.conn, 'bytes': it.bytes,
        'peak': it.peak_per_second}))[:20] AS connections, len(flatten(list(connections))) AS count
FROM (SELECT * REPLACE (coalesce(connections, []) AS connections) FROM t_producers) GROUP BY vhost, "user"

-- name: sizes
SELECT size.up_to, total(size.publishes) FROM (SELECT unnest(sizes) AS size FROM t_producers)
GROUP BY ALL ORDER BY 1 NULLS LAST

-- name: anomalies
SELECT date + INTERVAL 1 HOUR * hour AS begin, what, subject, seen, expected, score, example FROM t_anomalies
