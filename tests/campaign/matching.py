"""Matches each message with the copies that its queues received and with its audit records.

A stream numbers the messages of one publisher. For each message it knows the queues that the rules select, how often
the message was sent, and the outcome that the publisher was told. All of this is kept in one to eight bytes per
message and field, so a million messages need about 20 MB.

AMQP permits more than one copy in one case only: the publisher did not learn the outcome of an earlier attempt, or the
broker nacked it, and it published the message again. A message may therefore have as many copies in a queue as it had
attempts that can have taken effect. Everything else is a violation:

- lost: acked or committed, and in one of its queues there is no copy; or returned although a queue was selected.
- duplicated: more copies than attempts, or a copy of a message that was rolled back.
- misrouted: a copy in a queue that the rules did not select, or an ack without a return for a mandatory message that
  no queue was selected for.
- changed: a body with other bytes, or a message that was never sent.
- unrecorded: acked or committed without an audit record, more records than sends, or a record with other destinations.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

VIOLATIONS = ("lost", "duplicated", "misrouted", "changed", "unrecorded")

#: Bytes after the number in a body. Most bodies are short, some need several frames.
_LONG, _LONGER = 5_000, 200_000


class Outcome(IntEnum):
    """What the publisher knows about a message."""

    UNKNOWN = 0
    #: acked, or committed
    ACKED = 1
    #: returned as unroutable, and then acked or committed
    RETURNED = 2
    #: rolled back
    ABSENT = 3


@dataclass(frozen=True)
class Route:
    """What the rules select for a kind of message.

    Args:
        exchange: exchange to publish to.
        key: routing key.
        headers: header table.
        queues: queues that must receive the message.
        recorded: names of queues and exchanges in the audit record; None if there is no record.
        mandatory: whether the message is published with the mandatory flag.
    """

    exchange: str
    key: str = ""
    headers: Mapping[str, object] = field(default_factory=dict)
    queues: frozenset[str] = frozenset()
    recorded: frozenset[str] | None = None
    mandatory: bool = False


class Violation(NamedTuple):
    """A message that is not where it should be."""

    kind: str
    text: str


class Stream:
    """The messages of one publisher.

    Args:
        number: number of the stream, which is part of each body and message id.
        name: name of the publisher, for reports.
        routes: kinds of messages.
        is_direct: whether they bypass the sidecars. Such messages are counted separately.
    """

    def __init__(self, number: int, name: str, routes: Sequence[Route], is_direct: bool = False) -> None:
        self.number = number
        self.name = name
        self.routes = routes
        self.is_direct = is_direct
        self.route = bytearray()
        self.outcome = bytearray()
        #: attempts that can have taken effect: publishes, or commits of a transaction
        self.attempts = array("H")
        #: publishes on the wire, which are at most as many as there are audit records
        self.sends = array("H")
        #: time of the last publish, in seconds of the monotonic clock
        self.sent = array("d")

    def __len__(self) -> int:
        return len(self.route)

    def add(self, route: int) -> int:
        """Add a message and return its number."""
        self.route.append(route)
        self.outcome.append(Outcome.UNKNOWN)
        self.attempts.append(0)
        self.sends.append(0)
        self.sent.append(0.0)
        return len(self.route) - 1

    def send(self, message: int) -> None:
        """Count a publish that is about to be sent."""
        self.sends[message] += 1
        self.sent[message] = time.monotonic()

    def body(self, message: int) -> bytes:
        return b"%d %d " % (self.number, message) + filler(message)

    def message_id(self, message: int) -> bytes:
        return b"%d-%d" % (self.number, message)

    def text(self, message: int) -> str:
        """A message, for reports."""
        route = self.routes[self.route[message]]
        outcome = Outcome(self.outcome[message]).name.lower()
        return (
            f"message {message} of {self.name} to {route.exchange} {dict(route.headers)}, {outcome}, "
            f"{self.attempts[message]} attempts"
        )


def filler(message: int) -> bytes:
    """The bytes of a body that follow its number."""
    return b"x" * (_LONGER if message % 4999 == 4998 else _LONG if message % 97 == 96 else 0)


class Tally:
    """The copies of messages that one queue received, by stream. Each tally is used by one thread."""

    def __init__(self) -> None:
        self.copies: dict[int, bytearray] = {}
        self.changed: list[str] = []

    def add(self, body: bytes) -> tuple[int, int] | None:
        """Count a copy; return stream and message, or None if the body is not that of a message."""
        try:
            stream, message, rest = body.split(b" ", 2)
            place = int(stream), int(message)
        except ValueError:
            self.changed.append(f"body {body[:40]!r}")
            return None
        if rest != filler(place[1]):
            self.changed.append(f"body of message {place[1]} of stream {place[0]}: {len(rest)} bytes follow the number")
            return None
        counts = self.copies.setdefault(place[0], bytearray())
        if len(counts) <= place[1]:
            counts.extend(bytes(place[1] + 1 - len(counts)))
        counts[place[1]] += 1
        return place

    def count(self, stream: int, message: int) -> int:
        counts = self.copies.get(stream, b"")
        return counts[message] if message < len(counts) else 0


class Audit:
    """The audit records of messages: how many, and whether one of them has other destinations."""

    def __init__(self, streams: Iterable[Stream]) -> None:
        self._streams = {stream.number: stream for stream in streams}
        self._records = {stream.number: bytearray(len(stream)) for stream in self._streams.values()}
        self.wrong: list[str] = []
        self.records = 0

    def add(self, message_id: str, destinations: Iterable[str]) -> None:
        """Count the record of a publish."""
        stream_number, _, number = message_id.partition("-")
        stream, message = self._streams.get(int(stream_number)), int(number)
        if stream is None or message >= len(stream):
            self.wrong.append(f"a record of {message_id}, which was not sent")
            return
        self.records += 1
        self._records[stream.number][message] += 1
        expected, found = stream.routes[stream.route[message]].recorded, frozenset(destinations)
        if expected is not None and found != expected:
            self.wrong.append(f"{stream.text(message)}: recorded for {sorted(found)}")

    def count(self, stream: int, message: int) -> int:
        return self._records[stream][message]


class Verdict:
    """The result for all messages.

    Attributes:
        counts: numbers of messages by outcome, of copies, and of copies that repeated attempts explain.
        direct: the same for messages that bypassed the sidecars.
        violations: all violations.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.direct: Counter[str] = Counter()
        self.violations: list[Violation] = []

    def add(self, kind: str, text: str) -> None:
        self.violations.append(Violation(kind, text))

    def by_kind(self) -> dict[str, int]:
        found = Counter(violation.kind for violation in self.violations)
        return {kind: found[kind] for kind in dict.fromkeys((*VIOLATIONS, *found))}


