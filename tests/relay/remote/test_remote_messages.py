from __future__ import annotations

from tests.relay.remote_broker import Told


def test_a_message_weighs_what_is_held_for_it() -> None:
    message = Told(b"x" * 100)
    assert message.size_bytes == 100 + len(message.header)
