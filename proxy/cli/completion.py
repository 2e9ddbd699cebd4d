"""``oxproxy completion``: completion scripts for bash, zsh and fish, generated from the arguments of the commands."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from proxy.cli.commands import COMMANDS, make_parser
from proxy.cli.console import DONE, print_line

_FILES = frozenset({"FILE", "DIR", "RULES", "DEFINITIONS"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="shell")


def run(options: argparse.Namespace) -> int:
    _, parsers = make_parser(COMMANDS)
    print_line({"bash": _bash, "zsh": _zsh, "fish": _fish}[options.shell](parsers))
    return DONE


@dataclass(frozen=True, slots=True)
class ArgumentHelp:
    """Data about an argument for a shell.

    Args:
        names: names of an option; empty for a positional argument.
        help: its description.
        values: its values, if they are a closed set.
        takes_value: whether a value follows.
        takes_file: whether the value is a file.
    """

    names: tuple[str, ...]
    help: str
    values: tuple[str, ...]
    takes_value: bool
    takes_file: bool


def listed(parser: argparse.ArgumentParser) -> Iterator[ArgumentHelp]:
    for action in parser._actions:  # argparse has no public way to list the arguments
        if action.help == argparse.SUPPRESS:
            continue
        names = tuple(name for name in action.option_strings if name.startswith("--"))
        values = tuple(map(str, action.choices or ()))
        takes_value = action.nargs != 0
        text = (action.help or "").replace("%(default)s", str(action.default))
        yield ArgumentHelp(names, text, values, takes_value, takes_value and action.metavar in _FILES)


def _words(text: str) -> str:
    return text.replace("'", "").replace("[", "(").replace("]", ")").replace(":", " ")


def _bash(parsers: Mapping[str, argparse.ArgumentParser]) -> str:
    cases = []
    for name, parser in parsers.items():
        arguments = list(listed(parser))
        for argument in arguments:
            if argument.takes_value:
                values = " ".join(argument.values)
                kind = f'words="{values}"' if values else "files=1" if argument.takes_file else "none=1"
                cases += [f"        {name}:{option}) {kind} ;;" for option in argument.names]
        options = " ".join(option for argument in arguments for option in argument.names)
        plain = [argument for argument in arguments if not argument.names]
        values = " ".join(value for argument in plain for value in argument.values)
        files = " files=1" if any(argument.takes_file for argument in plain) else ""
        cases.append(f'        {name}:*) words="{options} {values}"{files} ;;')
    body = "\n".join(cases)
    return f"""\
# bash completion for oxproxy; made by `oxproxy completion bash`
_oxproxy() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" words="" files="" none=""
    COMPREPLY=()
    if [[ $COMP_CWORD -eq 1 ]]; then
        COMPREPLY=($(compgen -W "{" ".join(parsers)} --help --version" -- "$current"))
        return
    fi
    case "${{COMP_WORDS[1]}}:$previous" in
{body}
    esac
    [[ -n $none ]] && return
    [[ -n $words ]] && COMPREPLY=($(compgen -W "$words" -- "$current"))
    if [[ -n $files && $current != -* ]]; then
        compopt -o filenames 2>/dev/null
        while IFS= read -r file; do COMPREPLY+=("$file"); done < <(compgen -f -- "$current")
    fi
}}
complete -F _oxproxy oxproxy"""


def _zsh(parsers: Mapping[str, argparse.ArgumentParser]) -> str:
    commands = "\n".join(f"        '{name}:{_words(COMMANDS[name].summary)}'" for name in parsers)
    cases = []
    for name, parser in parsers.items():
        specs = " \\\n                ".join(f"'{spec}'" for spec in _zsh_specs(parser))
        cases.append(f"            {name})\n                _arguments {specs} ;;")
    body = "\n".join(cases)
    return f"""\
#compdef oxproxy
# zsh completion for oxproxy; made by `oxproxy completion zsh`
_oxproxy() {{
    local -a commands
    commands=(
{commands}
    )
    local state
    _arguments -C '1: :->command' '*:: :->arguments'
    case $state in
        command) _describe command commands ;;
        arguments)
            case $words[1] in
{body}
            esac ;;
    esac
}}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _oxproxy "$@"; else compdef _oxproxy oxproxy; fi"""


def _zsh_specs(parser: argparse.ArgumentParser) -> Iterator[str]:
    for argument in listed(parser):
        values = f"({' '.join(argument.values)})" if argument.values else "_files" if argument.takes_file else " "
        for option in argument.names:
            yield f"*{option}[{_words(argument.help)}]" + (f":value:{values}" if argument.takes_value else "")
        if not argument.names and argument.takes_value:
            yield f"*:{_words(argument.help)}:{values}"


def _fish(parsers: Mapping[str, argparse.ArgumentParser]) -> str:
    lines = ["# fish completion for oxproxy; made by `oxproxy completion fish`", "complete -c oxproxy -f"]
    for name, parser in parsers.items():
        summary = _words(COMMANDS[name].summary)
        lines.append(f"complete -c oxproxy -n __fish_use_subcommand -a {name} -d '{summary}'")
        begin = f"complete -c oxproxy -n '__fish_seen_subcommand_from {name}'"
        for argument in listed(parser):
            about = f" -d '{_words(argument.help)}'"
            values = f" -a '{' '.join(argument.values)}'" if argument.values else ""
            force = " -F" if argument.takes_file else ""
            if argument.names:
                needs = (" -r" if argument.takes_value else "") + force + values
                lines += [f"{begin} -l {option.removeprefix('--')}{needs}{about}" for option in argument.names]
            elif values or force:
                lines.append(f"{begin}{force}{values}{about}")
    return "\n".join(lines)
