"""``oxproxy serve``: runs the sidecar."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from proxy.app import sidecar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the arguments."""
    parser.add_argument("--config", metavar="FILE", type=Path, required=True, help="the configuration file")
    # Passed to a process by the parent of several.
    parser.add_argument("--worker", metavar="PLACE", help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    """Run until SIGTERM."""
    return sidecar.run(options.config, os.environ, options.worker)
