"""Generates docs/reference/cli.md and the man page from the commands and the arguments that they define.

Source: man(7), groff_man(7).
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from oxproxy.cli.commands import COMMANDS, CommandEntry, make_parser

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE, MAN = DOCS / "reference" / "cli.md", DOCS / "oxproxy.1"
#: The page describes an argument or an exit status once if at least this many commands have it.
_COMMON = 4
_MARK = "<!-- The rest is made by `python -m deploy.reference`. -->\n"


def manuals() -> dict[Path, str]:
    """Return both files with their texts."""
    _, parsers = make_parser(COMMANDS)
    before, mark, _ = PAGE.read_text().partition(_MARK)
    return {PAGE: before + mark + _markdown(parsers), MAN: _man(parsers)}


def _actions(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Yield the syntax and the description of each argument."""
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or "--help" in action.option_strings:
            continue
        values = "|".join(map(str, action.choices or ()))
        value = action.metavar if isinstance(action.metavar, str) else values
        names = ", ".join(action.option_strings)
        written = f"{names} {value}" if names and action.nargs != 0 else names or value
        yield written.strip(), (action.help or "").replace("%(default)s", str(action.default))


def _synopsis(name: str, parser: argparse.ArgumentParser) -> str:
    parts = [f"oxproxy {name}"]
    for action in parser._actions:
        if action.help == argparse.SUPPRESS or not action.option_strings:
            continue
        if action.required:
            parts.append(f"{action.option_strings[-1]} {action.metavar}")
    parts.append("[OPTION]...")
    for action in parser._actions:
        if not action.option_strings:
            value = action.metavar if isinstance(action.metavar, str) else "|".join(map(str, action.choices or ()))
            parts.append({"*": f"[{value}]...", "+": f"{value}..."}.get(str(action.nargs), value))
    return " ".join(parts)


def _markdown(parsers: Mapping[str, argparse.ArgumentParser]) -> str:
    uses = Counter(argument for parser in parsers.values() for argument in _actions(parser))
    common = [argument for argument, commands in uses.items() if commands >= _COMMON]
    ends = Counter(status for entry in COMMANDS.values() for status in entry.statuses if status[0] > 1)
    usual = [status for status, commands in ends.items() if commands >= _COMMON]
    parts = [
        "\n## Common options and exit statuses\n\n| option or exit status | meaning |\n|---|---|\n",
        *(_row(str(name), text) + "\n" for name, text in common),
        *(_row(_status(status, ends), status[1]) + "\n" for status in sorted(usual)),
    ]
    for name, entry in COMMANDS.items():
        parser = parsers[name]
        lines = [f"\n## oxproxy {name}\n", f"    {_synopsis(name, parser)}\n", f"{entry.description}\n"]
        arguments = list(_actions(parser))
        rows = [_row(*argument) for argument in arguments if argument not in common]
        lines += ["| argument | meaning |", "|---|---|", *rows, ""] if rows else []
        shared = ", ".join(f"`{written.split()[0]}`" for written, _ in arguments if (written, _) in common)
        lines += [f"[Common options](#common-options-and-exit-statuses): {shared}.\n"] if shared else []
        lines += [f"    {command:<{_width(entry)}}    # {meaning}" for command, meaning in entry.examples]
        statuses = " · ".join(
            f"{status}: {meaning}" for status, meaning in entry.statuses if (status, meaning) not in usual
        )
        parts.append("\n".join([*lines, "", f"Exit status: {statuses}.", ""]))
    return "".join(parts)


def _status(status: tuple[int, str], ends: Counter[tuple[int, str]]) -> str:
    """Return the number of the status, and its commands if the number has a different meaning for most commands."""
    number, _ = status
    if max((other for other in ends if other[0] == number), key=ends.__getitem__) == status:
        return str(number)
    return f"{number} ({', '.join(name for name, entry in COMMANDS.items() if status in entry.statuses)})"


def _row(written: str, text: str) -> str:
    return f"| `{_cell(written)}` | {_cell(text)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _width(entry: CommandEntry) -> int:
    return max(len(command) for command, _ in entry.examples)


def _man(parsers: Mapping[str, argparse.ArgumentParser]) -> str:
    lines = [
        '.\\" Made by python -m deploy.reference.',
        '.TH OXPROXY 1 "" oxproxy "User Commands"',
        ".SH NAME",
        "oxproxy \\- AMQP sidecar that routes messages by content",
        ".SH SYNOPSIS",
        ".B oxproxy",
        ".I COMMAND",
        "[\\fIOPTION\\fR]...",
        ".SH DESCRIPTION",
        "oxproxy is a proxy between producers and RabbitMQ and routes messages by rules in YAML files.",
        "Where a command takes a file, \\- is standard input.",
        "NO_COLOR in the environment turns colors off, COLUMNS sets the width of output.",
        ".SH COMMANDS",
    ]
    for name, entry in COMMANDS.items():
        lines += [f".SS {_roff(_synopsis(name, parsers[name]))}", _roff(entry.description)]
        for written, text in _actions(parsers[name]):
            lines += [".TP", f".B {_roff(written)}", _roff(text)]
        lines += [".PP", "Examples:"]
        for command, meaning in entry.examples:
            lines += [".TP", f".B {_roff(command)}", _roff(meaning)]
        lines += [".PP", "Exit status:"]
        for status, meaning in entry.statuses:
            lines += [".TP", str(status), _roff(meaning)]
    lines += [".SH FILES", ".TP", "oxproxy.yaml, /etc/oxproxy/oxproxy.yaml"]
    lines += [
        "The configuration from which commands read the admin address unless \\-\\-config or \\-\\-admin is given."
    ]
    return "\n".join(lines) + "\n"


def _roff(text: str) -> str:
    text = (
        text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga").replace("~", "\\(ti")
    )
    text = text.replace('"', "\\(dq").replace("^", "\\(ha")
    return f"\\&{text}" if text.startswith(".") else text
