"""What a person types: the command ``oxproxy`` with its subcommands, and what their exit status says.

0: done; 1: the answer is no; 2: wrong usage, configuration or rules. It decides nothing itself: each command asks one
room and prints what it says. What a command does not need is not imported: only ``serve`` loads the network.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import secrets
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from proxy.audit.record import text
from proxy.cli.check import inspect
from proxy.cli.init import begin
from proxy.config.settings import SECRET_BYTES, load_settings
from proxy.errors import ConfigError, ConfigErrors
from proxy.rules.clock import instant
from proxy.rules.definitions import import_definitions
from proxy.rules.explain import (
    Explanation,
    as_data,
    as_json,
    as_lines,
    as_text,
    explain,
    explain_address,
    read_question,
)
from proxy.rules.loader import load_rules

DONE, NO, WRONG = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: the command line without the program's name; None: the process's own.

    Returns:
        The exit status.
    """
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except ConfigErrors as errors:
        _complain(errors.errors)
        return WRONG
    except KeyboardInterrupt:
        return 130  # as a shell says it: 128 and the number of SIGINT
    except BrokenPipeError:
        # Whoever read our output has seen enough; nothing more may be written, at exit neither.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="oxproxy", description="AMQP sidecar that routes messages by content.")
    version = importlib.metadata.version("open-exchange-proxy")
    parser.add_argument("--version", action="version", version=f"oxproxy {version}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    serve = commands.add_parser("serve", help="run the sidecar until SIGTERM")
    serve.add_argument("--config", metavar="FILE", type=Path, required=True, help="the configuration file")
    serve.add_argument("--worker", metavar="PLACE", help=argparse.SUPPRESS)  # what a process of several is told
    serve.set_defaults(run=_serve)

    check = commands.add_parser("check", help="check configuration and rules files and run the tests they carry")
    check.add_argument(
        "files", metavar="FILE", type=Path, nargs="+", help="configuration or rules file; - for standard input"
    )
    check.add_argument("--json", action="store_true", help="print every finding as JSON")
    check.add_argument("--coverage", action="store_true", help="say which bindings no test makes true")
    check.add_argument(
        "--broker",
        metavar="URL",
        help="ask a broker what it would refuse and which destinations exist: http(s)://USER:PASSWORD@HOST:15672 or "
        "amqp(s)://...; TLS as the configuration says under upstream.tls",
    )
    check.set_defaults(run=_check)

    clean = commands.add_parser("cleanup", help="list, and remove, everything that sidecars made on the broker")
    clean.add_argument("--config", metavar="FILE", type=Path, required=True, help="the configuration file")
    clean.add_argument("--vhost", metavar="NAME", action="append", default=[], help="only there; may be repeated")
    clean.add_argument("--yes", action="store_true", help="remove what is listed")
    clean.set_defaults(run=_cleanup)

    adopt = commands.add_parser(
        "adopt", help="sign what earlier versions, or a previous secret, left on the broker for clients"
    )
    adopt.add_argument("--config", metavar="FILE", type=Path, required=True, help="the configuration file")
    adopt.add_argument("--vhost", metavar="NAME", action="append", default=[], help="only there; may be repeated")
    adopt.add_argument(
        "--exchange", metavar="NAME", action="append", default=[], help="only its bindings; may be repeated"
    )
    adopt.add_argument("--dry-run", action="store_true", help="list, and change nothing")
    adopt.add_argument(
        "--doubtful", action="store_true", help="sign bindings as well whose signature no configured secret made"
    )
    adopt.add_argument(
        "--finish",
        action="store_true",
        help="then let sidecars drop what versions before 0.2 and previous secrets need",
    )
    adopt.set_defaults(run=_adopt)

    start = commands.add_parser("init", help="write a configuration, a rules file and a secret to begin with")
    start.add_argument("directory", metavar="DIR", type=Path, help="where to; nothing that is there is overwritten")
    start.set_defaults(run=_init)

    bring = commands.add_parser("import", help="write a rules file from rabbitmqctl export_definitions")
    bring.add_argument("definitions", metavar="FILE", type=Path, help="definitions as JSON")
    bring.add_argument("--vhost", metavar="NAME", default="/", help="virtual host to take from; default: /")
    bring.add_argument(
        "--exchange", metavar="NAME", action="append", default=[], help="only these; default: all but amq.*"
    )
    bring.set_defaults(run=_import)

    why = commands.add_parser("explain", help="why one message goes where it goes")
    why.add_argument("--rules", metavar="FILE", type=Path, action="append", required=True, help="may be repeated")
    what = why.add_mutually_exclusive_group(required=True)
    what.add_argument("--message", metavar="FILE", help="the message as YAML or JSON; - for standard input")
    what.add_argument("--address", metavar="TEXT", help="ask the address table alone")
    why.add_argument("--vhost", metavar="NAME", help="with --address, where several have a table")
    why.add_argument("--at", metavar="TIME", type=_instant, help="such as 2026-11-21T08:00:00Z; default: now")
    why.add_argument("--json", action="store_true", help="print the answer as JSON")
    why.add_argument("--expect", metavar="QUEUE", action="append", default=[], help="status 1 unless it gets there")
    why.set_defaults(run=_explain)

    beside = commands.add_parser("shadow", help="where other rules would send live traffic otherwise; changes nothing")
    beside.add_argument("rules", metavar="RULES", type=Path, nargs="+", help="rules files, as one set")
    beside.add_argument(
        "--admin", metavar="URL", default="http://127.0.0.1:15693", help="of the running sidecar; default: %(default)s"
    )
    beside.add_argument("--seconds", metavar="N", type=float, help="default: until Ctrl-C")
    beside.add_argument("--json", action="store_true", help="print the report as JSON")
    beside.set_defaults(run=_shadow)

    report = commands.add_parser("report", help="tables and a page on audit logs, made with Spark")
    report.add_argument(
        "--input", metavar="DIR", required=True, help="folder of the audit log, or URI such as s3a://..."
    )
    report.add_argument("--output", metavar="DIR", required=True, help="folder of tables and page, likewise")
    report.add_argument("--since", metavar="DAY", help="such as 2026-11-21 (UTC), or yesterday; default: all days")
    report.add_argument("--until", metavar="DAY", help="the last day; default: the newest")
    report.add_argument(
        "--rules", metavar="FILE", type=Path, action="append", help="tell dead bindings; may be repeated"
    )
    report.add_argument(
        "--master", metavar="URL", help="of a Spark cluster; default: this machine, or what spark-submit says"
    )
    report.add_argument("--conf", metavar="NAME=VALUE", action="append", default=[], help="a setting of Spark")
    report.add_argument("--stream", action="store_true", help="look for new segments every minute until SIGTERM")
    report.add_argument("--once", action="store_true", help="with --stream: end when what is there has been counted")
    report.add_argument("--trace", action="store_true", help="also the table of all messages, as large as the log")
    report.add_argument("--forget", action="store_true", help="no longer count segments that are gone")
    report.set_defaults(run=_report)

    trace = commands.add_parser("trace", help="every record of one message in audit logs")
    trace.add_argument("message_id", metavar="MESSAGE_ID", help="as the audit log has it")
    trace.add_argument("--input", metavar="DIR", required=True, help="folder of the audit log, a path or URI")
    trace.add_argument("--output", metavar="DIR", help="that of oxproxy report, to read only segments that matter")
    trace.add_argument("--since", metavar="DAY", help="such as 2026-11-21 (UTC), or yesterday; default: all days")
    trace.add_argument("--until", metavar="DAY", help="the last day; default: the newest")
    trace.add_argument("--master", metavar="URL", help="of Spark, which reads paths that are not of this machine")
    trace.add_argument("--conf", metavar="NAME=VALUE", action="append", default=[], help="a setting of Spark")
    trace.set_defaults(run=_trace)
    return parser


def _instant(text: str) -> float:
    found = instant(text)
    if found is None:
        raise argparse.ArgumentTypeError(f'seen "{text}", expected a time with its zone such as 2026-11-21T08:00:00Z')
    return found


def _serve(options: argparse.Namespace) -> int:
    # Here, since the other commands do without sockets, brokers and metrics.
    from proxy.app.sidecar import run

    return run(options.config, os.environ, options.worker)


def _check(options: argparse.Namespace) -> int:
    findings = inspect(options.files, os.environ, lambda path: _content(str(path)))
    if findings.secured:
        from proxy.cli.check import check_tls_files

        check_tls_files(findings)
    if options.broker is not None:
        from proxy.cli.check_broker import ask_broker

        try:
            verdict = ask_broker(options.broker, findings.destinations, findings.exchanges, findings.settings)
        except ConfigErrors as errors:
            findings.errors += errors.errors
        else:
            findings.warnings += verdict.missing
            findings.errors += verdict.conflicts
    if options.json:
        _say(json.dumps(findings.as_json(), indent=2, ensure_ascii=False))
    else:
        _complain((*findings.warnings, *findings.errors, *findings.failures))
        _complain(findings.uncovered if options.coverage else ())
    if findings.errors:
        return WRONG
    if findings.failures:
        return NO
    if not options.json:
        _say(f"ok: {findings.summary}")
    return DONE


def _cleanup(options: argparse.Namespace) -> int:
    from proxy.cli.cleanup import clean_up

    settings, warnings = load_settings(options.config, os.environ)
    _complain(warnings)
    return DONE if clean_up(settings, options.vhost, options.yes, _say) else NO


def _adopt(options: argparse.Namespace) -> int:
    from proxy.cli.adopt import Wanted, adopt

    settings, warnings = load_settings(options.config, os.environ)
    _complain(warnings)
    which = tuple(options.vhost), tuple(options.exchange)
    wanted = Wanted(*which, options.dry_run, options.doubtful, options.finish)
    return DONE if adopt(settings, wanted, _say) else NO


def _init(options: argparse.Namespace) -> int:
    for path in begin(options.directory, secrets.token_bytes(SECRET_BYTES)):
        _say(str(path))
    _say(f"next: oxproxy check {options.directory / 'oxproxy.yaml'}")
    return DONE


def _import(options: argparse.Namespace) -> int:
    text, warnings = import_definitions(
        _message(str(options.definitions)), str(options.definitions), options.vhost, options.exchange
    )
    _complain(warnings)
    _say(text.rstrip("\n"))
    return DONE


def _explain(options: argparse.Namespace) -> int:
    loaded = load_rules(options.rules)
    if options.address is not None:
        lookup = explain_address(loaded, os.fsencode(options.address), options.vhost)
        _say(json.dumps(as_data(lookup), indent=2, ensure_ascii=False) if options.json else "\n".join(as_lines(lookup)))
        return NO if lookup.rule is None else DONE
    question = read_question(_message(options.message), options.message)
    explanation = explain(loaded, question, time.time() if options.at is None else options.at)
    if options.json:
        _say(json.dumps(as_json(explanation), indent=2, ensure_ascii=False))
    else:
        _show(explanation)
    return _expected(explanation, options.expect)


def _shadow(options: argparse.Namespace) -> int:
    from proxy.cli.shadow import AdminClient, run, show

    found = run(options.rules, AdminClient(options.admin), options.seconds)
    if options.json:
        _say(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        show(found)
    return NO if found["different"] else DONE


def _report(options: argparse.Namespace) -> int:
    from proxy.report.request import KnownBinding, Request, day, setting

    known = None
    if options.rules is not None:
        rules = load_rules(options.rules).rules
        known = tuple(
            KnownBinding(vhost, text(exchange.name), binding.id, rules.version)
            for vhost, content in rules.vhosts.items()
            for exchange in content.exchanges
            for binding in exchange.bindings
        )
    with _reporting("oxproxy report"):
        request = Request(
            options.input,
            options.output,
            None if options.since is None else day(options.since, "--since"),
            None if options.until is None else day(options.until, "--until"),
            options.master,
            known,
            tuple(map(setting, options.conf)),
            options.trace,
            options.forget,
        )
        from proxy.report.job import follow, report

        if options.stream:
            follow(request, _say, options.once)
        else:
            _say(str(report(request)))
    return DONE


def _trace(options: argparse.Namespace) -> int:
    from proxy.report.request import Request, day, setting

    with _reporting("oxproxy trace"):
        request = Request(
            options.input,
            "",
            None if options.since is None else day(options.since, "--since"),
            None if options.until is None else day(options.until, "--until"),
            options.master,
            settings=tuple(map(setting, options.conf)),
        )
        from proxy.report.trace import trace

        found = trace(options.message_id, request, options.output)
    for record in found.records:
        _say(json.dumps(record))
    if not found.records:
        sys.stderr.write(f"no record of it in {found.read} segments read, {found.skipped} left out\n")
        return NO
    return DONE


@contextlib.contextmanager
def _reporting(command: str) -> Iterator[None]:
    """Turn what the report misses into faults of the command."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = f"needs {error.name}: pip install 'open-exchange-proxy[report]'"
        raise ConfigErrors([ConfigError(command, 0, "", missing)]) from error
    except ConfigError as error:
        raise ConfigErrors([error]) from error


def _show(explanation: Explanation) -> None:
    if not sys.stdout.isatty():
        _say(as_text(explanation))
        return
    # Here, since it takes a fifth of a second and nobody else needs it.
    from proxy.cli.explain_tree import show

    show(explanation)


def _expected(explanation: Explanation, queues: Iterable[str]) -> int:
    missing = [queue for queue in queues if queue not in explanation.result.queues]
    _complain(f"expected: queue {queue}, which the message does not reach" for queue in missing)
    return NO if missing else DONE


def _content(name: str) -> bytes:
    return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()


def _message(name: str) -> bytes:
    try:
        return _content(name)
    except OSError as error:
        raise ConfigErrors([ConfigError(name, 0, "", f"can't be read: {error.strerror or error}")]) from error


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _complain(lines: Iterable[object]) -> None:
    for line in lines:
        sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
