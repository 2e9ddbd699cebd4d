from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.conformance import messenger
from tests.conformance.__main__ import main
from tests.conformance.files import OWN_VECTORS, vectors

FILES = [path for path in OWN_VECTORS if path.parent.name == "messenger"]


def test_the_number_of_vectors() -> None:
    assert sum(1 for path in FILES for _ in vectors(path)) == 2144


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.partition(".")[0])
def test_a_vector_with_another_result_fails(path: Path) -> None:
    results = Counter(
        messenger.run(vector | {"address": "none of the vectors' addresses"})[0] for vector in vectors(path)
    )
    assert results[False] > 0


def test_the_steps_of_slow_patterns_are_linear_in_the_pattern() -> None:
    timed = [vector for path in FILES for vector in vectors(path) if "max_ms" in vector]
    assert len(timed) == 46
    for vector in timed:
        for rule in vector["rules"]:
            pattern = rule["pattern"].encode()
            # Each step reads the address at most once, at least eight bytes at a time.
            assert messenger.steps_of_match(pattern, vector["address"].encode()) <= 20 * len(pattern) + 20


def test_measuring_reports_slow_vectors(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(messenger, "measure", lambda vector: (vector["max_ms"] + 1.0, vector["max_ms"]))
    assert main(["--times", *map(str, FILES)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 in time, 46 late"
