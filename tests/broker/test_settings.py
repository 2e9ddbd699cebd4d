from __future__ import annotations

from proxy.broker.connection import ControlSettings


def test_the_password_is_not_shown() -> None:
    settings = ControlSettings(hosts=(("localhost", 5672),), username="control", password="hush")
    assert "hush" not in repr(settings)
