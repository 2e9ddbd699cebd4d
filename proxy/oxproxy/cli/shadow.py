"""``oxproxy shadow``: uploads rules files to a running sidecar and prints the sidecar's report as tables or JSON.

The command sends HTTP requests to the admin port, and always removes the candidate at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console
from rich.table import Table
from rich.text import Text

from oxproxy.cli.admin_client import AdminClient, add_admin_arguments, admin_clients
from oxproxy.cli.console import (
    DONE,
    NO,
    between,
    print_json,
    print_line,
    printable,
    read_input,
    rich_console,
    rules_only,
)
from oxproxy.errors import ConfigError, ConfigErrors

#: The sidecar's response.
Report: TypeAlias = dict[str, Any]  # Any: JSON

_PAGE = "/-/shadow"
#: Seconds between two requests for the report. The sidecar discards a candidate whose report is not requested for a
#: long time.
_POLL_SECONDS = 30.0
_MOST_SECONDS = 30 * 86400.0
#: Maximum number of bindings in a table; JSON output contains all bindings.
_BINDINGS = 30
_ABSENT = "vhost {vhost}, exchange {exchange}: not in the candidate, which would pass its messages on unchanged"
_COLUMNS = ("compared", "equal", "different", "random")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rules", metavar="RULES", type=Path, nargs="+", help="rules files; - for standard input")
    add_admin_arguments(parser)
    seconds = between(0.0, _MOST_SECONDS, f"0 to {_MOST_SECONDS:.0f} seconds")
    parser.add_argument("--seconds", metavar="N", type=seconds, help="duration; default: until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print the reports."""
    admins = admin_clients(options, "oxproxy shadow")
    reports = compare(options.rules, admins, options.seconds)
    if options.json:
        printed = (
            reports[0]
            if len(reports) == 1
            else {admin.url: report for admin, report in zip(admins, reports, strict=True)}
        )
        print_json(printed)
    else:
        for admin, report in zip(admins, reports, strict=True):
            if len(admins) > 1:
                print_line(f"{admin.url}:")
            (print_tables if sys.stdout.isatty() else print_lines)(report)
    return NO if any(report["different"] for report in reports) else DONE


def compare(files: Sequence[Path], admins: Sequence[AdminClient], seconds: float | None) -> list[Report]:
    """Let running sidecars compare rules files with the active rules.

    Args:
        files: the candidate's files, which are compiled as one set.
        admins: the sidecars. If one of them rejects the candidate, all of them discard it.
        seconds: duration; None to run until Ctrl-C.

    Raises:
        ConfigErrors: the files are invalid, or a sidecar can't be reached.
    """
    try:
        texts = [(str(path), read_input(str(path)).decode()) for path in rules_only(files)]
    except UnicodeDecodeError as error:
        raise ConfigErrors([ConfigError("oxproxy shadow", 0, "", f"can't be read: {error}")]) from error
    body = json.dumps({"files": texts}).encode()
    begun: list[AdminClient] = []
    try:
        for admin in admins:
            admin.json(_PAGE, "POST", body)
            begun.append(admin)
        _wait(admins, seconds)
    except KeyboardInterrupt:
        sys.stderr.write("\n")
    except BaseException:
        for admin in begun:
            with contextlib.suppress(ConfigErrors):
                admin.json(_PAGE, "DELETE")
        raise
    return [admin.json(_PAGE, "DELETE") for admin in begun]


def _wait(admins: Sequence[AdminClient], seconds: float | None) -> None:
    end = None if seconds is None else time.monotonic() + seconds
    while end is None or time.monotonic() < end:
        time.sleep(_POLL_SECONDS if end is None else max(0.0, min(_POLL_SECONDS, end - time.monotonic())))
        for admin in admins:
            admin.json(_PAGE)


def print_tables(report: Report, console: Console | None = None) -> None:
    console = console or rich_console()
    console.print(_summary(report), soft_wrap=True)
    for count, outcome in _not_compared(report):
        console.print(f"{count} {outcome}", soft_wrap=True)
    for exchange in report.get("absent", ()):
        console.print(_printable(_ABSENT.format(**exchange)), soft_wrap=True)
    if report["exchanges"]:
        console.print(_exchanges(report["exchanges"]))
    for exchange in report["exchanges"]:
        if exchange["differences"]:
            console.print(_differences(exchange))
    if report["bindings"]:
        console.print(_bindings(report["bindings"]))


