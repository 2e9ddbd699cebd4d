from __future__ import annotations

from datetime import timedelta, timezone

import pytest

from proxy.routing.exchange import Exchange
from tests.routing.building import queues, to_queue


@pytest.mark.parametrize(
    ("key", "pattern", "true"),
    [
        ("x-?dture", "^20261121 08", True),
        ("x-?dture", "^20261121 10", False),
        ("x-?dtu!re", "^20261121 10", True),
        ("x-?dtlre", "^20261121 10.* 6 47$", True),
        ("x-?dtl!re", "^20261121 10", False),
    ],
)
def test_clock_operators_read_universal_or_local_time(key: str, pattern: str, true: bool) -> None:
    made = Exchange(b"xo", "x-open", local_time=timezone(timedelta(hours=2)))
    made.bind(to_queue("q", {key: pattern}))
    assert (queues(made) == ["q"]) is true
