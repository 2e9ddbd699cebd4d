"""Tests the printed report of ``oxproxy shadow``; tests/app/test_shadow.py runs the command against a sidecar."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from oxproxy.cli.admin_client import AdminClient
from oxproxy.cli.shadow import Report, compare, destinations_text, print_lines, print_tables
from oxproxy.errors import ConfigErrors

UNROUTED: Report = {"outcome": "unrouted", "queues": [], "exchanges": [], "remotes": [], "error": None, "failed": []}
REPORT: Report = {
    "seconds": 60.2,
    "skipped": 7,
    "waiting": 0,
    "live": "aaa",
    "candidate": "bbb",
    "compared": 12,
    "equal": 8,
    "different": 4,
    "random": 5,
    "exchanges": [
        {
            "vhost": "/",
            "exchange": "letters",
            "compared": 12,
            "equal": 8,
            "different": 4,
            "random": 5,
            "differences": [
                {
                    "publishes": 3,
                    "live": UNROUTED,
                    "candidate": {**UNROUTED, "outcome": "routed", "queues": ["bills", "all"]},
                    "example": {"routing_key": "a\x1b[2Jb", "headers": {"type": "bill"}},
                }
            ],
            "further_differences": 1,
        }
    ],
    "bindings": [
        {"vhost": "/", "exchange": "letters", "binding": f"b{number}", "matches": number} for number in range(33)
    ],
}


def printed(report: Report) -> str:
    """Return the output with single blanks and without table lines."""
    out = io.StringIO()
    print_tables(report, Console(file=out, width=200, highlight=False))
    return " ".join("".join(" " if character in "│┃" else character for character in out.getvalue()).split())


def test_the_report_has_totals_exchanges_examples_and_bindings() -> None:
    text = printed(REPORT)
    compared = "candidate bbb compared with the active rules aaa for 60 s: 12 publishes compared, 8 equal, 4 different"
    assert compared in text
    assert "5 not comparable" in text
    assert "7 skipped" in text
    assert " letters 12 8 4 5 " in text
    assert " unrouted routed: queue bills, queue all " in text
    assert "type: bill 3 others 1 " in text
    assert " letters: b32 32 letters: b31 31 " in text
    assert "and 3 more 3 " in text


def test_in_a_pipe_each_row_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines(REPORT)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:7] == [
        "5 not comparable: a rule picks a queue at random",
        "7 skipped: too many publishes to compare them all, or a malformed header",
        "vhost /, exchange letters: compared 12, equal 8, different 4, random 5",
        "vhost /, exchange letters: 3 publishes: live unrouted; candidate routed: queue bills, queue all; for example "
        "key 'a\\x1b[2Jb', type: bill",
        "vhost /, exchange letters: 1 publish with other differences",
        "vhost /, exchange letters, candidate's binding b32: matches 32",
    ]
    assert len(lines) == 6 + 33


def test_the_report_counts_a_single_publish() -> None:
    single = {**REPORT, "compared": 1, "equal": 1, "different": 0, "exchanges": [], "bindings": []}
    assert "60 s: 1 publish compared, 1 equal, 0 different" in printed(single)


def test_a_report_without_differences_is_short() -> None:
    quiet = {**REPORT, "exchanges": [], "bindings": [], "random": 0, "skipped": 0}
    assert printed(quiet).endswith("4 different")


def test_several_virtual_hosts_are_named() -> None:
    first = REPORT["exchanges"][0]
    several = {**REPORT, "exchanges": [{**first, "differences": []}, {**first, "vhost": "two", "differences": []}]}
    assert "two letters 12" in printed(several)


def test_destinations_text_describes_the_destinations_of_a_message() -> None:
    assert destinations_text(UNROUTED) == "unrouted"
    everything = {**UNROUTED, "outcome": "routed", "queues": ["q"], "exchanges": ["e"], "remotes": ["r"]}
    assert destinations_text(everything) == "routed: queue q, exchange e, remote r"
    assert destinations_text({**UNROUTED, "outcome": "rejected", "error": "too large"}) == 'rejected: 406 "too large"'
    assert destinations_text({**UNROUTED, "failed": ["why"]}) == "unrouted: failed: why"


def test_unreadable_files_are_an_error_before_any_request(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors, match="can't be read"):
        compare([tmp_path / "none.yaml"], [AdminClient("nowhere", "oxproxy shadow")], 1)
