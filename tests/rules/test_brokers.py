from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from oxproxy.addressing.table import AddressRule, AddressTable
from oxproxy.addressing.targets import AddressBook
from oxproxy.rules.addresses import BrokerModel, BrokerRule, BrokerTlsModel, broker_password
from oxproxy.rules.explain import explain
from oxproxy.rules.lint.addresses import check_addresses, check_loops
from oxproxy.yamlfile.document import Faults, Mapping, Place
from oxproxy.yamlfile.hosts import HostPort, is_own_address
from oxproxy.yamlfile.models import Keys
from tests.rules.loading import by_line, faults, load, message_request, warnings

SECRET = "s3cret-word"


def broker(text: str) -> BrokerRule:
    return load(f"brokers: {{archive: {text}}}").rules.vhosts["/"].brokers[0]


def test_address_rules_are_read_in_the_order_of_files_and_lines() -> None:
    loaded = load(
        """
        addresses:
          - {pattern: "legacy/%/*", translation: /exchange/documents/$2}
          - {name: to the archive, pattern: "archive.*", translation: "amqps://$1/q", hosts: [a.example]}
        """,
        "addresses: [{pattern: b, translation: /queue/c}]",
    )
    rules = loaded.rules.vhosts["/"].addresses
    assert [rule.pattern for rule in rules] == [b"legacy/%/*", b"archive.*", b"b"]
    assert (rules[1].name, rules[1].hosts, rules[0].hosts) == ("to the archive", (b"a.example",), None)
    assert loaded.books["/"].table.rules == rules


def test_each_virtual_host_has_its_own_table() -> None:
    loaded = load("vhost: one\naddresses: [{pattern: a, translation: /b}]", "vhost: two\nqueues: [q]")
    assert list(loaded.books) == ["one"]


def test_a_broker_has_defaults() -> None:
    rule = broker("{address: 'archive.example:5671'}")
    settings = rule.settings
    assert settings.address == HostPort("archive.example", 5671)
    assert (rule.tls, rule.password_source) == (None, None)
    assert settings.model_fields_set == {"address"}
    assert (settings.deadline, settings.unconfirmed, settings.unconfirmed_mib) == (10.0, 50_000, 32)


def test_a_broker_with_all_connection_settings_is_read() -> None:
    settings = broker(
        "{address: 'h:1', tls: {server_name: n}, username: u, password_env: P, vhost: v, deadline: 2s, unconfirmed: 5,"
        " unconfirmed_mib: 1}"
    ).settings
    assert settings.tls == BrokerTlsModel(server_name="n")
    assert (settings.username, settings.password_env, settings.vhost) == ("u", "P", "v")
    assert (settings.deadline, settings.unconfirmed, settings.unconfirmed_mib) == (2.0, 5, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("addresses: [{translation: /a}]", "addresses[0].pattern: missing, expected a pattern such as orders/*"),
        (
            "addresses: [{pattern: a}]",
            "addresses[0].translation: missing, expected an address such as /queue/q or amqps://broker/queue/q",
        ),
        (
            f"addresses: [{{pattern: a, translation: [{SECRET}]}}]",
            "addresses[0].translation: got a value that is not a string, expected an address such as /queue/q or "
            "amqps://broker/queue/q",
        ),
        (
            f"addresses: [{{pattern: '*', translation: 'amqp://u:{SECRET}@$1'}}]",
            "addresses[0].hosts: missing; the host of the translation contains variables: list the permitted "
            "hosts, or * for any",
        ),
        (
            "addresses: [{pattern: a, translation: h/q, hosts: []}]",
            "addresses[0].hosts: no host, expected a host, host:port, or *",
        ),
        ("addresses: [{pattern: a, translation: /b, to: c}]", "addresses[0].to: unknown key"),
        (
            "addresses: [{pattern: a, translation: '~h/q'}]",
            "addresses[0].translation: ~ marks an address to listen on, expected an address to send to",
        ),
        (f"addresses: [{{pattern: a, translation: 'http://u:{SECRET}@h/q'}}]", "addresses[0].translation: the scheme"),
        ("brokers: {a: {}}", "brokers.a.address: missing, expected host:port"),
        ("brokers: {a: {address: h}}", "brokers.a.address: got the string"),
        ("brokers: {'a/b': {address: 'h:1'}}", 'brokers["a/b"]: the name of a broker is used as a host'),
        ("brokers: {a: {address: 'h:1', tls: true}}", "brokers.a.tls: got the boolean true, expected a mapping"),
        (
            "brokers: {a: {address: 'h:1', tls: {certificate: c.pem}}}",
            "brokers.a.tls: certificate and key must be given together",
        ),
        ("brokers: {a: {address: 'h:1', tls: {verify: false}}}", "brokers.a.tls.verify: unknown key"),
        ("brokers: {a: {address: 'h:1', username: u}}", "brokers.a.username: a username requires password"),
        (
            f"brokers: {{a: {{address: 'h:1', password: {SECRET}}}}}",
            "brokers.a.password: a password requires a username",
        ),
        (
            f"brokers: {{a: {{address: 'h:1', username: u, password: {SECRET}, password_env: P}}}}",
            "brokers.a.password_env: got password and password_env, expected one of them",
        ),
        ("brokers: {a: {address: 'h:1', deadline: 5}}", "brokers.a.deadline: got the number 5"),
    ],
)
def test_errors_have_lines_and_show_no_password(text: str, message: str) -> None:
    errors = faults(text)
    assert any(line.startswith(f"a.yaml:1: {message}") for line in by_line(errors)), errors
    assert SECRET not in "\n".join(errors)


