from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from oxproxy.yamlfile.document import Faults, Node, read_document
from oxproxy.yamlfile.hosts import HostPort
from oxproxy.yamlfile.models import (
    LISTED,
    NOTHING,
    ONE_OR_MORE,
    Address,
    Duration,
    FileModel,
    HttpUrl,
    Keys,
    ListenAddress,
    Name,
    Password,
    Table,
    Text,
    Texts,
    Whole,
    name_fault,
    path_in,
    read_model,
    short_fault,
)


class Door(FileModel):
    colour: Text = Field(default="red")
    key: Password = NOTHING


class House(FileModel):
    name: Annotated[bytes, Name("the name of a house")] = b""
    floors: Annotated[int, Whole(1, 9)] = 2
    wait_seconds: Annotated[float, Duration(0.01, 3600)] = Field(default=1.0, alias="wait")
    kind: Literal["big", "small"] = "big"
    state: Literal["new"] = "new"
    address: Address | None = None
    listen: ListenAddress = HostPort("a", 1)
    hosts: Annotated[tuple[Address, ...], Field(min_length=1), ONE_OR_MORE] = ()
    texts: Texts = ()
    url: HttpUrl | None = None
    open: bool = False
    front: Door = Field(default_factory=Door)
    doors: Annotated[tuple[Door, ...], Field(min_length=1), LISTED] = ()
    table: Table = Field(default={})


def node(text: str) -> Node:
    root = read_document(text, "f.yaml", Faults())
    assert root is not None
    return root


def read(text: str) -> tuple[House, list[str]]:
    faults = Faults()
    house = read_model(House, Keys(node(text), faults))
    assert house is not None
    return house, [str(error) for error in faults.errors]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("floors: 10", "f.yaml:1:9: floors: got the number 10, expected an integer from 1 to 9"),
        ("floors: '5'", 'f.yaml:1:9: floors: got the string "5", expected an integer from 1 to 9'),
        ("floors: true", "f.yaml:1:9: floors: got the boolean true, expected an integer from 1 to 9"),
        ("floors: 5.0", "f.yaml:1:9: floors: got the number 5.0, expected an integer from 1 to 9"),
        ("floors:", "f.yaml:1:8: floors: got no value, expected an integer from 1 to 9"),
        ("floors: null", "f.yaml:1:9: floors: got null, expected an integer from 1 to 9"),
        ("kind: tall", 'f.yaml:1:7: kind: got the string "tall", expected one of big, small'),
        ("state: old", 'f.yaml:1:8: state: got the string "old", expected new'),
        ("open: yes", 'f.yaml:1:7: open: got the string "yes", expected true or false'),
        ("front: {color: blue}", "f.yaml:1:9: front.color: unknown key; did you mean colour?"),
        ("front: {col: blue}", "f.yaml:1:9: front.col: unknown key; did you mean colour?"),
        ("front: {zzz: blue}", "f.yaml:1:9: front.zzz: unknown key, expected one of colour, key"),
        (
            "wait_seconds: 2s",
            "f.yaml:1:1: wait_seconds: unknown key, expected one of address, doors, floors, front, "
            "hosts, kind, listen, name, open, state, table, texts, url, wait",
        ),
        ("front: hunter2", "f.yaml:1:8: front: got a single value, expected a mapping"),
        ("front: 12345", "f.yaml:1:8: front: got a number, expected a mapping"),
        ("front: true", "f.yaml:1:8: front: got the boolean true, expected a mapping"),
        ("front: [a]", "f.yaml:1:8: front: got a list, expected a mapping"),
        ("table: [a]", "f.yaml:1:8: table: got a list, expected a mapping"),
        ("doors: []", "f.yaml:1:8: doors: got an empty list, expected a list with at least one item"),
        ("doors: {}", "f.yaml:1:8: doors: got a mapping, expected a list with at least one item"),
        (
            "doors: [{}, {colour: 5}]",
            "f.yaml:1:22: doors[1].colour: got the number 5, expected a string: put it in quotes",
        ),
        ("texts: [a, !bytes 0a]", "f.yaml:1:12: texts[1]: got !bytes 0a, expected a string: put it in quotes"),
        ("texts: [[b]]", "f.yaml:1:9: texts[0]: got a list, expected a string"),
        ("texts: 5", "f.yaml:1:8: texts: got the number 5, expected a string: put it in quotes"),
        ("name: ''", "f.yaml:1:7: name: got an empty name, expected the name of a house"),
        ("name: 5", "f.yaml:1:7: name: got the number 5, expected the name of a house: put it in quotes"),
        ("- a", "f.yaml:1:1: got a list, expected a mapping"),
    ],
)
def test_invalid_values_are_errors_with_line_and_column(text: str, message: str) -> None:
    faults = Faults()
    read_model(House, Keys(node(text), faults))
    assert [str(error) for error in faults.errors] == [message]


