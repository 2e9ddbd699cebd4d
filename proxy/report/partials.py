"""Turns one segment of the audit log into partial aggregates. Runs in Spark's tasks, on whatever machine they run.

A segment is read once in its life: what this module makes of it is all that tables and page need later. DuckDB parses
and aggregates (docs/performance.md has the measurement that chose it); Spark only brings the bytes and takes the
result. A partial is a set of small tables (`PARTIALS`). Sums, least and greatest values merge by themselves; times and
sizes are histograms of rounded values, which merge by adding counts; numbers of a channel are ranges; examples are
bounded.

A publish and the settle record that says it was returned may lie in two segments. A partial therefore keeps every
returned settle, the publishes that those of the same segment name, and the last publishes of the segment (`TAIL`): a
return that comes later than those is counted as unmatched.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import operator
import tempfile
import uuid
import zlib
from collections.abc import Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import duckdb

#: Version of the records that are understood; new fields do not change it.
VERSION = 1
#: Why a line is not a record: a crash cut it off; never a record; of a later sidecar; compressed data has no end.
TORN, FOREIGN, NEWER, DAMAGED = "torn", "foreign", "version", "damaged file"
#: Characters of a rejected line and rejected lines of a segment that are kept; all of them are counted.
LINE_CHARACTERS, KEPT_LINES = 8192, 1000
#: Publishes at the end of a segment that a return in a later one can still find: the last 2,000, and those of the last
#: 60 seconds up to 20,000.
TAIL, TAIL_SECONDS, LONGEST_TAIL = 2_000, 60, 20_000
#: Publishes of a segment whose whole way is kept. Those with the least hash of their message id are taken, so that all
#: segments take the same messages.
SAMPLE = 1_000
#: Digits that times and sizes keep: rounded values are at most 0.05 % and 0.5 % from the true ones.
TIME_DIGITS, SIZE_DIGITS = 4, 3
#: Upper bounds of size classes in bytes; larger ones have no bound.
SIZE_CLASSES = (100, 1_000, 10_000, 100_000, 1_000_000, None)
#: A bloom filter has this many bits for a message id, at least, and sets so many: two in a hundred answers are wrong.
BLOOM_BITS, BLOOM_HASHES = 10, 4

_NUMBERS = ("v", "ch", "seq", "size", "dropped")
_STRINGS = (
    "kind",
    "ts",
    "proxy",
    "conn",
    "user",
    "vhost",
    "exchange",
    "rk",
    "message_id",
    "outcome",
    "rules",
    "reason",
)
_FIELDS: dict[str, Any] = {  # as from_json takes them
    **dict.fromkeys(_NUMBERS, "BIGINT"),
    **dict.fromkeys((*_STRINGS, "result", "from", "to"), "VARCHAR"),
    **{name: ["VARCHAR"] for name in ("queues", "exchanges", "remotes", "bindings")},
    **dict.fromkeys(("decide_us", "confirm_us"), "DOUBLE"),
}
#: Bytes of text that are parsed at once, that are aggregated at once, and of compressed data that are inflated at once.
_CHUNK, _GROUP, _FED = 4 << 20, 96 << 20, 256 << 10
_LONGEST_LINE, _LINES_AT_ONCE = 16 << 20, 4096

#: Lines as they are judged, with the number of their segment, ``sid``. Fields of another type than expected are null,
#: like missing ones. ``sender`` stands for a connection, ``id`` for a message id: comparing numbers is cheaper, and the
#: second is the same with every version of DuckDB.
_LINES = f"""
    WITH split AS MATERIALIZED (
        SELECT sid, string_split(text, chr(10)) AS several FROM (
            SELECT unnest($texts::VARCHAR[]) AS text, unnest($sids::BIGINT[]) AS sid)),
    parsed AS (
        SELECT sid, line, unnest(from_json(TRY_CAST(line AS JSON), '{json.dumps(_FIELDS)}')) FROM (
            SELECT sid, unnest(several) AS line FROM split) WHERE line <> ''),
    timed AS (
        SELECT * EXCLUDE ts, CASE WHEN length(ts) BETWEEN 20 AND 27 AND ts[11] = 'T' AND ts[-1] = 'Z'
            THEN TRY_CAST(ts AS TIMESTAMP) END AS t FROM parsed),
    judged AS (
        SELECT *, CASE
            WHEN v = {VERSION} AND t IS NOT NULL AND proxy IS NOT NULL AND CASE kind
                WHEN 'publish' THEN conn IS NOT NULL AND "user" IS NOT NULL AND vhost IS NOT NULL AND ch IS NOT NULL
                    AND exchange IS NOT NULL AND rk IS NOT NULL AND outcome IS NOT NULL AND size >= 0 AND seq >= 1
                WHEN 'settle' THEN conn IS NOT NULL AND ch IS NOT NULL AND seq >= 1 AND result IS NOT NULL
                WHEN 'gap' THEN dropped IS NOT NULL ELSE false END THEN NULL
            ELSE '{FOREIGN}' END AS why FROM timed)
    SELECT * EXCLUDE line, t::DATE AS date, hash(proxy, vhost, "user", conn) AS sender,
        md5_number_lower(message_id) AS id,
        CASE WHEN why IS NOT NULL THEN trim(line, ' ' || chr(9) || chr(13)) END AS line FROM judged
