"""``oxproxy explain``: explains the routing of one message, as text or JSON. In a terminal, the text is coloured.

The rules are read from files, or running sidecars are queried and their responses compared.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from oxproxy.cli.admin_client import AdminClient, add_admin_arguments, admin_clients, ask_sidecars
from oxproxy.cli.commands import add_repeatable
from oxproxy.cli.console import (
    DONE,
    NO,
    json_line,
    load_rules_of,
    print_errors,
    print_json,
    print_line,
    printable,
    read_input,
    rich_console,
)
from oxproxy.routing.bindings.operators import INTEGER_PROPERTIES
from oxproxy.rules.evaluation import PASSED
from oxproxy.rules.explain import (
    AddressRequest,
    Explanation,
    Lookup,
    as_json,
    as_text,
    explain,
    explain_address,
    read_question,
)
from oxproxy.rules.field_values import TAGS
from oxproxy.rules.file_tests import publish_time
from oxproxy.yamlfile.document import FLOAT, INTEGER, Faults, Mapping, escaped, read_document

#: Header types that YAML infers from the form of a value, each with a pattern for the form and a description.
_FORMS = {
    "int": (INTEGER, "an integer"),
    "float": (FLOAT, "a number"),
    "bool": (re.compile("true|false"), "true or false"),
    "null": (re.compile(""), "nothing after ="),
}
_TYPES = ("string", *_FORMS, "yaml", *(tag.removeprefix("!") for tag in TAGS))
#: Characters that stand for bytes that are not UTF-8.
_SURROGATES = frozenset(map(chr, range(0xD800, 0xE000)))
_PROPERTY = re.compile(r"[a-z_]+")
#: Styles of the lines of an explanation in a terminal, each with a pattern for the start of these lines.
_STYLES = {
    "bold cyan": r"exchange ",
    "green": r"  -?\d+ .*: true \(|      (match|adds) |outcome   (routed|translated)",
    "red": r"  filter .*\. The |      (mismatch|removes) |outcome   (filtered|rejected|unrouted)|failed ",
    "yellow": r"  no destination|      (absent|continues|stops|the regex budget) |outcome   passed|missing ",
    "dim": r"  filter |  -?\d+ .*: false \(|header |wire |          (BCC|header) ",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rules",
        metavar="FILE",
        type=Path,
        action="append",
        help="rules file or configuration; - for standard input; can be repeated",
    )
    add_admin_arguments(parser)
    message = parser.add_argument_group("message")
    message.add_argument("--message", metavar="FILE", help="message as YAML or JSON; - for standard input")
    message.add_argument("--exchange", metavar="NAME", help="exchange")
    message.add_argument("--key", metavar="KEY", help="routing key")
    add_repeatable(message, "--header", "NAME[:TYPE]=VALUE", "header")
    add_repeatable(message, "--property", "NAME=VALUE", "property such as priority=5")
    message.add_argument("--size", metavar="BYTES", type=int, help="size of the body")
    add_repeatable(message, "--queue", "NAME", "queue to treat as existing")
    message.add_argument(
        "--vhost", metavar="NAME", help="virtual host, if the exchange or address table is defined in several"
    )
    message.add_argument("--address", metavar="TEXT", help="evaluate only the address table, for this address")
    parser.add_argument(
        "--at", metavar="TIME", type=_instant, help="time of the publish, such as 2026-11-21T08:00:00Z; default: now"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--expect",
        metavar="QUEUE",
        action="append",
        default=[],
        help="exit with status 1 unless the message reaches this queue",
    )
    parser.set_defaults(usage_error=parser.error)


def _instant(text: str) -> str:
    try:
        publish_time(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f'got "{text}", expected {error}') from None
    return text


def run(options: argparse.Namespace) -> int:
    """Print the explanation."""
    _check_usage(options)
    source = options.message or "command line"
    data = read_input(options.message) if options.message else described(options).encode(errors="surrogateescape")
    if options.at is not None:
        data = _timed(data, options.at)
    if options.rules is None:
        return _ask_running(admin_clients(options, "oxproxy explain"), data, options)
    question = read_question(data, source)
    loaded = load_rules_of(options.rules)
    explanation: Explanation | Lookup
    if isinstance(question, AddressRequest):
        explanation = explain_address(loaded, question)
    else:
        explanation = explain(loaded, question, time.time() if question.at is None else question.at)
    answer = as_json(explanation)
    if options.json:
        print_json(answer)
    else:
        _print_text(as_text(explanation))
    return _status([answer], options.expect)


def _timed(message: bytes, at: str) -> bytes:
    """Add the time to a message in YAML or JSON, without changing the line numbers of its keys."""
    message = message.removeprefix(b"\xef\xbb\xbf")
    if message.lstrip()[:1] == b"{":
        begin, brace, rest = message.partition(b"{")
        return begin + brace + f'"at": "{at}", '.encode() + rest
    root = read_document(message, "message", Faults())
    if not isinstance(root, Mapping):  # an error, which is reported later
        return message
    lines = message.decode().splitlines(keepends=True)
    line, column = root.place.line - 1, root.place.column - 1
    first = lines[line]
    if first[column] == "{":  # a mapping in braces after a comment or after ---
        lines[line] = f'{first[:column]}{{"at": "{at}", {first[column + 1 :]}'
        return "".join(lines).encode()
    text = re.sub(r"(?m)^\.\.\.\s[\s\S]*\Z", "", "".join(lines) + "\n")  # ... ends the document
    return f"{text}{' ' * column}at: {at}\n".encode()


def _check_usage(options: argparse.Namespace) -> None:
    """Exit with status 2 if options contradict each other."""
    parts = [f"--{name}" for name in ("key", "size") if getattr(options, name) is not None]
    parts += [f"--{name}" for name in ("header", "property", "queue") if getattr(options, name)]
    subjects = [f"--{name}" for name in ("message", "exchange", "address") if getattr(options, name) is not None]
    if len(subjects) != 1:
        seen = " and ".join(subjects) or "none"
        options.usage_error(f"got {seen}, expected exactly one of --message, --exchange and --address")
    if options.message == "-" and Path("-") in (options.rules or ()):
        options.usage_error("standard input can be read only once: got both --rules - and --message -")
    if options.vhost is not None and options.message is not None:
        options.usage_error("--vhost: not allowed with --message; name the virtual host in the message, under vhost")
    if parts and options.exchange is None:
        options.usage_error(f"{parts[0]} describes a message: --exchange is required")
    if options.address is not None and (options.at is not None or options.expect):
        options.usage_error(
            f"{'--at' if options.at else '--expect'} is not allowed with --address, which publishes no message"
        )
    if options.rules is not None and (options.admin or options.config is not None):
        options.usage_error("--admin and --config are not allowed with --rules, which evaluates files")


def _yaml(value: object) -> str:
    """Return a string, or a list of strings, as YAML.

    JSON is valid YAML except for escapes of surrogate pairs, and for characters that YAML forbids or treats as line
    breaks. Bytes that are not UTF-8 are kept, so that they are reported when the YAML is read.
    """
    return escaped(json_line(value), keep=_SURROGATES)


def described(options: argparse.Namespace) -> str:
    """Return, as YAML, the message or the address given on the command line."""
    subject = "exchange" if options.address is None else "address"
    lines = [f"{subject}: {_yaml(getattr(options, subject))}"]
    if options.key is not None:
        lines.append(f"routing_key: {_yaml(options.key)}")
    if options.header:
        lines += ["headers:", *_headers(options)]
    if options.property:
        lines += ["properties:", *_properties(options)]
    if options.size is not None:
        lines.append(f"body_size: {options.size}")
    if options.queue:
        lines.append(f"queues: {_yaml(options.queue)}")
    if options.vhost is not None:
        lines.append(f"vhost: {_yaml(options.vhost)}")
    return "\n".join([*lines, ""])


def _headers(options: argparse.Namespace) -> Iterator[str]:
    for text in options.header:
        declared, equals, value = text.partition("=")
        name, colon, kind = declared.rpartition(":")
        if not colon or kind not in _TYPES:
            if colon:
                near = difflib.get_close_matches(kind.lower(), _TYPES, 1)
                meant = f"; did you mean {near[0]}?" if near else f", expected one of {', '.join(_TYPES)}."
                options.usage_error(
                    f'--header: got the unknown type "{kind}"{meant} For a header with the name "{declared}", write '
                    f"{declared}:string={value}"
                )
            name, kind = declared, "string"
        if not equals or not name:
            known = ", ".join(_TYPES)
            options.usage_error(f'--header: got "{text}", expected NAME=VALUE or NAME:TYPE=VALUE; types: {known}')
        if kind in _FORMS and not _FORMS[kind][0].fullmatch(value):
            options.usage_error(f'--header: got "{text}", expected {_FORMS[kind][1]}')
        if kind == "string":
            value = _yaml(value)
        elif kind == "null":
            value = "null"
        elif kind == "float" and INTEGER.fullmatch(value):
            value += ".0"
        elif f"!{kind}" in TAGS:
            value = f"!{kind} {value}"
        yield f"  {_yaml(name)}: {value}"


def _properties(options: argparse.Namespace) -> Iterator[str]:
    for text in options.property:
        name, equals, value = text.partition("=")
        if not equals or not _PROPERTY.fullmatch(name):
            options.usage_error(f'--property: got "{text}", expected NAME=VALUE')
        yield f"  {name}: {value if name in INTEGER_PROPERTIES and INTEGER.fullmatch(value) else _yaml(value)}"


def _ask_running(clients: Sequence[AdminClient], question: bytes, options: argparse.Namespace) -> int:
    """Print all distinct responses."""
    answers: dict[AdminClient, dict[str, Any]]  # Any: JSON
    answers, complete = ask_sidecars(clients, lambda client: client.json("/explain", "POST", question))
    distinct = list({_outcome(answer): client for client, answer in reversed(answers.items())}.values())[::-1]
    for client in distinct:
        if len(distinct) > 1:
            print_line(f"{client.url}:")
        if options.json:
            print_json(answers[client])
        else:
            _print_text(client.request("POST", "/explain", question, accept="text/plain").rstrip("\n"))
    if len(distinct) > 1:
        print_errors([f"these sidecars returned different results: {', '.join(client.url for client in distinct)}"])
    status = _status(list(answers.values()), options.expect)
    return status if complete and len(distinct) == 1 else NO


def _status(answers: Sequence[dict[str, Any]], expected: Sequence[str]) -> int:  # Any: JSON
    """Return NO if no address rule applies, an exchange is not evaluated, or an expected queue is not reached.

    A message that is not evaluated has an empty `walk`.
    """
    if "address" in answers[0]:
        return NO if any(answer["rule"] is None for answer in answers) else DONE
    missing = [queue for queue in expected if any(queue not in answer["queues"] for answer in answers)]
    print_errors(f"expected queue {queue}, but the message does not reach it" for queue in missing)
    unknown = any(answer["outcome"] == PASSED and not answer["walk"] and answer["exchange"] for answer in answers)
    return NO if missing or unknown else DONE


def _outcome(answer: dict[str, Any]) -> str:  # Any: JSON
    """Return the parts of a response that must be equal for all sidecars: the rules version and the routing."""
    if "address" in answer:
        return json.dumps(answer)
    return json.dumps([answer[key] for key in ("rules", "outcome", "queues", "exchanges", "remotes", "error")])


def _print_text(text: str) -> None:
    """Print an explanation; in a terminal, colour its lines."""
    text = printable(text, "\n")
    if not sys.stdout.isatty():
        print_line(text)
        return
    # Imported here so that scripts do not wait for rich, which takes 0.2 s to import.
    from rich.text import Text

    console = rich_console()
    for line in text.split("\n"):
        style = next((style for style, pattern in _STYLES.items() if re.match(pattern, line)), "")
        console.print(Text(line, style), soft_wrap=True)
