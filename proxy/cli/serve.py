"""``oxproxy serve``: runs the sidecar."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from proxy.app import sidecar
from proxy.app.workers import WorkerSlot


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", metavar="FILE", type=Path, required=True, help="configuration file; - for standard input"
    )
    # Passed by the supervisor of several workers: a worker's number and number of restarts, or a request to check all
    # files.
    parser.add_argument("--worker", type=int, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--dry-run", action="store_true", help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    slot = None if options.worker is None else WorkerSlot(*options.worker)
    return sidecar.run(options.config, os.environ, slot, options.dry_run)
