"""``oxproxy import``: writes a rules file from a broker's definitions."""

from __future__ import annotations

import argparse
from pathlib import Path

from oxproxy.cli.console import DONE, print_errors, print_line, read_input
from oxproxy.rules.import_definitions import import_definitions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "definitions", metavar="FILE", type=Path, help="JSON file with definitions; - for standard input"
    )
    parser.add_argument("--vhost", metavar="NAME", default="/", help="virtual host; default: /")
    parser.add_argument(
        "--exchange",
        metavar="NAME",
        action="append",
        default=[],
        help="only this exchange; can be repeated; default: all except amq.*",
    )


def run(options: argparse.Namespace) -> int:
    """Write the rules to standard output and warnings to standard error."""
    source = str(options.definitions)
    text, warnings = import_definitions(read_input(source), source, options.vhost, options.exchange)
    print_errors(warnings)
    print_line(text.rstrip("\n"))
    return DONE
