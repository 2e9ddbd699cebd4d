"""``oxproxy explain``: why one message goes where it goes, as a tree, as text or as JSON.

By rules files, or by the rules in force in a running sidecar: then each of its workers is asked, and their answers are
compared.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from proxy.cli.console import DONE, NO, print_errors, print_line, read_input, read_settings
from proxy.errors import ConfigError, ConfigErrors
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
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--rules", metavar="FILE", type=Path, action="append", help="may be repeated")
    source.add_argument("--config", metavar="FILE", type=Path, help="ask the sidecar that runs with this configuration")
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
    if options.config is not None:
        return _ask_running(options)
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


def _ask_running(options: argparse.Namespace) -> int:
    """Print the answer of all workers; the answer is no as well where they differ, or one of them can't be asked."""
    # Imported here: files are explained without HTTP.
    from proxy.cli.admin_client import AdminClient, admin_urls

    if options.message is None or options.at is not None:
        message = "a running sidecar explains a --message at the present time; --address and --at need --rules"
        raise ConfigErrors([ConfigError("oxproxy explain", 0, "", message)])
    question = read_input(options.message)
    clients = [AdminClient(url, "oxproxy explain") for url in admin_urls(read_settings(options.config))]
    answers: dict[AdminClient, dict[str, Any]] = {}  # Any: JSON
    faults: list[ConfigErrors] = []
    for client in clients:
        try:
            answers[client] = json.loads(client.request("POST", "/explain", question))
        except ConfigErrors as errors:
            faults.append(errors)
    if not answers:
        raise faults[0]
    print_errors(fault for errors in faults for fault in errors.errors)
    distinct = list({_outcome(answer): client for client, answer in reversed(answers.items())}.values())[::-1]
    for client in distinct:
        if len(distinct) > 1:
            print_line(f"{client.url}:")
        if options.json:
            print_line(_as_json(answers[client]))
        else:
            print_line(client.request("POST", "/explain", question, accept="text/plain").rstrip("\n"))
    if len(distinct) > 1:
        print_errors([f"workers answer differently: {', '.join(client.url for client in distinct)}"])
    missing = [queue for queue in options.expect if any(queue not in answer["queues"] for answer in answers.values())]
    print_errors(f"expected: queue {queue}, which the message does not reach" for queue in missing)
    return NO if missing or faults or len(distinct) > 1 else DONE


def _outcome(answer: dict[str, Any]) -> str:  # Any: JSON
    """Return what has to be equal in the answers of workers: the version of the rules, and where the message goes."""
    return json.dumps([answer[key] for key in ("rules", "outcome", "queues", "exchanges", "remotes", "error")])


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
