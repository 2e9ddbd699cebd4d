"""Tests the help, shell completion and man page of every command."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from deploy.manual import MAN
from oxproxy.cli.commands import COMMANDS, make_parser
from tests.sidecar import oxproxy, oxproxy_here

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, **environment: str) -> tuple[int, str, str]:
    done = oxproxy_here(*arguments, **environment)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_description_examples_and_exit_statuses(name: str) -> None:
    status, out, _ = run(name, "--help", COLUMNS="80")
    assert status == 0
    entry = COMMANDS[name]
    flat = re.sub(r"\s+", "", out)
    assert re.sub(r"\s+", "", entry.description) in flat
    for command, meaning in entry.examples:
        assert f"\n  {command}\n      {meaning}\n" in out
    assert re.search(r"^exit status:\n(  \d+ +\S.*\n)+\Z", out, re.MULTILINE)
    before, _, _ = out.partition("examples:")
    assert max(map(len, before.splitlines())) <= 80


@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_is_accepted_by_the_command_line(name: str) -> None:
    parser, _ = make_parser([name])
    for command, _ in COMMANDS[name].examples:
        inner = re.search(r"<\((.*)\)", command)
        arguments = shlex.split(re.split(" [<>] ", inner[1] if inner else command)[0])
        assert arguments[:2] == ["oxproxy", name]
        assert isinstance(parser.parse_args(arguments[1:]), argparse.Namespace)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_help_text(name: str) -> None:
    _, parsers = make_parser([name])
    assert [action.dest for action in parsers[name]._actions if not action.help] == []


#: Commands whose output is machine-readable, or that print nothing.
WITHOUT_JSON = {"serve", "trace", "import", "schema", "completion"}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_other_command_has_the_option_json(name: str) -> None:
    _, parsers = make_parser([name])
    assert ("--json" in parsers[name]._option_string_actions) is (name not in WITHOUT_JSON)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_file_argument_accepts_standard_input(name: str) -> None:
    _, parsers = make_parser([name])
    taking = [action for action in parsers[name]._actions if action.metavar in ("FILE", "RULES")]
    assert [action.dest for action in taking if "- for standard input" not in str(action.help)] == []


def test_every_command_is_listed_with_its_summary() -> None:
    status, out, _ = run("--help", COLUMNS="200")
    assert status == 0
    for name, entry in COMMANDS.items():
        assert re.search(rf"^    {name}\s+{re.escape(entry.summary[:60])}", out, re.MULTILINE)


@cache
def completion_script(shell: str) -> str:
    return oxproxy("completion", shell, check=True).stdout


def completed(*arguments: str, at: Path = ROOT) -> list[str]:
    """Return the completions that bash offers for the last word."""
    line = " ".join(shlex.quote(word) for word in arguments)
    printing = 'printf "%s\\n" "${COMPREPLY[@]}"'
    program = f"{completion_script('bash')}\nCOMP_WORDS=({line}); COMP_CWORD={len(arguments) - 1}; _oxproxy; {printing}"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True, cwd=at)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands_options_values_and_files(tmp_path: Path) -> None:
    (tmp_path / "orders.yaml").touch()
    assert completed("oxproxy", "ru") == ["rules"]
    assert completed("oxproxy", "explain", "--he") == ["--help", "--header"]
    assert completed("oxproxy", "completion", "") == ["bash", "zsh", "fish"]
    assert completed("oxproxy", "rules", "", at=tmp_path) == ["show", "diff", "convert"]
    assert completed("oxproxy", "rules", "d", at=tmp_path) == ["diff"]
    assert completed("oxproxy", "rules", "diff", "ord", at=tmp_path) == ["orders.yaml"]
    assert completed("oxproxy", "operators", "x-?hkv>") == [r"x-\?hkv\>", r"x-\?hkv\>="]
    assert "x-match:" not in completed("oxproxy", "operators", "")
    assert completed("oxproxy", "operators", "shar") == ["share"]
    assert completed("oxproxy", "check", "ord", at=tmp_path) == ["orders.yaml"]
    assert completed("oxproxy", "explain", "--rules", "ord", at=tmp_path) == ["orders.yaml"]
    assert completed("oxproxy", "explain", "--exchange", "ord", at=tmp_path) == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_zsh_and_fish_offer_operators_as_quoted_words(shell: str) -> None:
    _, script, _ = run("completion", shell)
    assert re.search(r'[( ]"x-\?hkv<" "x-\?hkv<="', script)  # both shells evaluate the words
    assert not re.search(r"[('] ?NAME ", script)


def completed_by_fish(folder: Path, line: str) -> dict[str, str]:
    """Return the completions of the last word that fish offers, and their descriptions."""
    (folder / "oxproxy.fish").write_text(completion_script("fish"))
    command = ["fish", "--no-config", "--command", f"source oxproxy.fish; complete --do-complete '{line}'"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    assert done.stderr == ""
    offered = [each.partition("\t") for each in done.stdout.splitlines()]
    return {word: text for word, _, text in offered}


@pytest.mark.matrix
def test_fish_completes_commands_options_values_and_files(tmp_path: Path) -> None:
    (tmp_path / "orders.yaml").touch()
    assert completed_by_fish(tmp_path, "oxproxy ru").keys() == {"rules"}
    text = "output format; default: text, with errors on standard error"
    assert completed_by_fish(tmp_path, "oxproxy check --fo") == {"--format": text}
    assert completed_by_fish(tmp_path, "oxproxy check --format ").keys() == {"text", "json", "github", "junit", "sarif"}
    assert completed_by_fish(tmp_path, "oxproxy check ord").keys() == {"orders.yaml"}
    assert completed_by_fish(tmp_path, "oxproxy check --values ord").keys() == {"orders.yaml"}
    assert {"x-?hkv<", "x-?hkv>="} <= completed_by_fish(tmp_path, "oxproxy operators x-").keys()
    assert completed_by_fish(tmp_path, "oxproxy operators shar").keys() == {"share"}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_of_zsh_and_fish_contains_every_command_and_option(shell: str) -> None:
    status, script, _ = run("completion", shell)
    assert status == 0
    _, parsers = make_parser(COMMANDS)
    for name, parser in parsers.items():
        assert re.search(rf"(?m)(^ +{name}\)$|_from {name}'| -a {name} )", script)
        for option, action in parser._option_string_actions.items():
            shown = option if shell == "zsh" else f"-l {option.removeprefix('--')}"
            assert not option.startswith("--") or action.help == argparse.SUPPRESS or shown in script
    if shell == "zsh":  # all quotes are closed
        assert script.replace(r"'\''", "").count("'") % 2 == 0


def test_the_man_page_has_every_command_and_is_well_formed() -> None:
    page = MAN.read_text()
    assert all(f".SS oxproxy {name}".replace("-", "\\-") in page for name in COMMANDS)
    groff = shutil.which("groff")
    if groff is not None:  # if man pages can be formatted here
        done = subprocess.run([groff, "-man", "-ww", "-z", str(MAN)], capture_output=True, text=True, check=True)
        assert done.stderr == ""


@pytest.mark.parametrize("name", ["x-?hkv>=", "hkv>=", "x-?hkv>= amount", "x-addq-ontrue", "set 2", "x-match"])
def test_an_operator_is_found_by_its_key(name: str) -> None:
    status, out, err = run("operators", *name.split())
    assert (status, err) == (0, "")
    assert "arguments: {" in out
    assert name.split()[0].removeprefix("x-match") in out


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("amount >=", "NAME >="),
        ("country in", "NAME in"),
        ("tenant exists", "NAME exists: true"),
        ("property priority >", "property NAME >"),
        ("key topic", "key topic"),
        ("add queue", "then: add queue"),
    ],
)
def test_an_operator_is_found_by_a_condition_as_it_is_written(written: str, key: str) -> None:
    status, out, err = run("operators", written)
    assert (status, err) == (0, "")
    assert key in out.splitlines()[0]


def test_an_unknown_operator_is_answered_with_similar_ones() -> None:
    status, out, err = run("operators", "x-?hvk=")
    assert (status, out) == (1, "")
    assert err == 'no operator is named "x-?hvk="; did you mean x-?hkv=, x-?hkv>=, x-?hkv<=?\n'


def test_operators_are_printed_as_json_and_for_narrow_terminals() -> None:
    status, out, _ = run("operators", "--json")
    assert status == 0
    (entry,) = [operator for operator in json.loads(out) if "x-stop-ontrue" in operator["keys"]]
    assert entry["meaning"] == "The binding ends the evaluation of the exchange."
    status, out, _ = run("operators", COLUMNS="60")
    assert max(map(len, out.splitlines())) <= 60
