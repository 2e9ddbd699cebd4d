"""What does a line of the log say, and is it a line of the log at all?

Lines become rows with an explicit schema, one row a line. What is no record is never an error: such rows say why.
``torn`` is a line that a crash cut off, ``foreign`` one that was never a record, ``version`` a record of a version
later than this report. Source: docs/audit.md.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

#: Version of the records that are understood; new fields do not change it.
VERSION = 1
PUBLISH, SETTLE, GAP, REJECTED, BLANK = "publish", "settle", "gap", "rejected", "blank"
TORN, FOREIGN, NEWER = "torn", "foreign", "version"

#: Fields by name, as the log has them; others are skipped.
FIELDS = {
    "v": "bigint",
    "kind": "string",
    "ts": "string",
    "proxy": "string",
    "conn": "string",
    "user": "string",
    "vhost": "string",
    "ch": "int",
    "seq": "bigint",
    "exchange": "string",
    "rk": "string",
    "message_id": "string",
    "size": "bigint",
    "outcome": "string",
    "queues": "array<string>",
    "exchanges": "array<string>",
    "remotes": "array<string>",
    "bindings": "array<string>",
    "rules": "string",
    "reason": "string",
    "decide_us": "double",
    "result": "string",
    "confirm_us": "double",
    "dropped": "bigint",
    "from": "string",
    "to": "string",
}
#: What a record of a kind is nothing without.
NEEDED = {
    PUBLISH: ("conn", "user", "vhost", "ch", "seq", "exchange", "rk", "size", "outcome"),
    SETTLE: ("conn", "ch", "seq", "result"),
    GAP: ("dropped",),
}
_NAMES = ("queues", "exchanges", "remotes", "bindings")
_ENTRY = ", ".join(f"`{name}`: {kind}" for name, kind in FIELDS.items())
_SCHEMA = f"r ARRAY<STRUCT<{_ENTRY}>>, bad STRING"
#: Strict JSON; what Spark reads beyond it was not written by a sidecar.
_JSON = {"columnNameOfCorruptRecord": "bad", "allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
_TIME = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z$"
_FOLDER = r"/date=(\d{4}-\d\d-\d\d)/"


def records(lines: DataFrame) -> DataFrame:
    """Read lines.

    Args:
        lines: columns ``value`` and ``file``.

    Returns:
        One row a line: ``kind`` (of the record; `REJECTED`, `BLANK`), ``ts`` as a time, ``date`` its day in UTC,
        ``folder_date`` the day that the folder says (null outside of day folders), ``octets`` of the line without
        its end, ``why`` and ``line`` of rejected ones, and the other fields as the log has them. Lists of names are
        never null.
    """
    # One line is one value only if it still is one among brackets: "{..}{..}" and "{..}garbage" are not.
    wrapped = F.concat(F.lit('{"r":['), F.col("value"), F.lit("]}"))
    read = lines.select("value", "file", F.from_json(wrapped, _SCHEMA, _JSON).alias("read"))
    fields = [F.get("read.r", 0)[name].alias(f"raw_{name}") for name in ("ts", "kind")]
    others = [F.get("read.r", 0)[name].alias(name) for name in FIELDS if name not in ("ts", "kind")]
    is_one = F.col("read.bad").isNull() & (F.size("read.r") == 1)
    flat = read.select("value", "file", F.coalesce(is_one, F.lit(False)).alias("is_one"), *fields, *others)
    timed = flat.withColumn("ts", F.when(F.col("raw_ts").rlike(_TIME), F.col("raw_ts").try_cast("timestamp")))
    judged = timed.withColumn("why", _why())
    kind = F.when(_is_blank(), BLANK).when(F.col("why").isNotNull(), REJECTED).otherwise(F.col("raw_kind"))
    kept = F.when(F.col("why").isNotNull(), F.make_valid_utf8("value"))
    folder = F.regexp_extract("file", _FOLDER, 1)
    return judged.select(
        kind.alias("kind"),
        "ts",
        F.to_date("ts").alias("date"),
        F.when(folder != "", folder).try_cast("date").alias("folder_date"),
        "file",
        F.octet_length("value").alias("octets"),
        "why",
        kept.alias("line"),
        *(_field(name) for name in FIELDS if name not in ("v", "ts", "kind")),
    )


def _field(name: str) -> Column:
    if name in _NAMES:
        return F.coalesce(name, F.array().cast("array<string>")).alias(name)
    return F.col(name)


def _trimmed() -> Column:
    return F.trim("value", F.lit(" \t\r"))


def _is_blank() -> Column:
    return _trimmed() == ""


def _why() -> Column:
    """Why a line is no record, null for a record."""
    complete = F.lit(False)
    for kind, names in NEEDED.items():
        is_whole = F.lit(True)
        for name in names:
            is_whole &= F.col(name).isNotNull()
        complete |= (F.col("raw_kind") == kind) & is_whole
    sane = complete & F.col("ts").isNotNull() & F.col("proxy").isNotNull()
    sane &= F.coalesce(F.col("size") >= 0, F.lit(True)) & F.coalesce(F.col("seq") >= 1, F.lit(True))
    is_cut = _trimmed().startswith("{") & ~_trimmed().endswith("}")
    return (
        F.when(_is_blank(), None)
        .when(~F.col("is_one"), F.when(is_cut, TORN).otherwise(FOREIGN))
        .when(F.col("v") > VERSION, NEWER)
        .when(~F.coalesce(sane & (F.col("v") == VERSION), F.lit(False)), FOREIGN)
    )
