-- Functions that partials, tables and a search share.

-- name: macros
CREATE MACRO IF NOT EXISTS total(x) AS least(sum(x), 9223372036854775807)::BIGINT;
CREATE MACRO IF NOT EXISTS pattern(rk) AS array_to_string(list_transform(string_split(rk, '.'), lambda word:
    CASE WHEN regexp_matches(word, '[0-9]|^[a-fA-F0-9-]{16,}$$') THEN '*' ELSE word END), '.');
-- A number that identifies a text, with every version of DuckDB. DuckDB's md5_number_lower converts to text and back.
CREATE MACRO IF NOT EXISTS number_of(x) AS (md5_number(x) & 18446744073709551615)::UBIGINT;
-- The positions of an id's bits in a bloom filter with the given number of bits, by double hashing with the two halves
-- of the id.
CREATE MACRO IF NOT EXISTS bloom_place(id, number, bits) AS
    (((id & 4294967295) + number * (id >> 32)) % bits)::BIGINT;
CREATE MACRO IF NOT EXISTS bloom_places(id, bits) AS
    [bloom_place(id, 0, bits), bloom_place(id, 1, bits), bloom_place(id, 2, bits), bloom_place(id, 3, bits)];
