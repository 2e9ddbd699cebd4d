"""Exit statuses, and the functions with which all commands read input files and write output."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from oxproxy.errors import ConfigError, ConfigErrors

if TYPE_CHECKING:
    from rich.console import Console

    from oxproxy.config.settings import Settings
    from oxproxy.rules.loader import LoadedRules

#: Exit statuses: success; negative result; invalid usage, configuration or rules.
DONE, NO, WRONG = 0, 1, 2

#: Default locations of the configuration.
_CONFIGURATIONS = (Path("oxproxy.yaml"), Path("/etc/oxproxy/oxproxy.yaml"))
#: the default locations, for help texts
DEFAULT_CONFIGURATION = ", then ".join(map(str, _CONFIGURATIONS))

_Number = TypeVar("_Number", int, float)

#: Line width if the output is not a terminal. Scripts need unbroken lines.
_UNBROKEN = 1000


def between(low: _Number, high: _Number, expected: str) -> Callable[[str], _Number]:
    """Return a function that converts an argument to the type of the limits, and rejects numbers outside the limits.

    Args:
        expected: describes the number in errors.
    """

    def parse(text: str) -> _Number:
        try:
            number = type(low)(text)
        except ValueError:
            number = None
        if number is None or not low <= number <= high:
            raise argparse.ArgumentTypeError(f"got {text}, expected {expected}")
        return number

    return parse


def print_line(line: str) -> None:
    sys.stdout.write(line + "\n")


def print_json(value: object) -> None:
    print_line(json.dumps(value, indent=2, ensure_ascii=False))


def json_line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def print_errors(lines: Iterable[object]) -> None:
    """Write errors or warnings to standard error, one line each."""
    for line in lines:
        sys.stderr.write(f"{line}\n")


def output_width() -> int:
    """Return COLUMNS from the environment, or the width of the terminal, but at least 40; 80 if neither is known."""
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def printable(text: str, kept: str = "") -> str:
    """Escape control characters except `kept`, since a name or a message could use them to control the terminal."""
    return "".join(
        char if char.isprintable() or char in kept else char.encode("unicode_escape").decode() for char in text
    )


def rich_console() -> Console:
    """Return a rich console, which respects NO_COLOR. It breaks lines only in a terminal, or if COLUMNS is set.

    rich is imported here because the import takes 0.2 s.
    """
    from rich.console import Console

    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return Console(highlight=False, markup=False, emoji=False)
    return Console(highlight=False, markup=False, emoji=False, width=_UNBROKEN)


def add_config_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help=f"configuration file; - for standard input; default: {DEFAULT_CONFIGURATION}",
    )


def configuration(given: Path | None) -> Path | None:
    """Return the given configuration file, or else the first existing file in the default locations."""
    # os.path.isfile raises no error for a directory without permission.
    return given or next((path for path in _CONFIGURATIONS if os.path.isfile(path)), None)


def required_configuration(given: Path | None, command: str, options: str = "--config FILE") -> Path:
    """Return the configuration file, as `configuration` does.

    Args:
        options: arguments with which the user can name a file, for the error.

    Raises:
        ConfigErrors: there is none.
    """
    config = configuration(given)
    if config is None:
        message = f"no configuration, expected {options}, {' or '.join(map(str, _CONFIGURATIONS))}"
        raise ConfigErrors([ConfigError(command, 0, "", message)])
    return config


def read_bytes(name: str) -> bytes:
    """Read a file, or standard input for ``-``."""
    return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()


def read_input(name: str) -> bytes:
    """Read a file, or standard input for ``-``.

    Raises:
        ConfigErrors: the file can't be read.
    """
    try:
        return read_bytes(name)
    except OSError as error:
        raise ConfigErrors([ConfigError(name, 0, "", f"can't be read: {error.strerror or error}")]) from error


def rules_only(files: Sequence[Path]) -> list[Path]:
    """Return all files that are not test files. Shell patterns such as ``rules/*.yaml`` also match test files.

    Raises:
        ConfigErrors: all files are test files.
    """
    from oxproxy.yamlfile.document import is_tests_file

    rules = [path for path in files if not is_tests_file(path.name)]
    if not rules:
        message = "got a test file, expected a rules file"
        raise ConfigErrors([ConfigError(str(path), 0, "", message) for path in files])
    return rules


def load_rules_of(files: Sequence[Path]) -> LoadedRules:
    """Load the given rules files, or the rules files that a configuration names, as one set; - is standard input.

    Raises:
        ConfigErrors: all errors in the files.
    """
    from oxproxy.config import loader
    from oxproxy.config.settings import Settings
    from oxproxy.rules.loader import compile_sources
    from oxproxy.rules.schema import TOP_KEYS, read_source
    from oxproxy.yamlfile.document import Faults, Mapping
    from oxproxy.yamlfile.models import key_names

    sources = []
    for path in rules_only(files):
        source = read_source(str(path), read_input(str(path)))
        keys = {key.text for key, _ in source.root.entries} if isinstance(source.root, Mapping) else set()
        if keys & set(key_names(Settings)) and not keys & set(TOP_KEYS):
            faults = Faults(source.faults.errors, secrets_required=False)
            settings = loader.read_settings(source.root, path, os.environ, faults)
            sources += [read_source(str(file), read_input(str(file))) for file in loader.rules_files(settings)]
        else:
            sources.append(source)
    return compile_sources(sources, Faults())


def read_settings(path: Path, *, secrets_required: bool = True) -> Settings:
    """Read the configuration from a file, or from standard input for ``-``. Write warnings to standard error.

    Raises:
        ConfigErrors: all errors in the configuration.
    """
    from oxproxy.config.loader import load_settings

    settings, warnings = load_settings(path, os.environ, secrets_required)
    print_errors(warnings if secrets_required else ())
    return settings
