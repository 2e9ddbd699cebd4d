"""``oxproxy operators``: describes the operators of bindings, with examples."""

from __future__ import annotations

import argparse
import difflib
import re
import textwrap

from oxproxy.cli.console import DONE, NO, output_width, print_errors, print_json, print_line
from oxproxy.rules.operator_reference import MATCH_TYPES, SECTIONS, OperatorEntry, OperatorSection
from oxproxy.rules.spelling.lines import documented_key

_NAME = " NAME"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", nargs="*", help="operator such as '>=' or 'x-?hkv>=', or part of one; default: all"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print a summary of all operators, or details of the operators that match."""
    text = " ".join(options.name)
    selected = _selected(text)
    if options.json:
        print_json([_as_json(*entry) for entry in selected])
    elif text and selected:
        print_line("\n\n".join(_at_length(*entry) for entry in selected))
    elif selected:
        _print_all()
    if selected:
        return DONE
    keys = [key for section in SECTIONS for entry in section.entries for key in entry.keys]
    keys += [form for section in SECTIONS for entry in section.entries for form in entry.readable]
    close = difflib.get_close_matches(text, [key.removesuffix(_NAME).removeprefix("NAME ") for key in keys], 3, 0.5)
    print_errors([f'no operator is named "{text}"' + (f"; did you mean {', '.join(close)}?" if close else "")])
    return NO


def _selected(text: str) -> list[tuple[OperatorSection, OperatorEntry]]:
    """Return the entries that have the key `text` or, if there are none, those whose keys or meaning contain `text`."""
    pairs = [(section, entry) for section in SECTIONS for entry in section.entries]
    if not text:
        return pairs
    if text == "x-match":
        return [(MATCH_TYPES, entry) for entry in MATCH_TYPES.entries]
    named = text.removeprefix("x-match: ")
    exact = [pair for pair in pairs if any(_is_key(key, named) for key in pair[1].keys)]
    if exact:
        return exact
    exact = [pair for pair in pairs if any(_is_readable(form, text) for form in pair[1].readable)]
    if exact:
        return exact
    filled = documented_key(text)
    if filled and filled != text:
        return _selected(filled)
    spelled = [(pair, (*pair[1].keys, *pair[1].readable)) for pair in pairs]
    return [pair for pair, keys in spelled if any(text in key for key in keys) or text in pair[1].meaning]


def _is_key(key: str, text: str) -> bool:
    """Return True if a string is a documented key, possibly with the name of a header or property filled in."""
    if key.endswith(_NAME):
        return text.partition(" ")[0] == key.removesuffix(_NAME)
    return text == key or (key == "set N" and re.fullmatch("set -?[0-9]+", text) is not None)


def _is_readable(form: str, text: str) -> bool:
    """Return True if a string is the readable form of a key, or its operator or effect alone."""
    words = form.partition(": ")[2] if form.startswith(("then:", "else:")) else form.partition(": ")[0]
    return text in (form, words, words.removeprefix("NAME ").removeprefix("property NAME ").removeprefix("key "))


def _as_json(section: OperatorSection, entry: OperatorEntry) -> dict[str, object]:
    return {
        "section": section.title,
        "keys": list(entry.keys),
        "readable": list(entry.readable),
        "value": _without_markup(entry.value) or None,
        "meaning": _sentence(section, entry),
        "example": entry.example,
        "readable_example": entry.readable_example or None,
        "argument_of": "exchange" if section.of_exchange else "binding",
    }


def _sentence(section: OperatorSection, entry: OperatorEntry) -> str:
    return _without_markup(f"{section.lead} {entry.meaning}.")


def _without_markup(text: str) -> str:
    """Remove code markup."""
    return text.replace("`", "")


def _at_length(section: OperatorSection, entry: OperatorEntry) -> str:
    width = output_width()
    lines = _wrapped_keys(entry, width)
    lines.append(f"  {section.title.lower()}" + (f"; value: {_without_markup(entry.value)}" if entry.value else ""))
    lines += textwrap.wrap(
        _sentence(section, entry), width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )
    readable = [f"  {entry.readable_example}"] if entry.readable_example else []
    return "\n".join([*lines, "", *readable, f"  arguments: {{{entry.example}}}"])


def _wrapped_keys(entry: OperatorEntry, width: int) -> list[str]:
    """Break the list of keys into lines, but never within a key."""
    forms = (entry.readable, entry.keys) if entry.readable else (entry.keys,)
    lines: list[str] = []
    for keys in forms:
        joined = ", ".join(key.replace(" ", "\N{NO-BREAK SPACE}") for key in keys)
        lines += textwrap.wrap(joined, width, subsequent_indent="  ", break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _print_all() -> None:
    width = output_width()
    for number, section in enumerate(SECTIONS):
        head = textwrap.fill(f"{section.title} ({section.lead} ...)", width)
        print_line(("\n" if number else "") + head)
        for entry in section.entries:
            print_line("\n".join(f"  {line}" for line in _wrapped_keys(entry, width - 2)))
            meaning = textwrap.wrap(_without_markup(entry.meaning), width - 6, break_on_hyphens=False)
            print_line("\n".join(f"      {line}" for line in meaning))
    print_line("\nDetails with an example: oxproxy operators '>='")
