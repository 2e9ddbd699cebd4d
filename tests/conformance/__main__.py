"""``python -m tests.conformance [FILE...]``: run vector files, print the first faults and a count."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.conformance.files import OWN_VECTORS, verdicts

#: So many faults are printed; more only scroll the first ones away.
_SHOWN = 20


def main(arguments: list[str]) -> int:
    passed = failed = 0
    for path in [Path(argument) for argument in arguments] or OWN_VECTORS:
        for name, ok, expected, got in verdicts(path):
            if ok:
                passed += 1
                continue
            failed += 1
            if failed <= _SHOWN:
                print(f"{name}\n  expected {expected}\n  got      {got}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
