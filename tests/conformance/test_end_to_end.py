"""Tests vectors through a running sidecar against a real RabbitMQ: one in ten, or all of them in the matrix.

The sample alternates between the types of the carrier, so that each of its vectors runs once.
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

TYPES = ["direct", "topic"]
EACH_TYPE = pytest.mark.parametrize("carrier_type", TYPES)


def played(
    broker: Broker, chosen: Iterable[Json], carrier_type: str
) -> tuple[list[tuple[str, Json, Json]], Counter[str]]:
    """Return failures as id, expected and actual result; and the number of vectors per deviation ("" if passed)."""
    faults, counts = [], Counter[str]()
    for verdict in verdicts(broker, chosen, run_on(broker, carrier_type)):
        if verdict.passed or verdict.deviation:
            counts[verdict.deviation] += 1
        else:
            faults.append((verdict.vector["id"], verdict.expected, verdict.got))
    return faults, counts


@EACH_TYPE
@pytest.mark.timeout(300)
def test_one_vector_in_ten_has_the_expected_result(broker: Broker, carrier_type: str) -> None:
    chosen = every_vector()[::10][TYPES.index(carrier_type) :: len(TYPES)]
    faults, counts = played(broker, chosen, carrier_type)
    assert faults == []
    assert counts.total() == len(chosen) == 339


def test_a_vector_with_another_result_is_a_failure(broker: Broker) -> None:
    # RabbitMQ 4.0 evaluates headers exchanges itself, with documented deviations.
    candidates = (vector for vector in every_vector() if vector.get("exchange_type") != "headers")
    vector = next(vector for vector in candidates if vector["expected"].get("queues") == ["q1"])
    vector["expected"] = {"queues": []}
    faults, counts = played(broker, [vector], "")
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


@EACH_TYPE
@pytest.mark.matrix
@pytest.mark.timeout(900)
def test_every_vector_has_the_expected_result(released: Broker, carrier_type: str) -> None:
    vectors = every_vector()
    faults, counts = played(released, vectors, carrier_type)
    assert faults == []
    deviating = {deviation.name: deviation.vectors for deviation in possible(run_on(released, carrier_type))}
    assert counts == {"": len(vectors) - sum(deviating.values())} | deviating
