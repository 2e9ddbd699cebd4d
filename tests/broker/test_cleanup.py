from __future__ import annotations

import pytest

from oxproxy.broker.cleanup import find_leftovers, find_stale, remove_leftover, remove_rows
from oxproxy.broker.management_api import ManagementApi
from oxproxy.errors import UpstreamError
from oxproxy.relay.tokens import Secrets, Tokens
from oxproxy.values import RESERVED_PREFIX
from tests.broker.observed import Outside, settings
from tests.rabbitmq import Broker
from tests.sidecar import answering


async def test_the_removal_of_an_exchange_that_was_deleted_already_succeeds(
    broker: Broker, vhost: str, outside: Outside
) -> None:
    outside.make_exchange("ours", x_open_exchange=True)
    management = ManagementApi(settings(broker), broker.management)
    (leftover,) = await find_leftovers(management, [vhost])
    outside.delete_exchange("ours")
    assert await remove_leftover(management, leftover) == []
    await management.close()


@pytest.mark.parametrize("content", [b"{}", b"[0]", b'[{"name": "x"}]'])
async def test_an_unexpected_answer_is_an_error(broker: Broker, content: bytes) -> None:
    with answering(lambda path, headers: (200, "application/json", content)) as port:
        management = ManagementApi(settings(broker), f"http://127.0.0.1:{port}")
        with pytest.raises(UpstreamError):
            await find_leftovers(management)
        await management.close()


async def test_a_stale_token_of_an_exclusive_queue_is_reported_and_others_are_removed(
    broker: Broker, vhost: str, outside: Outside
) -> None:
    outside.make_exchange("ours", x_open_exchange=True)
    outside.make_queues("a")
    leaked, listed = Secrets([b"leaked"]), Secrets([b"listed"])
    management = ManagementApi(settings(broker), broker.management)
    with outside.channel() as owner:
        owner.queue_declare("mine", exclusive=True)
        for secret in (leaked, listed):
            for name in ("a", "mine"):
                (key,) = Tokens(vhost, secret.token_keys).candidates(("queue", name.encode()), one_word=False)
                owner.queue_bind(name, "ours", key.decode())
        (stale,) = await find_stale(management, listed, [vhost])
        assert [row.destination[1] for row in stale.tokens] == [b"a", b"mine"]
        (refused,) = await remove_rows(management, stale)
        assert refused.startswith("queue mine with a token: ")
        assert "exclusive" in refused
        assert RESERVED_PREFIX.decode() not in refused
        (left,) = await find_stale(management, listed, [vhost])
        assert [row.destination[1] for row in left.tokens] == [b"mine"]
        assert outside.bound("ours") == {("queue", b"a"), ("queue", b"mine")}
    await management.close()


async def test_a_damaged_stored_binding_is_stale(broker: Broker, vhost: str, outside: Outside) -> None:
    outside.make_exchange("ours", x_open_exchange=True)
    outside.make_queues("a")
    outside.bind("ours", "a", f"{RESERVED_PREFIX.decode()}b.{0:016}", **{"x-oxproxy": "damaged"})
    management = ManagementApi(settings(broker), broker.management)
    (stale,) = await find_stale(management, Secrets([b"listed"]), [vhost])
    assert str(stale).endswith("exchange ours: 0 tokens, 1 stored binding; no other copy: queue a (damaged)")
    assert await remove_rows(management, stale) == []
    assert await find_stale(management, Secrets([b"listed"]), [vhost]) == []
    await management.close()
