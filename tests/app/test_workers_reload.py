from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from proxy.app.reload import Activation
from proxy.app.workers import WorkersReload
from proxy.errors import ConfigError, ConfigErrors
from proxy.net.tasks import Tasks
from proxy.relay.counters import RulesCounters
from proxy.rules.loader import LoadedRules, load_rules

BEFORE = "exchanges: [{name: letters, bindings: [{queue: a}]}]\n"
AFTER = "exchanges: [{name: letters, bindings: [{queue: b}]}]\n"


class Crew:
    """Workers that answer as they are told."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "rules.yaml"
        self.file.write_text(BEFORE)
        loaded = load_rules([self.file])
        self.counters = RulesCounters(version=loaded.rules.version)
        self.told = 0
        self.held: list[str] = []
        self.answers: list[tuple[int, int, dict[str, object]]] | None = None
        self.fault: ConfigErrors | None = None
        self.reload = WorkersReload(lambda: [self.file], loaded, self.check, self.tell, self.counters, Tasks())

    def check(self, loaded: LoadedRules) -> Activation:
        if self.fault is not None:
            raise self.fault
        return lambda: self.held.append(loaded.rules.version)

    async def tell(self) -> Sequence[tuple[int, int, bytes]]:
        self.told += 1
        version = load_rules([self.file]).rules.version
        answers = self.answers or [(number, 200, {"rules": version}) for number in (1, 2)]
        return [(number, status, json.dumps(said).encode()) for number, status, said in answers]


@pytest.fixture
def crew(tmp_path: Path) -> Crew:
    return Crew(tmp_path)


async def test_good_rules_are_told_to_all_and_are_the_version_from_then_on(crew: Crew) -> None:
    before = crew.counters.version
    crew.file.write_text(AFTER)
    answer = await crew.reload.reload("request")
    assert answer.errors == ()
    assert answer.version == crew.counters.version != before
    assert crew.counters.reloads == {"ok": 1, "error": 0}
    assert crew.held == [answer.version]
    assert crew.reload.last is answer


@pytest.mark.parametrize("bad", ["exchanges: {", "exchanges: [{name: letters, bindings: [{quee: a}]}]\n"])
async def test_of_bad_files_no_worker_hears(crew: Crew, bad: str) -> None:
    before = crew.counters.version
    crew.file.write_text(bad)
    answer = await crew.reload.reload("request")
    assert answer.errors
    assert answer.invalid
    assert answer.version == crew.counters.version == before
    assert crew.told == 0
    assert crew.counters.reloads == {"ok": 0, "error": 1}


async def test_a_test_in_the_file_that_fails_keeps_it_from_the_workers(crew: Crew) -> None:
    test = "tests: [{name: none, publish: {exchange: letters}, expect: {queues: [other]}}]\n"
    crew.file.write_text(AFTER + test)
    assert (await crew.reload.reload("request")).invalid
    assert crew.told == 0


async def test_a_broker_that_rules_name_and_nobody_can_log_in_to_is_found_here(crew: Crew) -> None:
    crew.fault = ConfigErrors([ConfigError("rules.yaml", 1, "brokers", "no password")])
    assert (await crew.reload.reload("request")).errors == ("rules.yaml:1: brokers: no password",)
    assert crew.told == 0


@pytest.mark.parametrize(
    ("answer", "error", "invalid"),
    [
        ((2, 503, {"errors": ["broker is away"]}), "worker 2: broker is away", False),
        ((2, 422, {"errors": ["no"]}), "worker 2: no", True),
        ((2, 500, {}), "worker 2: status 500", False),
        ((2, 0, {}), "worker 2: no answer", False),
        ((2, 200, {"rules": "old"}), "worker 2: has rules old, expected ", False),
    ],
)
async def test_a_worker_that_can_not_is_named(
    crew: Crew, answer: tuple[int, int, dict[str, object]], error: str, invalid: bool
) -> None:
    before = crew.counters.version
    crew.file.write_text(AFTER)
    version = load_rules([crew.file]).rules.version
    crew.answers = [(1, 200, {"rules": version}), answer]
    found = await crew.reload.reload("request")
    assert found.errors[0].startswith(error)
    assert found.invalid is invalid
    assert crew.held == []
    assert crew.counters.version == before
