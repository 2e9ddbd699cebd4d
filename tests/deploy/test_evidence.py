"""The page of results is current, and its generator reads each kind of result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.evidence import __main__ as evidence
from tests import pieces

ORIGIN = {
    "date": "2026-11-29T09:00Z",
    "version": "1.0.0",
    "build": "compiled",
    "commit": "abc",
    "python": "3.11.7",
    "cpus": 2,
}
PIECE = ORIGIN | {
    "broker": "4.3.6",
    "seed": 1,
    "seconds": 1800,
    "faults": {"kill sidecar": 3, "reload storm": 1},
    "counts": {"messages": 12000, "acked": 11000, "copies": 15000},
    "violations": {"lost": 1},
    "examples": ["lost: message 5 of `x`: no copy\nin queue a"],
}
JUNIT = """\
<testsuites><testsuite name="RabbitMQ 4.3" tests="4" time="12.6" timestamp="2026-11-29T10:00:00+00:00">
<testcase classname="tests.broker.delivery.test_audit" name="a"/>
<testcase classname="tests.broker.client_libraries.test_pika" name="b"/>
<testcase classname="tests.broker.client_libraries.test_pika" name="c"><failure/></testcase>
<testcase classname="tests.net.test_tls" name="d"><skipped/></testcase>
</testsuite></testsuites>
"""


def cells(text: str, first: str) -> list[str]:
    """The cells of the row that begins with this cell."""
    [line] = [line for line in text.splitlines() if line.startswith(f"| {first} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_page_is_up_to_date() -> None:
    assert evidence.PAGE.read_text() == evidence.page(), "run python -m deploy.evidence"


def test_result_files_are_small() -> None:
    assert sum(path.stat().st_size for path in evidence.RESULTS.iterdir()) < 500_000


def test_sections_without_results_are_marked(tmp_path: Path) -> None:
    assert evidence.page(tmp_path).count("No result is recorded yet.") == 6


def test_pieces_of_the_campaign_are_summed_by_broker() -> None:
    text = evidence.faults([PIECE, PIECE, PIECE | {"broker": "3.10.8"}])
    summary, violations = text.split("Violations:\n\n")
    assert cells(summary, "4.3.6")[1:8] == ["2026-11-29", "1.0.0 (abc)", "2", "1.0", "8", "24,000", "22,000"]
    assert cells(violations, "4.3.6") == ["4.3.6", "2", "0", "0", "0", "0", "0"]
    assert cells(text, "kill sidecar") == ["kill sidecar", "9"]
    assert "- 4.3.6: `lost: message 5 of x: no copy in queue a`" in text


def test_pieces_of_fuzzing_are_summed_by_target() -> None:
    piece = ORIGIN | {"target": "codec", "method": "atheris", "seed": 1, "seconds": 90, "inputs": 5000, "defects": 0}
    assert cells(evidence.fuzz([piece, piece]), "codec")[4:] == ["10,000", "3", "0"]


def test_tests_are_counted_by_directory_and_by_client_library(tmp_path: Path) -> None:
    (tmp_path / "tests.xml").write_text(JUNIT)
    piece = evidence.tests_of(tmp_path / "tests.xml")
    assert piece["date"] == "2026-11-29T10:00Z"
    text = evidence.matrix([piece])
    assert "| `tests/broker` | `tests/net` |" in text
    assert cells(text, "RabbitMQ 4.3")[3:] == ["1", "0"]
    assert cells(evidence.libraries([piece]), "pika") == ["pika", "1, 1 failed"]


def test_the_comparison_shows_ratios_of_rounds_and_where_oxproxy_is_worse() -> None:
    rate = {"oxproxy": [90.0, 110.0], "RabbitMQ": [100.0, 100.0], "HAProxy": [100.0, 200.0]}
    memory = {"oxproxy": [30.0], "HAProxy": [10.0]}
    rows = [
        {"label": "rate", "unit": "/s", "higher is better": True, "values": rate},
        {"label": "memory", "unit": "MiB", "higher is better": False, "values": memory},
    ]
    piece = ORIGIN | {"broker": "3.10.8", "haproxy": "2.6", "cpu": "x", "load": 0.1, "rounds": 2, "rows": rows}
    text = evidence.comparison([piece])
    assert cells(text, "rate")[1:5] == ["100 /s", "100 /s", "150 /s", "-"]
    assert cells(text, "rate")[5:] == ["1.00 (0.90 .. 1.10)", "0.73 (0.55 .. 0.90)", "-"]
    assert cells(text, "memory")[1:] == ["30 MiB", "-", "10 MiB", "-", "-", "3.00", "-"]
    assert text.endswith("Worse in every round than:\n\n- HAProxy: rate; memory\n")


def test_results_of_the_benchmark_are_shown_with_their_spread(tmp_path: Path) -> None:
    row: dict[str, object] = {"label": "open / direct", "unit": "x", "median": 0.95, "rounds": [0.9, 0.95, 1.0]}
    machine = {"cpus": 2, "cpu_model": "x", "python": "3.11.7"}
    whole: dict[str, object] = {
        "date": "2026-11-29T10:00:00+00:00",
        "command": "make bench",
        "machine": machine,
        "broker": "RabbitMQ 3.10.8",
    }
    whole |= {"build": "compiled", "rows": [row, row | {"label": "failed", "rounds": []}]}
    (tmp_path / "bench.json").write_text(json.dumps(whole))
    text = evidence.bench([evidence.bench_of(tmp_path / "bench.json")])
    assert text.startswith("2026-11-29, RabbitMQ 3.10.8, compiled build")
    assert cells(text, "open / direct")[1:] == ["0.95 x", "0.90 x .. 1.00 x"]
    assert "failed" not in text


def test_a_result_file_is_added_to(tmp_path: Path) -> None:
    file = tmp_path / "new" / "faults.json"
    assert pieces.read(file) == []
    pieces.add(file, PIECE)
    pieces.add(file, ORIGIN)
    assert pieces.read(file) == [PIECE, ORIGIN]
    assert len(file.read_text().splitlines()) == 4


@pytest.mark.parametrize("key", ["date", "version", "build", "commit", "python", "cpus"])
def test_a_piece_states_its_origin(key: str) -> None:
    assert pieces.origin()[key]
