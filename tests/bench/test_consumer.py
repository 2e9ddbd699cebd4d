from __future__ import annotations

import pytest
from pamqp import body, commands, frame, header

from tests.bench.consumer import delivery_bytes

DELIVERY = b"".join(
    frame.marshal(part, 1)
    for part in (
        commands.Basic.Deliver("bench", 1, False, "exchange", "key"),
        header.ContentHeader(body_size=3, properties=commands.Basic.Properties(message_id="a")),
        body.ContentBody(b"abc"),
    )
)


@pytest.mark.parametrize("size", range(len(DELIVERY)))
def test_the_length_of_a_delivery_is_not_known_before_all_of_it_is_there(size: int) -> None:
    assert delivery_bytes(DELIVERY[:size]) == 0


def test_the_length_is_that_of_one_delivery() -> None:
    assert delivery_bytes(DELIVERY) == delivery_bytes(DELIVERY * 2) == len(DELIVERY)
