"""The entry point of ``oxproxy``: runs the module of a subcommand and turns errors into an exit status.

Only the module of the given subcommand is imported, so that `oxproxy check` does not load network libraries.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import io
import os
import sys
from collections.abc import Sequence

from oxproxy.cli.commands import COMMANDS, make_parser
from oxproxy.cli.console import NO, WRONG, print_errors, print_line
from oxproxy.errors import ConfigErrors
from oxproxy.native import BUILD


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status.

    Args:
        arguments: the command line without the program's name; None for the arguments of this process.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if not sys.stdout:  # the caller has closed standard output
        sys.stdout = open(os.devnull, "w")
    options = _parser(arguments).parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as for standard error; the encoding need not be UTF-8
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except ConfigErrors as errors:
        print_errors(errors.errors)
        return WRONG
    except KeyboardInterrupt:
        return 130  # as in a shell: 128 plus the signal number of SIGINT
    except OSError as error:
        if error.errno == errno.ENOSPC:
            print_errors([f"oxproxy: standard output can't be written: {error.strerror}"])
        elif error.errno != errno.EPIPE:  # the reader of our output has closed the pipe
            raise
        # From here on, nothing must be written to standard output, not even when the process exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO
    return status


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser with the names of all commands and the arguments of the given command."""
    # Options before the command take no values, so the first argument that is not an option is the command.
    typed = next((argument for argument in arguments if not argument.startswith("-")), None)
    parser, _ = make_parser([typed] if typed in COMMANDS else [])
    if typed is not None and typed not in COMMANDS:
        near = difflib.get_close_matches(typed, COMMANDS, 1, 0.6)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(COMMANDS)}"
        parser.error(f'there is no command "{typed}"; {hint}')
    parser.add_argument(
        "--version", action=_PrintVersion, nargs=0, help="show the versions of oxproxy, Python and PCRE2 and exit"
    )
    return parser


class _PrintVersion(argparse.Action):
    """Reads the versions only on request, since importlib.metadata takes longer to load than all other modules here."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import importlib.metadata
        import platform

        from oxproxy.routing.bindings.patterns import MissingLibraryError, library_version

        try:
            pcre2 = f"PCRE2 {library_version()}"
        except MissingLibraryError:
            pcre2 = "PCRE2 not installed"
        version = importlib.metadata.version("oxproxy")
        print_line(f"oxproxy {version} ({BUILD}, Python {platform.python_version()}, {pcre2})")
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
