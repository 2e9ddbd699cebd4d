"""What all commands share: exit statuses, lines to standard output and standard error, input files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from proxy.errors import ConfigError, ConfigErrors

if TYPE_CHECKING:
    from proxy.config.settings import Settings

#: Exit statuses: done; the answer is no; wrong usage, configuration or rules.
DONE, NO, WRONG = 0, 1, 2


def print_line(line: str) -> None:
    """Write a line to standard output."""
    sys.stdout.write(line + "\n")


def print_errors(lines: Iterable[object]) -> None:
    """Write errors or warnings to standard error, one line each."""
    for line in lines:
        sys.stderr.write(f"{line}\n")


def read_bytes(name: str) -> bytes:
    """Read a file, or standard input for ``-``."""
    return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()


def read_input(name: str) -> bytes:
    """Read a file, or standard input for ``-``.

    Raises:
        ConfigErrors: it can't be read.
    """
    try:
        return read_bytes(name)
    except OSError as error:
        raise ConfigErrors([ConfigError(name, 0, "", f"can't be read: {error.strerror or error}")]) from error


def read_settings(path: Path) -> Settings:
    """Read the configuration and write its warnings to standard error.

    Raises:
        ConfigErrors: every fault in it.
    """
    from proxy.config.loader import load_settings

    settings, warnings = load_settings(path, os.environ)
    print_errors(warnings)
    return settings
