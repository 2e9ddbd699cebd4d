"""``oxproxy top``: shows live rates of a running sidecar by exchange, binding and destination, from its metrics."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oxproxy.cli.admin_client import AdminClient, add_admin_arguments, admin_clients
from oxproxy.cli.console import DONE, between, json_line, print_line, printable, rich_console
from oxproxy.values import counted

if TYPE_CHECKING:
    from rich.console import Group

#: The metrics from which the tables of exchanges, bindings and destinations are calculated.
_EXCHANGES, _BINDINGS, _DESTINATIONS = (
    "oxproxy_publishes_total",
    "oxproxy_binding_matches_total",
    "oxproxy_destination_publishes_total",
)
_ROWS = 20
_LEAST_SECONDS, _MOST_SECONDS = 0.1, 86400.0
_MOST = 2**31 - 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_admin_arguments(parser)
    seconds = between(_LEAST_SECONDS, _MOST_SECONDS, f"{_LEAST_SECONDS} to {_MOST_SECONDS:.0f} seconds")
    number = between(1, _MOST, f"an integer from 1 to {_MOST}")
    parser.add_argument("--interval", metavar="SECONDS", type=seconds, default=2.0, help="interval; default: 2")
    parser.add_argument("--count", metavar="N", type=number, help="exit after N intervals; default: run until Ctrl-C")
    parser.add_argument(
        "--rows", metavar="N", type=number, default=_ROWS, help="maximum rows per table; default: %(default)s"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per interval")


@dataclass(frozen=True, slots=True)
class _Reading:
    """The metrics at one moment.

    Args:
        at: time of the reading, in monotonic seconds.
        counters: values by name and labels.
        connections: open connections of producers.
    """

    at: float
    counters: Mapping[tuple[str, tuple[tuple[str, str], ...]], float]
    connections: float

    @classmethod
    def of(cls, admins: Sequence[AdminClient]) -> _Reading:
        """Read the metrics pages of all sidecars, and add up their values."""
        page = [sample for admin in admins for sample in admin.metrics()]
        connections = sum(
            sample.value
            for sample in page
            if sample.name == "oxproxy_connections" and sample.labels.get("side") == "downstream"
        )
        counters: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for sample in page:
            if sample.name in (_EXCHANGES, _BINDINGS, _DESTINATIONS):
                labels = tuple(sorted(sample.labels.items()))
                counters[sample.name, labels] = counters.get((sample.name, labels), 0.0) + sample.value
        return cls(time.monotonic(), counters, connections)


def run(options: argparse.Namespace) -> int:
    admins = admin_clients(options, "oxproxy top")
    printed = False
    try:
        before = _Reading.of(admins)
        with _output(admins, options) as show:
            for _ in itertools.repeat(None) if options.count is None else range(options.count):
                time.sleep(options.interval)
                now = _Reading.of(admins)
                show(rates(before, now))
                sys.stdout.flush()
                before, printed = now, True
    except KeyboardInterrupt:
        if not printed:
            raise
    return DONE


@contextlib.contextmanager
def _output(admins: Sequence[AdminClient], options: argparse.Namespace) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield a function that displays rates as JSON, as successive tables or, in a terminal, as redrawn tables."""
    if options.json:
        yield lambda result: print_line(json_line(result))
        return
    console = rich_console()
    if not sys.stdout.isatty():
        yield lambda result: console.print(_drawn(admins, result, options.rows))
        return
    from rich.live import Live

    with Live(console=console, screen=options.count is None, auto_refresh=False) as live:

        def redraw(result: dict[str, Any]) -> None:
            rows = min(options.rows, max(1, (console.height - 12) // 3))
            live.update(_drawn(admins, result, rows), refresh=True)

        yield redraw


def rates(before: _Reading, now: _Reading) -> dict[str, Any]:
    """Return rates per second between two readings, highest first. A decreased counter is treated as reset."""
    seconds = max(now.at - before.at, 1e-9)
    lists: dict[str, list[dict[str, Any]]] = {_EXCHANGES: [], _BINDINGS: [], _DESTINATIONS: []}
    total = 0.0
    for (name, labels), value in now.counters.items():
        earlier = before.counters.get((name, labels), 0.0)
        rate = (value - earlier if value >= earlier else value) / seconds
        total += rate if name == _EXCHANGES else 0.0
        if value:
            lists[name].append({**dict(labels), "per_second": round(rate, 3), "total": int(value)})
    for rows in lists.values():
        rows.sort(key=lambda row: (-row["per_second"], -row["total"], str(row)))
    return {
        "seconds": round(seconds, 3),
        "producers": int(now.connections),
        "publishes_per_second": round(total, 3),
        "exchanges": lists[_EXCHANGES],
        "bindings": lists[_BINDINGS],
        "destinations": lists[_DESTINATIONS],
    }


def _drawn(admins: Sequence[AdminClient], result: Mapping[str, Any], most: int) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    urls = ", ".join(admin.url for admin in admins)
    head = f"{urls}   {result['publishes_per_second']:.1f} publishes/s   {counted(result['producers'], 'connection')}"
    parts: list[Table | Text] = [Text(printable(head), style="bold")]
    for title, columns in (
        ("exchanges", ("vhost", "exchange", "outcome")),
        ("bindings", ("vhost", "exchange", "binding")),
        ("destinations", ("vhost", "destination")),
    ):
        rows = result[title]
        shown = [column for column in columns if any(column in row for row in rows)] or list(columns)
        table = Table(title=title, title_justify="left", title_style="", box=None, pad_edge=False, header_style="dim")
        for column in shown:
            table.add_column(column, overflow="ellipsis", no_wrap=True)
        for column in ("per second", "total"):
            table.add_column(column, justify="right", no_wrap=True)
        for row in rows[:most]:
            names = [Text(printable(row.get(column, ""))) for column in shown]
            style = None if row["per_second"] else "dim"
            table.add_row(*names, f"{row['per_second']:.1f}", str(row["total"]), style=style)
        if len(rows) > most:
            table.add_row(f"and {len(rows) - most} more")
        parts += [Text(""), table]
    return Group(*parts)
