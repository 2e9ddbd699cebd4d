"""Lines of publishes, put together as the publish path does."""

from __future__ import annotations

from proxy.audit.record import RecordTemplate, opening


def line(template: RecordTemplate, ts: str, origin: str, seq: int, *fields: object) -> bytes:
    """The line of one publish; fields are those of `RecordTemplate.ending`."""
    ending = template.ending(*fields)  # type: ignore[arg-type]
    return f"{opening(ts)}{origin}{seq}{ending}".encode()
