"""The table of all commands, with their modules, descriptions, examples and exit statuses.

``--help``, the shell completion, the man page and docs/reference/cli.md are generated from this table and from the
arguments that the modules define. A module has the functions `add_arguments`, which adds arguments to a parser, and
`run`, which runs the command and returns the exit status. `main` prints `ConfigErrors` raised by `run`. These modules
are imported only when their command runs.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_INPUT = "invalid usage, configuration or rules; errors on standard error"


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One command.

    Args:
        examples: command lines, each with a description.
        no: meaning of exit status 1; empty if it never occurs.
        done: meaning of exit status 0.
        wrong: meaning of exit status 2.
        module: name of the module in this package, if it differs from the command's name.
        interrupted: meaning of exit status 130; empty if it never occurs.
        more: further exit statuses, each with its meaning.
    """

    summary: str
    description: str
    examples: tuple[tuple[str, str], ...]
    no: str = ""
    done: str = "done"
    wrong: str = _INPUT
    module: str = ""
    interrupted: str = "interrupted by Ctrl-C"
    more: tuple[tuple[int, str], ...] = ()

    @property
    def statuses(self) -> tuple[tuple[int, str], ...]:
        listed = [(0, self.done), (1, self.no), (2, self.wrong), (130, self.interrupted), *self.more]
        return tuple((status, meaning) for status, meaning in listed if meaning)


_ASKED = "invalid usage, or the sidecar is unreachable"
_DIRECTORY = "/var/lib/oxproxy/audit"

