from __future__ import annotations

from pathlib import Path

from proxy.allotment import audit_request, client_rules, listener_limits, rates, session_limits
from proxy.amqp.allowance import Allowances
from proxy.rules.faults import Faults
from proxy.rules.settings import Settings, parse_settings


def configured(text: str) -> Settings:
    return parse_settings(text.encode(), Path("oxproxy.yaml"), {}, Faults())


def test_without_a_word_in_the_configuration_nothing_is_limited_but_connections_and_handshakes() -> None:
    settings = Settings()
    assert not Allowances(rates(settings))
    session = session_limits(settings)
    assert (session.channels, session.idle_seconds, session.relay.message_bytes) == (65535, 0, 0)
    assert session.handshake_seconds == 10
    assert (listener_limits(settings).connections, listener_limits(settings).connections_per_peer) == (10_000, 0)
    assert audit_request(settings, {}) is None
    assert client_rules(settings).strict_unbind


def test_every_limit_reaches_its_room() -> None:
    settings = configured("""
limits:
  connections: 5
  connections_per_peer: 2
  channels: 7
  message_size: 1000
  publish_rate: 10
  publish_bytes: 2000
  burst: 2s
  patience: null
  idle_timeout: 1m
shutdown: {deadline: 3s}
""")
    assert rates(settings) == (10, 2000, 2.0, 0.0)
    session = session_limits(settings)
    assert (session.channels, session.idle_seconds, session.relay.message_bytes) == (7, 60, 1000)
    listener = listener_limits(settings)
    assert (listener.connections, listener.connections_per_peer, listener.settle_seconds) == (5, 2, 3)
