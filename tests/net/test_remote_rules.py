from __future__ import annotations

from pathlib import Path

import pytest

from oxproxy.app.composition import remote_brokers
from oxproxy.errors import ConfigErrors
from oxproxy.net.tls import ClientTls
from oxproxy.yamlfile.hosts import HostPort
from tests.rules.loading import load

LISTENING = [HostPort("127.0.0.1", 5673)]


def test_brokers_are_given_by_virtual_host_with_their_passwords() -> None:
    first = "a: {address: 'h:1', tls: {server_name: n}, username: u, password_env: WORD, deadline: 2s}"
    loaded = load(f"vhost: v\nbrokers: {{{first}, b: {{address: 'h:2'}}}}")
    brokers = remote_brokers(loaded, {"WORD": "s3cret"}, LISTENING)["v"]
    assert [broker.tls for broker in brokers.values()] == [ClientTls(server_name="n"), None]
    made = brokers[b"a"]
    assert (made.host, made.user, made.password, made.limits.deadline_seconds) == ("h", b"u", b"s3cret", 2.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "brokers:\n  a:\n    address: 'h:1'\n    username: u\n    password_env: WORD",
            'a.yaml:5:5: brokers.a.password_env: there is no environment variable "WORD"',
        ),
        ("brokers:\n  a:\n    address: 'h:1'\n    tls: {ca: FILE}", "a.yaml:4:11: brokers.a.tls.ca: "),
        (
            "brokers:\n  a:\n    address: 'h:1'\n    tls: {ca: /none}",
            "a.yaml:4:11: brokers.a.tls.ca: /none: can't be read",
        ),
        ("brokers: {a: {address: '127.0.0.1:5673'}}", "a.yaml:1:15: brokers.a.address: leads back to this sidecar"),
    ],
)
def test_an_unusable_broker_is_an_error_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "no-certificate").write_text("no certificate")
    with pytest.raises(ConfigErrors) as raised:
        remote_brokers(load(text.replace("FILE", str(tmp_path / "no-certificate"))), {}, LISTENING)
    assert str(raised.value).startswith(message)
