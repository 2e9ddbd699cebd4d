from __future__ import annotations

import re
from pathlib import Path

import pytest

from proxy.net.context import SessionLimits
from proxy.net.listener import Listener, ListenerLimits
from proxy.net.upstream import Upstream
from proxy.yamlfile.hosts import parse_address
from tests.net.stage import context


def link_local() -> list[str]:
    """The link-local addresses of this machine, with their interfaces (proc(5), /proc/net/if_inet6)."""
    lines = Path("/proc/net/if_inet6").read_text().splitlines() if Path("/proc/net/if_inet6").exists() else []
    return [
        f"{':'.join(re.findall('....', fields[0]))}%{fields[5]}"
        for fields in map(str.split, lines)
        if fields[3] == "20"
    ]


@pytest.mark.skipif(not link_local(), reason="no interface has a link-local address")
async def test_a_link_local_address_is_listened_on() -> None:
    address = parse_address(f"[{link_local()[0]}]:0", least=0)
    shared = context(Upstream([("127.0.0.1", 1)]), SessionLimits())
    listener = Listener([(address.host, address.port)], shared, ListenerLimits())
    [(host, port)] = await listener.start()
    assert host.startswith("fe80::")
    assert port
    await listener.drain()