def print_lines(report: Report) -> None:
    """Print one line for each row of the tables, for pipes."""
    print_line(_summary(report))
    for count, outcome in _not_compared(report):
        print_line(f"{count} {outcome}")
    for exchange in report.get("absent", ()):
        print_line(printable(_ABSENT.format(**exchange)))
    for exchange in report["exchanges"]:
        name = printable(f"vhost {exchange['vhost']}, exchange {exchange['exchange']}")
        print_line(f"{name}: " + ", ".join(f"{column} {exchange[column]}" for column in _COLUMNS))
        for kind in exchange["differences"]:
            live, candidate = destinations_text(kind["live"]), destinations_text(kind["candidate"])
            publishes = _counted_publishes(kind["publishes"])
            print_line(
                printable(f"{name}: {publishes}: live {live}; candidate {candidate}; for example {_example(kind)}")
            )
        if exchange["further_differences"]:
            print_line(f"{name}: {_counted_publishes(exchange['further_differences'])} with other differences")
    for binding in sorted(report["bindings"], key=lambda binding: -binding["matches"]):
        name = f"vhost {binding['vhost']}, exchange {binding['exchange']}, candidate's binding {binding['binding']}"
        print_line(printable(f"{name}: matches {binding['matches']}"))


def _summary(report: Report) -> str:
    return (
        f"candidate {report['candidate']} compared with the active rules {report['live']} for "
        f"{report['seconds']:.0f} s: {_counted_publishes(report['compared'])} compared, "
        f"{report['equal']} equal, {report['different']} different"
    )


def _counted_publishes(count: int) -> str:
    return f"{count} publish{'' if count == 1 else 'es'}"


def _not_compared(report: Report) -> list[tuple[int, str]]:
    reasons = [
        (report["random"], "not comparable: a rule picks a queue at random"),
        (report["skipped"], "skipped: too many publishes to compare them all, or a malformed header"),
    ]
    return [(count, reason) for count, reason in reasons if count]


def _example(kind: Report) -> str:
    headers = [f"{name}: {value}" for name, value in kind["example"]["headers"].items()]
    return ", ".join([f"key {kind['example']['routing_key']!r}", *headers])


def _exchanges(exchanges: Sequence[Report]) -> Table:
    table = _table("exchange", right=_COLUMNS)
    several = len({exchange["vhost"] for exchange in exchanges}) > 1
    for exchange in exchanges:
        name = f"{exchange['vhost']} {exchange['exchange']}" if several else exchange["exchange"]
        counts = [str(exchange[column]) for column in _COLUMNS]
        table.add_row(_printable(name), *counts, style="bold red" if exchange["different"] else None)
    return table


def _differences(exchange: Report) -> Table:
    table = _table("live", "candidate", "for example", right=("publishes",))
    table.title = _printable(f"differences for {exchange['exchange']}")
    table.title_justify = "left"
    for kind in exchange["differences"]:
        live, candidate = destinations_text(kind["live"]), destinations_text(kind["candidate"])
        table.add_row(_printable(live), _printable(candidate), _printable(_example(kind)), str(kind["publishes"]))
    if exchange["further_differences"]:
        table.add_row("others", "", "", str(exchange["further_differences"]))
    return table


def _bindings(bindings: Sequence[Report]) -> Table:
    table = _table("candidate's binding", right=("matches",))
    rows = sorted(bindings, key=lambda binding: -binding["matches"])
    for binding in rows[:_BINDINGS]:
        table.add_row(_printable(f"{binding['exchange']}: {binding['binding']}"), str(binding["matches"]))
    rest = rows[_BINDINGS:]
    if rest:
        table.add_row(f"and {len(rest)} more", str(sum(binding["matches"] for binding in rest)))
    return table


def _table(*left: str, right: Iterable[str]) -> Table:
    table = Table()
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right")
    return table


def destinations_text(result: Mapping[str, Any]) -> str:  # Any: JSON
    parts = [f"{kind[:-1]} {name}" for kind in ("queues", "exchanges", "remotes") for name in result[kind]]
    parts += [f"failed: {reason}" for reason in result["failed"]]
    if result["error"]:
        parts.append(f'406 "{result["error"]}"')
    return f"{result['outcome']}: {', '.join(parts)}" if parts else str(result["outcome"])


def _printable(text: str) -> Text:
    """Escape control characters, since a message could use them to control the terminal."""
    return Text(printable(text))