COMMANDS = {
    "serve": CommandEntry(
        "run the sidecar until SIGTERM",
        "Runs the sidecar: reads configuration and rules, declares exchanges and queues on the broker, accepts "
        "producers, and drains on SIGTERM or SIGINT. Changed rules files are reloaded automatically and on SIGHUP.",
        (("oxproxy serve --config oxproxy.yaml", "runs until Ctrl-C; this file is also the default"),),
        no="internal error",
        done="drained",
        wrong="invalid configuration or rules, an address that can't be bound, or a refusal by the broker",
        interrupted="",
        more=((143, "terminated by a second signal before draining finished"),),
    ),
    "check": CommandEntry(
        "check configuration and rules files, and run their tests",
        "Validates configuration and rules files, reports errors with file, line and column, warns about definitions "
        "without effect, and runs the tests in the rules files. For each failed test, the command prints the "
        "evaluation of the message. With --broker, it also compares the files with a broker.",
        (
            ("oxproxy check oxproxy.yaml", "the configuration and its rules files; this file is also the default"),
            ("oxproxy check rules/", "only the rules files in a directory, checked together"),
            ("oxproxy check --values values.yaml", "configuration and rules in the values of the Helm chart"),
            ("oxproxy check --strict --fail-under 90 --format junit oxproxy.yaml > report.xml", "in a pipeline"),
            (
                "oxproxy check --broker http://guest:guest@127.0.0.1:15672 oxproxy.yaml",
                "conflicts on the broker, and changes made at startup",
            ),
        ),
        no="a test failed; with --strict: a warning; with --fail-under: insufficient coverage",
        done="a sidecar would start with these files",
    ),
    "explain": CommandEntry(
        "explain the routing of one message",
        "Shows which bindings are visited for a message, which values their conditions compare, and which queues "
        "receive the message. With --rules, the command uses the rules in these files; otherwise, a running sidecar "
        "uses its active rules and client declarations. A header is NAME=VALUE for a string, or NAME:TYPE=VALUE with "
        "the type string, int, int8 to int64, uint8 to uint32, float, float32, bool, null, timestamp, bytes "
        "(hexadecimal) or yaml.",
        (
            (
                "oxproxy explain --rules rules/orders.yaml --exchange orders --header amount:int=2000",
                "with files, without a sidecar",
            ),
            ("oxproxy explain --exchange orders --key a.b --header amount=2000", "with the running sidecar"),
            (
                "oxproxy explain --rules rules/orders.yaml --message - --expect orders.large < message.yaml",
                "in a script",
            ),
        ),
        no="an expected queue is not reached, the exchange is not evaluated, no address rule applies, or the results "
        "of sidecars differ",
    ),
    "status": CommandEntry(
        "show the state of a running sidecar",
        "Shows the state of a running sidecar: readiness, active rules, last reload, connections, other brokers and "
        "missing destinations.",
        (
            ("oxproxy status", "the sidecar configured in ./oxproxy.yaml or /etc/oxproxy/oxproxy.yaml"),
            ("oxproxy status --admin http://127.0.0.1:15693 --json", "the response of /status"),
            ("oxproxy status --watch", "every two seconds until Ctrl-C"),
        ),
        no="a sidecar is not ready, or one of several is unreachable; with --watch, not ready or unreachable "
        "at the end",
        done="ready; with --watch, ready at the end",
        wrong=_ASKED,
    ),
    "top": CommandEntry(
        "show live rates of a running sidecar by exchange, binding and destination",
        "Reads the metrics of a running sidecar every few seconds and shows the rates of publishes, binding matches "
        "and publishes to destinations, highest first. In a terminal, the display is updated until Ctrl-C; "
        "otherwise, one table is printed per interval.",
        (
            ("oxproxy top", "runs until Ctrl-C"),
            ("oxproxy top --interval 10 --count 1 --json", "rates over ten seconds, for a script"),
        ),
        wrong=_ASKED,
        done="done, or interrupted by Ctrl-C",
        interrupted="interrupted by Ctrl-C before the first table",
    ),
    "tail": CommandEntry(
        "show the most recent failed publishes, and the broker's most recent errors",
        "Prints the last 200 publishes of a running sidecar that were unroutable, violating, rejected, nacked or "
        "returned, with exchange, routing key, size, reason and header names, and the errors for which the broker "
        "closed a channel or connection. Header values are included only if audit.headers lists the header. Unroutable "
        "publishes are recorded only while this command or the console requests the list, and for five minutes "
        "afterwards.",
        (
            ("oxproxy tail --follow", "runs until Ctrl-C"),
            ("oxproxy tail --json", "one JSON object per line, for a script"),
        ),
        wrong=_ASKED,
        done="done, or --follow was interrupted by Ctrl-C",
    ),
    "routes": CommandEntry(
        "show exchanges, bindings and destinations as a tree",
        "Shows the bindings of each exchange in evaluation order, with conditions, effects and destination. A running "
        "sidecar also shows client bindings and missing destinations.",
        (
            ("oxproxy routes rules/*.yaml", "routes in files"),
            ("oxproxy routes --exchange orders", "one exchange of the running sidecar"),
        ),
        no="a requested exchange or virtual host does not exist",
    ),
    "rules": CommandEntry(
        "show or compare the active rules of a running sidecar, or convert a file",
        "Prints the active rules files, with passwords masked, or compares them with files on this machine. With "
        "convert, the command prints a file with its bindings in the other spelling: readable keys such as `when`, or "
        "arguments as declared over AMQP.",
        (
            ("oxproxy rules show", "all active files"),
            ("oxproxy rules diff", "what a reload would change"),
            ("oxproxy rules diff rules/orders.yaml", "one file"),
            ("oxproxy rules convert rules/orders.yaml", "a file in the other spelling"),
        ),
        no="diff: the files differ",
        done="done; diff: the files are equal",
        wrong=_ASKED,
    ),
    "operators": CommandEntry(
        "describe the operators of bindings, with examples",
        "Describes operators, effects, permissions and filters, with examples.",
        (("oxproxy operators", "list"), ("oxproxy operators '>='", "one operator with an example")),
        no="no operator matches",
        wrong="invalid usage",
    ),
    "shadow": CommandEntry(
        "compare candidate rules with the active rules on live traffic",
        "Sends rules files to a running sidecar, which evaluates them for its live traffic in addition to its active "
        "rules. The command then prints the differences, with examples. Delivery is not affected.",
        (("oxproxy shadow rules/*.yaml --seconds 60", "compares for a minute"),),
        no="differences found",
        done="no differences",
        interrupted="",
    ),
    "report": CommandEntry(
        "create tables and pages from audit logs with Spark",
        "Reads audit logs and writes Parquet tables and HTML pages about traffic, destinations, unroutable messages, "
        "latency and bindings without a match. Requires Java and the extra `report`.",
        ((f"oxproxy report --input {_DIRECTORY} --output report --rules rules/orders.yaml", "all days"),),
        no="Spark failed",
    ),
    "backtest": CommandEntry(
        "judge candidate rules on the publishes in audit logs with Spark",
        "Evaluates rules files for the publishes in audit logs and compares the results with the recorded ones: by "
        "exchange and by destination, newly unroutable publishes first, with examples. A publish is not judged if its "
        "record lacks something that the rules test; audit.facts records it. Requires Java and the extra `report`.",
        (
            (
                f"oxproxy backtest rules/*.yaml --input {_DIRECTORY} --output report --since yesterday",
                "page and tables",
            ),
            (
                f"oxproxy backtest rules/*.yaml --input {_DIRECTORY} --format markdown --fail-over 0",
                "in a pipeline",
            ),
        ),
        no="more than --fail-over publishes are different, or Spark failed",
    ),
    "trace": CommandEntry(
        "print all audit records of one message",
        "Prints all records with the given message_id as JSON lines, including those in segments that are still being "
        "written. Segments that cannot contain the message_id are skipped.",
        ((f"oxproxy trace 4711 --input {_DIRECTORY}", "records with message_id 4711"),),
        no="no record found",
    ),
    "init": CommandEntry(
        "create a configuration, a rules file and a secret",
        "Creates a commented configuration, a rules file with a test, and a secret. Existing files are not "
        "overwritten.",
        (("oxproxy init gateway", "creates the directory gateway"),),
    ),
    "import": CommandEntry(
        "convert RabbitMQ definitions to a rules file",
        "Converts the exchanges and bindings of one virtual host in RabbitMQ definitions to a rules file. Definitions "
        "that cannot be converted exactly are reported on standard error.",
        (
            ("oxproxy import definitions.json > rules/imported.yaml", "the virtual host /"),
            ("oxproxy import - --vhost shop --exchange orders < definitions.json", "one exchange"),
        ),
        module="import_rules",
    ),
    "schema": CommandEntry(
        "print a JSON Schema of the configuration or of rules files",
        "Prints a JSON Schema (draft 2020-12) for editors. The schema accepts every file that oxproxy check accepts.",
        (("oxproxy schema rules > rules.schema.json", "schema of rules files"),),
        wrong="invalid usage",
    ),
    "cleanup": CommandEntry(
        "list or remove the objects that sidecars created on the broker",
        "Lists the carriers, bindings and exchanges that sidecars created on the broker; --yes removes them. Stop all "
        "sidecars first, except with --stale or --unused.",
        (
            ("oxproxy cleanup --config oxproxy.yaml", "lists objects"),
            ("oxproxy cleanup --config oxproxy.yaml --vhost shop --yes", "removes objects in one virtual host"),
            ("oxproxy cleanup --config oxproxy.yaml --stale --yes", "after a secret was removed from the list"),
        ),
        no="some objects could not be removed",
    ),
    "replay": CommandEntry(
        "publish parked messages again through the sidecar",
        "Takes messages from the queue of an alternate exchange or from a dead-letter queue, evaluates each with the "
        "active rules or with files, and publishes it again through the sidecar. A message is acked after its "
        "publish was confirmed, so that no message is lost. If the command is killed, at most one message, which was "
        "in flight, is delivered and remains in the queue as well. A message that would again reach no destination "
        "stays in the queue. Dead-lettered messages are published to the exchange and routing key in the first entry "
        "of x-death.",
        (
            ("oxproxy replay --queue parked --dry-run", "shows where the messages would be sent"),
            ("oxproxy replay --queue parked --dry-run --rules next.yaml", "the same with candidate rules"),
            ("oxproxy replay --queue parked --limit 10", "the first ten messages"),
            ("oxproxy replay --queue parked --match tenant=acme --rate 50", "some messages, slowly"),
        ),
        no="messages stay in the queue, or the run ended early",
        done="all matched messages were replayed; with --dry-run: would be replayed",
        wrong="invalid usage, or the queue or the sidecar can't be used",
        interrupted="interrupted by Ctrl-C or SIGTERM; no message is doubled",
    ),
    "completion": CommandEntry(
        "print a completion script for bash, zsh or fish",
        "Prints a script that completes commands, options and values.",
        (
            ("source <(oxproxy completion bash)", "in this shell, or in ~/.bashrc"),
            ("oxproxy completion zsh > ~/.zfunc/_oxproxy", "in a directory of $fpath"),
            ("oxproxy completion fish > ~/.config/fish/completions/oxproxy.fish", "for fish"),
        ),
        wrong="invalid usage",
    ),
}


