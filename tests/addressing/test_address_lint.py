from __future__ import annotations

import pytest

from proxy.addressing.lint import Severity, check
from proxy.addressing.table import AddressRule, AddressTable, fixed_domain


def found(
    pattern: bytes, translation: bytes | None, hosts: tuple[bytes, ...] | None = None, brokers: tuple[bytes, ...] = ()
) -> list[tuple[Severity, str]]:
    table = AddressTable([AddressRule(pattern, translation, hosts=hosts)])
    return [(finding.severity, finding.key) for finding in check(table, brokers)]


WARNED = [(Severity.WARNING, "translation")]
REFUSED = [(Severity.ERROR, "translation")]
HOSTS_MISSING = [(Severity.ERROR, "hosts")]


@pytest.mark.parametrize(
    ("pattern", "translation", "expected"),
    [
        (b"a", b"/queue/b", []),
        (b"%/*", b"amqps://u:p@h/$1.$2", []),
        (b"a", None, REFUSED),
        (b"%/*", b"/$3", WARNED),
        (b"a", b"/$", WARNED),
        (b"a", b"/$x", WARNED),
        (b"a", b"/$$x", []),
        (b"a", b"/$0", []),
        (b"a", b"bar", WARNED),
        (b"a", b"bar.example", []),
        (b"a", b"amqp://u:p@bar.example/q", WARNED),
        (b"a", b"amqp://u:p@127.0.0.1/q", []),
        (b"a", b"u:p@[::1]/q", []),
        (b"a", b"u:p@localhost/q", []),
        (b"a", b"amqp://~0.0.0.0/q", REFUSED),
        (b"a", b"http://h/q", REFUSED),
        (b"a", b"u@v@h/q", REFUSED),
        (b"a", b"amqp:///q", REFUSED),
        (b"*", b"amqp://$1/q", HOSTS_MISSING),
        (b"*", b"$1", HOSTS_MISSING),
        (b"*", b"amqp://u:p@$1", HOSTS_MISSING),
        (b"*", b"amqp://$1@h/q", HOSTS_MISSING),
        (b"*", b"amqp:/$1", HOSTS_MISSING),
        (b"*", b"amqp://h$1/q", HOSTS_MISSING),
        (b"*", b"h:/$1", HOSTS_MISSING),
        (b"*", b"amqp://h:/$1", []),
        (b"*", b"amqp://h/$1", []),
        (b"*", b"//$1", []),
    ],
)
def test_warnings_of_a_rule(pattern: bytes, translation: bytes | None, expected: list[tuple[Severity, str]]) -> None:
    assert found(pattern, translation) == expected


def test_a_list_of_hosts_permits_a_captured_domain() -> None:
    assert found(b"*", b"amqp://u:p@$1", hosts=(b"*",)) == []


def test_a_configured_broker_is_not_reported_as_a_host() -> None:
    assert found(b"a", b"COLOSSUS", brokers=(b"COLOSSUS",)) == []
    assert found(b"a", b"u:p@COLOSSUS/q", brokers=(b"COLOSSUS",)) == []


def test_more_wildcards_than_variables_are_a_warning() -> None:
    assert found(b"%/" * 65, b"/x") == [(Severity.WARNING, "pattern")]


def test_hidden_rules_are_reported_with_the_rules_that_hide_them() -> None:
    table = AddressTable([AddressRule(b"*", b"/a"), AddressRule(b"x", b"/b")])
    (finding,) = check(table)
    assert (finding.rule, finding.severity, finding.other) == (1, Severity.WARNING, 0)
    assert "the earlier rule 0 matches every address" in finding.message


def test_no_warning_contains_a_password() -> None:
    rules = [
        AddressRule(b"*", b"amqp://u:trustno1@" + rest) for rest in (b"h/q", b"$1", b"~h", b"h:x", b"@h", b"h/$9$x")
    ]
    table = AddressTable(rules)
    assert {finding.rule for finding in check(table)} == set(range(len(rules)))
    assert "trustno1" not in repr(check(table))


@pytest.mark.parametrize(
    ("translation", "host"),
    [
        (b"amqps://h:1/$1", b"h"),
        (b"/queue/$1", b""),
        (b"$1", None),
        (b"amqp://h$1/q", None),
        (b"x://h", None),
        (None, None),
    ],
)
def test_the_fixed_domain_of_a_rule(translation: bytes | None, host: bytes | None) -> None:
    domain = fixed_domain(AddressRule(b"*", translation))
    assert (domain.host if domain else None) == host
