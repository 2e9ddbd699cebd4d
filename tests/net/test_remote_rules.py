from __future__ import annotations

import pytest

from proxy.errors import ConfigErrors
from proxy.net.remote_rules import leads_back, remote_brokers
from tests.rules.loading import load

LISTENING = [("127.0.0.1", 5673), ("0.0.0.0", 5674), ("proxy.example", 5675)]


def test_brokers_are_given_by_virtual_host_with_their_passwords() -> None:
    loaded = load("vhost: v\nbrokers: {a: {address: 'h:1', tls: {}, username: u, password_env: WORD, deadline: 2s}}")
    made = remote_brokers(loaded, {"WORD": "s3cret"}, LISTENING)["v"][b"a"]
    assert (made.host, made.user, made.password, made.limits.deadline_seconds) == ("h", b"u", b"s3cret", 2.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "brokers: {a: {address: 'h:1', username: u, password_env: WORD}}",
            'a.yaml:1: brokers.a.password_env: there is no environment variable "WORD"',
        ),
        ("brokers: {a: {address: '127.0.0.1:5673'}}", "a.yaml:1: brokers.a.address: leads back to this proxy"),
        (
            "addresses: [{pattern: a, translation: 'localhost:5674/q'}]",
            "a.yaml:1: addresses[0].translation: leads back to this proxy",
        ),
        (
            "addresses: [{pattern: a, translation: /q}, {pattern: b, translation: 'amqp://proxy.example:5675'}]",
            "a.yaml:1: addresses[1].translation: leads back to this proxy",
        ),
    ],
)
def test_what_can_not_be_served_is_a_fault_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigErrors) as raised:
        remote_brokers(load(text), {}, LISTENING)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("host", "port", "back"),
    [
        ("127.0.0.1", 5673, True),
        ("localhost", 5673, True),
        ("::1", 5674, True),
        ("127.0.0.1", 5672, False),
        ("other.example", 5673, False),
        ("proxy.example", 5675, True),
    ],
)
def test_an_address_leads_back_where_its_text_says_so(host: str, port: int, back: bool) -> None:
    assert leads_back(host, port, LISTENING) is back
