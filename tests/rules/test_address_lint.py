from __future__ import annotations

from collections.abc import Sequence

import pytest

from proxy.addressing.table import AddressRule, AddressTable
from proxy.addressing.targets import AddressBook
from proxy.rules.lint.addresses import check_addresses
from proxy.yamlfile.document import Faults, Mapping, Place
from proxy.yamlfile.models import Keys


def check(rules: Sequence[AddressRule], brokers: tuple[bytes, ...] = ()) -> Faults:
    """Check a table whose rules are on lines 1, 2 and so on."""
    faults = Faults()
    book = AddressBook(AddressTable(rules), brokers)
    nodes = [Mapping(Place("a.yaml", index + 1), []) for index, _ in enumerate(rules)]
    check_addresses(book, brokers, [Keys(node, faults, f"[{index}]") for index, node in enumerate(nodes)])
    return faults


def found(
    pattern: bytes, translation: bytes, hosts: tuple[bytes, ...] | None = None, brokers: tuple[bytes, ...] = ()
) -> list[tuple[str, str]]:
    faults = check([AddressRule(pattern, translation, hosts=hosts)], brokers)
    return [
        *(("warning", warning.key.removeprefix("[0].")) for warning in faults.warnings),
        *(("error", error.key.removeprefix("[0].")) for error in faults.errors),
    ]


WARNED = [("warning", "translation")]
REFUSED = [("error", "translation")]
HOSTS_MISSING = [("error", "hosts")]


@pytest.mark.parametrize(
    ("pattern", "translation", "expected"),
    [
        (b"a", b"/queue/b", []),
        (b"%/*", b"amqps://u:p@h/$1.$2", []),
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
def test_warnings_of_a_rule(pattern: bytes, translation: bytes, expected: list[tuple[str, str]]) -> None:
    assert found(pattern, translation) == expected


def test_more_wildcards_than_variables_are_a_warning() -> None:
    assert found(b"%/" * 65, b"/x") == [("warning", "pattern")]


def test_no_warning_contains_a_password() -> None:
    rules = [
        AddressRule(b"*", b"amqp://u:trustno1@" + rest) for rest in (b"h/q", b"$1", b"~h", b"h:x", b"@h", b"h/$9$x")
    ]
    faults = check(rules)
    keys = [*(error.key for error in faults.errors), *(warning.key for warning in faults.warnings)]
    assert {key.partition(".")[0] for key in keys} == {f"[{index}]" for index, _ in enumerate(rules)}
    assert "trustno1" not in repr(faults)
