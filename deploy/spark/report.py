"""What spark-submit starts: ``oxproxy report`` with the arguments that follow."""

from __future__ import annotations

import sys

from proxy.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["report", *sys.argv[1:]]))
