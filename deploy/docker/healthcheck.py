"""Checks that the sidecar in this container is alive, by requesting /livez at the admin address in the configuration.

Exit status: 0 if the sidecar is alive, otherwise 1. With ``admin.address: null``, the sidecar counts as alive.
Kubernetes does not use this program but sends its own probes.
"""

from __future__ import annotations

import os
import sys
import urllib.request
from pathlib import Path

from oxproxy.config.loader import load_settings
from oxproxy.errors import ConfigErrors

CONFIGURATION = Path("/etc/oxproxy/oxproxy.yaml")

#: Timeout in seconds; the container's own limit for a check is 5 seconds.
PATIENCE_SECONDS = 4.0

#: The loopback address to use instead of each wildcard address.
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def main(configuration: Path = CONFIGURATION) -> int:
    """Send one request, and return the exit status."""
    try:
        settings, _ = load_settings(configuration, os.environ, secrets_required=False)
    except ConfigErrors as errors:
        print(errors, file=sys.stderr)
        return 1
    address = settings.admin.address
    if address is None:
        return 0
    host = EVERYWHERE.get(address.host, address.host)
    url = f"http://{f'[{host}]' if ':' in host else host}:{address.port}/livez"
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
            return 0 if answer.status == 200 else 1
    except OSError as error:
        print(f"{url}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:2])))
