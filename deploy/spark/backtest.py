"""The program for spark-submit: runs ``oxproxy backtest`` with the given arguments."""

from __future__ import annotations

import sys

from oxproxy.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["backtest", *sys.argv[1:]]))
