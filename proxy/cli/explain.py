"""``oxproxy explain``: why one message goes where it goes, as a tree, as text or as JSON."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from proxy.cli.console import DONE, NO, print_errors, print_line, read_input
from proxy.rules.explain import (
    Explanation,
    as_data,
    as_json,
    as_lines,
    as_text,
    explain,
    explain_address,
    read_explain_request,
)
from proxy.rules.field_values import instant
from proxy.rules.loader import load_rules


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the arguments."""
    parser.add_argument("--rules", metavar="FILE", type=Path, action="append", required=True, help="may be repeated")
    subject = parser.add_mutually_exclusive_group(required=True)
    subject.add_argument("--message", metavar="FILE", help="the message as YAML or JSON; - for standard input")
    subject.add_argument("--address", metavar="TEXT", help="ask the address table alone")
    parser.add_argument("--vhost", metavar="NAME", help="with --address, where several have a table")
    parser.add_argument("--at", metavar="TIME", type=_instant, help="such as 2026-11-21T08:00:00Z; default: now")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    parser.add_argument("--expect", metavar="QUEUE", action="append", default=[], help="status 1 unless it gets there")


def _instant(text: str) -> float:
    seconds = instant(text)
    if seconds is None:
        raise argparse.ArgumentTypeError(f'seen "{text}", expected a time with its zone such as 2026-11-21T08:00:00Z')
    return seconds


def run(options: argparse.Namespace) -> int:
    """Print the explanation; the answer is no where an expected queue is not reached or no address rule applies."""
    loaded = load_rules(options.rules)
    if options.address is not None:
        lookup = explain_address(loaded, os.fsencode(options.address), options.vhost)
        text = _as_json(as_data(lookup)) if options.json else "\n".join(as_lines(lookup))
        print_line(text)
        return NO if lookup.rule is None else DONE
    question = read_explain_request(read_input(options.message), options.message)
    explanation = explain(loaded, question, time.time() if options.at is None else options.at)
    _print(explanation, options.json)
    missing = [queue for queue in options.expect if queue not in explanation.result.queues]
    print_errors(f"expected: queue {queue}, which the message does not reach" for queue in missing)
    return NO if missing else DONE


def _print(explanation: Explanation, wants_json: bool) -> None:
    if wants_json:
        print_line(_as_json(as_json(explanation)))
    elif sys.stdout.isatty():
        # Imported here: rich takes a fifth of a second, which scripts need not wait for.
        from proxy.cli.explain_tree import print_tree

        print_tree(explanation)
    else:
        print_line(as_text(explanation))


def _as_json(answer: object) -> str:
    return json.dumps(answer, indent=2, ensure_ascii=False)
