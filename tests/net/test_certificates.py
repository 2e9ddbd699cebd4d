from __future__ import annotations

import base64
import ssl
import subprocess
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from oxproxy.net.tls import certificate_end
from tests.certificates import Authority


def openssl(*arguments: object) -> str:
    """Return the output of the command, which reads certificates independently of our code."""
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, check=True)
    return done.stdout


def openssl_expiry(certificate: Path) -> float:
    output = openssl("x509", "-enddate", "-noout", "-in", certificate)
    return float(ssl.cert_time_to_seconds(output.removeprefix("notAfter=").strip()))


def test_the_expiry_is_the_one_that_openssl_reads(authority: Authority) -> None:
    for certificate in (authority.certificate("a.example")[0], authority.certificate("a.example", expired=True)[0]):
        assert certificate_end(certificate.read_bytes()) == openssl_expiry(certificate)


@pytest.mark.parametrize("end", ["20491231235959Z", "20500101000000Z", "99991231235959Z"])
def test_years_of_two_and_of_four_digits_are_read(end: str, authority: Authority) -> None:
    certificate, _ = authority.certificate("long.example")
    request, made = certificate.with_suffix(".csr"), certificate.with_name("long.pem")
    signed = ("-config", authority.folder / "ca.conf", "-cert", authority.ca, "-keyfile", authority.folder / "ca.key")
    openssl("ca", "-batch", "-notext", "-in", request, *signed, "-enddate", end, "-out", made)
    assert certificate_end(made.read_bytes()) == openssl_expiry(made)


def test_the_first_of_several_certificates_is_read(authority: Authority) -> None:
    (first, key), second = authority.certificate("b.example", expired=True), authority.certificate("c.example")[0]
    chain = key.read_bytes() + b"as text\r\n" + first.read_bytes().replace(b"\n", b"\r\n") + second.read_bytes()
    assert certificate_end(chain) == openssl_expiry(first)


def test_a_version_1_certificate_is_read(authority: Authority) -> None:
    key, made = authority.folder / "v1.key", authority.folder / "v1.pem"
    openssl("req", "-new", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-subj", "/CN=v1", "-out", made)
    openssl("x509", "-req", "-in", made, "-signkey", key, "-days", 3, "-out", made.with_suffix(".crt"))
    assert "Version: 1 " in openssl("x509", "-text", "-noout", "-in", made.with_suffix(".crt"))
    assert certificate_end(made.with_suffix(".crt").read_bytes()) == openssl_expiry(made.with_suffix(".crt"))


def test_a_file_without_a_certificate_is_an_error(authority: Authority) -> None:
    with pytest.raises(ValueError, match="no certificate"):
        certificate_end(authority.certificate("d.example")[1].read_bytes())


@given(st.binary(max_size=60))
def test_any_bytes_in_pem_raise_only_value_error(der: bytes) -> None:
    for content in (der, b"\x30\x7f\x30\x7f" + der):
        with pytest.raises(ValueError, match="can't be read"):
            certificate_end(b"-----BEGIN CERTIFICATE-----" + base64.b64encode(content) + b"-----END CERTIFICATE-----")
