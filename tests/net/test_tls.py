from __future__ import annotations

import contextlib
import os
import shutil
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from oxproxy.errors import ConfigError, ConfigErrors
from oxproxy.net.tls import ClientTls, ServerTls, TlsContexts, TlsPolicy, words
from tests.certificates import Authority


def names(context: ssl.SSLContext, authority: Authority) -> str:
    """Do a TLS handshake with a server of this context in memory; return the serial number of its certificate."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    client = authority.client().wrap_bio(to_client, to_server, server_hostname="localhost")
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    certificate = client.getpeercert()
    assert certificate
    return str(certificate["serialNumber"])


def test_with_configured_authorities_those_of_the_system_are_not_trusted(authority: Authority) -> None:
    trusted = ClientTls(authority.ca).context().get_ca_certs()
    assert [certificate["subject"] for certificate in trusted] == [((("commonName", "private authority"),),)]


def test_the_minimum_version_is_tls_1_2(pair: tuple[Path, Path]) -> None:
    for context in (ClientTls().context(), ServerTls(*pair).context()):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def agreed(client: ssl.SSLContext, server: ssl.SSLContext) -> tuple[str, str]:
    """Do a TLS handshake in memory; return the version and the cipher suite."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(4):
        for side in sides:
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    cipher = sides[0].cipher()
    assert cipher
    return str(sides[0].version()), cipher[0]


def test_a_policy_limits_versions_and_ciphers_on_both_sides(authority: Authority, pair: tuple[Path, Path]) -> None:
    old = authority.client()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    suite = "ECDHE-ECDSA-CHACHA20-POLY1305"
    only = TlsPolicy("TLSv1.2", suite)
    assert agreed(old, ServerTls(*pair, policy=only).context()) == ("TLSv1.2", suite)
    with pytest.raises(ssl.SSLError, match=r"(?i)protocol"):
        agreed(old, ServerTls(*pair, policy=TlsPolicy("TLSv1.3")).context())
    server = ServerTls(*pair).context()
    server.maximum_version = ssl.TLSVersion.TLSv1_2
    assert agreed(ClientTls(authority.ca, policy=only).context(), server) == ("TLSv1.2", suite)
    with pytest.raises(ssl.SSLError, match=r"(?i)protocol|version"):
        agreed(ClientTls(authority.ca, policy=TlsPolicy("TLSv1.3")).context(), server)


Files = Callable[[Path, Authority, Path, Path], ServerTls | ClientTls]


def none(folder: Path) -> Path:
    (folder / "text").write_text("none")
    return folder / "text"


def locked(folder: Path) -> Path:
    (folder / "locked").write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAA==\n-----END ENCRYPTED PRIVATE KEY-----\n")
    return folder / "locked"


def broken(folder: Path, what: str) -> Path:
    (folder / "broken").write_text(f"-----BEGIN {what}-----\nAA==\n-----END {what}-----\n")
    return folder / "broken"


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda folder, ca, cert, key: ServerTls(folder / "a", key), "/a: can't be read: No such file or directory"),
        (lambda folder, ca, cert, key: ServerTls(cert, folder), "can't be read: Is a directory"),
        (lambda folder, ca, cert, key: ServerTls(key, key), ".key: no PEM block CERTIFICATE, expected a certificate"),
        (lambda folder, ca, cert, key: ServerTls(cert, cert), ".pem: no PEM block PRIVATE KEY"),
        (lambda folder, ca, cert, key: ServerTls(cert, locked(folder)), "/locked: got a key with a passphrase"),
        (
            lambda folder, ca, cert, key: ServerTls(cert, ca.certificate("other")[1]),
            "/other.key: expected the private key of the certificate in ",
        ),
        (lambda folder, ca, cert, key: ServerTls(broken(folder, "CERTIFICATE"), key), "can't be used with the key"),
        (lambda folder, ca, cert, key: ServerTls(cert, key, none(folder)), "/text: no PEM block CERTIFICATE"),
        (lambda folder, ca, cert, key: ClientTls(broken(folder, "CERTIFICATE")), "/broken: expected CA certificates"),
        (lambda folder, ca, cert, key: ClientTls(None, None, cert, none(folder)), "/text: no PEM block PRIVATE KEY"),
    ],
)
def test_an_unusable_file_is_reported_with_what_was_expected(
    made: Files, message: str, tmp_path: Path, authority: Authority, pair: tuple[Path, Path]
) -> None:
    with pytest.raises(ConfigError) as caught:
        made(tmp_path, authority, *pair).context()
    assert message in str(caught.value)


