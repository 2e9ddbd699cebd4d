"""Tests errors of ``oxproxy check`` about TLS files that cannot be used, at the keys that name them."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.cli import main as cli
from tests.certificates import Authority

CONFIG = """\
listen:
  - {address: 127.0.0.1:5673, tls: {certificate: cert.pem, key: key.pem, client_ca: ca.pem}}
upstream:
  address: rabbit.example:5671
  tls: {ca: ca.pem, certificate: cert.pem, key: key.pem}
  control: {username: u, password_env: HOME}
rules: [rules.yaml]
declared: {secrets: [{file: secret}]}
"""
RULES = """\
brokers:
  far:
    address: far.example:5671
    tls: {ca: far-ca.pem, certificate: far.pem, key: far.key}
    username: u
    password_env: HOME
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def folder(authority: Authority, tmp_path: Path) -> Path:
    """A directory with valid files."""
    for name, prefix in (("sidecar", ""), ("mover", "far")):
        certificate, key = authority.certificate(name)
        (tmp_path / (f"{prefix}.pem" if prefix else "cert.pem")).write_bytes(certificate.read_bytes())
        (tmp_path / (f"{prefix}.key" if prefix else "key.pem")).write_bytes(key.read_bytes())
    for name in ("ca.pem", "far-ca.pem"):
        (tmp_path / name).write_bytes(authority.ca.read_bytes())
    (tmp_path / "oxproxy.yaml").write_text(CONFIG)
    (tmp_path / "rules.yaml").write_text(RULES)
    (tmp_path / "secret").write_bytes(bytes(32))
    return tmp_path


def check(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, list[str]]:
    status = cli.main(["check", *more, str(folder / "oxproxy.yaml")])
    captured = capsys.readouterr()
    lines = (captured.out if more else captured.err).replace(f"{folder}/", "")
    return status, lines.splitlines()


def test_valid_files_are_accepted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(folder, capsys) == (0, [])


def test_unusable_files_are_errors_at_their_keys(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "ca.pem").write_text("none")
    (folder / "far-ca.pem").write_text("none")
    (folder / "key.pem").write_bytes((folder / "far.key").read_bytes())
    no_authority = "no PEM block CERTIFICATE, expected CA certificates"
    no_pair = "key.pem: expected the private key of the certificate in cert.pem"
    assert check(folder, capsys) == (
        2,
        [
            f"oxproxy.yaml:2:60: listen[0].tls.key: {no_pair}",
            f"oxproxy.yaml:5:9: upstream.tls.ca: ca.pem: {no_authority}",
            f"rules.yaml:4:11: brokers.far.tls.ca: far-ca.pem: {no_authority}",
        ],
    )


def test_missing_files_are_warnings(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("key.pem", "far.key"):
        (folder / name).unlink()
    unread = "can't be read: No such file or directory"
    assert check(folder, capsys) == (
        0,
        [
            "oxproxy.yaml:2:60: listen[0].tls.key: warning: key.pem: file does not exist",
            "oxproxy.yaml:5:44: upstream.tls.key: warning: key.pem: file does not exist",
            f"rules.yaml:4:49: brokers.far.tls.key: warning: far.key: {unread}",
        ],
    )


def test_no_private_key_is_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = (folder / "key.pem").read_text().replace("PRIVATE KEY", "PUBLIC KEY")
    (folder / "key.pem").write_text(content)
    _, lines = check(folder, capsys)
    assert lines
    assert not [line for line in content.splitlines()[1:-1] if line in "\n".join(lines)]