def verdict(
    streams: Iterable[Stream],
    tallies: Mapping[str, Tally],
    audit: Audit | None = None,
    excused: Mapping[str, float] | None = None,
) -> Verdict:
    """Match all messages.

    Args:
        streams: all streams.
        tallies: what each queue received, after all queues have been emptied.
        audit: audit records; None if they are not checked.
        excused: queues that were deleted, with the time from which their messages must arrive again. Earlier messages
            may be lost with the queue.
    """
    result = Verdict()
    numbers = {stream.number: stream for stream in streams}
    for queue, tally in tallies.items():
        for text in tally.changed:
            result.add("changed", f"queue {queue}: {text}")
        for number, copies in tally.copies.items():
            known = len(numbers[number]) if number in numbers else 0
            if any(copies[known:]):
                result.add("changed", f"queue {queue}: messages of stream {number} that were not sent")
    for stream in numbers.values():
        for message in range(len(stream)):
            _check(stream, message, tallies, excused or {}, result)
            if audit is not None:
                _check_records(stream, message, audit, result)
    if audit is not None:
        for text in audit.wrong:
            result.add("unrecorded", text)
    return result


def _check(
    stream: Stream, message: int, tallies: Mapping[str, Tally], excused: Mapping[str, float], result: Verdict
) -> None:
    route = stream.routes[stream.route[message]]
    outcome, attempts = stream.outcome[message], stream.attempts[message]
    counts = result.direct if stream.is_direct else result.counts
    counts["messages"] += 1
    counts["sent"] += stream.sends[message]
    counts[Outcome(outcome).name.lower()] += 1
    counts["repeated"] += attempts > 1
    if outcome == Outcome.RETURNED and route.queues:
        result.add("lost", f"{stream.text(message)}: returned as unroutable")
    if outcome == Outcome.ACKED and route.mandatory and not route.queues:
        result.add("misrouted", f"{stream.text(message)}: acked without a return")
    for queue, copies in _copies(stream.number, message, tallies):
        counts["copies"] += copies
        if queue not in route.queues:
            if copies:
                result.add("misrouted", f"{stream.text(message)}: {copies} copies in queue {queue}")
            continue
        if copies > attempts or (copies and outcome == Outcome.ABSENT):
            result.add("duplicated", f"{stream.text(message)}: {copies} copies in queue {queue}")
        counts["copies of repeated attempts"] += max(copies - 1, 0)
        if not copies and outcome == Outcome.ACKED:
            if stream.sent[message] < excused.get(queue, 0.0):
                counts["lost with the queue"] += 1
            else:
                result.add("lost", f"{stream.text(message)}: no copy in queue {queue}")


def _copies(stream: int, message: int, tallies: Mapping[str, Tally]) -> Iterator[tuple[str, int]]:
    for queue, tally in tallies.items():
        yield queue, tally.count(stream, message)


def _check_records(stream: Stream, message: int, audit: Audit, result: Verdict) -> None:
    if stream.routes[stream.route[message]].recorded is None:
        return
    records = audit.count(stream.number, message)
    if not records and stream.outcome[message] in (Outcome.ACKED, Outcome.RETURNED):
        result.add("unrecorded", f"{stream.text(message)}: no audit record")
    if records > stream.sends[message]:
        result.add("unrecorded", f"{stream.text(message)}: {records} audit records, {stream.sends[message]} sends")
