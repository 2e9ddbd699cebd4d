from __future__ import annotations

import pytest

from proxy.relay.channel import Channel, Content, Life


def test_a_channel_starts_open_idle_and_plain() -> None:
    channel = Channel(258)
    assert (channel.life, channel.content, channel.needs_inspection) == (Life.OPEN, Content.METHOD, False)
    assert (channel.published, channel.remaining, channel.confirming) == (0, 0, False)


def test_its_head_is_how_its_content_headers_begin() -> None:
    assert Channel(258).head == b"\x02\x01\x02"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("life", Life.CLOSED_HERE),
        ("life", Life.CLOSED_UPSTREAM),
        ("discard_upstream", True),
        ("held_back", []),
        ("deferred", [b"frame"]),
        ("returned", b"frame"),
        ("swallowed", 1),
    ],
)
def test_a_channel_is_odd_while_the_brokers_frames_are_not_simply_copied(name: str, value: object) -> None:
    channel = Channel(1)
    setattr(channel, name, value)
    assert channel.needs_inspection


@pytest.mark.parametrize(("name", "value"), [("held", []), ("closes", True), ("owed_close_ok", True)])
def test_what_concerns_the_producers_frames_alone_does_not_make_it_odd(name: str, value: object) -> None:
    channel = Channel(1)
    setattr(channel, name, value)
    assert not channel.needs_inspection
