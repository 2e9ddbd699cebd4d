"""``GET /api/recent``, which returns the last failed publishes, and the last errors of the broker.

If the broker closes a channel, for example because an exchange does not exist, it does not identify the publish. A nack
from the broker identifies a publish only by number, so only the audit log contains the address and headers of a nacked
publish.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import islice

from aiohttp import web

from oxproxy.admin.server import GuardedRoute, json_response
from oxproxy.errors import ProtocolError
from oxproxy.relay.plan.tap import FailedPublish, FailureSink
from oxproxy.relay.records.audit_record import TimestampText
from oxproxy.relay.records.privacy import Privacy
from oxproxy.values import text

#: Maximum number of kept publishes, and maximum total size of their header frames in bytes; the oldest publishes are
#: dropped first.
KEPT, KEPT_BYTES = 200, 2 << 20
#: Publishes that reach no queue may be frequent. To save CPU time, they, and the size and header names of returned
#: publishes, are recorded only until this many seconds after the last request.
WATCHED_SECONDS = 300.0


class RecentPublishes:
    """Keeps failed publishes.

    Args:
        privacy: which parts of a message may be shown.
        changed: called with this object when `watched` has changed.
    """

    def __init__(self, privacy: Privacy, changed: Callable[[FailureSink], None]) -> None:
        self.watched = False
        self._privacy = privacy
        self._changed = changed
        self._timestamp = TimestampText()
        self._kept: deque[FailedPublish] = deque()
        self._bytes = 0
        #: total number of failed publishes
        self._count = 0
        #: number of the last publish sent to streams
        self._followed = 0
        self._end: asyncio.TimerHandle | None = None

    @property
    def route(self) -> GuardedRoute:
        """``GET /api/recent``; with `after`, only publishes with a higher number are returned."""
        return GuardedRoute("GET", "/api/recent", self._get)

    def add(self, failed: FailedPublish) -> int:
        """Add a publish; return its number. This is called on the publish path, so publishes are formatted later."""
        self._count += 1
        self._kept.append(failed)
        self._bytes += len(failed.header)
        while len(self._kept) > KEPT or self._bytes > KEPT_BYTES:
            self._bytes -= len(self._kept.popleft().header)
        return self._count

    def returned(self, number: int, reason: str) -> None:
        """Change the result of a publish that was recorded as unroutable. The cause is kept."""
        index = number - 1 - (self._count - len(self._kept))
        if index >= 0:
            failed = self._kept[index]
            self._kept[index] = failed._replace(result="returned", reason=f"{reason}: {failed.reason}")

    def watch(self) -> None:
        """For `WATCHED_SECONDS`, also record publishes that reach no queue."""
        if self._end is not None:
            self._end.cancel()
        self._end = asyncio.get_running_loop().call_later(WATCHED_SECONDS, self._set_watched, False)
        if not self.watched:
            self._set_watched(True)

    def after(self, number: int) -> dict[str, object]:
        """Return the kept publishes after the publish with this number, oldest first."""
        first = self._count - len(self._kept) + 1
        new = enumerate(islice(self._kept, max(0, number - first + 1), None), max(first, number + 1))
        return {"count": self._count, "publishes": [self._shown(index, failed) for index, failed in new]}

    def whole(self) -> dict[str, object]:
        """Return all kept publishes, for a new stream."""
        self.watch()
        return self.after(0)

    def news(self) -> dict[str, object] | None:
        """Return the publishes since the last call, for all streams; None if there are none."""
        self.watch()
        before, self._followed = self._followed, self._count
        return self.after(before) if before != self._count else None

    async def _get(self, request: web.Request) -> web.Response:
        asked = request.query.get("after", "0")
        if not asked.isascii() or not asked.isdigit() or len(asked) > 18:
            return json_response({"errors": [f"after: got {asked!r}, expected a number"]}, 422)
        before = self.watched
        self.watch()
        number = int(asked)
        # A number above the count is from before a restart, so all publishes are new.
        return json_response({"watched": before, **self.after(number if number <= self._count else 0)})

    def _set_watched(self, watched: bool) -> None:
        self.watched = watched
        if not watched:
            self._end = None
        self._changed(self)

    def _shown(self, number: int, failed: FailedPublish) -> dict[str, object]:
        """Return the parts of a publish that may be shown: the fields of an audit record, and the header names."""
        privacy = self._privacy
        try:
            names: list[str] | None = [text(name) for name in failed.header_names()] if failed.header else None
            headers = privacy.header_values(failed.raw_headers(privacy.headers))
            size = failed.size()
        except ProtocolError:  # malformed headers, which may be why the publish was rejected
            names, headers, size = None, {}, None
        return {
            "number": number,
            "at": self._timestamp(failed.at),
            "vhost": failed.vhost,
            "user": privacy.shown("user", failed.user),
            "channel": failed.channel,
            "result": failed.result,
            "reason": _without_regex(failed.reason),
            "exchange": None if failed.exchange is None else text(failed.exchange),
            "routing_key": None if failed.routing_key is None else privacy.shown("rk", failed.routing_key),
            "size": size,
            "header_names": names,
            "headers": headers,
        }


def _without_regex(reason: str) -> str:
    """Remove the regex, which is a header's value and must not be shown, from the error message about it."""
    before, invalid, quoted = reason.partition("Invalid regex")
    explanation = quoted.rpartition("'")[2]
    if explanation.endswith("..."):  # the truncated regex itself; an explanation is never truncated
        explanation = ""
    return before + invalid + explanation
