"""Runs one case for a few seconds, with the sidecar under a profiler.

    python -m tests.bench.profile open --seconds 10 --wrap "py-spy record -o build/profile.svg --"
    python -m tests.bench.profile open --wrap "python -m cProfile -o build/profile.out"

The printed rate and CPU time per message include the profiler's overhead.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from pathlib import Path

from tests.bench import report
from tests.bench.arena import Arena, Terms
from tests.bench.cases import CASES, Round
from tests.private_broker import PrivateBroker


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.profile", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("case", choices=tuple(CASES))
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--wrap", default="", help="a command to run the sidecar under")
    options = parser.parse_args()
    terms = Terms(options.seconds, wrap=tuple(shlex.split(options.wrap)))
    with (
        tempfile.TemporaryDirectory(prefix="oxproxy-bench-") as folder,
        PrivateBroker() as broker,
        Arena(broker, Path(folder), terms) as arena,
    ):
        sample = arena.run(CASES[options.case])
    print(report.rates([Round({options.case: sample})]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
