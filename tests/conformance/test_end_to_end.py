"""Tests vectors through a running sidecar against a real RabbitMQ: one in five, or all of them in the matrix.

The sample alternates between the kinds of delivery, so that each of its vectors runs once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

from tests.conformance.deviations import possible
from tests.conformance.end_to_end import every_vector, run_on, verdicts
from tests.conformance.typed import Json
from tests.other_rabbitmq import RELEASES, file_system, obstacle
from tests.private_broker import PrivateBroker
from tests.rabbitmq import Broker

KINDS = ["direct", "topic", "queue"]
DELIVERIES = pytest.mark.parametrize("delivery", KINDS)


def played(broker: Broker, chosen: Iterable[Json], delivery: str) -> tuple[list[tuple[str, Json, Json]], Counter[str]]:
    """Return failures as id, expected and actual result; and the number of vectors per deviation ("" if passed)."""
    faults, counts = [], Counter[str]()
    for verdict in verdicts(broker, chosen, run_on(broker, delivery)):
        if verdict.passed or verdict.deviation:
            counts[verdict.deviation] += 1
        else:
            faults.append((verdict.vector["id"], verdict.expected, verdict.got))
    return faults, counts


@DELIVERIES
@pytest.mark.timeout(300)
def test_one_vector_in_five_has_the_expected_result(broker: Broker, delivery: str) -> None:
    chosen = every_vector()[::5][KINDS.index(delivery) :: len(KINDS)]
    faults, counts = played(broker, chosen, delivery)
    assert faults == []
    assert counts.total() == len(chosen) == 452


def test_a_vector_with_another_result_is_a_failure(broker: Broker) -> None:
    # RabbitMQ 4.0 evaluates headers exchanges itself, with documented deviations.
    candidates = (vector for vector in every_vector() if vector.get("exchange_type") != "headers")
    vector = next(vector for vector in candidates if vector["expected"].get("queues") == ["q1"])
    vector["expected"] = {"queues": []}
    faults, counts = played(broker, [vector], "carrier")
    assert faults == [(vector["id"], {"queues": []}, {"queues": ["q1"]})]
    assert not counts


@pytest.fixture(scope="module", params=RELEASES)
def released(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """The RabbitMQ of one of Debian's releases."""
    if reason := obstacle():
        pytest.skip(reason)
    with PrivateBroker(root=file_system(request.param)) as broker:
        assert broker.version[:2] == RELEASES[request.param]
        yield broker


@DELIVERIES
@pytest.mark.matrix
@pytest.mark.timeout(900)
def test_every_vector_has_the_expected_result(released: Broker, delivery: str) -> None:
    vectors = every_vector()
    faults, counts = played(released, vectors, delivery)
    assert faults == []
    deviating = {deviation.name: deviation.vectors for deviation in possible(run_on(released, delivery))}
    assert counts == {"": len(vectors) - sum(deviating.values())} | deviating
