from __future__ import annotations

import pytest

from proxy.report.sizing import settings, text_bytes
from proxy.report.source import Volume

MIB = 1 << 20
ADAPTIVE, CODE = "spark.sql.adaptive.enabled", "spark.sql.codegen.wholeStage"
READ, OPEN, SHUFFLE = (
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.files.openCostInBytes",
    "spark.sql.shuffle.partitions",
)


def test_compressed_bytes_count_for_the_text_in_them() -> None:
    assert text_bytes(Volume(2, packed_bytes=10, plain_bytes=7)) == 127


def test_a_small_input_is_one_task_without_plans_made_anew_or_code_made_for_it() -> None:
    small, other = (settings(Volume(1, packed_bytes=size * MIB), cores=4) for size in (1, 2))
    assert (small[SHUFFLE], small[ADAPTIVE], small[CODE]) == ("1", "false", "false")
    assert (other[SHUFFLE], other[ADAPTIVE], other[CODE]) == ("4", "true", "true")


def test_shuffles_grow_with_the_input() -> None:
    small, large = (int(settings(Volume(1, packed_bytes=size * MIB), 2)[SHUFFLE]) for size in (1_000, 10_000))
    assert (small, large) == (47, 469)


def test_shuffles_do_not_grow_for_ever() -> None:
    assert settings(Volume(1, packed_bytes=10**15), 2)[SHUFFLE] == "10000"


def test_a_task_reads_the_same_amount_of_text_whether_it_is_compressed_or_not() -> None:
    plain = int(settings(Volume(1, plain_bytes=10**9), 2)[READ])
    packed = int(settings(Volume(1, packed_bytes=10**9), 2)[READ])
    assert plain == 128 * MIB
    assert packed * 12 == pytest.approx(plain, rel=0.001)


def test_small_segments_are_read_together() -> None:
    chosen = settings(Volume(1000, packed_bytes=1000 * 10_000), 2)
    assert int(chosen[READ]) / (int(chosen[OPEN]) + 10_000) > 20


def test_nothing_to_read_is_no_fault() -> None:
    assert settings(Volume(), 2)[SHUFFLE] == "1"
