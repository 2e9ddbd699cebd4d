"""Creates audit records of publishes in the same way as the publish path."""

from __future__ import annotations

from collections.abc import Callable

from oxproxy.relay.records.audit_record import PublishLog
from oxproxy.relay.records.facts_record import FactsRecord, FactsTable
from oxproxy.relay.records.privacy import Privacy

#: the time in all lines, as a number and as a string
SECONDS, TS = 1795247999.5, "2026-11-21T07:59:59.500000Z"


#: lines appended to the logs that `log` has created
_APPENDED: list[bytes] = []


def log(
    instance: str = "m",
    privacy: Privacy | None = None,
    rules: Callable[[], str] = str,
    facts: FactsTable | None = None,
) -> PublishLog:
    def append(lines: bytes, _: int) -> None:
        _APPENDED.append(lines)

    return PublishLog(instance, privacy or Privacy(), rules, append, lambda: SECONDS, ruled_only=False, facts=facts)


def settle_line(log: PublishLog, conn: str, ch: int, seq: int, result: str, confirm_us: float | None = None) -> bytes:
    log.settle(conn, ch, seq, result, confirm_us)
    return _APPENDED.pop()


def line(
    log: PublishLog,
    decided: str,
    origin: str,
    seq: int,
    routing_key: bytes,
    message_id: bytes | None,
    size: int,
    headers: str = "{}",
    decide_us: float = -1.0,
    facts: FactsRecord | None = None,
) -> bytes:
    """Return the line of one publish; the fields are those of `PublishRecord`."""
    log.append([(log.opening() + origin, seq, routing_key, message_id, size, decided, headers, decide_us, facts)])
    return _APPENDED.pop()
