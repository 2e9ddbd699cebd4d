from __future__ import annotations

from typing import TypeVar

import pytest

from proxy.yamlfile.document import Faults, Node, Place, Scalar, Sequence, read_document
from proxy.yamlfile.kinds import (
    ADDRESS,
    ADDRESSES,
    HTTP_URL,
    SECRET,
    TEXT,
    TEXTS,
    HostPort,
    Secret,
    UnexpectedError,
    ValueKind,
    choice,
    duration,
    optional,
    parse_inline,
    whole_number,
)

T = TypeVar("T")
WAIT = duration(0.01, 3600)


def node(text: str) -> Node:
    root = read_document(text, "f.yaml", Faults())
    assert root is not None
    return root


def variable(text: str) -> Scalar:
    return Scalar(Place("OXPROXY_X", 0), text, plain=True)


def refusal(kind: ValueKind[T], read: Node) -> str:
    with pytest.raises(UnexpectedError) as raised:
        kind.read(read)
    return str(raised.value)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:5672", "127.0.0.1", 5672),
        ('"[::1]:5672"', "::1", 5672),
        ("rabbit.example:5671", "rabbit.example", 5671),
        ("my_rabbit:1", "my_rabbit", 1),
    ],
)
def test_an_address_is_host_and_port(text: str, host: str, port: int) -> None:
    assert ADDRESS.read(node(text)) == HostPort(host, port)


def test_an_address_writes_ipv6_in_brackets() -> None:
    assert [str(HostPort("::1", 1)), str(HostPort("a", 1))] == ["[::1]:1", "a:1"]


@pytest.mark.parametrize(
    "text", ["rabbit", "rabbit:", "'::1:5672'", "amqp://a:1", "a:65536", "a b:1", "user@a:1", "5672"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    assert "expected" in refusal(ADDRESS, node(text))


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("10.0.0.1", False),
        ("local", False),
    ],
)
def test_loopback_is_this_machine_only(host: str, loopback: bool) -> None:
    assert HostPort(host, 1).loopback is loopback


def test_one_address_or_a_list_of_them() -> None:
    pair = (HostPort("a", 1), HostPort("b", 2))
    assert ADDRESSES.read(node("a:1")) == pair[:1]
    assert ADDRESSES.read(node("[a:1, 'b:2']")) == pair
    assert ADDRESSES.read(variable("[a:1, 'b:2']")) == pair
    assert "at least one" in refusal(ADDRESSES, node("[]"))


def test_a_list_in_a_variable_must_be_good_yaml() -> None:
    assert "a list as in YAML" in refusal(TEXTS, variable("[a"))


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("5s", 5.0), ("1.5s", 1.5), ("2m", 120.0), ("1h", 3600.0)]
)
def test_a_duration_has_its_unit(text: str, seconds: float) -> None:
    assert WAIT.read(node(text)) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["5", "5 s", "s", "-5s", "1e3s", "2h", "1ms", "[5s]", "5S"])
def test_a_duration_without_unit_or_out_of_bounds_is_refused(text: str) -> None:
    assert "expected a duration with its unit" in refusal(WAIT, node(text))


@pytest.mark.parametrize("text", ["0", "11", "5.0", "true", "x", "'5'"])
def test_a_number_out_of_bounds_or_of_another_type_is_refused(text: str) -> None:
    assert refusal(whole_number(1, 10), node(text)).endswith("expected a whole number from 1 to 10")


def test_a_variable_is_read_as_the_key_wants_it() -> None:
    assert whole_number(1, 10).read(variable("5")) == 5
    assert TEXT.read(variable("5")) == "5"
    assert TEXT.read(variable("a: #b")) == "a: #b"
    assert choice("no", "yes").read(variable("no")) == "no"


def test_a_secret_never_shows_itself() -> None:
    secret = SECRET.read(node("hunter2"))
    assert secret.reveal() == "hunter2"
    assert "hunter2" not in f"{secret} {secret!r} {[secret]}"


def test_a_refused_secret_is_not_shown() -> None:
    assert "123" not in refusal(SECRET, node("12345"))


@pytest.mark.parametrize("text", ["http://127.0.0.1:15672", "https://rabbit.example/api-prefix", "http://[::1]:15672/"])
def test_the_address_of_an_http_api_loses_only_its_last_slash(text: str) -> None:
    assert HTTP_URL.read(node(text)) == text.rstrip("/")


@pytest.mark.parametrize(
    "text", ["127.0.0.1:15672", "ftp://a", "http://", "http://a:x", "http://a/?b", "http://[a", "5"]
)
def test_what_is_no_http_address_is_refused(text: str) -> None:
    assert "expected" in refusal(HTTP_URL, node(text))


def test_credentials_in_an_http_address_are_refused_and_not_shown() -> None:
    assert "hunter2" not in refusal(HTTP_URL, node("http://guest:hunter2@a:1"))


def test_null_is_allowed_where_it_is_said() -> None:
    kind = optional(ADDRESS)
    assert (kind.read(node("null")), kind.read(node("a:1"))) == (None, HostPort("a", 1))
    assert (kind.write(None), kind.write(HostPort("a", 1))) == ("null", "a:1")
    assert "no value" in refusal(kind, Scalar(Place("f.yaml", 1), "", plain=True))


def test_defaults_are_written_as_an_operator_would() -> None:
    assert (WAIT.write(5.0), WAIT.write(0.5), TEXTS.write(()), ADDRESSES.write((HostPort("a", 1),))) == (
        "5s",
        "0.5s",
        "[]",
        "a:1",
    )
    assert SECRET.write(Secret("guest")) == "guest"


def test_only_a_variable_is_unfolded() -> None:
    quoted = node("'[a]'")
    assert parse_inline(quoted, Faults()) is quoted
    assert isinstance(parse_inline(variable("[a]"), Faults()), Sequence)