def test_a_broker_in_two_files_is_an_error() -> None:
    text = "brokers: {a: {address: 'h:1'}}"
    assert faults(text, text) == ["b.yaml:1:11: brokers.a: a.yaml:1 already defines a broker with this name"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("addresses: [{pattern: a, translation: bare}]", "names a host that is not a configured broker"),
        ("addresses: [{pattern: '*', translation: /a}, {pattern: b, translation: /c}]", "addresses[1].pattern"),
        ("addresses: [{pattern: 'a*', translation: /$2}]", "variables above $1 are always empty"),
        ("addresses: [{pattern: a, translation: '/${HOME}'}]", "$ without a number means the whole original address"),
        (f"addresses: [{{pattern: a, translation: 'amqp://u:{SECRET}@h.example/q'}}]", "in plain text"),
        (f"addresses: [{{pattern: 'a/*', translation: 'amqp://u:{SECRET}@$1/q', hosts: ['*']}}]", "in plain text"),
        (
            f"addresses: [{{pattern: 'a/*', translation: 'u:{SECRET}@$1/q', hosts: ['[::1]:5672', 'h.example']}}]",
            "in plain text",
        ),
        (
            f"brokers: {{a: {{address: 'h:1', tls: {{}}, username: u, password: {SECRET}}}}}",
            "the password is in plain text",
        ),
        ("brokers: {a: {address: 'h:1', username: u, password_env: P}}", "without tls the password is sent"),
    ],
)
def test_warnings_show_no_password(text: str, message: str) -> None:
    messages = warnings(text)
    assert any(message in line for line in messages), messages
    assert SECRET not in "\n".join(messages)


def test_a_translation_to_the_name_of_a_configured_broker_is_not_a_warning() -> None:
    assert (
        warnings("{brokers: {COLOSSUS: {address: '127.0.0.1:1'}}, addresses: [{pattern: a, translation: COLOSSUS}]}")
        == []
    )


def test_a_password_for_this_machine_or_with_tls_is_not_a_warning() -> None:
    hosts = "[localhost, '127.0.0.2:1', '::1', '[::1]', '[::1]:5672']"
    local = f"{{pattern: 'a/*', translation: 'amqp://u:{SECRET}@$1/q', hosts: {hosts}}}"
    encrypted = f"{{pattern: 'b/*', translation: 'amqps://u:{SECRET}@$1/q', hosts: ['*']}}"
    broker_login = f"{{pattern: 'c/*', translation: 'u:{SECRET}@$1/q', hosts: [a]}}"
    brokers = "brokers: {a: {address: 'h:1', tls: {}}}"
    assert warnings(f"{{{brokers}, addresses: [{local}, {encrypted}, {broker_login}]}}") == []


def with_password_file(folder: Path, name: str) -> BrokerRule:
    settings = BrokerModel(address=HostPort("h", 1), username="u", password_file=name)
    return BrokerRule(b"a", settings, folder, Place("a.yaml", 1), {})


def test_a_password_comes_from_one_of_three_places(tmp_path: Path) -> None:
    (tmp_path / "word").write_text(f"{SECRET}\n")
    tmp = with_password_file(tmp_path, "word")
    none = Faults()
    assert broker_password(tmp, {}, none).get_secret_value() == SECRET
    assert (
        broker_password(
            broker("{address: 'h:1', username: u, password_env: P}"), {"P": SECRET}, none
        ).get_secret_value()
        == SECRET
    )
    assert (
        broker_password(broker(f"{{address: 'h:1', username: u, password: {SECRET}}}"), {}, none).get_secret_value()
        == SECRET
    )
    assert none.errors == []


def test_a_missing_password_is_an_error(tmp_path: Path) -> None:
    errors = Faults()
    broker_password(broker("{address: 'h:1', username: u, password_env: P}"), {}, errors)
    broker_password(with_password_file(tmp_path, "none"), {}, errors)
    assert [error.key for error in errors.errors] == ["brokers.archive.password_env", "brokers.a.password_file"]


