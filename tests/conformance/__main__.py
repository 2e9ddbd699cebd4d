"""Runs vector files: ``python -m tests.conformance [--times] [FILE...]``.

Prints the first failures and the counts. With ``--times``, vectors with a `max_ms` are timed instead. The exit status
is 1 if a vector fails or exceeds its time.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.conformance import messenger
from tests.conformance.files import OWN_VECTORS, verdicts

#: Maximum number of failures that are printed.
_SHOWN = 20


def main(arguments: list[str]) -> int:
    if "--times" in arguments:
        return messenger.main([argument for argument in arguments if argument != "--times"])
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
