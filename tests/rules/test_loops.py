from __future__ import annotations

import pytest

from proxy.rules.lint.addresses import check_loops
from proxy.yamlfile.document import Faults
from proxy.yamlfile.hosts import HostPort, is_own_address
from tests.rules.loading import load

LISTENING = [
    HostPort(host, port)
    for host, port in (("127.0.0.1", 5673), ("0.0.0.0", 5674), ("proxy.example", 5675), ("::1", 5676))
]


def loops(*texts: str) -> list[str]:
    faults = Faults()
    check_loops(load(*texts).rules, LISTENING, faults)
    return [str(error) for error in faults.errors]


@pytest.mark.parametrize(
    ("host", "port", "back"),
    [
        ("127.0.0.1", 5673, True),
        ("localhost", 5673, True),
        ("LocalHost", 5673, True),
        ("127.0.0.2", 5674, True),
        ("0.0.0.0", 5673, True),
        ("::1", 5674, True),
        ("localhost", 5676, True),
        ("PROXY.example", 5675, True),
        ("127.0.0.1", 5672, False),
        ("127.0.0.1", 5675, False),
        ("other.example", 5673, False),
        ("192.0.2.1", 5673, False),
    ],
)
def test_addresses_of_the_sidecar_itself_are_recognized(host: str, port: int, back: bool) -> None:
    assert is_own_address(host, port, LISTENING) is back


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("addresses:\n  - pattern: a\n    translation: 'localhost:5674/q'", "a.yaml:3:5: addresses[0].translation"),
        ("addresses:\n  - pattern: a\n    translation: 'amqp://[::1]:5676'", "a.yaml:3:5: addresses[0].translation"),
        (
            "addresses:\n  - {pattern: a, translation: /q}\n  - {pattern: b, translation: 'amqp://proxy.example:5675/$0'}",
            "a.yaml:3:18: addresses[1].translation",
        ),
        (
            "addresses:\n  - pattern: 'a/*'\n    translation: 'amqp://$1'\n    hosts: [h.example, 'localhost:5673']",
            "a.yaml:4:5: addresses[0].hosts",
        ),
        ("brokers:\n  near:\n    address: 127.0.0.1:5673", "a.yaml:3:5: brokers.near.address"),
        (
            "brokers: {near: {address: 'h:1'}, localhost: {address: 'h:1'}}\n"
            "addresses: [{pattern: a, translation: 'localhost:5673/q'}]",
            "a.yaml:2:26: addresses[0].translation",
        ),
    ],
)
def test_a_loop_is_an_error_with_its_line(text: str, key: str) -> None:
    assert loops(text) == [f"{key}: leads back to this sidecar"]


def test_a_rule_of_a_second_file_is_numbered_within_that_file() -> None:
    first = "addresses: [{pattern: a, translation: /q}]"
    second = "addresses:\n  - {pattern: b, translation: 'localhost:5673'}"
    assert loops(first, second) == ["b.yaml:2:18: addresses[0].translation: leads back to this sidecar"]


@pytest.mark.parametrize(
    "text",
    [
        "addresses: [{pattern: a, translation: /queue/localhost:5673}]",
        "addresses: [{pattern: a, translation: 'localhost:5672/q'}]",
        "addresses: [{pattern: 'a/*', translation: 'amqp://$1', hosts: [localhost]}]",
        "brokers: {localhost: {address: 'h:1'}}\naddresses: [{pattern: a, translation: localhost}]",
    ],
)
def test_addresses_of_other_hosts_are_not_loops(text: str) -> None:
    assert loops(text) == []
