"""``oxproxy status``: shows the readiness and the problems of a running sidecar."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from oxproxy.cli.admin_client import AdminClient, add_admin_arguments, admin_clients, ask_sidecars
from oxproxy.cli.console import DONE, NO, between, json_line, print_errors, print_json, print_line, printable
from oxproxy.errors import ConfigErrors
from oxproxy.values import counted

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

#: Interval of ``--watch`` in seconds: default, minimum and maximum.
_WATCH_SECONDS, _LEAST_SECONDS, _MOST_SECONDS = 2.0, 0.1, 86400.0
#: Moves the cursor to the top left corner of a terminal, and clears the screen.
_CLEAR = "\x1b[H\x1b[2J"
#: Lists that `/status` contains for a virtual host, with their titles.
_FINDINGS = (
    ("missing", "missing"),
    ("conflicts", "conflict"),
    ("failing", "refused"),
    ("inventory_failures", "not listed"),
    ("foreign", "foreign"),
    ("unsigned", "unsigned"),
    ("bypasses", "bypass"),
    ("unfit_carriers", "carrier type"),
)

#: What to do about tokens that were made with secrets that are not listed.
_STALE_ADVICE = "no message uses them, and oxproxy cleanup --stale removes them"

#: Lists that `/status` contains for the last reload, with their titles. The destinations that were missing at that time
#: are omitted, since the current ones are listed under their virtual host.
_RELOAD_FINDINGS = (("outdated", "outdated"), ("errors", "error"), ("restart", "restart"))
#: Width of the first column: that of the longest title, and two spaces.
_COLUMN = max(len(f"  {name}") for _, name in (*_FINDINGS, *_RELOAD_FINDINGS)) + 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_admin_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the response of /status")
    seconds = between(_LEAST_SECONDS, _MOST_SECONDS, f"{_LEAST_SECONDS} to {_MOST_SECONDS:.0f} seconds")
    parser.add_argument(
        "--watch",
        metavar="SECONDS",
        type=seconds,
        nargs="?",
        const=_WATCH_SECONDS,
        help=f"print the state every SECONDS until Ctrl-C; default: {_WATCH_SECONDS:g}",
    )


def run(options: argparse.Namespace) -> int:
    """Print the state of each sidecar, once or until Ctrl-C."""
    admins = admin_clients(options, "oxproxy status")
    if options.watch is None:
        return _print_state(admins, options)
    status = NO
    try:
        while True:
            if sys.stdout.isatty():
                sys.stdout.write(_CLEAR)
            try:
                status = _print_state(admins, options)
            except ConfigErrors as errors:  # the sidecar may be restarting
                print_errors(errors.errors)
                status = NO
            sys.stdout.flush()
            time.sleep(options.watch)
    except KeyboardInterrupt:
        return status


def _print_state(admins: Sequence[AdminClient], options: argparse.Namespace) -> int:
    states: dict[AdminClient, dict[str, Any]]
    states, complete = ask_sidecars(admins, lambda admin: admin.json("/status"))
    if options.json:
        several = {admin.url: status for admin, status in states.items()}
        output: object = several if len(several) > 1 or not complete else next(iter(states.values()))
        print_json(output)
    else:
        for admin, status in states.items():
            for line in (*_head(admin, status), *_traffic(admin.metrics()), *_body(status)):
                print_line(printable(line))
    return DONE if complete and all(status.get("ready") for status in states.values()) else NO


def _head(admin: AdminClient, status: Mapping[str, Any]) -> Iterator[str]:
    yield f"oxproxy {status.get('version', '')} at {admin.url}: {'ready' if status.get('ready') else 'not ready'}"
    reasons: Sequence[str] = status.get("not_ready", ())
    yield from (_row("not ready", reason) for reason in reasons)
    yield from (_row("degraded", reason) for reason in status.get("degraded", ()))
    yield _row("rules", status.get("rules", ""))
    reload = status.get("last_reload")
    if reload:
        yield _row("last reload", f"{reload['result']} at {_time(reload['at'])}, reason {reload['reason']}")
        for key, name in _RELOAD_FINDINGS:
            yield from (_row(f"  {name}", line) for line in _listed(reload.get(key)))
    if status.get("shadow"):
        yield _row("shadow", f"candidate rules {status['shadow']} are being compared on live traffic")
    if status.get("audit_failure"):
        yield _row("audit log", status["audit_failure"])


def _traffic(page: Sequence[Sample]) -> Iterator[str]:
    connections = {sample.labels.get("side"): sample.value for sample in page if sample.name == "oxproxy_connections"}
    if connections:
        channels = sum(sample.value for sample in page if sample.name == "oxproxy_channels")
        open_connections = round(connections.get("downstream", 0))
        producers = f"{counted(open_connections, 'connection')}, {counted(round(channels), 'channel')}"
        yield _row("producers", producers)
    outcomes: dict[str, float] = {}
    for sample in page:
        if sample.name == "oxproxy_publishes_total":
            outcome = sample.labels.get("outcome", "")
            outcomes[outcome] = outcomes.get(outcome, 0) + sample.value
    if outcomes:
        shown = [f"{outcome} {count:.0f}" for outcome, count in outcomes.items() if count]
        yield _row("publishes", ", ".join(shown) or "none since startup")


def _body(status: Mapping[str, Any]) -> Iterator[str]:
    for remote in status.get("remotes", ()):
        state = "connected" if remote["connected"] else "not connected"
        yield _row("broker", f"{remote['broker']}: {state}" + (f", {remote['error']}" if remote["error"] else ""))
    for vhost in status.get("vhosts", ()):
        state = "connected" if vhost.get("connected") else f"not connected: {vhost.get('fault') or 'reason unknown'}"
        refreshed = vhost.get("refreshed_at")
        seen = f", read at {_time(refreshed)}" if refreshed else ""
        yield _row("vhost", f"{vhost.get('vhost')}: {state}, {counted(vhost.get('queues', 0), 'queue')}{seen}")
        if broker := vhost.get("broker"):
            unsupported = "" if broker["supported"] else ", which is not supported"
            yield _row("  broker", f"{broker['product']} {broker['version']}{unsupported}")
        for key, name in _FINDINGS:
            yield from (_row(f"  {name}", line) for line in _listed(vhost.get(key)))
        for carrier, count in vhost.get("stale_tokens", {}).items():
            tokens = counted(count, "token")
            yield _row("  stale", f"{carrier}: {tokens} of secrets that are not listed; {_STALE_ADVICE}")


def _listed(findings: object) -> list[str]:
    if isinstance(findings, Mapping):
        return [f"{name}: {reason}" for name, why in findings.items() for reason in _listed(why) or [_value(why)]]
    return [_value(finding) for finding in findings] if isinstance(findings, list) else []


def _value(value: object) -> str:
    return value if isinstance(value, str) else json_line(value)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _row(name: str, text: str) -> str:
    return f"{name:<{_COLUMN}}{text}"
