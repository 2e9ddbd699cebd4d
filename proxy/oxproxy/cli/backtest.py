"""``oxproxy backtest``: shows what candidate rules would have done with the publishes in audit logs."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from oxproxy.cli.console import (
    DONE,
    NO,
    between,
    load_rules_of,
    print_errors,
    print_json,
    print_line,
    printable,
    rich_console,
)
from oxproxy.cli.report import add_days_and_spark, faults_of, request_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "rules", metavar="RULES", type=Path, nargs="+", help="rules files, or a configuration; - for standard input"
    )
    parser.add_argument("--input", metavar="DIR", required=True, help="directory or URI of the audit log")
    parser.add_argument(
        "--output",
        metavar="DIR",
        help="directory or URI for the page backtest.html, and for tables that make further back-tests faster",
    )
    add_days_and_spark(parser, "Spark master; default: as set by spark-submit, or this machine")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--format", choices=("text", "markdown"), default="text", help="text, or markdown for a pull request"
    )
    parser.add_argument(
        "--fail-over",
        metavar="N",
        type=between(0, 2**63, "a number of publishes, 0 or more"),
        help="exit with status 1 if more than N publishes are different",
    )


def run(options: argparse.Namespace) -> int:
    """Print the result."""
    loaded = load_rules_of(options.rules)
    if failures := loaded.failures():
        print_errors(f"warning: {failure}" for failure in failures)
    with faults_of("oxproxy backtest"):
        request = request_of(options, options.output or "")
        from oxproxy.report.backtest.job import backtest
        from oxproxy.report.backtest.result import BacktestResult, lines, markdown

        result: BacktestResult = backtest(request, loaded, [str(path) for path in options.rules])
        if options.json:
            print_json(dataclasses.asdict(result))
        elif options.format == "markdown":
            print_line(markdown(result))
        else:
            _print_table(result.exchanges)
            for line in lines(result):
                print_line(printable(line))
            if result.page:
                print_line(result.page)
    return NO if options.fail_over is not None and result.different > options.fail_over else DONE


def _print_table(exchanges: list[dict[str, object]]) -> None:
    """Print the numbers by exchange as a table, or as lines for pipes."""
    columns = ("judged", "equal", "different", "unroutable", "not_judged")
    if not sys.stdout.isatty():
        for row in exchanges:
            numbers = ", ".join(f"{name.replace('_', ' ')} {row[name]}" for name in columns)
            print_line(printable(f"vhost {row['vhost']}, exchange {row['exchange']}: {numbers}"))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table()
    table.add_column("vhost", overflow="fold")
    table.add_column("exchange", overflow="fold")
    for name in columns:
        table.add_column(name.replace("_", " "), justify="right")
    for row in exchanges:
        names = (Text(printable(str(row[name]))) for name in ("vhost", "exchange"))
        style = "bold red" if row["unroutable"] else "yellow" if row["different"] else None
        table.add_row(*names, *(f"{row[name]:,}" for name in columns), style=style)
    rich_console().print(table)