TABLE = """
exchanges:
  - {name: documents, bindings: [{queue: moved}, {queue: kept}, {exchange: far}, {queue: lost}]}
brokers: {archive: {address: '127.0.0.1:1'}}
addresses:
  - {pattern: moved, translation: /queue/new}
  - {pattern: /exchange/far/*, translation: archive/exchange/near/$1}
  - {pattern: lost, translation: /exchange//x}
  - {pattern: in/*, translation: /exchange/documents/$1}
  - {pattern: out/*, translation: archive/queue/$1}
  - {pattern: here/*, translation: /exchange/other/$1}
tests:
"""


@pytest.mark.parametrize(
    "test",
    [
        "publish: {exchange: documents, routing_key: k}, expect: {queues: [new, kept], remotes: [archive], "
        "outcome: routed}",
        "publish: {exchange: '', routing_key: in/k}, expect: {queues: [moved, kept, lost], exchanges: [far]}",
        "publish: {exchange: '', routing_key: out/k}, expect: {remotes: [archive], outcome: translated}",
        "publish: {exchange: '', routing_key: here/k}, expect: {exchanges: [other], outcome: translated}",
        "publish: {exchange: '', routing_key: lost}, expect: {outcome: unrouted}",
    ],
)
def test_tests_of_a_rules_file_apply_the_address_table(test: str) -> None:
    assert load(f"{TABLE}  - {{name: t, {test}}}\n").failures() == []


def test_a_failed_translation_fails_a_test_that_does_not_expect_it() -> None:
    test = "{name: t, publish: {exchange: '', routing_key: lost}, expect: {}}"
    (failure,) = load(f"{TABLE}  - {test}\n").failures()
    assert failure.differences == ("a translation failed: the exchange or queue name is empty",)


def test_a_hidden_rule_is_reported_with_its_number_and_the_file_of_the_rule_that_hides_it() -> None:
    texts = "addresses: [{pattern: a/*, translation: /queue/q}]", "addresses: [{pattern: a/b, translation: /queue/r}]"
    (warning,) = warnings(*texts)
    assert warning == (
        "b.yaml:1:14: addresses[0].pattern: warning: never used: the earlier rule 0 matches every address that "
        "this rule matches; rule 0 is in a.yaml:1"
    )
    (lookup,) = explain(load(*texts), message_request(b"{exchange: '', routing_key: a/b}", "m"), 0.0).lookups
    assert lookup.rule == 0


def test_a_host_similar_to_a_broker_name_is_a_warning() -> None:
    brokers = "brokers: {archive: {address: 'archive.example:5671'}}\n"
    table = "addresses:\n  - {{pattern: a, translation: {0}}}\n"
    (warning,) = warnings(brokers + table.format("amqps://archiv/queue/q"))
    assert warning == (
        "a.yaml:3:18: addresses[0].translation: warning: names a host that is not a configured broker; did "
        "you mean the broker archive?"
    )
    for right in ("amqps://archive/queue/q", "amqps://other.example/queue/q", "/queue/archiv"):
        assert warnings(brokers + table.format(right)) == []


@pytest.mark.parametrize(
    ("translation", "reason"),
    [
        ("/exchange//k", "the exchange or queue name is empty"),
        ("/queues/$1/x", "a name contains a slash; write it as %2F"),
        ("/queues/a%2", "a name contains a malformed percent escape"),
        (f"/queue/{'q' * 256}", "the exchange or routing key is longer than 255 bytes"),
        ("amqps://other/queue/q, hosts: [another]", "the rule does not permit the host"),
    ],
)
def test_a_translation_that_fails_for_every_address_is_a_warning(translation: str, reason: str) -> None:
    (warning,) = warnings(f"addresses:\n  - {{pattern: a/*, translation: {translation}}}\n")
    where = "a.yaml:2:20: addresses[0].translation"
    assert warning == f"{where}: warning: the translation fails for every address: {reason}"


@pytest.mark.parametrize("translation", ["/queues/a%$1", "/queue/$1", "/exchange/$1/k", "$0"])
def test_a_translation_that_succeeds_for_some_addresses_is_not_a_warning(translation: str) -> None:
    hosts = ", hosts: [a]" if translation == "$0" else ""
    assert warnings(f"addresses:\n  - {{pattern: a/*, translation: {translation}{hosts}}}\n") == []


def test_an_unreplaced_variable_is_a_warning_without_its_text() -> None:
    messages = warnings("brokers: {a: {address: 'localhost:1', username: '${USER}', password: '${PASS}word'}}")
    assert [message.partition(": warning: ")[2] for message in messages] == [
        "got a variable reference, which is not expanded; write the value itself",
        "got a variable reference, which is not expanded; use password_env or password_file",
    ]


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