def test_a_context_stays_until_files_are_read_again(authority: Authority, tmp_path: Path) -> None:
    contexts, tls = TlsContexts(), ServerTls(tmp_path / "cert", tmp_path / "key")

    def install(name: str) -> None:
        for source, target in zip(authority.certificate(name), (tls.certificate, tls.key), strict=True):
            shutil.copy(source, target)

    install("localhost")
    contexts.read([tls])([])
    before = names(contexts.of(tls), authority)
    install("localhost")
    assert names(contexts.of(tls), authority) == before
    use = contexts.read([tls])
    assert names(contexts.of(tls), authority) == before
    use([])
    assert names(contexts.of(tls), authority) != before


def test_the_expiry_of_certificates_in_use_is_reported_by_side_and_file(authority: Authority, tmp_path: Path) -> None:
    pair = (tmp_path / "cert", tmp_path / "key")

    def install(*, expired: bool) -> None:
        for source, target in zip(authority.certificate("localhost", expired=expired), pair, strict=True):
            shutil.copy(source, target)

    contexts, server = TlsContexts(), ServerTls(*pair)
    wanted: list[ServerTls | ClientTls] = [server, ClientTls(authority.ca, None, *pair), ClientTls(authority.ca)]
    install(expired=True)
    contexts.of(server)
    first = datetime(2020, 1, 2, tzinfo=UTC).timestamp()
    assert contexts.ends == {("downstream", str(pair[0])): first}
    install(expired=False)
    use = contexts.read(wanted)
    assert set(contexts.ends.values()) == {first}
    use([])
    assert set(contexts.ends) == {("downstream", str(pair[0])), ("upstream", str(pair[0]))}
    assert min(contexts.ends.values()) > first


def test_an_invalid_file_prevents_the_use_of_all_files(
    authority: Authority, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    contexts, good, bad = TlsContexts(), ClientTls(authority.ca), ServerTls(*pair)
    contexts.read([good, bad])([])
    before = contexts.of(good), contexts.of(bad)
    with pytest.raises(ConfigErrors) as caught:
        contexts.read([good, ServerTls(tmp_path / "gone", pair[1]), ClientTls(none(tmp_path))])
    assert len(caught.value.errors) == 2
    assert (contexts.of(good), contexts.of(bad)) == before


@pytest.mark.parametrize(
    ("version", "text"),
    [
        (ssl.TLSVersion.TLSv1_2, "may require a client certificate: upstream.tls.certificate"),
        (ssl.TLSVersion.TLSv1_3, "requires a client certificate: upstream.tls.certificate"),
    ],
)
def test_a_missing_client_certificate_is_named_in_the_error(
    authority: Authority, pair: tuple[Path, Path], version: ssl.TLSVersion, text: str
) -> None:
    context = ServerTls(*pair, client_ca=authority.ca).context()
    context.maximum_version = version
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    client = ClientTls(authority.ca).context().wrap_bio(to_client, to_server, server_hostname="localhost")

    def converse() -> None:
        for _ in range(4):
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
                client.read()
            # The server's own error says only that there is no certificate.
            with contextlib.suppress(ssl.SSLError):
                server.do_handshake()

    with pytest.raises(ssl.SSLError) as caught:
        converse()
    assert text in words(caught.value)


def test_an_error_without_a_text_is_shown_by_its_type() -> None:
    assert words(TimeoutError()) == "TimeoutError"


def test_errors_contain_nothing_of_a_key(pair: tuple[Path, Path], tmp_path: Path) -> None:
    lines = pair[1].read_text().splitlines()
    damaged = tmp_path / "damaged.key"
    damaged.write_text(os.linesep.join([lines[0], *lines[3:]]))
    with pytest.raises(ConfigError) as caught:
        ServerTls(pair[0], damaged).context()
    assert not any(line in str(caught.value) for line in lines)
