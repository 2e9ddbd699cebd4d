"""Reads vector files and runs vectors."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from tests.conformance import open_exchange
from tests.conformance.typed import Json

OWN_VECTORS = sorted((Path(__file__).parent / "vectors").rglob("*.jsonl.gz"))


def vectors(path: Path) -> Iterator[Json]:
    """The vectors of a ``.jsonl`` or ``.jsonl.gz`` file."""
    opened = gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")
    with opened as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)


def verdicts(path: Path) -> Iterator[tuple[str, bool, object, object]]:
    """Yield the id of each vector, whether it passes, the expected result, and the actual result."""
    for vector in vectors(path):
        yield vector["id"], *run(vector)


def run(vector: Json) -> tuple[bool, object, object]:
    """Run a vector of either format. Vectors of the open exchange have bindings or exchange arguments."""
    if "bindings" in vector or "exchange_arguments" in vector:
        return open_exchange.run(vector)
    ok, expected, got = import_module("tests.conformance.messenger").run(vector)
    return bool(ok), expected, got