def add_repeatable(parser: argparse._ActionsContainer, option: str, metavar: str, description: str) -> None:
    """Define an option that can be repeated, whose values form a list."""
    text = f"{description}; can be repeated"
    parser.add_argument(option, metavar=metavar, action="append", default=[], help=text)


class _HelpFormatter(argparse.HelpFormatter):
    """Wraps paragraphs, but leaves multi-line text (examples and exit statuses) unchanged."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return "".join(indent + line for line in text.splitlines(keepends=True))
        return super()._fill_text(text, width, indent)


class _CommandParser(argparse.ArgumentParser):
    """Accepts options between the values of a repeated positional argument, as in `check FILE --strict FILE`."""

    _intermixed = False

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        # parse_known_intermixed_args calls this method, and loses the arguments after `--`.
        if self._intermixed or "--" in (args or ()):
            return super().parse_known_args(args, namespace)
        self._intermixed = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._intermixed = False


def make_parser(loaded: Iterable[str]) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the parser of the command line, which accepts all commands, and the parsers of the loaded commands.

    Args:
        loaded: the commands whose modules are imported to define their arguments.
    """
    parser = argparse.ArgumentParser(
        prog="oxproxy",
        description="AMQP sidecar that routes messages by content.",
        epilog="oxproxy COMMAND --help describes a command, with examples and exit statuses.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=30),
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_CommandParser)
    chosen = frozenset(loaded)
    of_commands: dict[str, argparse.ArgumentParser] = {}
    for name, entry in COMMANDS.items():
        subparser = subparsers.add_parser(
            name,
            help=entry.summary,
            description=entry.description,
            epilog=_epilog(entry),
            formatter_class=_HelpFormatter,
        )
        if name in chosen:
            module = importlib.import_module(f"oxproxy.cli.{entry.module or name}")
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
            of_commands[name] = subparser
    return parser, of_commands


def _epilog(entry: CommandEntry) -> str:
    examples = [f"  {command}\n      {meaning}" for command, meaning in entry.examples]
    statuses = [f"  {status:<4} {meaning}" for status, meaning in entry.statuses]
    return "\n".join(["examples:", *examples, "", "exit status:", *statuses])
