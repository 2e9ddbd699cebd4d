-- The list of segments in the partials of an output directory. `proxy.report.store` fills in $NAME.

-- name: load
-- `segments` are the segments of all partials. `latest` are those of the latest partial for each path. `live` are those
-- segments in `latest` that are counted: one for each content, preferably with a trace. All others are `superseded`.
-- Usually, there are none, so an anti-join with `superseded` costs nothing; a join with `live` would copy all rows.
CREATE OR REPLACE TEMP TABLE segments AS SELECT * EXCLUDE (bloom, filename), parse_filename(filename, true) AS batch
    FROM read_parquet('$files', filename = true);
CREATE OR REPLACE TEMP TABLE latest AS FROM segments
    QUALIFY row_number() OVER (PARTITION BY path ORDER BY made DESC, sid) = 1;
CREATE OR REPLACE TEMP TABLE live AS FROM latest
    QUALIFY row_number() OVER (PARTITION BY content ORDER BY traced DESC, path) = 1;
CREATE OR REPLACE TEMP TABLE superseded AS SELECT sid FROM segments ANTI JOIN live USING (sid)

-- name: without
-- The segments whose bloom filters show that they don't contain a message.
SELECT path, size, modified FROM read_parquet('$files') WHERE bloom IS NULL OR list_contains([
    get_bit(bloom::BIT, place::INTEGER)
    FOR place IN bloom_places(md5_number_lower(?), octet_length(bloom) * 8)], 0)

-- name: known
-- The segments that need not be read again.
SELECT path, size, modified FROM latest WHERE traced OR NOT ?

-- name: days
SELECT DISTINCT day FROM (SELECT unnest(days) AS day, * FROM latest SEMI JOIN present USING (path))
WHERE day = folder OR day BETWEEN first::DATE AND last::DATE ORDER BY day

-- name: forget
-- The deleted segments in the directory of a log, for a range of days.
CREATE OR REPLACE TEMP TABLE forgotten AS SELECT path FROM latest ANTI JOIN present USING (path)
WHERE starts_with(path, ?) AND (folder IS NULL OR folder BETWEEN ? AND ?)
