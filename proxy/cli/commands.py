"""Every command: its module, what it does, examples and exit statuses.

``--help``, the shell completion, the man page and docs/reference/cli.md are made of this table and of the arguments
that the modules define. It imports no module of a command; `load` imports one.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, cast

_INPUT = "wrong usage, configuration or rules; standard error has every fault"


class CommandModule(Protocol):
    """The module of a command."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, options: argparse.Namespace) -> int:
        """Run the command and return the exit status."""


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One command.

    Args:
        summary: what it does, in a line.
        description: the same at length.
        examples: lines to type, and what each does.
        no: when the exit status is 1; empty: never.
        done: when it is 0.
        wrong: when it is 2.
        module: its module in this package, where it has another name.
        interrupted: when it is 130; empty: never.
        more: further exit statuses.
    """

    summary: str
    description: str
    examples: tuple[tuple[str, str], ...]
    no: str = ""
    done: str = "done"
    wrong: str = _INPUT
    module: str = ""
    interrupted: str = "ended by Ctrl-C"
    more: tuple[tuple[int, str], ...] = ()

    @property
    def statuses(self) -> tuple[tuple[int, str], ...]:
        """Exit statuses and their meanings."""
        listed = [(0, self.done), (1, self.no), (2, self.wrong), (130, self.interrupted), *self.more]
        return tuple((status, meaning) for status, meaning in listed if meaning)


_ASKED = "the sidecar can't be asked, or wrong usage"
_DIRECTORY = "/var/lib/oxproxy/audit"

COMMANDS = {
    "serve": CommandEntry(
        "run the sidecar until SIGTERM",
        "Runs the sidecar: reads configuration and rules, declares on the broker what the rules need, lets producers "
        "in, and drains at SIGTERM or SIGINT. SIGHUP reloads the rules; changed rules files are noticed without it.",
        (("oxproxy serve --config oxproxy.yaml", "until Ctrl-C"),),
        no="ended by an error of its own",
        done="drained",
        wrong="wrong configuration or rules, or refused by the broker",
        interrupted="",
        more=((143, "ended by a second signal before it had drained"),),
    ),
    "check": CommandEntry(
        "check configuration and rules files and run the tests they carry",
        "Reads configuration and rules files as a sidecar would at its start, reports every fault with file, line and "
        "column, warns of what has no effect, and runs the tests of the rules files. A test that fails is "
        "followed by the walk of its message. --broker also asks a broker, and prints what a start would change there "
        "and which permissions the control user lacks; what could not be asked is an error.",
        (
            ("oxproxy check oxproxy.yaml", "the configuration and the rules that it names"),
            ("oxproxy check rules/*.yaml", "rules files alone, as one set"),
            ("oxproxy check --strict --fail-under 90 --format junit oxproxy.yaml > report.xml", "in a pipeline"),
            (
                "oxproxy check --broker http://guest:guest@127.0.0.1:15672 oxproxy.yaml",
                "what the broker would refuse, and the plan",
            ),
        ),
        no="a test fails; with --strict, there is a warning; tests make fewer bindings true than --fail-under requires",
        done="a sidecar would start with these files",
    ),
    "explain": CommandEntry(
        "why one message goes where it goes",
        "Shows for one message which bindings it visits, what their conditions saw, and which queues it reaches. "
        "--rules evaluates files; without it a running sidecar answers, including what clients declared. "
        "The message comes from --message or from the options --exchange, --key, --header and so on. A header is "
        "NAME=VALUE, a string, or NAME:TYPE=VALUE with a type of "
        "string, int, int8 to int64, uint8 to uint32, float, float32, bool, null, timestamp, bytes (hexadecimal) or "
        "yaml.",
        (
            (
                "oxproxy explain --rules rules/orders.yaml --exchange orders --header amount:int=2000",
                "by files, without a sidecar",
            ),
            ("oxproxy explain --exchange orders --key a.b --header amount=2000", "by the running sidecar"),
            ("oxproxy explain --rules rules/orders.yaml --message - --expect orders.big < message.yaml", "in a script"),
        ),
        no="an expected queue is not reached, no rule of the address table applies, or workers answer differently",
    ),
    "status": CommandEntry(
        "whether a running sidecar is ready, and what is wrong",
        "Asks a running sidecar for its state: ready or why not, rules in force, last reload, connections, missing "
        "destinations, other brokers.",
        (
            ("oxproxy status", "the sidecar of ./oxproxy.yaml or /etc/oxproxy/oxproxy.yaml"),
            ("oxproxy status --admin http://127.0.0.1:15693 --json", "what /status answers"),
        ),
        no="it, or one of its workers, is not ready",
        done="it is ready",
        wrong=_ASKED,
    ),
    "top": CommandEntry(
        "live rates of a running sidecar by exchange, binding and destination",
        "Reads the metrics of a running sidecar every few seconds and shows publishes, matches of bindings and "
        "publishes to destinations in a second, the busiest first. In a terminal it redraws until Ctrl-C; elsewhere "
        "it writes one table for each interval.",
        (
            ("oxproxy top", "until Ctrl-C"),
            ("oxproxy top --interval 10 --count 1 --json", "the rates of ten seconds, for a script"),
        ),
        wrong=_ASKED,
        done="done, or ended by Ctrl-C",
        interrupted="ended by Ctrl-C before the first table",
    ),
    "tail": CommandEntry(
        "the last publishes that were unroutable, rejected, nacked or returned",
        "Prints what a running sidecar has kept of its last 200 failed publishes: exchange, routing key, size, reason "
        "and the names of headers; values only of headers that audit.headers allows. Publishes that reach no queue "
        "are kept while somebody looks: from the first call on, until five minutes after the last.",
        (
            ("oxproxy tail --follow", "until Ctrl-C"),
            ("oxproxy tail --json", "one JSON object in a line for each, for a script"),
        ),
        wrong=_ASKED,
        done="done; with --follow, ended by Ctrl-C",
    ),
    "routes": CommandEntry(
        "exchanges, bindings and destinations as a tree",
        "Shows for each exchange its bindings in the order in which they are visited, with conditions, effects and "
        "destination. With FILE it reads rules files, or the configuration that names them; without, it asks a running "
        "sidecar, which also knows what clients have bound and which destinations are missing.",
        (
            ("oxproxy routes rules/*.yaml", "by files"),
            ("oxproxy routes --exchange orders", "by the running sidecar, one exchange"),
        ),
    ),
    "rules": CommandEntry(
        "the rules files in force in a running sidecar, and how they differ from files",
        "show: prints the rules files as the sidecar read them, with passwords masked. diff: compares them with files "
        "on this machine, by default those of the configuration: what a reload would change.",
        (
            ("oxproxy rules show", "all files in force"),
            ("oxproxy rules diff", "what a reload would change"),
            ("oxproxy rules diff rules/orders.yaml", "one file"),
        ),
        no="diff: they differ",
        done="show: done; diff: they are the same",
        wrong=_ASKED,
    ),
    "operators": CommandEntry(
        "what the operators of a binding mean, with examples",
        "Prints the meaning of an operator, effect, permission or filter, with an example; without NAME all of them in "
        "short. NAME is a key or a part of one.",
        (("oxproxy operators", "all, in short"), ("oxproxy operators 'x-?hkv>='", "one, with an example")),
        no="no operator has such a name",
        wrong="wrong usage",
    ),
    "shadow": CommandEntry(
        "where other rules would send live traffic otherwise; changes nothing",
        "Brings rules files to a running sidecar, which evaluates them for its live traffic in addition to its own, "
        "and prints which messages would go elsewhere. Nothing is sent by them.",
        (("oxproxy shadow rules/*.yaml --seconds 60", "compare for a minute"),),
        no="messages would go elsewhere",
        done="no message would go elsewhere",
        interrupted="",
    ),
    "report": CommandEntry(
        "tables and a page on audit logs, made with Spark",
        "Reads audit logs and writes Parquet tables and a page: traffic, destinations, unroutable messages, latency, "
        "bindings that match nothing. Needs Java and the extra report.",
        ((f"oxproxy report --input {_DIRECTORY} --output report --rules rules/orders.yaml", "all days"),),
        no="Spark failed",
    ),
    "trace": CommandEntry(
        "every record of one message in audit logs",
        "Prints the records of one message, by its message_id, as JSON lines. Only segments that can hold it are read.",
        ((f"oxproxy trace 4711 --input {_DIRECTORY}", "every record with message_id 4711"),),
        no="there is no record of it",
    ),
    "init": CommandEntry(
        "write a configuration, a rules file and a secret to begin with",
        "Writes a commented configuration, a rules file with a test, and a secret. Nothing that is there is "
        "overwritten.",
        (("oxproxy init gateway", "into the new directory gateway"),),
    ),
    "import": CommandEntry(
        "write a rules file from rabbitmqctl export_definitions",
        "Reads definitions of RabbitMQ and writes a rules file with the exchanges and bindings of one virtual host; "
        "what cannot be converted unchanged is reported on standard error.",
        (
            ("oxproxy import definitions.json > rules/imported.yaml", "the virtual host /"),
            ("oxproxy import - --vhost shop --exchange orders < definitions.json", "one exchange"),
        ),
        module="import_rules",
    ),
    "schema": CommandEntry(
        "print the JSON Schema of the configuration or of rules files, for editors",
        "Prints a JSON Schema (draft 2020-12) for editors. It accepts more than oxproxy check, never less.",
        (("oxproxy schema rules > rules.schema.json", "for rules files"),),
        wrong="wrong usage",
    ),
    "cleanup": CommandEntry(
        "list, and remove, everything that sidecars made on the broker",
        "Lists the carriers, bindings and exchanges that sidecars made on the broker; --yes removes them. Stop every "
        "sidecar first.",
        (
            ("oxproxy cleanup --config oxproxy.yaml", "list"),
            ("oxproxy cleanup --config oxproxy.yaml --vhost shop --yes", "remove from one virtual host"),
        ),
        no="something had to stay",
    ),
    "adopt": CommandEntry(
        "sign what earlier versions, or a previous secret, left on the broker for clients",
        "Lists the bindings of clients that the current secret did not sign, and signs them.",
        (
            ("oxproxy adopt --config oxproxy.yaml --dry-run", "list"),
            ("oxproxy adopt --config oxproxy.yaml --finish", "sign, and end the transition"),
        ),
        no="something is left",
    ),
    "completion": CommandEntry(
        "print a completion script for bash, zsh or fish",
        "Prints a script that completes commands, options and their values in a shell.",
        (
            ("source <(oxproxy completion bash)", "in this shell; in ~/.bashrc for all"),
            ("oxproxy completion zsh > ~/.zfunc/_oxproxy", "a directory of $fpath"),
            ("oxproxy completion fish > ~/.config/fish/completions/oxproxy.fish", "for fish"),
        ),
        wrong="wrong usage",
    ),
}


def load(name: str) -> CommandModule:
    """Import the module of a command."""
    return cast("CommandModule", importlib.import_module(f"proxy.cli.{COMMANDS[name].module or name}"))


class _HelpFormatter(argparse.HelpFormatter):
    """Fills paragraphs, but leaves text of several lines as it is: examples and exit statuses."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return "".join(indent + line for line in text.splitlines(keepends=True))
        return super()._fill_text(text, width, indent)


def make_parser(loaded: Iterable[str]) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Make a parser that knows the names of all commands, and the arguments of some.

    Args:
        loaded: the commands whose modules are imported.

    Returns:
        The parser, and that of each command that was loaded.
    """
    parser = argparse.ArgumentParser(
        prog="oxproxy",
        description="AMQP sidecar that routes messages by content.",
        epilog="oxproxy COMMAND --help describes a command, with examples and exit statuses.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=30),
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    chosen = frozenset(loaded)
    of_commands = {}
    for name, entry in COMMANDS.items():
        subparser = subparsers.add_parser(
            name,
            help=entry.summary,
            description=entry.description,
            epilog=_epilog(entry),
            formatter_class=_HelpFormatter,
        )
        if name in chosen:
            module = load(name)
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
            of_commands[name] = subparser
    return parser, of_commands


def _epilog(entry: CommandEntry) -> str:
    examples = [f"  {command}\n      {meaning}" for command, meaning in entry.examples]
    statuses = [f"  {status:<4} {meaning}" for status, meaning in entry.statuses]
    return "\n".join(["examples:", *examples, "", "exit status:", *statuses])