"""
#: What lines that are no records are. It is asked of those alone: DuckDB would trim every line.
_REJECTED = f"""
    DELETE FROM lines WHERE why IS NOT NULL AND line = '';
    UPDATE lines SET why = CASE WHEN line[1] = '{{' AND line[-1] <> '}}' THEN '{TORN}'
        WHEN v > {VERSION} THEN '{NEWER}' ELSE why END, line = left(line, {LINE_CHARACTERS}) WHERE why IS NOT NULL;
"""
_SETUP = """
    SET threads = 1;
    SET preserve_insertion_order = false;
    SET memory_limit = '512MB';
    SET temp_directory = '{tempfile.gettempdir()}/oxproxy-spill';
    SET TimeZone = 'UTC';
    CREATE MACRO total(x) AS least(sum(x), 9223372036854775807)::BIGINT;
    CREATE MACRO rounded(x, digits) AS CASE WHEN x = 0 THEN 0.0 ELSE
        round(x / pow(10.0, floor(log10(x)) - (digits - 1))) * pow(10.0, floor(log10(x)) - (digits - 1)) END;
    CREATE MACRO pattern(rk) AS array_to_string(list_transform(string_split(rk, '.'), lambda word:
        CASE WHEN regexp_matches(word, '[0-9]|^[a-fA-F0-9-]{16,}$') THEN '*' ELSE word END), '.');
"""
_VIEWS = """
    CREATE TEMP VIEW records AS FROM lines WHERE why IS NULL;
    CREATE TEMP VIEW publishes AS FROM records WHERE kind = 'publish';
    CREATE TEMP VIEW settles AS FROM records WHERE kind = 'settle';
    CREATE TEMP VIEW back AS SELECT DISTINCT sid, proxy, conn, ch, seq, t AS told FROM settles
        WHERE result = 'returned';
