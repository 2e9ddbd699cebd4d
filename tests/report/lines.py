"""Creates audit records and segments for tests."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TS = "2026-11-20T07:30:00.000001Z"

#: A routed publish, in which tests replace fields.
PUBLISH: dict[str, Any] = {  # as JSON has it
    "ts": TS,
    "v": 1,
    "kind": "publish",
    "proxy": "p",
    "conn": "c",
    "user": "u",
    "vhost": "/",
    "ch": 1,
    "seq": 1,
    "exchange": "e",
    "rk": "a.b",
    "message_id": None,
    "size": 10,
    "outcome": "routed",
    "queues": ["q"],
    "exchanges": [],
    "remotes": [],
    "bindings": ["b"],
    "rule": None,
    "rules": "r1",
    "reason": None,
    "headers": {},
}
SETTLE: dict[str, Any] = {  # likewise
    "ts": TS,
    "v": 1,
    "kind": "settle",
    "proxy": "p",
    "conn": "c",
    "ch": 1,
    "seq": 1,
    "result": "returned",
    "reply_code": 312,
    "vhost": "/",
    "exchange": "e",
    "rk": "a.b",
    "message_id": None,
    "outcome": "routed",
}
GAP: dict[str, Any] = {  # likewise
    "ts": TS,
    "v": 1,
    "kind": "gap",
    "proxy": "p",
    "dropped": 5,
    "from": "2026-11-20T07:29:00.000000Z",
    "to": TS,
}


def publish(**changes: object) -> str:
    return json.dumps({**PUBLISH, **changes})


def settle(**changes: object) -> str:
    return json.dumps({**SETTLE, **changes})


def gap(**changes: object) -> str:
    return json.dumps({**GAP, **changes})


def segment(folder: Path, lines: Iterable[str], day: str = "2026-11-20", hour: int = 7, name: str = "p-1-1") -> Path:
    """Write a closed segment, compressed unless its name ends with .jsonl."""
    path = folder / f"date={day}" / f"hour={hour:02d}" / f"audit-{name}"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{line}\n" for line in lines).encode()
    if path.suffix == ".jsonl":
        path.write_bytes(text)
        return path
    packed = path.with_name(f"{path.name}.jsonl.gz")
    packed.write_bytes(gzip.compress(text, 1, mtime=0))
    return packed
