from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance import open_exchange
from tests.conformance.__main__ import main
from tests.conformance.files import OWN_VECTORS, vectors, verdicts

_ROW_1 = "goto-stop-and-plain-bindings"


@pytest.mark.parametrize("path", OWN_VECTORS, ids=lambda path: path.name.partition(".")[0])
def test_every_vector_has_its_recommended_result(path: Path) -> None:
    faults = [(name, expected, got) for name, ok, expected, got in verdicts(path) if not ok]
    assert faults == []


def test_the_number_of_open_exchange_vector_files() -> None:
    assert sum(path.parent.name == "open-exchange" for path in OWN_VECTORS) == 16


def test_plugin_results_are_the_observed_ones_if_only_goto_and_stop_differ() -> None:
    observed = [
        (open_exchange.plugin_result(vector), vector["expected"])
        for path in OWN_VECTORS
        for vector in vectors(path)
        if vector.get("seed_reason") == [_ROW_1]
    ]
    assert observed
    assert [pair for pair in observed if pair[0] != pair[1]] == []


def test_a_wrong_result_is_counted_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wrong.jsonl"
    path.write_text(
        '{"id": "one", "group": "x", "note": "", "exchange_arguments": {}, "queues": ["q"], "exchanges": [],'
        ' "bindings": [], "message": {"routing_key": "", "headers": null, "properties": {}, "body_size": 1},'
        ' "expected": {"queues": ["q"]}}\n'
    )
    assert main([str(path)]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "one"
    assert shown[-1] == "0 passed, 1 failed"
