"""Which Spark settings fit an input of this size?

gzip can't be split, so a segment is the smallest piece of reading; small ones are read together, large ones alone.
Shuffles get as many partitions as keep each at some dozens of megabytes; Spark's adaptive execution joins those that
turn out smaller and splits those that turn out larger. A small input is one task from its beginning to its end: there
planning anew between two stages, and making code for a query, take longer than the query. Source: Spark's SQL
performance tuning guide; the way its factories of code fall back is told in `SQLConf` alone.
"""

from __future__ import annotations

from proxy.report.source import Volume

#: What text shrinks by in a segment (gzip, level 3).
PACKING = 12
#: Text that one task reads: some seconds of work, so that a lost task costs little and starting one is not felt.
_READ_BYTES = 128 << 20
#: Opening a file costs as much as reading this much of text.
_OPEN_BYTES = 4 << 20
#: Text behind one partition of a shuffle. What is shuffled is a tenth of the text: it fits into memory anywhere.
_SHUFFLE_BYTES = 256 << 20
#: Text up to which an input is small: some ten thousand records.
_SMALL_BYTES = 16 << 20
#: More partitions would cost the driver more than they save; at this number an input has 2.5 terabytes of text.
_MOST_PARTITIONS = 10_000


def text_bytes(volume: Volume) -> int:
    """Guess how much text there is."""
    return volume.packed_bytes * PACKING + volume.plain_bytes


def settings(volume: Volume, cores: int) -> dict[str, str]:
    """Choose Spark's settings.

    Args:
        volume: how much there is to read.
        cores: tasks that run at once.

    Returns:
        Settings that may be changed in a running session.
    """
    text = text_bytes(volume)
    stored = volume.packed_bytes + volume.plain_bytes
    # Spark counts bytes as they are stored.
    packing = text / stored if stored else 1
    is_small = text <= _SMALL_BYTES
    partitions = 1 if is_small else min(_MOST_PARTITIONS, max(cores, -(-text // _SHUFFLE_BYTES)))
    return {
        "spark.sql.files.maxPartitionBytes": str(int(_READ_BYTES / packing)),
        "spark.sql.files.openCostInBytes": str(int(_OPEN_BYTES / packing)),
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.adaptive.enabled": str(not is_small).lower(),
        "spark.sql.codegen.wholeStage": str(not is_small).lower(),
        "spark.sql.codegen.factoryMode": "NO_CODEGEN" if is_small else "FALLBACK",
    }
