-- Functions that partials and tables share.

-- name: macros
CREATE MACRO IF NOT EXISTS total(x) AS least(sum(x), 9223372036854775807)::BIGINT;
CREATE MACRO IF NOT EXISTS pattern(rk) AS array_to_string(list_transform(string_split(rk, '.'), lambda word:
    CASE WHEN regexp_matches(word, '[0-9]|^[a-fA-F0-9-]{16,}$$') THEN '*' ELSE word END), '.');