@pytest.mark.parametrize("text", ["5", "1.5", "5 s", "s", "-5s", "1e3s", "2h", "1ms", "[5s]", "5S"])
def test_a_duration_without_unit_or_out_of_bounds_is_refused(text: str) -> None:
    assert "expected a duration with its unit" in read(f"wait: {text}")[1][0]


@pytest.mark.parametrize(
    "text", ["rabbit", "'rabbit:'", "'::1:5672'", "amqp://a:1", "a:65536", "a b:1", "user@a:1", "5672", "a:0", ".:1"]
)
def test_invalid_addresses_are_refused(text: str) -> None:
    (message,) = read(f"address: {text}")[1]
    assert message.startswith("f.yaml:1:10: address: got ")
    assert ", expected " in message


@pytest.mark.parametrize(
    "text", ["127.0.0.1:15672", "ftp://a", "http://", "http://a:x", "http://a/?b", "'http://[a'", "5", "http://u:hunter2@a:1"]
)  # fmt: skip
def test_invalid_http_addresses_are_refused_and_not_shown(text: str) -> None:
    (message,) = read(f"url: {text}")[1]
    seen = "a value that is not a string" if text == "5" else "another string"
    assert message == (
        f"f.yaml:1:6: url: got {seen}, expected http://host:port or https://host:port; "
        "set the credentials in upstream.control"
    )


def test_a_secret_is_not_shown_in_messages_or_strings() -> None:
    house, errors = read("front: {key: hunter2}\n")
    assert (house.front.key.get_secret_value(), errors) == ("hunter2", [])
    assert "hunter2" not in f"{house} {house!r} {house.front.key}"
    assert "hunter2" not in str(read("front: {key: [hunter2]}")[1])
    assert "12345" not in str(read("front: {key: 12345}")[1])


def test_the_reserved_prefix_is_refused_for_names_and_keys() -> None:
    assert short_fault(b"x.o.p.e.n.x") is None
    assert "reserved" in (short_fault(b"x.o.p.e.n.x.") or "")
    assert "x-o-p-e-n-x-, which is reserved" in (short_fault(b"x-o-p-e-n-x-q") or "")
    assert name_fault("x.o.p.e.n.y.q") is None


def test_a_name_is_measured_in_bytes() -> None:
    assert name_fault("a\nb") == "a name with a line break, which the broker would remove"
    assert name_fault("é" * 127) is None
    assert name_fault("é" * 128) == "256 bytes, more than the 255 that the protocol allows"


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("LocalHost", True),
        ("10.0.0.1", False),
        ("local", False),
    ],
)
def test_loopback_is_this_machine_only(host: str, loopback: bool) -> None:
    assert HostPort(host, 1).loopback is loopback


def test_an_address_writes_ipv6_in_brackets() -> None:
    assert [str(HostPort("::1", 1)), str(HostPort("a", 1))] == ["[::1]:1", "a:1"]


def test_file_names_are_relative_to_the_directory_of_the_file_that_names_them() -> None:
    folder = Path("/etc/oxproxy")
    assert path_in(folder, "tls/ca.pem") == Path("/etc/oxproxy/tls/ca.pem")
    assert path_in(folder, "/ca.pem") == Path("/ca.pem")
    assert path_in(folder, None) is None
