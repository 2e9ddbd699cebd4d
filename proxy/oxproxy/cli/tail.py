"""``oxproxy tail``: prints the most recent failed publishes, and the broker's most recent errors."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from oxproxy.cli.admin_client import AdminClient, add_admin_arguments, admin_clients
from oxproxy.cli.console import DONE, json_line, print_errors, print_line, printable

_INTERVAL_SECONDS = 1.0
_NOTHING = "no failed publishes are recorded"
_FROM_NOW_ON = (
    "unroutable publishes are recorded from now on, for five minutes after the last request; rejected, nacked and "
    "returned publishes are always recorded"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_admin_arguments(parser)
    parser.add_argument("--follow", "-f", action="store_true", help="wait for new publishes until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def run(options: argparse.Namespace) -> int:
    admins = admin_clients(options, "oxproxy tail")
    counts = [0] * len(admins)
    first = True
    try:
        while True:
            counts = _print_new(admins, counts, as_json=options.json, first=first)
            first = False
            sys.stdout.flush()
            if not options.follow:
                return DONE
            time.sleep(_INTERVAL_SECONDS)
    except KeyboardInterrupt:
        if not options.follow:
            raise
    return DONE


def _print_new(admins: Sequence[AdminClient], counts: Sequence[int], *, as_json: bool, first: bool) -> list[int]:
    """Print the publishes that are newer than each sidecar's given count, by time; return the new counts.

    At the first call, what is not shown is stated on standard error.
    """
    answers = [admin.json(f"/api/recent?after={count}") for admin, count in zip(admins, counts, strict=True)]
    new = sorted(
        (publish for answer in answers for publish in answer["publishes"]), key=lambda publish: str(publish["at"])
    )
    if first and not new:
        print_errors([_NOTHING])
    if first and not all(answer["watched"] for answer in answers):
        print_errors([_FROM_NOW_ON])
    for publish in new:
        print_line(json_line(publish) if as_json else _line(publish))
    return [int(answer["count"]) for answer in answers]


def _line(publish: dict[str, Any]) -> str:
    fields = [publish["at"], publish["result"].ljust(10), f"vhost={publish['vhost']}"]
    for name in ("exchange", "routing_key", "size"):
        if publish[name] is not None:
            fields.append(f"{name}={json_line(publish[name])}")
    if publish["header_names"]:
        shown = publish["headers"]
        names = [f"{name}={json_line(shown[name])}" if name in shown else name for name in publish["header_names"]]
        fields.append(f"headers=[{', '.join(names)}]")
    return printable("  ".join([*fields, publish["reason"]]))
