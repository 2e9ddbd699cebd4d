"""``oxproxy trace``: prints every record of one message in audit logs, as JSON lines."""

from __future__ import annotations

import argparse
import json
import os

from oxproxy.cli.console import DONE, NO, print_errors, print_line
from oxproxy.cli.report import add_days_and_spark, faults_of, request_of
from oxproxy.values import counted, text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("message_id", metavar="MESSAGE_ID", help="message_id in the audit log")
    parser.add_argument("--input", metavar="DIR", required=True, help="directory or URI of the audit log")
    parser.add_argument(
        "--output",
        metavar="DIR",
        help="output directory of an earlier report, which shows which segments can be skipped",
    )
    add_days_and_spark(parser, "Spark master for remote paths")


def run(options: argparse.Namespace) -> int:
    """Print the records."""
    with faults_of("oxproxy trace"):
        request = request_of(options, options.output or "")
        from oxproxy.report.trace import trace

        # The audit log also represents bytes that are not UTF-8 as \xNN.
        result = trace(text(os.fsencode(options.message_id)), request)
    for record in result.records:
        print_line(json.dumps(record))
    if not result.records:
        print_errors([f"no record found: {counted(result.read, 'segment')} read, {result.skipped} skipped"])
        return NO
    return DONE
