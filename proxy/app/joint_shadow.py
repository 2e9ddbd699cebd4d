"""What do several workers find of one candidate? Each compares what it carries; here the reports are added up.

Source: `proxy.app.shadow`, whose answers these are.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from proxy.admin.server import GuardedRoute
from proxy.app.shadow import shadow_routes
from proxy.rules.differences import KINDS

#: Plain data.
Report: TypeAlias = dict[str, Any]  # Any: JSON
#: Asks every worker that runs, by a method and a body, and gives status and text of those that answered.
Tell: TypeAlias = Callable[[str, bytes], Awaitable[Sequence[tuple[int, bytes]]]]

_OK, _UNAVAILABLE = 200, 503
_SUMS = ("compared", "equal", "different", "random")


class JointShadow:
    """One shadow before several workers; a worker that is started meanwhile has none.

    Args:
        tell: asks the workers.
    """

    def __init__(self, tell: Tell) -> None:
        """Remember whom to ask."""
        self._tell = tell

    @property
    def routes(self) -> list[GuardedRoute]:
        """The pages."""
        return shadow_routes(self.begin, self.report, self.end)

    async def begin(self, body: bytes) -> tuple[int, object]:
        """Have every worker compare; where one refuses, none does."""
        answers = await self._tell("POST", body)
        refused = [answer for answer in answers if answer[0] != _OK]
        if refused:
            # What the others have begun must not go on.
            await self._tell("DELETE", b"")
            return refused[0][0], refused[0][1].decode()
        return _joined(answers)

    async def report(self, _body: bytes) -> tuple[int, object]:
        """Add up what was found so far."""
        return _joined(await self._tell("GET", b""))

    async def end(self, _body: bytes) -> tuple[int, object]:
        """Drop the candidate and add up what was found."""
        return _joined(await self._tell("DELETE", b""))


def _joined(answers: Sequence[tuple[int, bytes]]) -> tuple[int, object]:
    reports = [json.loads(text) for status, text in answers if status == _OK]
    if reports:
        return _OK, added(reports)
    return (answers[0][0], answers[0][1].decode()) if answers else (_UNAVAILABLE, {"errors": ["no worker answers"]})


def added(reports: Sequence[Report]) -> Report:
    """Add reports up.

    Args:
        reports: one or more, of one candidate.
    """
    exchanges: dict[tuple[str, str], Report] = {}
    for each in (exchange for report in reports for exchange in report["exchanges"]):
        key = (each["vhost"], each["exchange"])
        exchanges[key] = _exchange(exchanges[key], each) if key in exchanges else each
    matches = [
        sum(each["matches"] for each in same) for same in zip(*(one["bindings"] for one in reports), strict=True)
    ]
    return {
        **reports[0],
        "seconds": max(report["seconds"] for report in reports),
        **{name: sum(report[name] for report in reports) for name in ("skipped", "waiting", *_SUMS)},
        "exchanges": [exchanges[key] for key in sorted(exchanges)],
        "bindings": [
            {**binding, "matches": count} for binding, count in zip(reports[0]["bindings"], matches, strict=True)
        ],
    }


def _exchange(one: Report, other: Report) -> Report:
    """Add up what two workers saw of an exchange."""
    kinds: dict[str, Report] = {}
    for each in (*one["differences"], *other["differences"]):
        key = json.dumps([each["live"], each["candidate"]], sort_keys=True)
        publishes = each["publishes"] + (kinds[key]["publishes"] if key in kinds else 0)
        kinds[key] = {**kinds.get(key, each), "publishes": publishes}
    ordered = sorted(kinds.values(), key=lambda kind: -int(kind["publishes"]))
    further = one["further_differences"] + other["further_differences"]
    further += sum(kind["publishes"] for kind in ordered[KINDS:])
    return {
        **one,
        **{name: one[name] + other[name] for name in _SUMS},
        "differences": ordered[:KINDS],
        "further_differences": further,
    }
