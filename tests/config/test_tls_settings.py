from __future__ import annotations

from pathlib import Path

import pytest

from oxproxy.config.loader import load_settings
from oxproxy.config.settings import ListenTls, Settings, UpstreamTls
from oxproxy.errors import ConfigErrors

FILES = ("cert.pem", "key.pem", "ca.pem")

#: The example in the configuration reference, without comments.
INTERFACE = """
listen:
  - address: 127.0.0.1:5673
    tls: {certificate: cert.pem, key: key.pem, client_ca: ca.pem}
upstream:
  address: 127.0.0.1:5672
  tls: {ca: ca.pem, verify: true, server_name: broker.example}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).touch()
    return tmp_path


def load(folder: Path, text: str, required: bool = True) -> tuple[Settings, list[str]]:
    path = folder / "oxproxy.yaml"
    path.write_text(text)
    settings, warnings = load_settings(path, {}, required)
    return settings, [str(warning).replace(f"{folder}/", "") for warning in warnings]


def faults(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigErrors) as raised:
        load(folder, text)
    return str(raised.value).replace(f"{folder}/", "").splitlines()


def test_the_example_of_the_reference_is_read(folder: Path) -> None:
    settings, warnings = load(folder, INTERFACE)
    assert settings.listen[0].tls == ListenTls(
        certificate="cert.pem", key="key.pem", client_ca="ca.pem", client_verify="required"
    )
    assert settings.upstream.tls == UpstreamTls(ca="ca.pem", verify=True, server_name="broker.example")
    assert warnings == []


def test_plain_and_tls_listeners_can_be_combined(folder: Path) -> None:
    text = "listen: [{address: a:1}, {address: a:2, tls: {certificate: cert.pem, key: key.pem}}]\n"
    assert [listener.tls is not None for listener in load(folder, text)[0].listen] == [False, True]


@pytest.mark.parametrize("nothing", ["rules: []\n", "listen: [{address: a:1, tls: null}]\nupstream: {tls: ~}\n"])
def test_without_tls_or_with_null_there_is_none(folder: Path, nothing: str) -> None:
    settings = load(folder, nothing)[0]
    assert (settings.listen[0].tls, settings.upstream.tls) == (None, None)


def test_an_empty_tls_mapping_trusts_the_system_authorities(folder: Path) -> None:
    assert load(folder, "upstream: {tls: {}}")[0].upstream.tls == UpstreamTls()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "listen: [{tls: {certificate: cert.pem}}]",
            ["oxproxy.yaml:1:11: listen[0].tls.key: missing, expected the name of a file"],
        ),
        (
            "listen:\n  - tls: {}",
            [
                "oxproxy.yaml:2:5: listen[0].tls.certificate: missing, expected the name of a file",
                "oxproxy.yaml:2:5: listen[0].tls.key: missing, expected the name of a file",
            ],
        ),
        (
            "listen: [{tls: {certificate: cert.pem, key: none.pem}}]",
            ["oxproxy.yaml:1:40: listen[0].tls.key: none.pem: file does not exist"],
        ),
        (
            "listen: [{tls: {certificate: cert.pem, key: key.pem, client_verify: optional}}]",
            ["oxproxy.yaml:1:54: listen[0].tls.client_verify: has no effect without client_ca"],
        ),
        ("upstream: {tls: true}", ["oxproxy.yaml:1:17: upstream.tls: got the boolean true, expected a mapping"]),
        (
            "upstream: {tls: {certificate: cert.pem}}",
            ["oxproxy.yaml:1:12: upstream.tls: certificate and key must be given together"],
        ),
        (
            "upstream: {tls: {ca: none.pem}}",
            ["oxproxy.yaml:1:18: upstream.tls.ca: none.pem: file does not exist"],
        ),
        (
            "listen: [{tls: {certificate: cert.pem, key: key.pem, minimum_version: TLSv1.1}}]",
            [
                'oxproxy.yaml:1:71: listen[0].tls.minimum_version: got the string "TLSv1.1", expected one of TLSv1.2, '
                "TLSv1.3"
            ],
        ),
        (
            "admin: {tls: {certificate: cert.pem, key: key.pem, minimum_version: TLSv1.3, ciphers: ECDHE}}",
            ["oxproxy.yaml:1:78: admin.tls.ciphers: has no effect with minimum_version: TLSv1.3"],
        ),
        (
            "upstream: {tls: {verfy: true}}",
            ["oxproxy.yaml:1:18: upstream.tls.verfy: unknown key; did you mean verify?"],
        ),
    ],
)
def test_invalid_tls_settings_are_errors(folder: Path, text: str, expected: list[str]) -> None:
    assert faults(folder, text + "\n") == expected


def test_check_does_not_require_the_certificate_files(tmp_path: Path) -> None:
    assert load(tmp_path, INTERFACE, required=False)[1] == [
        "oxproxy.yaml:4:11: listen[0].tls.certificate: warning: cert.pem: file does not exist",
        "oxproxy.yaml:4:34: listen[0].tls.key: warning: key.pem: file does not exist",
        "oxproxy.yaml:4:48: listen[0].tls.client_ca: warning: ca.pem: file does not exist",
        "oxproxy.yaml:7:9: upstream.tls.ca: warning: ca.pem: file does not exist",
    ]


def test_passwords_over_plain_tcp_to_a_remote_broker_are_a_warning(folder: Path) -> None:
    far = "upstream:\n  address: [127.0.0.1:1, rabbit:2]\n"
    message = "without upstream.tls, passwords are sent to rabbit:2 in plain text"
    warning = f"oxproxy.yaml:2:3: upstream.address: warning: {message}"
    assert warning in load(folder, far)[1]
    assert warning not in load(folder, far + "  tls: {}\n")[1]
    assert load(folder, "upstream: {address: ['[::1]:1', localhost:2]}\n")[1] == []


def test_an_unchecked_broker_certificate_is_a_warning(folder: Path) -> None:
    (warning,) = load(folder, "upstream:\n  tls: {verify: false}\n")[1]
    assert warning.startswith("oxproxy.yaml:2:9: upstream.tls.verify: warning: anyone on the network path")


def test_a_file_whose_path_can_not_be_accessed_is_an_error(folder: Path) -> None:
    """A name that is too long causes an OSError, as does a directory without search permission."""
    errors = faults(folder, f"upstream: {{tls: {{ca: {'x' * 300}}}}}")
    assert [line.rpartition(": ")[2] for line in errors] in (["File name too long"], ["file does not exist"])