"""
#: What the other statements need more than once.
_BETWEEN = {
    "routes": """SELECT sid, date, vhost, exchange, rules, queues, exchanges, remotes, bindings,
        count(*) AS n, total(size) AS bytes, min(t) AS first, max(t) AS last FROM publishes GROUP BY ALL""",
    "limits": f"""SELECT sid, list_max(min(id, {SAMPLE})) AS sampled, greatest(list_min(max(t, {LONGEST_TAIL})),
        least(list_min(max(t, {TAIL})), max(t) - INTERVAL {TAIL_SECONDS} SECOND)) AS tail
        FROM publishes GROUP BY sid""",
}


def _classes() -> str:
    bounds = [-1, *(bound for bound in SIZE_CLASSES if bound is not None)]
    tests = [
        f"size > {low}" + (f" AND size <= {high}" if high else "")
        for low, high in zip(bounds, SIZE_CLASSES, strict=True)
    ]
    return f"[{', '.join(f'count(*) FILTER ({test})' for test in tests)}]"


def _named(kind: str, column: str) -> str:
    return (
        f"SELECT sid, date, vhost, unnest(list_distinct({column})) AS destination, '{kind}' AS kind, n, bytes, first, "
        "last FROM routes"
    )


#: Partial tables by name.
PARTIALS = {
    "traffic": """SELECT sid, (epoch_us(t) // 60000000)::INTEGER AS clock, vhost, exchange, outcome, proxy,
        count(*) AS n, total(size) AS bytes FROM publishes GROUP BY ALL""",
    "destinations": f"""SELECT sid, date, vhost, destination, kind, total(n) AS n, total(bytes) AS bytes,
        min(first) AS first, max(last) AS last FROM ({_named("queue", "queues")} UNION ALL
        {_named("exchange", "exchanges")} UNION ALL {_named("remote", "remotes")})
        WHERE destination IS NOT NULL GROUP BY ALL""",
    "bindings": """SELECT sid, date, vhost, exchange, binding, rules, total(n) AS n, max(last) AS last FROM (
        SELECT sid, date, vhost, exchange, unnest(list_distinct(bindings)) AS binding, rules, n, last FROM routes)
        WHERE binding IS NOT NULL GROUP BY ALL""",
    "unrouted": """SELECT sid, date, vhost, exchange, pattern(rk) AS rk_pattern, count(*) AS n,
        min({'t': t, 'message_id': message_id, 'rk': rk, 'outcome': outcome, 'reason': reason}) AS example
        FROM publishes WHERE outcome = 'unrouted' GROUP BY ALL""",
    "returned": "SELECT * FROM back",
    "candidates": """SELECT sid, proxy, conn, ch, seq, t, vhost, exchange, rk, message_id, outcome, reason
        FROM publishes JOIN limits USING (sid)
        WHERE t >= tail OR (sid, proxy, conn, ch, seq) IN (SELECT (sid, proxy, conn, ch, seq) FROM back)""",
    "results": "SELECT sid, date, result, count(*) AS n FROM settles GROUP BY ALL",
    "latency": f"""SELECT sid, date, hour(t)::INTEGER AS hour, what, rounded(us, {TIME_DIGITS}) AS us, count(*) AS n
        FROM (SELECT sid, date, t, 'decide' AS what, decide_us AS us FROM publishes WHERE decide_us IS NOT NULL
            UNION ALL SELECT sid, date, t, 'confirm', confirm_us FROM settles WHERE confirm_us IS NOT NULL)
        WHERE us >= 0 AND isfinite(us) GROUP BY ALL""",
    "producers": f"""SELECT * EXCLUDE sender FROM (
        SELECT sid, date, sender, list(second ORDER BY second) AS seconds, list(n ORDER BY second) AS rates,
            max(n) AS peak FROM (
            SELECT sid, date, sender, (epoch_us(t) // 1000000 % 86400)::INTEGER AS second, count(*) AS n
            FROM publishes GROUP BY ALL) GROUP BY ALL)
        JOIN (SELECT sid, date, sender, list(rough ORDER BY rough) AS roughly, list(n ORDER BY rough) AS counts FROM (
            SELECT sid, date, sender, rounded(size, {SIZE_DIGITS})::BIGINT AS rough, count(*) AS n
            FROM publishes GROUP BY ALL) GROUP BY ALL) USING (sid, date, sender)
        JOIN (SELECT sid, date, sender, proxy, vhost, "user", conn, count(*) AS n, total(size) AS bytes,
            min(t) AS first, max(t) AS last, max(size) AS largest, {_classes()} AS classes FROM publishes GROUP BY ALL)
        USING (sid, date, sender)""",
    "ranges": """SELECT sid, date, proxy, conn, ch, min(seq) AS first, max(seq) AS last, min(t) AS t FROM (
        SELECT sid, date, proxy, conn, ch, seq, t, seq - dense_rank() OVER (
            PARTITION BY sid, date, proxy, conn, ch ORDER BY seq) AS island FROM publishes)
        GROUP BY sid, date, proxy, conn, ch, island""",
    "gaps": """SELECT sid, date, hour(t)::INTEGER AS hour, proxy, dropped, "from", "to" FROM records
        WHERE kind = 'gap'""",
    "ids": """SELECT sid, (epoch_us(t) // 3600000000)::INTEGER AS hour, proxy, vhost, exchange, message_id
        FROM publishes WHERE message_id IS NOT NULL""",
    "sample": """SELECT sid, message_id, t, proxy, exchange, rk, outcome, queues FROM publishes JOIN limits USING (sid)
        WHERE id <= sampled""",
    "rejected": f"""SELECT sid, why, line FROM lines WHERE why IS NOT NULL
        QUALIFY row_number() OVER (PARTITION BY sid) <= {KEPT_LINES}""",
    #: ``days`` are those whose tables a segment changes: those of its records, that of its folder, and that before a
    #: return within the first hour of a day.
    "segments": """SELECT files.*, now()::TIMESTAMP AS made, seen.* EXCLUDE (sid, days), list_sort(list_distinct(
            list_concat(coalesce(days, []), CASE WHEN folder IS NULL THEN [] ELSE [folder] END))) AS days
        FROM files LEFT JOIN (
            SELECT sid, count(*) FILTER (why IS NULL) AS records,
                count(*) FILTER (kind = 'publish' AND why IS NULL) AS publishes,
                count(*) FILTER (why = 'torn') AS torn, count(*) FILTER (why = 'foreign') AS "foreign",
                count(*) FILTER (why = 'version') AS version,
                count(*) FILTER (why IS NULL AND kind <> 'settle' AND date <> folder) AS late,
                min(t) FILTER (why IS NULL) AS first, max(t) FILTER (why IS NULL) AS last,
                list_concat(coalesce(list(DISTINCT date) FILTER (why IS NULL), []),
                    coalesce(list(DISTINCT (t - INTERVAL 1 HOUR)::DATE)
                        FILTER (why IS NULL AND result = 'returned'), [])) AS days
            FROM lines JOIN files USING (sid) GROUP BY sid) AS seen USING (sid)""",
}
#: The table that is as large as the log, made only where it is asked for.
TRACE = """SELECT sid, t, message_id, proxy, vhost, exchange, rk, outcome, queues, exchanges, remotes, conn, ch, seq
    FROM publishes WHERE message_id IS NOT NULL"""
_FILES = """sid BIGINT, path VARCHAR, name VARCHAR, content VARCHAR, size BIGINT, modified BIGINT, folder DATE,
    damaged BOOLEAN, traced BOOLEAN, bloom BLOB"""


class Piece(NamedTuple):
    """Rows of one partial table, of a group of segments, as a task hands them on: a Parquet file."""

    batch: str
    name: str
    data: bytes


class DamagedError(Exception):
    """Compressed data that can't be read to its end."""


def inflated(content: bytes, packed: bool) -> Iterator[bytes]:
    """Yield text in pieces of bounded size.

    Raises:
        DamagedError: after what could be read.
    """
    if not packed:
        yield from (content[at : at + _CHUNK] for at in range(0, len(content), _CHUNK))
        return
    at = 0
    while content[at:].strip(b"\0"):  # what pads a file to a block is nothing
        member = zlib.decompressobj(wbits=31)
        fed = b""
        while not member.eof:
            fed = fed or content[at : (at := at + _FED)]
            try:
                piece = member.decompress(fed, _CHUNK)
            except zlib.error as error:
                raise DamagedError from error
            if not fed and not piece and not member.eof:
                raise DamagedError
            fed = member.unconsumed_tail
            yield piece
        at = min(at, len(content)) - len(member.unused_data)


def texts(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield text in pieces that end where a line ends.

    Raises:
        DamagedError: after the last line that is whole.
    """
    rest = b""
    for piece in pieces:
        rest += piece
        end = rest.rfind(b"\n") + 1 or (len(rest) if len(rest) > _LONGEST_LINE else 0)
        if end:
            yield rest[:end].decode("utf-8", "replace")
            rest = rest[end:]
    yield rest.decode("utf-8", "replace")


class Reader:
    """Reads segments one after the other; what it makes of a group of them is taken by `pieces`.

    Args:
        traced: whether the trace table is asked for.
    """

    def __init__(self, traced: bool = False) -> None:
        self._traced = traced
        self._tables = PARTIALS | ({"trace": TRACE} if traced else {})
        self._duck = duckdb.connect()
        self._duck.execute(_SETUP)
        self._texts: list[str] = []
        self._sids: list[int] = []
        self._begin()

    def _begin(self) -> None:
        self.bytes = self._waiting = 0
        self._duck.execute(f"CREATE OR REPLACE TEMP TABLE files ({_FILES})")
        self._duck.execute(f"CREATE OR REPLACE TEMP TABLE lines AS {_LINES}", {"texts": [""], "sids": [0]})
        self._duck.execute(_VIEWS.replace("CREATE", "CREATE OR REPLACE"))

    def add(self, path: str, modified: int, size: int, pieces: Iterable[bytes], digest: hashlib.blake2b) -> None:
        """Read a segment; ``digest`` is that of its content once all pieces of its text have been taken."""
        damaged = False
        sid = uuid.uuid4().int >> 66
        try:
            for text in texts(pieces):
                self._texts.append(text)
                self._sids.append(sid)
                self._waiting += len(text)
                if self._waiting >= _CHUNK:
                    self._parse()
        except DamagedError:
            damaged = True
        values = [sid, path, path.rpartition("/")[2], digest.hexdigest(), size, modified, folder_day(path), damaged]
        self._duck.execute("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)", [*values, self._traced])

    def _parse(self) -> None:
        self._duck.execute(f"INSERT INTO lines {_LINES}", {"texts": self._texts, "sids": self._sids})
        self.bytes += self._waiting
        self._texts, self._sids, self._waiting = [], [], 0

    def pieces(self) -> Iterator[Piece]:
        """Yield the partials of what was read since the last call."""
        if self._texts:
            self._parse()
        self._duck.execute(_REJECTED)
        for name, statement in _BETWEEN.items():
            self._duck.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {statement}")
        self._add_blooms()
        batch = uuid.uuid4().hex
        with tempfile.TemporaryDirectory(prefix="oxproxy-") as folder:
            file = Path(folder, "piece.parquet")
            for name, statement in self._tables.items():
                self._duck.execute(f"COPY ({statement}) TO '{file}' (FORMAT parquet, COMPRESSION zstd)")
                yield Piece(batch, name, file.read_bytes())
        self._begin()

    def _add_blooms(self) -> None:
        """Make the bloom filters of the message ids; the size of each is a power of two."""
        counts = self._duck.execute("SELECT sid, count(DISTINCT id) AS n FROM publishes GROUP BY sid HAVING n > 0")
        for sid, ids in counts.fetchall():
            size = bloom_size(ids)
            places = ", ".join(bloom_place("id", number, str(size)) for number in range(BLOOM_HASHES))
            self._duck.execute(
                f"""UPDATE files SET bloom = (SELECT bitstring_agg(place, 0::BIGINT, {size - 1}::BIGINT)::BLOB FROM (
                    SELECT unnest([{places}]) AS place FROM (SELECT DISTINCT id FROM publishes
                    WHERE sid = {sid} AND id IS NOT NULL))) WHERE sid = {sid}"""
            )


def bloom_place(of: str, number: int, size: str) -> str:
    """The place of a hash in a bloom filter, in SQL: double hashing by the two halves of its 64 bits."""
    return f"((({of} & 4294967295) + {number} * ({of} >> 32)) % ({size}))::BIGINT"


def bloom_size(ids: int) -> int:
    """Bits of the bloom filter for so many message ids."""
    return 1 << max(6, (ids * BLOOM_BITS - 1).bit_length())


def folder_day(path: str) -> date | None:
    """Give the day that a segment's folder names."""
    for part in path.split("/")[-2::-1]:
        if part.startswith("date="):
            try:
                return date.fromisoformat(part.removeprefix("date="))
            except ValueError:
                return None
    return None


def read(segments: Iterable[tuple[str, int, bytes]], traced: bool) -> Iterator[Piece]:
    """Read the segments of a task (path, time of modification, content) and give their partials."""
    whole = (
        (path, modified, len(content), inflated(bytes(content), path.endswith(".gz")), _digest(content))
        for path, modified, content in segments
    )
    yield from _read(whole, traced)


def read_lines(lines: Iterable[tuple[str, int, int, bytes]], traced: bool) -> Iterator[Piece]:
    """Read segments of any size, line by line (path, time of modification, size, line), and give their partials."""

    def ended(rows: Iterable[tuple[str, int, int, bytes]], digest: hashlib.blake2b) -> Iterator[bytes]:
        while piece := b"".join(bytes(row[3]) + b"\n" for row in itertools.islice(rows, _LINES_AT_ONCE)):
            digest.update(piece)
            yield piece

    def streams() -> Iterator[tuple[str, int, int, Iterator[bytes], hashlib.blake2b]]:
        for segment, rows in itertools.groupby(lines, key=operator.itemgetter(0, 1, 2)):
            digest = _digest(b"")
            yield (*segment, ended(rows, digest), digest)

    yield from _read(streams(), traced)


def _digest(content: bytes) -> hashlib.blake2b:
    return hashlib.blake2b(content, digest_size=16)


def _read(segments: Iterable[tuple[str, int, int, Iterator[bytes], hashlib.blake2b]], traced: bool) -> Iterator[Piece]:
    reader, some = Reader(traced), False
    for segment in segments:
        reader.add(*segment)
        some = True
        if reader.bytes >= _GROUP:
            yield from reader.pieces()
            some = False
    if some:
        yield from reader.pieces()


@functools.cache
def nothing() -> tuple[Piece, ...]:
    """Give all tables without a row, so that readers always find their columns."""
    return tuple(Reader(traced=True).pieces())
