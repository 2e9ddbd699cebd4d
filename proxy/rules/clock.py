"""Which instants and time zones operators write: ``at:`` of a test, ``!timestamp``, ``timezone:``.

Instants are seconds since the epoch everywhere else; a text without zone is refused, since it means another
instant on another machine.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SystemZone(tzinfo):
    """The machine's own time zone with its changes over the year, read at each use."""

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        """Offset of a local moment."""
        return None if moment is None else timedelta(seconds=self._local(moment).tm_gmtoff)

    def dst(self, moment: datetime | None) -> timedelta | None:
        """Unknown: nothing here asks for it."""
        return None

    def tzname(self, moment: datetime | None) -> str | None:
        """Name of the zone at a local moment."""
        return None if moment is None else self._local(moment).tm_zone

    def fromutc(self, moment: datetime) -> datetime:
        """Give the local time of a moment whose fields are universal time."""
        seconds = (moment.replace(tzinfo=UTC) - _EPOCH) // timedelta(seconds=1)
        return moment + timedelta(seconds=time.localtime(seconds).tm_gmtoff)

    @staticmethod
    def _local(moment: datetime) -> time.struct_time:
        return time.localtime(time.mktime((*moment.timetuple()[:8], -1)))


def zone(name: str) -> tzinfo | None:
    """Give the zone of an IANA name such as ``Europe/Berlin``; None where there is none."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def instant(text: str) -> float | None:
    """Give the seconds since the epoch of an RFC 3339 text; None where it is none, or has no zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if moment.tzinfo is None else (moment - _EPOCH).total_seconds()
