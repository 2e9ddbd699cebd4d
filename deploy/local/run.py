"""Runs the sidecar in front of the broker that RABBITMQ_URL names (``make run``).

The URL is converted to environment variables that override the configuration file, so that the file need not be
changed. There is no default broker.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.rabbitmq import URL_VARIABLE, Broker, broker_of_environment


def overrides(broker: Broker) -> dict[str, str]:
    """Return the environment variables that override a configuration's broker with ``broker``."""
    return {
        "OXPROXY_UPSTREAM__ADDRESS": broker.address,
        "OXPROXY_UPSTREAM__MANAGEMENT": broker.management,
        "OXPROXY_UPSTREAM__CONTROL__USERNAME": broker.username,
        "OXPROXY_UPSTREAM__CONTROL__PASSWORD": broker.password,
    }


def main() -> int:
    """Replace this process with ``oxproxy serve``; return 2 if RABBITMQ_URL is missing or invalid."""
    try:
        broker = broker_of_environment()
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if broker is None:
        print(f"Set {URL_VARIABLE} to your broker, e.g. amqp://guest:guest@127.0.0.1:5672", file=sys.stderr)
        return 2
    program = Path(sys.executable).with_name("oxproxy")
    config = os.environ.get("CONFIG") or "config/oxproxy.yaml"
    os.execve(program, [str(program), "serve", "--config", config], os.environ | overrides(broker))


if __name__ == "__main__":
    sys.exit(main())
