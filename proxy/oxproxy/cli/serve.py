"""``oxproxy serve``: runs the sidecar."""

from __future__ import annotations

import argparse
import os
import signal
import sys

from oxproxy.cli.console import add_config_argument, required_configuration


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_argument(parser)


def run(options: argparse.Namespace) -> int:
    config = required_configuration(options.config, "oxproxy serve")
    # SIGHUP stays pending until it can be handled; by default, it would end the process.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))
    # structlog would import rich for colored tracebacks, which would take 5 MiB of memory and are not needed.
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
    from oxproxy.app import process

    return process.run(config, os.environ)
