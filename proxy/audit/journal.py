"""Which segment does a line go to, and when does a segment end?

Every line lies in the folder of its own hour, read from its first field. A segment ends when the next lines would
make it too large, when it has been open for long enough, and when its hour is over. Lines arrive in batches; a
batch that fails leaves nothing half-written. Blocking file work, for the writer's thread; modes, and who waits
for what, are not known here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from errno import EDQUOT, ENOSPC
from itertools import accumulate
from pathlib import Path

from proxy.audit.record import HOUR
from proxy.audit.segments import Segment

#: gzip can't be split: a segment is one task of the report, whatever the size of the cluster.
MAX_SEGMENT_BYTES = 128 << 20
#: Seconds that an hour's last lines may come late without costing a segment of their own.
_GRACE_SECONDS = 2.0
_NO_SPACE = (ENOSPC, EDQUOT)
_is_hour = re.compile(rb"\d{4}-\d\d-\d\dT\d\d").fullmatch


@dataclass(frozen=True, slots=True)
class Layout:
    """Where segments lie and when they end.

    Args:
        directory: the audit directory.
        instance: name of this sidecar as it stands in file names.
        segment_bytes: most bytes of text in a segment, up to MAX_SEGMENT_BYTES.
        segment_seconds: longest time that a segment is open.
        sync: whether lines are to be on disk, not just with the kernel, when `write` returns.
    """

    directory: Path
    instance: str
    segment_bytes: int = MAX_SEGMENT_BYTES
    segment_seconds: float = 300.0
    sync: bool = False


class Journal:
    """The open segment of one sidecar, and its successors.

    Args:
        layout: where and how large.
        closed: takes the path of each segment that ended.
        wall: gives seconds since 1970.
        timer: gives seconds of a clock that never jumps.
        make: makes a segment; a test may fail here.
    """

    def __init__(
        self,
        layout: Layout,
        closed: Callable[[Path], None],
        wall: Callable[[], float],
        timer: Callable[[], float],
        make: Callable[[Path, str, str, float], Segment] = Segment.create,
    ) -> None:
        """Start without a segment; the first line opens one."""
        self._layout = layout
        self._closed = closed
        self._wall = wall
        self._timer = timer
        self._make = make
        start = datetime.fromtimestamp(wall(), UTC).strftime("%Y%m%dT%H%M%S%fZ")
        self._name = f"audit-{layout.instance}-{start}"
        self._number = 0
        self._segment: Segment | None = None

    def write(self, lines: list[bytes]) -> None:
        """Write lines; those that are written are taken out of the list, also where this raises.

        Args:
            lines: whole lines in the order of their times.

        Raises:
            OSError: what is left in the list has not been written.
        """
        while lines:
            hour, count, data = self._first_run(lines)
            segment = self._segment_for(hour, len(data))
            before = segment.size
            try:
                segment.write(data)
                if self._layout.sync:
                    segment.sync()
            except OSError as error:
                # After a mere lack of space the segment goes on; any other error puts it in doubt.
                if not segment.restore(before) or error.errno not in _NO_SPACE:
                    self.end_segment()
                raise
            del lines[:count]

    def wait_seconds(self) -> float | None:
        """Say when `tick` has something to do: seconds from now, None while no segment is open."""
        segment = self._segment
        if segment is None:
            return None
        by_age = segment.opened + self._layout.segment_seconds - self._timer()
        by_hour = _seconds_to_end(segment.hour, self._wall()) + _GRACE_SECONDS
        return max(0.0, min(by_age, by_hour))

    def tick(self) -> None:
        """End the segment if its time has come.

        Raises:
            OSError: see `end_segment`.
        """
        if self.wait_seconds() == 0.0:
            self.end_segment()

    def end_segment(self) -> None:
        """Close the open segment, if any, and give it away; the next line opens another.

        Raises:
            OSError: the disk refused at the last moment; the segment has been given away as it is.
        """
        segment, self._segment = self._segment, None
        if segment is not None:
            try:
                segment.close()
            finally:
                self._closed(segment.path)

    def _first_run(self, lines: list[bytes]) -> tuple[str, int, bytes]:
        """Give the hour of the first line, how many lines can be written at once with it, and their text."""
        hour = lines[0][HOUR]
        count = len(lines)
        if lines[-1][HOUR] != hour:
            count = next(number for number, line in enumerate(lines) if line[HOUR] != hour)
        data = b"".join(lines[:count])
        limit = self._layout.segment_bytes
        if len(data) > limit:
            sizes = accumulate(map(len, lines))
            count = max(1, next(number for number, size in enumerate(sizes) if size > limit))
            data = b"".join(lines[:count])
        if _is_hour(hour):
            return hour.decode(), count, data
        return datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H"), count, data

    def _segment_for(self, hour: str, size: int) -> Segment:
        segment = self._segment
        if segment is not None:
            too_large = segment.size and segment.size + size > self._layout.segment_bytes
            too_old = self._timer() - segment.opened >= self._layout.segment_seconds
            if segment.hour != hour or too_large or too_old:
                self.end_segment()
        if self._segment is None:
            self._number += 1
            name = f"{self._name}-{self._number:06d}"
            self._segment = self._make(self._layout.directory, hour, name, self._timer())
        return self._segment


def _seconds_to_end(hour: str, now: float) -> float:
    begin = datetime.fromisoformat(f"{hour}:00:00").replace(tzinfo=UTC)
    return begin.timestamp() + 3600 - now
