"""Creates audit records of publishes as the publish path does."""

from __future__ import annotations

from collections.abc import Callable

from proxy.audit.record import Privacy, PublishLog

#: the time of all lines, as a number and as text
SECONDS, TS = 1795247999.5, "2026-11-21T07:59:59.500000Z"


def log(
    instance: str = "m",
    privacy: Privacy | None = None,
    rules: Callable[[], str] = str,
    appended: list[bytes] | None = None,
) -> PublishLog:
    """Return a log that adds its settle lines to `appended`."""

    def append(lines: bytes, _: int) -> None:
        if appended is not None:
            appended.append(lines)

    return PublishLog(instance, privacy or Privacy(), rules, append, lambda: SECONDS, ruled_only=False)


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
) -> bytes:
    """Return the line of one publish; the fields are those of `PublishLog.line`."""
    begin = log.opening() + origin
    return log.line(begin, seq, routing_key, message_id, size, decided, headers, decide_us).encode()
