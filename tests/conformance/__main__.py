"""``python -m tests.conformance [--times] [FILE...]``: run vector files, print the first faults and a count.

With ``--times`` the vectors that have a `max_ms` are timed instead; status 1 where one is late.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.conformance import messenger
from tests.conformance.files import OWN_VECTORS, verdicts

#: So many faults are printed; more only scroll the first ones away.
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
