from __future__ import annotations

from proxy.net.remote.connection import RemoteConnection
from proxy.net.remote.endpoints import Endpoint, RemoteLimits
from proxy.net.tls import TlsContexts
from proxy.relay.counters import RemoteCounters
from proxy.relay.remote.lane import RemoteResult
from proxy.relay.remote.link import Credentials
from tests.relay.remote_broker import Told


async def driver() -> RemoteConnection:
    endpoint = Endpoint("far", "127.0.0.1", 1, None, Credentials(b"u", b"s3cret", b"/"), RemoteLimits())
    return RemoteConnection(endpoint, RemoteCounters(), "1.0", TlsContexts(), lambda here, there: False, lambda: None)


async def test_bytes_make_a_link_full_as_messages_do() -> None:
    made = await driver()
    lane = made.lane()
    made.send(lane, Told(b"x" * (RemoteLimits().message_bytes + 1)))
    assert made.full


async def test_a_link_counts_what_is_not_settled() -> None:
    made = await driver()
    lane = made.lane()
    told = Told()
    made.send(lane, told)
    assert made.under_way == 1
    lane.expire(float("inf"), "late")
    assert (made.under_way, told.told) == (0, [RemoteResult.LOST])


async def test_a_link_is_unused_without_a_lane() -> None:
    made = await driver()

    def unused() -> bool:
        return made.unused_since is not None

    assert unused()
    lane = made.lane()
    assert not unused()
    made.leave(lane)
    assert unused()
