"""``oxproxy report``: creates tables and pages from audit logs."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from oxproxy.cli.commands import add_repeatable
from oxproxy.cli.console import DONE, json_line, load_rules_of, print_line, printable
from oxproxy.errors import ConfigError, ConfigErrors
from oxproxy.report.request import KnownBinding, Request, day, setting
from oxproxy.values import text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input", metavar="DIR", help="directory or URI of the audit log; required unless --query is used"
    )
    parser.add_argument("--output", metavar="DIR", required=True, help="directory or URI for tables and pages")
    parser.add_argument(
        "--query",
        metavar="SQL",
        help="only run a DuckDB query on the tables of an earlier report, such as FROM flows, and print its rows",
    )
    parser.add_argument(
        "--rules",
        metavar="FILE",
        type=Path,
        action="append",
        help="rules file, to list bindings without a match; - for standard input; can be repeated",
    )
    parser.add_argument("--stream", action="store_true", help="process new segments every minute until SIGTERM")
    parser.add_argument("--once", action="store_true", help="with --stream: exit after one round")
    parser.add_argument("--trace", action="store_true", help="also write the table trace, which is as large as the log")
    parser.add_argument("--forget", action="store_true", help="delete the data of segments that no longer exist")
    parser.add_argument("--json", action="store_true", help="print one JSON object per run, or per row of a query")
    add_days_and_spark(parser, "Spark master; default: as set by spark-submit, or this machine")


def add_days_and_spark(parser: argparse.ArgumentParser, master: str) -> None:
    """Define the arguments shared with `oxproxy trace`; `master` is the help text of ``--master``."""
    parser.add_argument(
        "--since",
        metavar="DAY",
        help="first day (UTC): a date such as 2026-11-21, or today or yesterday; default: the earliest day",
    )
    parser.add_argument("--until", metavar="DAY", help="last day; default: the latest")
    parser.add_argument("--master", metavar="URL", help=master)
    add_repeatable(parser, "--conf", "NAME=VALUE", "Spark setting")


def request_of(options: argparse.Namespace, output: str) -> Request:
    """Return the request described by the arguments that are shared with `oxproxy trace`."""
    return Request(
        options.input,
        output,
        None if options.since is None else day(options.since, "--since"),
        None if options.until is None else day(options.until, "--until"),
        options.master,
        settings=tuple(map(setting, options.conf)),
    )


def run(options: argparse.Namespace) -> int:
    """Create the report and print a summary with its path, or follow the audit log until SIGTERM."""
    with faults_of("oxproxy report"):
        if options.query is not None:
            return _run_query(options)
        if options.input is None:
            raise ConfigError("oxproxy", 0, "--input", "missing, expected the directory of the audit log")
        known = None if options.rules is None else _known_bindings(options.rules)
        request = request_of(options, options.output)
        request = replace(request, bindings=known, trace=options.trace, forget=options.forget)
        from oxproxy.report.job import Summary, follow, report

        def print_summary(summary: Summary) -> None:
            print_line(json_line(dataclasses.asdict(summary)) if options.json else str(summary))

        if options.stream and not options.once:
            follow(lambda: _for_now(request, options), print_summary)
        else:
            print_summary(report(request))
    return DONE


def _run_query(options: argparse.Namespace) -> int:
    """Print the rows of a query, as a table or as JSON lines."""
    from oxproxy.report.query import query

    request = replace(request_of(options, options.output), input=options.output)
    columns, rows = query(request, options.query)
    if options.json:
        for row in rows:
            print_line(json_line(row))
        return DONE
    lines = [[_cell(name) for name in columns], *([_cell(row[column]) for column in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines if columns else ():
        print_line("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    return DONE


def _cell(value: object) -> str:
    text = "" if value is None else json_line(value) if isinstance(value, list | dict) else str(value)
    return printable(text)


def _for_now(request: Request, options: argparse.Namespace) -> Request:
    """Return the request for the next run of a stream.

    The first day was determined when the stream started. A last day such as `today` is determined again for each run.
    """
    until = None if options.until is None else day(options.until, "--until")
    return replace(request, until=until, now=datetime.now(UTC))


def _known_bindings(paths: list[Path]) -> tuple[KnownBinding, ...]:
    rules = load_rules_of(paths).rules
    return tuple(
        KnownBinding(vhost, text(exchange.name), binding.id, rules.version)
        for vhost, content in rules.vhosts.items()
        for exchange in content.exchanges
        for binding in exchange.bindings
    )


@contextlib.contextmanager
def faults_of(command: str) -> Iterator[None]:
    """Report Spark errors, and missing libraries from the extra ``report``, as errors of the given command."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = f"needs {error.name}: pip install 'oxproxy[report]'"
        raise ConfigErrors([ConfigError(command, 0, "", missing)]) from error
    except ConfigError as error:
        raise ConfigErrors([error]) from error
