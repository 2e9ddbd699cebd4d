from __future__ import annotations

import pytest

from oxproxy.addressing.targets import Remote
from oxproxy.net.remote.endpoints import Endpoint, RemoteBroker, endpoint
from oxproxy.net.tls import ClientTls

TLS = ClientTls(server_name="archive.example")
BROKERS = {
    b"plain": RemoteBroker("10.0.0.1", 5672, None, b"mover", b"s3cret"),
    b"safe": RemoteBroker("10.0.0.2", 5671, TLS, b"mover", b"s3cret", "far side"),
    b"open": RemoteBroker("10.0.0.3", 5672),
}


def named(
    name: bytes, tls: bool | None = None, user: bytes | None = None, password: bytes | None = None
) -> Endpoint | str:
    return endpoint(Remote(name, name, None, tls, user, password), BROKERS, "home")


def checked(answer: Endpoint | str) -> Endpoint:
    assert isinstance(answer, Endpoint)
    return answer


@pytest.mark.parametrize(
    ("name", "user", "password", "login"),
    [
        (b"plain", b"other", b"word", (b"other", b"word")),
        (b"plain", b"mover", None, (b"mover", b"s3cret")),
        (b"plain", b"other", None, (b"other", b"")),
        (b"open", None, None, (b"guest", b"guest")),
        (b"open", b"u", b"p", (b"u", b"p")),
    ],
)
def test_credentials_in_the_address_override_those_of_the_broker(
    name: bytes, user: bytes | None, password: bytes | None, login: tuple[bytes, bytes]
) -> None:
    credentials = checked(named(name, user=user, password=password)).credentials
    assert (credentials.user, credentials.password) == login


def test_an_address_can_enable_tls_but_not_disable_it() -> None:
    assert checked(named(b"plain", tls=True)).tls == ClientTls()
    assert checked(named(b"safe", tls=True)).tls == TLS
    assert named(b"safe", tls=False) == "plain TCP to a broker that is configured with TLS"


def test_a_host_of_an_address_needs_no_configuration() -> None:
    made = checked(endpoint(Remote(b"", b"h.example", 5671, True, b"u", b"p"), {}, "home"))
    assert (made.label, made.host, made.port, made.tls) == ("h.example:5671", "h.example", 5671, ClientTls())


@pytest.mark.parametrize("host", [b"a..b", b"a" * 64 + b".example", b"b\xe9.example"])
def test_a_host_that_cannot_be_looked_up_is_an_error(host: bytes) -> None:
    assert endpoint(Remote(b"", host, None, None), {}, "home") == "a host whose name is not valid"
