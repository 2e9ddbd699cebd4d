"""Tests `oxproxy report --query`, without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oxproxy.cli.main import main
from tests.report.lines import publish, segment


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("query")
    segment(folder / "in", [publish(seq=1), publish(seq=2, user="ü\n")])
    segment(folder / "in", [publish(ts="2026-11-21T07:00:00Z", seq=3)], "2026-11-21")
    assert main(["report", "--input", str(folder / "in"), "--output", str(folder / "out")]) == 0
    return folder / "out"


def asked(capsys: pytest.CaptureFixture[str], output: Path, statement: str, *more: str) -> tuple[int, str, str]:
    capsys.readouterr()
    status = main(["report", "--output", str(output), "--query", statement, *more])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_rows_are_printed_as_a_table(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    statement = 'SELECT date, "user", sum(messages) AS n, NULL AS none FROM flows GROUP BY ALL ORDER BY ALL;'
    table = "date        user  n  none\n2026-11-20  u     1\n2026-11-20  ü\\n   1\n2026-11-21  u     1\n"
    assert asked(capsys, output, statement) == (0, table, "")


def test_rows_are_printed_as_json(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    statement = "SELECT first_seen, connections[1].conn AS conn FROM producers ORDER BY first_seen DESC LIMIT 1"
    status, text, _ = asked(capsys, output, statement, "--json")
    assert (status, json.loads(text)) == (0, {"first_seen": "2026-11-21 07:00:00+00", "conn": "c"})


@pytest.mark.parametrize(
    ("statement", "row"),
    [
        ("SELECT 1 AS found", {"found": 1}),
        ("SELECT 1 AS n -- comment", {"n": 1}),
        ("SELECT 1 AS n; -- comment", {"n": 1}),
        ("SELECT 'a;' AS text /* comment */ ;", {"text": "a;"}),
        ("SELECT 1 AS n, 2 AS n", {"n": 1, "n_1": 2}),
    ],
)
def test_any_column_name_and_comment_is_allowed(
    output: Path, capsys: pytest.CaptureFixture[str], statement: str, row: dict[str, object]
) -> None:
    status, text, _ = asked(capsys, output, statement, "--json")
    assert (status, json.loads(text)) == (0, row)


def test_a_table_that_cannot_be_read_is_an_error_of_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "flows/date=2026-11-20").mkdir(parents=True)
    (tmp_path / "flows/date=2026-11-20/part-0.parquet").write_text("rubbish")
    status, text, errors = asked(capsys, tmp_path, "FROM flows")
    assert (status, text, errors.count("\n")) == (2, "", 1)
    assert errors.startswith("oxproxy report: --query: ")


def test_a_query_can_be_limited_to_days(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(capsys, output, "SELECT count(*) FROM flows", "--since", "2026-11-21")[1].split()[-1] == "1"


@pytest.mark.parametrize("statement", ["DELETE FROM flows", "SELECT 1; SELECT 2", "COPY flows TO 'flows.csv'", ""])
def test_only_one_select_statement_is_accepted(
    output: Path, capsys: pytest.CaptureFixture[str], statement: str
) -> None:
    expected = (2, "", "oxproxy report: --query: expected one SELECT statement\n")
    assert asked(capsys, output, statement) == expected


@pytest.mark.parametrize("statement", ["SELEC 1", "SELECT * FROM nowhere"])
def test_an_invalid_query_is_an_error_of_one_line(
    output: Path, capsys: pytest.CaptureFixture[str], statement: str
) -> None:
    status, text, errors = asked(capsys, output, statement)
    assert (status, text, errors.count("\n")) == (2, "", 1)
    assert errors.startswith("oxproxy report: --query: ")


@pytest.mark.parametrize(
    "source",
    ["read_csv('{file}')", "read_text('{file}')", "glob('{file}')", "'{file}'", "'https://127.0.0.1:1/x.parquet'"],
)
def test_a_query_reads_only_tables(
    output: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str
) -> None:
    file = tmp_path / "secret.csv"
    file.write_text("word\nsecret\n")
    status, text, errors = asked(capsys, output, f"FROM {source.format(file=file)}")
    assert (status, text, errors.count("\n")) == (2, "", 1)
    tables = "traffic, flows, destinations, bindings, unroutable, latency, confirms, producers, anomalies, trace"
    assert errors == f"oxproxy report: --query: only tables can be read: {tables}\n"


def test_a_query_writes_no_files(output: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, text, errors = asked(capsys, output, f"FROM enable_logging(storage_path = '{tmp_path / 'new'}')")
    assert (status, text, errors.count("\n")) == (2, "", 1)
    assert list(tmp_path.iterdir()) == []


def test_a_query_without_a_report_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "none")
    assert asked(capsys, tmp_path / "none", "FROM flows") == (
        *(2, ""),
        f"{missing}: --query: no tables; run oxproxy report first\n",
    )
    assert not (tmp_path / "none").exists()


def test_a_query_for_days_without_tables_is_an_error(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--output", str(output), "--query", "FROM flows", "--until", "2020-01-01"]) == 2
    assert capsys.readouterr().err == f"{output}: --query: no tables of these days; run oxproxy report first\n"


def test_a_report_without_input_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--output", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "oxproxy: --input: missing, expected the directory of the audit log\n"
