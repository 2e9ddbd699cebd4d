"""A short campaign on the broker of the tests, without faults of the broker itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import pieces
from tests.campaign import faults
from tests.campaign.__main__ import as_json, table
from tests.campaign.matching import Tally
from tests.campaign.run import run
from tests.rabbitmq import Broker


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two faults only: a killed sidecar, and a lost queue."""
    chosen = iter((faults.kill_sidecar, faults.lose_queue))
    monkeypatch.setattr(faults, "drawn", lambda *_: next(chosen))


@pytest.mark.usefixtures("brief")
def test_no_message_is_lost_doubled_or_misrouted(broker: Broker, vhost: str, tmp_path: Path) -> None:
    result = run(broker, vhost, seed=1, count=2, seconds=60)
    assert result.verdict.violations == []
    counts = result.verdict.counts
    assert all(counts[name] for name in ("acked", "returned", "absent", "copies", "audit records", "client binds"))
    piece = as_json(result, "1.2.3", 1)
    for _ in range(2):
        pieces.add(tmp_path / "faults.json", piece)
    assert pieces.read(tmp_path / "faults.json") == [json.loads(json.dumps(piece))] * 2
    *_, last = table(pieces.read(tmp_path / "faults.json")).splitlines()
    assert last.split()[:3] == ["1.2.3", "2", "4"]


@pytest.mark.matrix  # test_matching.py tests the checker without a broker
@pytest.mark.usefixtures("brief")
def test_a_message_that_a_queue_did_not_receive_is_found(
    broker: Broker, vhost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumers overlook one message, as if the queue had not received it."""
    add, overlooked = Tally.add, list[bytes]()

    def overlooking(tally: Tally, body: bytes) -> tuple[int, int] | None:
        if not overlooked and body.startswith(b"0 "):
            overlooked.append(body)
        return None if body in overlooked else add(tally, body)

    monkeypatch.setattr(Tally, "add", overlooking)
    found = run(broker, vhost, seed=2, count=0, seconds=0).verdict.violations
    assert {violation.kind for violation in found} == {"lost"}
