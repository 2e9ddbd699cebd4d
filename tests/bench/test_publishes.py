from __future__ import annotations

import pytest
from pamqp import body, commands, frame, header

from tests.bench.publishes import Ring, Shape

SHAPE = Shape("bench", ("key.0", "key.1", "key.2"), ("kind.0", "kind.1"))
DISTINCT = Shape("bench", ("key.0",), ("kind.0",), distinct=True)


def messages(ring: Ring, count: int) -> list[tuple[commands.Basic.Publish, header.ContentHeader, bytes]]:
    """Return the first publishes of a ring, decoded by an independent library."""
    found = []
    for start in range(0, count * ring.stride, ring.stride):
        rest = bytes(ring.data[start : start + ring.stride])
        parts: list[object] = []
        for _ in range(3):
            size, channel, part = frame.unmarshal(rest)
            assert channel == 1
            parts.append(part)
            rest = rest[size:]
        assert not rest
        method, content, content_body = parts
        assert isinstance(method, commands.Basic.Publish)
        assert isinstance(content, header.ContentHeader)
        assert isinstance(content_body, body.ContentBody)
        found.append((method, content, content_body.value))
    return found


def identities(ring: Ring) -> set[object]:
    return {
        one
        for _, content, _ in messages(ring, ring.count)
        for one in (content.properties.message_id, content.properties.timestamp)
    }


def test_a_publish_carries_the_address_four_headers_and_the_body() -> None:
    method, content, body_bytes = messages(Ring(SHAPE), 1)[0]

    assert (method.exchange, method.routing_key) == ("bench", "key.0")
    assert content.properties.headers == {
        "source": "billing-service",
        "attempt": 1,
        "kind": "kind.0",
        "region": "eu-west-1",
    }
    assert content.properties.delivery_mode == 1
    assert content.body_size == len(body_bytes) == 100


def test_messages_of_a_distinct_ring_differ_within_a_turn_and_between_turns() -> None:
    ring = Ring(DISTINCT, 300)
    first = identities(ring)

    ring.next_turn()

    second = identities(ring)
    assert len(first) == len(second) == 2 * 300
    assert not first & second


REAL = ("order.00000000", "order.00000001")


@pytest.mark.parametrize(
    ("differs", "ids", "traces", "keys", "amounts"),
    [
        ((), 1, 1, 2, 1),
        (("message_id",), 300, 1, 2, 1),
        (("header",), 1, 300, 2, 1),
        (("key",), 1, 1, 300, 1),
        (("amount",), 1, 1, 2, 300),
        (("message_id", "header", "key"), 300, 300, 300, 1),
    ],
)
def test_real_messages_differ_in_what_the_shape_names_only(
    differs: tuple[str, ...], ids: int, traces: int, keys: int, amounts: int
) -> None:
    shape = Shape("bench", REAL, ("kind.0", "kind.1"), differs=differs)

    found = messages(Ring(shape, different_count=300), 300)

    tables = [content.properties.headers or {} for _, content, _ in found]
    assert len({content.properties.message_id for _, content, _ in found}) == ids
    assert len({table["traceparent"] for table in tables}) == traces
    assert len({method.routing_key for method, _, _ in found}) == keys
    assert len({table["amount"] for table in tables}) == amounts
    assert {table["kind"] for table in tables} == {"kind.0", "kind.1"}
