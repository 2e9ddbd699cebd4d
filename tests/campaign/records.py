"""Reads the audit segments of a sidecar that has ended, also those that a killed process left open."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

from tests.campaign.matching import Audit


def read(directory: Path, audit: Audit) -> None:
    """Add the publish records of all segments. Lines that a killed process did not complete are skipped."""
    for line in _lines(directory):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if record["kind"] == "publish" and record["message_id"] is not None:
            audit.add(record["message_id"], [*record["queues"], *record["exchanges"]])


def _lines(directory: Path) -> Iterator[bytes]:
    for path in sorted(directory.rglob("audit-*.jsonl.gz")):
        with gzip.open(path) as file:
            yield from file
    # A segment that is being compressed, or was when its process was killed, exists only as text.
    for path in sorted(directory.rglob("_audit-*.jsonl")):
        with path.open("rb") as file:
            yield from file
