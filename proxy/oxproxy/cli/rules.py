"""``oxproxy rules``: shows the active rules files of a running sidecar, compares them with local files, or converts
local files between the two spellings of bindings.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oxproxy.cli.admin_client import add_admin_arguments, admin_clients
from oxproxy.cli.console import (
    DONE,
    NO,
    configuration,
    print_errors,
    print_json,
    print_line,
    printable,
    read_input,
    read_settings,
)
from oxproxy.errors import ConfigError, ConfigErrors

_COLORS = {"+": "32", "-": "31", "@": "36"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", choices=("show", "diff", "convert"), help="show: print; diff: compare; convert: change the spelling"
    )
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="*",
        default=[],  # otherwise, argparse lists FILE among the missing arguments
        help="files to print, compare or convert; - for standard input; default: for show, all active files; for diff, "
        "those in the configuration",
    )
    parser.add_argument(
        "--to",
        choices=("readable", "arguments"),
        help="with convert: the new spelling; default: the one that the file does not use",
    )
    parser.set_defaults(usage_error=parser.error)
    add_admin_arguments(parser)
    parser.add_argument(
        "--json", action="store_true", help="print JSON: the response of /api/rules, or the differences"
    )


def run(options: argparse.Namespace) -> int:
    """Print the files, their differences or the converted file."""
    if options.action == "convert":
        return _convert(options)
    if options.to is not None:
        options.usage_error("--to is only allowed with convert")
    in_force: dict[str, Any] = admin_clients(options, "oxproxy rules")[0].json("/api/rules")
    return _show(in_force, options) if options.action == "show" else _diff(in_force, options)


def _convert(options: argparse.Namespace) -> int:
    from oxproxy.rules.spelling.conversion import convert

    if len(options.files) != 1:
        options.usage_error(f"convert: got {len(options.files)} files, expected one")
    name = options.files[0]
    converted = convert(name, read_input(name), options.to)
    if options.json:
        print_json({"spelling": converted.spelling, "text": converted.text, "unchanged": converted.kept})
        return DONE
    print_line(converted.text.rstrip("\n"))
    print_errors([f"{name}: converted to {converted.spelling}; comments and layout are not kept"])
    print_errors(f"{name}: {path}: unchanged, since its arguments have no readable form" for path in converted.kept)
    return DONE


def _show(in_force: Mapping[str, Any], options: argparse.Namespace) -> int:
    files = in_force["files"]
    if options.files:
        files = [_named(files, name) for name in options.files]
    if options.json:
        print_json({**in_force, "files": files})
        return DONE
    for number, file in enumerate(files):
        if len(in_force["files"]) > 1 or not options.files:
            print_line(("\n" if number else "") + f"# {printable(file['name'])}, rules {in_force['rules']}")
        print_line(printable(file["text"].rstrip("\n"), "\n\t"))
    return DONE


def _named(files: list[dict[str, str]], name: str) -> dict[str, str]:
    """Return the active file with this path, or else the only active file with the same base name."""
    exact = [file for file in files if file["name"] in (name, os.path.abspath(name))]
    matches = exact or [file for file in files if Path(file["name"]).name == Path(name).name]
    if len(matches) != 1:
        known = ", ".join(file["name"] for file in files) or "no file"
        message = f"got a file that is not active, expected one of {known}"
        raise ConfigErrors([ConfigError(name, 0, "", message)])
    return matches[0]


def _diff(in_force: Mapping[str, Any], options: argparse.Namespace) -> int:
    from oxproxy.rules.loader import rules_version
    from oxproxy.yamlfile.masking import masked

    pairs = _pairs(in_force["files"], options)
    contents = [(name, read_input(name)) for name, _ in pairs if name]
    texts = {name: data.decode(errors="replace") for name, data in contents}
    differences = []
    for name, file in pairs:
        old = [] if file is None else file["text"].splitlines()
        new = masked(texts[name]).splitlines() if name else []
        before = f"{file['name']} (active)" if file else "not active"
        lines = list(difflib.unified_diff(old, new, before, name or "not in the configuration", lineterm=""))
        if lines:
            differences.append({"file": name or (file or {}).get("name", ""), "diff": lines})
    whole = [file for _, file in pairs] == in_force["files"]
    secret = whole and not differences and rules_version(contents) != in_force["rules"]
    if options.json:
        answer = {"rules": in_force["rules"], "differences": differences, "secrets_differ": secret}
        print_json(answer)
    else:
        for difference in differences:
            for line in difference["diff"]:
                print_line(_colored(printable(line, "\t")))
        if secret:
            print_line("The files differ only in passwords, line endings or order.")
        elif not differences:
            print_line(f"The files are identical to the active files: rules {in_force['rules']}.")
    return NO if differences or secret else DONE


def _pairs(in_force: list[dict[str, str]], options: argparse.Namespace) -> list[tuple[str, dict[str, str] | None]]:
    """Return the names of files on this machine, each with the active file to compare it with.

    A name is empty if only the active file exists. The active file is None if only the file on this machine exists.
    """
    if options.files:
        if options.files == ["-"] and len(in_force) == 1:
            return [("-", in_force[0])]
        return [(name, _named(in_force, name)) for name in options.files]
    config = configuration(options.config)
    if config is None:
        return [(file["name"], file) for file in in_force]
    from oxproxy.config.loader import rules_files

    names = [str(path) for path in rules_files(read_settings(config))]
    left = {os.path.abspath(file["name"]): file for file in in_force}
    pairs = {name: left.pop(os.path.abspath(name), None) for name in names}
    # The sidecar's names are relative to its working directory, which may differ from that of this command. Files whose
    # paths do not match are compared if their base name is unambiguous.
    unpaired = [name for name, file in pairs.items() if file is None]
    for name in unpaired:
        base = Path(name).name
        matches = [path for path in left if Path(path).name == base]
        if len(matches) == 1 and sum(Path(other).name == base for other in unpaired) == 1:
            pairs[name] = left.pop(matches[0])
    return [*pairs.items(), *(("", file) for file in left.values())]


def _colored(line: str) -> str:
    color = _COLORS.get(line[:1])
    if color is None or not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return line
    return f"\x1b[{color}m{line}\x1b[0m"
