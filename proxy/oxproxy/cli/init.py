"""``oxproxy init``: writes an initial configuration, rules file and secret, without overwriting files."""

from __future__ import annotations

import argparse
import os
import secrets
from pathlib import Path

from oxproxy.cli.console import DONE, print_json, print_line
from oxproxy.config.secrets import SECRET_BYTES
from oxproxy.errors import ConfigError, ConfigErrors

_SETTINGS = """\
# Configuration of oxproxy. `oxproxy check oxproxy.yaml` checks this file and the rules files named in it. All keys and
# defaults are described in docs/reference/configuration.md. Environment variables override keys: for example,
# OXPROXY_UPSTREAM__ADDRESS overrides upstream.address.

listen:                                  # address for producers, instead of the broker's
  - address: 127.0.0.1:5673

upstream:                                # the broker
  address: 127.0.0.1:5672
  control:                               # declares exchanges and bindings, reads the broker's inventory
    username: guest
    password: guest                      # for a remote broker: password_env: NAME, or password_file: PATH
  management: http://127.0.0.1:15672

rules: [rules/*.yaml]                    # relative to this file

declared:                                # declarations by clients over AMQP
  secrets:                               # for signing client bindings; the same for every sidecar of the broker
    - file: secrets/current              # the first secret signs; signatures made with any of them are accepted

admin:
  address: 127.0.0.1:15693               # /metrics /livez /readyz /status

# audit: {directory: audit}              # audit log: one line per publish; the parent directory must exist
"""
_RULES = """\
# Rules that route messages to queues: docs/reference/rules.md. `oxproxy check` runs the tests at the end.
vhost: /

queues: [orders.large]                   # declared durable; an existing queue is used unchanged

exchanges:
  - name: orders
    bindings:
      - queue: orders.large
        name: large orders
        when: {amount >=: 1000}

tests:
  - name: a large order is routed to its queue
    publish: {exchange: orders, headers: {amount: 2500}}
    expect: {queues: [orders.large]}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", type=Path, help="directory for the files")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Write the files and print their names. If one of them exists, nothing is written."""
    directory: Path = options.directory
    files = {
        directory / "oxproxy.yaml": (_SETTINGS.encode(), 0o644),
        directory / "rules" / "orders.yaml": (_RULES.encode(), 0o644),
        directory / "secrets" / "current": (secrets.token_bytes(SECRET_BYTES), 0o600),
    }
    present = [path for path in files if os.path.lexists(path)]
    if present:
        raise ConfigErrors([ConfigError(str(path), 0, "", "already exists; nothing was written") for path in present])
    for path, (content, mode) in files.items():
        _write(path, content, mode)
        if not options.json:
            print_line(str(path))
    if options.json:
        print_json({"files": list(map(str, files))})
    else:
        print_line(f"next: oxproxy check {directory / 'oxproxy.yaml'}")
    return DONE


def _write(path: Path, content: bytes, mode: int) -> None:
    try:
        path.parent.mkdir(mode=0o700 if mode == 0o600 else 0o755, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(descriptor, "wb") as file:
            file.write(content)
    except OSError as error:
        message = f"can't be written: {error.strerror or error}"
        raise ConfigErrors([ConfigError(error.filename or str(path), 0, "", message)]) from error
