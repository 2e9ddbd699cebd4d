"""How the sidecar runs here in front of the broker that RABBITMQ_URL names (``make run``).

The URL becomes environment overrides of the configuration file, so that the file needs no change. No other
broker is ever used: without the variable there is nothing to run against.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.rabbitmq import URL_VARIABLE, Broker, broker_of_environment


def overrides(broker: Broker) -> dict[str, str]:
    """Return the environment that points a configuration at ``broker``."""
    return {
        "OXPROXY_UPSTREAM__ADDRESS": broker.address,
        "OXPROXY_UPSTREAM__MANAGEMENT": broker.management,
        "OXPROXY_UPSTREAM__CONTROL__USERNAME": broker.username,
        "OXPROXY_UPSTREAM__CONTROL__PASSWORD": broker.password,
    }


def main() -> int:
    """Become ``oxproxy serve``; 2 where RABBITMQ_URL is missing or wrong."""
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
