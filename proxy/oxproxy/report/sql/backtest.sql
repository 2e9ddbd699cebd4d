-- Records for back-tests: the tables of a group of segments, and their evaluation. `oxproxy.report.backtest` fills in $NAME.

-- name: setup
SET threads = 1;
SET preserve_insertion_order = false;
SET memory_limit = '512MB';
SET TimeZone = 'UTC'

-- name: parse
-- The parsed lines of files, each of which is named after the number of its segment in the group.
CREATE OR REPLACE TEMP TABLE lines AS
SELECT * EXCLUDE (ts, filename), parse_filename(filename, true)::INTEGER AS segment,
    CASE WHEN length(ts) BETWEEN 20 AND 27 AND ts[11] = 'T' AND ts[-1] = 'Z'
    AND ts BETWEEN '1970' AND '3000' THEN epoch_us(TRY_CAST(ts AS TIMESTAMP)) END AS us
FROM read_json($files, format = 'newline_delimited', ignore_errors = true, maximum_object_size = $longest,
    filename = true, columns = {
        v: 'BIGINT', kind: 'VARCHAR', ts: 'VARCHAR', vhost: 'VARCHAR', exchange: 'VARCHAR', rk: 'VARCHAR',
        message_id: 'VARCHAR', size: 'BIGINT', outcome: 'VARCHAR', queues: 'VARCHAR[]', exchanges: 'VARCHAR[]',
        remotes: 'VARCHAR[]', reason: 'VARCHAR', violates: 'VARCHAR[]', alternate: 'VARCHAR', facts: 'BIGINT',
        names: 'JSON', headers: 'JSON', property_names: 'JSON', properties: 'JSON', declared: 'BOOLEAN',
        hashed: 'JSON'})
WHERE v = $version AND kind IN ('publish', 'facts')

-- name: facts
-- The distinct facts of each segment. `fact` identifies a content, independently of segments.
CREATE OR REPLACE TEMP TABLE facts AS
SELECT home, number, md5_number_lower(content) AS fact, content FROM (
    SELECT segment AS home, facts AS number, json_array(names, headers, property_names, properties, coalesce(declared, false),
        coalesce(hashed, '[]'::JSON))::VARCHAR AS content
    FROM lines WHERE kind = 'facts' AND facts IS NOT NULL AND headers IS NOT NULL)
QUALIFY row_number() OVER (PARTITION BY home, number) = 1

-- name: table facts
SELECT DISTINCT fact, content FROM facts

-- name: table publishes
-- Publishes with the same address, facts, size, second and result. `is_late` shows that the next second began within
-- 50 ms after the time of the record, so that the decision may have been made in the next second. `is_evaluated` shows
-- that rules were evaluated for the publish: otherwise it was passed on, or only the address table applied.
SELECT segment, vhost, exchange, rk, size, us // 1000000 AS second, us % 1000000 >= 950000 AS is_late, fact, outcome,
    list_sort(list_distinct(coalesce(queues, []))) AS queues,
    list_sort(list_distinct(coalesce(exchanges, []))) AS exchanges,
    list_sort(list_distinct(coalesce(remotes, []))) AS remotes,
    list_sort(list_distinct(coalesce(violates, []))) AS violates, alternate,
    coalesce(reason = 'translation_failed', false) AS is_failed, coalesce(reason = 'regex_budget', false) AS is_spent,
    NOT (outcome = 'translated' OR (outcome = 'passed' AND reason IS NULL)
        OR (outcome = 'unrouted' AND coalesce(reason = 'translation_failed', false))) AS is_evaluated,
    min(message_id) AS message_id, count(*) AS n
FROM lines LEFT JOIN facts ON lines.segment = facts.home AND lines.facts = facts.number
WHERE kind = 'publish' AND vhost IS NOT NULL AND exchange IS NOT NULL AND rk IS NOT NULL AND outcome IS NOT NULL
    AND size >= 0 AND us IS NOT NULL
GROUP BY ALL ORDER BY vhost, exchange, fact, outcome, queues

-- name: rows
-- The publishes of groups of segments, without those in copies of segments.
CREATE OR REPLACE TEMP VIEW rows AS FROM read_parquet($files, filename = true) WHERE $chosen

-- name: addresses
SELECT DISTINCT vhost, exchange FROM rows

-- name: needs
CREATE OR REPLACE TEMP TABLE needs (vhost VARCHAR, exchange VARCHAR, keyed BOOLEAN, sizes BIGINT[], clock BOOLEAN,
    ids BOOLEAN)

-- name: clocks
-- Seconds in which all clock conditions of a virtual host have the same results have the same value `same`.
CREATE OR REPLACE TEMP TABLE clocks (vhost VARCHAR, second BIGINT, same BIGINT)

-- name: seconds
-- The seconds of the publishes to exchanges with clock conditions, by virtual host, in order.
SELECT vhost, list(DISTINCT second ORDER BY second) FROM (
    SELECT vhost, unnest(CASE WHEN is_late THEN [second, second + 1] ELSE [second] END) AS second FROM (
        SELECT DISTINCT rows.vhost, rows.second, is_late
        FROM rows JOIN needs ON rows.vhost = needs.vhost AND rows.exchange = needs.exchange WHERE clock))
GROUP BY vhost

-- name: keys
-- The publishes, with the values that the candidate rules of their exchange test. `later` is set if clock conditions may
-- have had the results of the next second instead.
CREATE OR REPLACE TEMP VIEW keys AS SELECT rows.vhost, rows.exchange, CASE WHEN keyed THEN rk END AS rk,
    len(list_filter(sizes, lambda bound: bound <= size)) AS size_class, now.same AS second,
    nullif(next.same, now.same) AS later, fact, CASE WHEN ids THEN message_id END AS message_id, outcome, queues, exchanges,
    remotes, violates, alternate, is_failed, is_spent, is_evaluated, n, rk AS example_rk, size AS example_size,
    rows.second AS example_second, rows.message_id AS example_id
FROM rows JOIN needs ON rows.vhost = needs.vhost AND rows.exchange = needs.exchange
LEFT JOIN clocks AS now ON clock AND now.vhost = rows.vhost AND now.second = rows.second
LEFT JOIN clocks AS next ON clock AND is_late AND next.vhost = rows.vhost AND next.second = rows.second + 1

-- name: groups
SELECT * EXCLUDE (n, example_rk, example_size, example_second, example_id), sum(n)::BIGINT AS n FROM keys GROUP BY ALL

-- name: examples
-- The first publishes of chosen groups.
SELECT number, example_rk, example_size, example_second, example_id FROM keys JOIN chosen ON keys.vhost = chosen.vhost
    AND keys.exchange = chosen.exchange AND keys.rk IS NOT DISTINCT FROM chosen.rk
    AND keys.size_class = chosen.size_class AND keys.second IS NOT DISTINCT FROM chosen.second
    AND keys.fact IS NOT DISTINCT FROM chosen.fact AND keys.message_id IS NOT DISTINCT FROM chosen.message_id
    AND keys.outcome = chosen.outcome AND keys.queues = chosen.queues AND keys.exchanges = chosen.exchanges
    AND keys.remotes = chosen.remotes AND keys.violates = chosen.violates
    AND keys.alternate IS NOT DISTINCT FROM chosen.alternate
QUALIFY row_number() OVER (PARTITION BY number ORDER BY example_second, example_id) <= $examples
