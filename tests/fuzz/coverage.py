"""Runs one target with atheris, guided by the coverage of the Python sources.

    PURE_PYTHON=1 python -m tests.fuzz.coverage TARGET [libFuzzer options] [corpus directory]

Compiled modules have no coverage.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["oxproxy"]):
    from tests.fuzz.targets import TARGETS

if __name__ == "__main__":
    run = TARGETS[sys.argv.pop(1)].run
    atheris.Setup(sys.argv, run)
    atheris.Fuzz()
