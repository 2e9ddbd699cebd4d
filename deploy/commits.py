"""Checks the subjects of commits: ``python -m deploy.commits``, a part of ``make check``.

The convention (CONTRIBUTING.md) applies to commits made after the commit that added this file. Without history, nothing
is checked. Prints the subjects that do not follow the convention.

Exit status: 0 if all subjects follow the convention, otherwise 1.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LONGEST = 72
#: ``area: what changes``; several areas are separated by commas.
_SUBJECT = re.compile(r"[a-z][\w./-]*(?:, [a-z][\w./-]*)*: [^\sA-Z].*[^.\s]")


def fault(subject: str) -> str | None:
    """Return what is wrong with a subject, or None."""
    if len(subject) > LONGEST:
        return f"{len(subject)} characters, expected at most {LONGEST}"
    if not _SUBJECT.fullmatch(subject):
        return "expected 'area: what changes', in lower case and without a full stop"
    return None


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def main() -> int:
    added = _git("log", "--diff-filter=A", "--format=%H", "--", "deploy/commits.py")
    lines = _git("log", "--no-merges", "--format=%h %s", f"{added[-1]}..HEAD") if added else []
    faults = [(line, message) for line in lines if (message := fault(line.partition(" ")[2])) is not None]
    for line, message in faults:
        print(f"{line}: {message}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
