"""What does a person at a terminal see of a shadow? Rules files brought to a running sidecar, and its report as tables.

It asks the admin port as anybody may, over HTTP, and takes the candidate away again, whatever happens meanwhile.
"""

from __future__ import annotations

import json
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console
from rich.table import Table
from rich.text import Text

from proxy.errors import ConfigError, ConfigErrors

#: What the sidecar answers: plain data.
Report: TypeAlias = dict[str, Any]  # Any: JSON

#: Seconds that one answer may take: compiling ten thousand bindings is a second's work.
ANSWER_SECONDS = 60.0
#: Seconds between two looks at a shadow that is under way: the sidecar drops one that nobody asks about.
LOOK_SECONDS = 30.0
#: Rows of bindings for people; JSON has them all.
_BINDINGS = 30
_UNUSABLE = 422
#: ``file:line:column``, line and column where they are known
_PLACE = re.compile(r"(.*?)(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class AdminClient:
    """The admin port of a sidecar.

    Args:
        url: such as http://127.0.0.1:15693.
    """

    url: str

    def ask(self, method: str, body: bytes | None = None) -> Report:
        """Ask for the shadow.

        Raises:
            ConfigErrors: the sidecar can't be reached, or says no.
        """
        address = self.url.rstrip("/") + "/-/shadow"
        if not address.startswith(("http://", "https://")):
            raise _failed(f"seen {self.url}, expected a URL such as http://127.0.0.1:15693")
        request = urllib.request.Request(address, body, method=method)  # noqa: S310 -- checked above
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:  # noqa: S310
                found: Report = json.load(answer)
        except urllib.error.HTTPError as error:
            raise _refused(address, error) from error
        except (OSError, ValueError) as error:
            raise _failed(f"{address}: {getattr(error, 'reason', error)}") from error
        return found


def _refused(address: str, error: urllib.error.HTTPError) -> ConfigErrors:
    text = error.read().decode(errors="replace").strip()
    if error.code != _UNUSABLE:
        return _failed(f"{address}: {error.code} {text or error.reason}")
    return ConfigErrors([_fault(str(each)) for each in json.loads(text)["errors"]])


def _fault(text: str) -> ConfigError:
    """Read an error as the sidecar writes it, so that it keeps its place among the others."""
    place, _, rest = text.partition(": ")
    found = _PLACE.fullmatch(place)
    assert found is not None  # noqa: S101 -- it takes any text
    file, line, column = found.groups(default="0")
    return ConfigError(file, int(line), "", rest, int(column))


def _failed(text: str) -> ConfigErrors:
    return ConfigErrors([ConfigError("oxproxy shadow", 0, "", text)])


def run(files: Sequence[Path], admin: AdminClient, seconds: float | None) -> Report:
    """Let a running sidecar compare rules files with its own for some time.

    Args:
        files: the candidate, as one set.
        admin: the sidecar.
        seconds: how long; None: until Ctrl-C.

    Raises:
        ConfigErrors: the files are not good, or the sidecar can't be asked.
    """
    try:
        texts = [(str(path), path.read_bytes().decode()) for path in files]
    except (OSError, UnicodeDecodeError) as error:
        raise _failed(f"can't be read: {error}") from error
    admin.ask("POST", json.dumps({"files": texts}).encode())
    try:
        _wait(admin, seconds)
    except KeyboardInterrupt:
        sys.stderr.write("\n")
    except BaseException:
        admin.ask("DELETE")
        raise
    return admin.ask("DELETE")


def _wait(admin: AdminClient, seconds: float | None) -> None:
    end = None if seconds is None else time.monotonic() + seconds
    while end is None or time.monotonic() < end:
        time.sleep(LOOK_SECONDS if end is None else max(0.0, min(LOOK_SECONDS, end - time.monotonic())))
        admin.ask("GET")


def show(report: Report, console: Console | None = None) -> None:
    """Write a report as tables."""
    console = console or Console(highlight=False)
    console.print(
        f"candidate {report['candidate']} beside the live rules {report['live']}, {report['seconds']:.0f} s: "
        f"{report['compared']} publishes compared, {report['equal']} equal, {report['different']} different",
        soft_wrap=True,
    )
    for count, what in (
        (report["random"], "not comparable: a rule picks a queue at random"),
        (report["skipped"], "skipped: more than could be compared beside the traffic, or without a readable header"),
    ):
        if count:
            console.print(f"{count} {what}", soft_wrap=True)
    if report["exchanges"]:
        console.print(_exchanges(report["exchanges"]))
    for exchange in report["exchanges"]:
        if exchange["differences"]:
            console.print(_differences(exchange))
    if report["bindings"]:
        console.print(_bindings(report["bindings"]))


def _exchanges(exchanges: Sequence[Report]) -> Table:
    table = _table("exchange", right=("compared", "equal", "different", "random"))
    several = len({each["vhost"] for each in exchanges}) > 1
    for each in exchanges:
        name = f"{each['vhost']} {each['exchange']}" if several else each["exchange"]
        numbers = [str(each[column]) for column in ("compared", "equal", "different", "random")]
        table.add_row(_safe(name), *numbers, style="bold red" if each["different"] else None)
    return table


def _differences(exchange: Report) -> Table:
    table = _table("live", "candidate", "for example", right=("publishes",))
    table.title = _safe(f"differences of {exchange['exchange']}")
    table.title_justify = "left"
    for kind in exchange["differences"]:
        example = kind["example"]
        shown = ", ".join([f"key {example['routing_key']!r}", *(f"{k}: {v}" for k, v in example["headers"].items())])
        table.add_row(_safe(words(kind["live"])), _safe(words(kind["candidate"])), _safe(shown), str(kind["publishes"]))
    if exchange["further_differences"]:
        table.add_row("others", "", "", str(exchange["further_differences"]))
    return table


def _bindings(bindings: Sequence[Report]) -> Table:
    table = _table("candidate's binding", right=("matches",))
    rows = sorted(bindings, key=lambda each: -each["matches"])
    for each in rows[:_BINDINGS]:
        table.add_row(_safe(f"{each['exchange']}: {each['binding']}"), str(each["matches"]))
    rest = rows[_BINDINGS:]
    if rest:
        table.add_row(f"and {len(rest)} more", str(sum(each["matches"] for each in rest)))
    return table


def _table(*left: str, right: Iterable[str]) -> Table:
    table = Table()
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right")
    return table


def words(result: Mapping[str, Any]) -> str:  # Any: JSON
    """Say where a message goes, in a few words."""
    parts = [f"{what[:-1]} {name}" for what in ("queues", "exchanges", "remotes") for name in result[what]]
    parts += [f"failed: {reason}" for reason in result["failed"]]
    if result["error"]:
        parts.append(f'406 "{result["error"]}"')
    return f"{result['outcome']}: {', '.join(parts)}" if parts else str(result["outcome"])


def _safe(seen: str) -> Text:
    """Write a text so that nothing in it can steer the terminal."""
    return Text("".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in seen))
