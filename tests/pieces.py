"""Result files of long runs: one JSON file to which each run adds pieces, with what was run, when and on what.

A run that is interrupted loses only its last piece, and a later run continues the file.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from oxproxy.native import BUILD

ROOT = Path(__file__).resolve().parents[1]

#: A piece: strings, numbers, mappings of numbers, and lists of strings.
Piece = dict[str, Any]


def origin() -> Piece:
    """What this run tests and where: date, version, build, commit, Python, number of CPUs."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"),
        "version": version("oxproxy"),
        "build": BUILD,
        "commit": _commit(),
        "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0)),
    }


def _commit() -> str:
    """The commit, with ``+`` if the work tree differs from it; empty outside of a clone."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*", "--abbrev=10"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def read(path: Path) -> list[Piece]:
    """Return the pieces of a result file; none if the file does not exist."""
    if not path.exists():
        return []
    pieces: list[Piece] = json.loads(path.read_text())["pieces"]
    return pieces


def add(path: Path, piece: Piece) -> None:
    """Add a piece to a result file, one line for each piece."""
    pieces = [*read(path), piece]
    lines = ",\n".join(json.dumps(each, ensure_ascii=True) for each in pieces)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".next")
    fresh.write_text(f'{{"pieces": [\n{lines}\n]}}\n')
    fresh.replace(path)


def total(pieces: Iterable[Mapping[str, Any]], key: str) -> Counter[str]:
    """Sum the mappings of numbers under a key."""
    result: Counter[str] = Counter()
    for piece in pieces:
        result.update(piece[key])
    return result


def by(pieces: Iterable[Piece], key: str) -> dict[str, list[Piece]]:
    """Group pieces by the value of a key, in the order in which the values occur."""
    groups: dict[str, list[Piece]] = {}
    for piece in pieces:
        groups.setdefault(str(piece[key]), []).append(piece)
    return groups
