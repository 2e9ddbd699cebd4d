from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from oxproxy.errors import UpstreamError, UpstreamFailure
from tests.bench import arrangement, scale
from tests.bench.processes import ChildError


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Unfreeze the objects frozen by the measurement and by each reload, since other tests share the process."""
    yield
    gc.unfreeze()


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    exchanges = (arrangement.exchange_rules("bench.few", scale.FEW, scale.by_kind_and_amount),)
    return arrangement.rules_file(tmp_path / "few.yaml", exchanges)


async def test_each_reload_of_a_changed_file_is_measured(rules: Path) -> None:
    longest = await scale.longest_turns_ms(rules)
    assert len(longest) == scale.RELOADS
    assert all(turn > 0 for turn in longest)


async def test_a_failed_reload_ends_the_measurement(rules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> None:
        raise UpstreamError(UpstreamFailure.REFUSED, "no permission")

    monkeypatch.setattr(scale.NoBroker, "prepare", refuse)
    with pytest.raises(ChildError, match="no permission"):
        await scale.longest_turns_ms(rules)
