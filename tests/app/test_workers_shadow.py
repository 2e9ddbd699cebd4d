"""Reports of several workers, added up; `test_workers` asks two of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from proxy.app.workers import WorkersShadow, added
from proxy.rules.comparison import KINDS

Report = dict[str, Any]  # Any: JSON


def kind(publishes: int, queue: str) -> Report:
    result = {"outcome": "routed", "queues": [queue]}
    return {"publishes": publishes, "live": result, "candidate": {}, "example": {"routing_key": str(publishes)}}


def report(compared: int, *kinds: Report, exchange: str = "e", seconds: float = 1.0) -> Report:
    different = sum(each["publishes"] for each in kinds)
    counts = {"compared": compared, "equal": compared - different, "different": different, "random": 1}
    seen = {"vhost": "/", "exchange": exchange, **counts, "differences": list(kinds), "further_differences": 2}
    bindings = [{"vhost": "/", "exchange": "e", "binding": "b", "matches": compared}]
    return {"seconds": seconds, "skipped": 3, "waiting": 0, **counts, "exchanges": [seen], "bindings": bindings}


def test_numbers_are_added_and_kinds_of_difference_joined() -> None:
    found = added([report(5, kind(1, "q")), report(7, kind(2, "r"), kind(4, "q"), seconds=2.0)])
    assert (found["seconds"], found["skipped"], found["compared"], found["equal"], found["random"]) == (
        2.0,
        6,
        12,
        5,
        2,
    )
    (exchange,) = found["exchanges"]
    assert [(each["publishes"], each["live"]["queues"]) for each in exchange["differences"]] == [(5, ["q"]), (2, ["r"])]
    assert (exchange["further_differences"], found["bindings"][0]["matches"]) == (4, 12)


def test_exchanges_that_one_worker_saw_stand_beside_the_others() -> None:
    found = added([report(5), report(7, exchange="d")])
    assert [each["exchange"] for each in found["exchanges"]] == ["d", "e"]


def test_kinds_stay_bounded() -> None:
    one = report(100, *(kind(1, f"a{number}") for number in range(KINDS)))
    other = report(100, *(kind(2, f"b{number}") for number in range(KINDS)))
    (exchange,) = added([one, other])["exchanges"]
    assert len(exchange["differences"]) == KINDS
    assert exchange["further_differences"] == 2 + 2 + KINDS


class Workers:
    """Workers that give the answers of the test."""

    def __init__(self, **answers: Sequence[tuple[int, object]]) -> None:
        self.asked: list[str] = []
        self._answers = answers

    async def tell(self, method: str, _body: bytes) -> list[tuple[int, bytes]]:
        self.asked.append(method)
        return [(status, json.dumps(found).encode()) for status, found in self._answers.get(method, ())]


async def test_where_one_worker_refuses_none_compares() -> None:
    workers = Workers(POST=[(200, report(0)), (422, {"errors": ["x"]})])
    assert await WorkersShadow(workers.tell).begin(b"") == (422, '{"errors": ["x"]}')
    assert workers.asked == ["POST", "DELETE"]


async def test_a_worker_that_came_later_is_left_out() -> None:
    workers = Workers(GET=[(404, {"errors": []}), (200, report(5))], DELETE=[(404, {"errors": ["none"]})])
    status, found = await WorkersShadow(workers.tell).report(b"")
    assert isinstance(found, dict)
    assert (status, found["compared"]) == (200, 5)
    assert await WorkersShadow(workers.tell).end(b"") == (404, '{"errors": ["none"]}')


async def test_without_any_worker_there_is_no_answer() -> None:
    assert (await WorkersShadow(Workers().tell).report(b""))[0] == 503
