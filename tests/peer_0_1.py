"""``oxproxy`` with the destination tokens of version 0.1: unkeyed tokens, and keyed tokens treated as grants.

It takes the same arguments as ``oxproxy`` and is used in tests in which sidecars of both versions run.
"""

from __future__ import annotations

import sys

from proxy.relay import tokens

_prepare = tokens.Tokens.__init__


def _unkeyed(self: tokens.Tokens, vhost: str = "", *_: object) -> None:
    _prepare(self, vhost)


if __name__ == "__main__":
    tokens.Tokens.__init__ = _unkeyed  # type: ignore[assignment, method-assign]
    tokens.is_keyed = lambda routing_key: False
    tokens.is_grant = lambda routing_key: routing_key.startswith(tokens.GRANTS)

    from proxy.cli.main import main

    sys.exit(main())
