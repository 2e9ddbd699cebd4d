from __future__ import annotations

from pathlib import Path

import pytest

from oxproxy.config.loader import parse_settings
from oxproxy.errors import ConfigErrors
from oxproxy.net.remote.endpoints import RemoteBroker
from oxproxy.net.tls import ClientTls, ServerTls
from oxproxy.net.tls_config import SidecarTls, check_settings
from oxproxy.yamlfile.document import Faults
from tests.certificates import Authority

HERE = Path("/etc/oxproxy")


def wanted(text: str) -> SidecarTls:
    return SidecarTls(parse_settings(text.encode(), HERE / "oxproxy.yaml", {}, Faults(secrets_required=False)))


BOTH = """
listen:
  - {address: a:1}
  - {address: a:2, tls: {certificate: c, key: tls/k, client_ca: /trust/ca, client_verify: optional}}
upstream: {address: [b:1, c:1], tls: {ca: ca, certificate: own, key: own.key, server_name: n}, management: https://b:2}
"""


def test_listeners_on_any_free_port_of_one_address_have_their_own_settings() -> None:
    config = wanted("listen: [{address: a:0, tls: {certificate: c, key: k}}, {address: a:0}]")
    assert config.listeners == {0: ServerTls(HERE / "c", HERE / "k")}


@pytest.mark.parametrize(
    ("management", "name"), [("https://b:2", "n"), ("https://c", "n"), ("https://elsewhere", None)]
)
def test_the_expected_name_applies_to_the_brokers_own_hosts(management: str, name: str | None) -> None:
    config = wanted(BOTH.replace("https://b:2", management))
    control, api = config.control(), config.management()
    assert control is not None
    assert api is not None
    assert (control.server_name, api.server_name) == ("n", name)


def test_a_management_api_without_tls_needs_none() -> None:
    assert wanted(BOTH.replace("https://b:2", "http://b:2")).management() is None


def test_all_files_are_read_and_each_error_is_reported() -> None:
    broker = RemoteBroker("far", 1, ClientTls(HERE / "far"))
    with pytest.raises(ConfigErrors) as caught:
        wanted(BOTH).read({"/": {b"far": broker}})
    assert [error.file for error in caught.value.errors] == [f"{HERE}/c", f"{HERE}/ca", f"{HERE}/far"]


def test_files_of_brokers_in_rules_are_watched_while_the_rules_are_in_force(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    config = wanted("rules: []")
    brokers = {"/": {b"far": RemoteBroker("far", 1, ClientTls(authority.ca))}}
    use = config.read(brokers)
    assert config.files() == []
    use(brokers)
    assert config.files() == [authority.ca]
    config.read({})({})
    assert config.files() == []


def test_brokers_that_are_still_in_use_keep_their_contexts_although_their_files_are_unusable(tmp_path: Path) -> None:
    ca = tmp_path / "ca"
    ca.write_bytes(Authority(tmp_path / "authority").ca.read_bytes())
    config, tls = wanted("rules: []"), ClientTls(ca)
    brokers = {"/": {b"far": RemoteBroker("far", 1, tls)}}
    config.read(brokers)(brokers)
    before = config.contexts.of(tls)
    ca.write_text("no certificate")
    config.read({})(brokers)
    assert config.contexts.of(tls) is before
    assert config.files() == [ca]


@pytest.mark.parametrize(
    ("ciphers", "seen"),
    [
        ("ECDHE+NOTHING", "selects no cipher suite of TLS 1.2, expected an OpenSSL cipher list such as ECDHE+AESGCM"),
        ("TLS_AES_128_GCM_SHA256", "selects no cipher suite of TLS 1.2, expected an OpenSSL cipher list such as "),
        ("aNULL:@SECLEVEL=0", "which has no authentication or no encryption"),
        ("eNULL:@SECLEVEL=0", "which has no authentication or no encryption"),
    ],
)
def test_unusable_ciphers_are_reported_at_their_key(ciphers: str, seen: str) -> None:
    faults = Faults()
    check_settings(
        parse_settings(f'upstream: {{tls: {{ciphers: "{ciphers}"}}}}'.encode(), Path("o.yaml"), {}, Faults()), faults
    )
    [error] = faults.errors
    assert str(error).startswith(f'o.yaml:1:18: upstream.tls.ciphers: "{ciphers}" selects ')
    assert seen in str(error)


def test_an_error_names_the_environment_variable_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("none")
    environ = {"OXPROXY_UPSTREAM__TLS__CA": str(tmp_path / "ca")}
    faults = Faults()
    check_settings(parse_settings(b"rules: []", tmp_path / "o.yaml", environ, faults), faults)
    [error] = faults.errors
    assert str(error).startswith("OXPROXY_UPSTREAM__TLS__CA: upstream.tls.ca: ")
