"""Creates the TLS contexts for producers and brokers from files. No other module creates contexts.

Contexts are created when the sidecar starts and again at each reload; established connections keep their contexts.
Neither keys nor the contents of files are ever logged or included in errors.

The expiry of our own certificates is read from their PEM text, since Python's `ssl` provides it only for peers'
certificates. OpenSSL has already accepted these certificates, so the parser validates only the fields that it reads.

Sources: RFC 5246, RFC 8446; RabbitMQ "TLS Support"; Python's `ssl`; RFC 5280, 4.1 and 4.1.2.5; X.690, 8.1 (DER).
"""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from oxproxy.errors import ConfigError, ConfigErrors

_PEM = re.compile(rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----(.*?)-----END ", re.DOTALL)
#: DER tags of the optional version field, which precedes the serial number, and of a time with a two-digit year.
_VERSION, _UTC_TIME = 0xA0, 0x17


def certificate_end(pem: bytes) -> float:
    """Return the expiry (seconds since 1970) of the certificate presented to peers: the first one in a PEM file.

    Raises:
        ValueError: there is no readable certificate.
    """
    match = _PEM.search(pem)
    if match is None:
        raise ValueError("no certificate in PEM format")
    try:
        return _end(base64.b64decode(match[1]))
    except (IndexError, ValueError) as error:
        raise ValueError("the certificate can't be read") from error


def _end(der: bytes) -> float:
    at, _ = _der_content(der, 0)  # Certificate
    at, _ = _der_content(der, at)  # tbsCertificate
    if der[at] == _VERSION:
        _, at = _der_content(der, at)
    for _ in ("serialNumber", "signature", "issuer"):
        _, at = _der_content(der, at)
    at, _ = _der_content(der, at)  # validity
    _, at = _der_content(der, at)  # notBefore
    begin, end = _der_content(der, at)
    text = der[begin:end].decode("ascii")
    if der[at] == _UTC_TIME:
        text = ("20" if text < "50" else "19") + text  # RFC 5280, 4.1.2.5.1
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _der_content(der: bytes, at: int) -> tuple[int, int]:
    """Return the offsets at which the content of a DER element begins and ends; `at` is the offset of the element."""
    begin, length = at + 2, der[at + 1]
    if length & 0x80:  # long form: the lower seven bits are the number of bytes that contain the length
        width = length & 0x7F
        length = int.from_bytes(der[begin : begin + width])
        begin += width
    return begin, begin + length


#: Returns the context for a new connection.
ContextProvider: TypeAlias = Callable[[], ssl.SSLContext]

#: The key with the cipher list, in place of a file name in errors.
CIPHERS = "ciphers"
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
#: OpenSSL's verification errors for a chain that does not lead to a trusted CA.
_UNTRUSTED = frozenset((18, 19, 20, 21))
#: Explanations for unclear OpenSSL errors.
_MEANING = {
    "WRONG_VERSION_NUMBER": " (the other side does not speak TLS)",
    "HTTP_REQUEST": " (the other side speaks HTTP without TLS)",
    "UNSUPPORTED_PROTOCOL": " (older than minimum_version)",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": " (the other side requires a client certificate: upstream.tls.certificate)",
    # Until TLS 1.2, the alert for a missing client certificate is also that for other failures (RFC 5246, 7.4.6).
    "SSLV3_ALERT_HANDSHAKE_FAILURE": " (the other side may require a client certificate: upstream.tls.certificate)",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": " (expected a certificate signed by a CA in client_ca)",
}


@dataclass(frozen=True, slots=True)
class TlsPolicy:
    """Accepted versions and cipher suites.

    Args:
        minimum_version: ``TLSv1.2`` or ``TLSv1.3``.
        ciphers: OpenSSL cipher list for TLS 1.2; None for Python's defaults.
    """

    minimum_version: str = "TLSv1.2"
    ciphers: str | None = None

    def apply(self, context: ssl.SSLContext) -> None:
        """Restrict a context.

        Raises:
            ConfigError: the list selects no cipher suite, or one without authentication or encryption. In the
                error, `CIPHERS` replaces the name of a file.
        """
        context.minimum_version = _VERSIONS[self.minimum_version]
        if self.ciphers is None:
            return
        try:
            context.set_ciphers(self.ciphers)
        except (ssl.SSLError, ValueError) as error:  # ValueError: NUL in the list
            expected = "expected an OpenSSL cipher list such as ECDHE+AESGCM"
            raise ConfigError(
                CIPHERS, 0, "", f'"{self.ciphers}" selects no cipher suite of TLS 1.2, {expected}'
            ) from error
        weak = [str(cipher["name"]) for cipher in context.get_ciphers() if _is_open(cipher)]
        if weak:
            message = f'"{self.ciphers}" selects {weak[0]}, which has no authentication or no encryption'
            raise ConfigError(CIPHERS, 0, "", message)


def _is_open(cipher: Mapping[str, object]) -> bool:
    return not cipher["strength_bits"] or cipher.get("auth") == "auth-null"


def policy_words(context: ssl.SSLContext) -> dict[str, object]:
    """Describe what is in force for new connections with a context, for the log."""
    minimum = next(name for name, version in _VERSIONS.items() if version == context.minimum_version)
    ciphers = [cipher for cipher in context.get_ciphers() if minimum == "TLSv1.2" or cipher["protocol"] == minimum]
    return {
        "minimum_version": minimum,
        "ciphers": [str(cipher["name"]) for cipher in ciphers],
        "peer_certificate": context.verify_mode.name.removeprefix("CERT_").lower(),
    }


@dataclass(frozen=True, slots=True)
class ServerTls:
    """TLS settings for connections from producers, and to the admin address.

    Args:
        certificate: our certificate chain (PEM).
        key: private key of the certificate (PEM), without a passphrase.
        client_ca: CA certificates for verifying clients; None to request no certificates.
        clients_required: whether a client without a certificate is refused.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None
    clients_required: bool = True
    policy: TlsPolicy = TlsPolicy()

    def context(self) -> ssl.SSLContext:
        """Read the files.

        Raises:
            ConfigError: a file can't be used; the message contains the reason.
        """
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.policy.apply(context)
        _prove(context, self.certificate, self.key)
        if self.client_ca is not None:
            _trust(context, self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED if self.clients_required else ssl.CERT_OPTIONAL
        return context


@dataclass(frozen=True, slots=True)
class ClientTls:
    """TLS settings for connections to a broker.

    Args:
        ca: file with trusted CA certificates; None for the system's CA certificates.
        server_name: name that the certificate must have; None for the host name.
        certificate: our client certificate; None if there is none.
        key: private key of the certificate.
        verify: whether the chain and the name are verified.
    """

    ca: Path | None = None
    server_name: str | None = None
    certificate: Path | None = None
    key: Path | None = None
    verify: bool = True
    policy: TlsPolicy = TlsPolicy()

    def context(self) -> ssl.SSLContext:
        """Read the files; see `ServerTls.context`."""
        context = ssl.create_default_context() if self.ca is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.policy.apply(context)
        if self.ca is not None:
            _trust(context, self.ca)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate is not None and self.key is not None:
            _prove(context, self.certificate, self.key)
        return context

    def words(self, error: BaseException) -> str:
        """Describe an error of a connection with these settings, without the peer's address."""
        if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in _UNTRUSTED:
            trusted = "the system's CA certificates" if self.ca is None else f"a CA in {self.ca}"
            return f"{words(error)} (not signed by {trusted})"
        return words(error)


class TlsContexts:
    """The contexts in use, one for each set of TLS settings. All contexts are replaced together."""

    def __init__(self) -> None:
        self._made: dict[ServerTls | ClientTls, ssl.SSLContext] = {}
        #: expiry of our own certificates in use (seconds since 1970), by side (downstream or upstream) and file
        self.ends: dict[tuple[str, str], float] = {}

    def of(self, tls: ServerTls | ClientTls) -> ssl.SSLContext:
        """Return the context in use for these settings; create it if there is none.

        Raises:
            ConfigError: a new context is needed, but a certificate, key or CA file can't be used.
        """
        context = self._made.get(tls)
        if context is None:
            context = tls.context()
            self.ends.update(_ends(tls))
            self._made[tls] = context
        return context

    def read(self, wanted: Iterable[ServerTls | ClientTls]) -> Callable[[Iterable[ServerTls | ClientTls]], None]:
        """Read all files again. This takes a few milliseconds, and may run in a thread.

        Returns:
            A function that puts the new contexts into use. Of the settings that it receives, those that have not been
            read keep their contexts.

        Raises:
            ConfigErrors: some files can't be used; the contexts in use stay unchanged.
        """
        new = TlsContexts()
        errors = []
        for tls in dict.fromkeys(wanted):
            try:
                new.of(tls)
            except ConfigError as error:
                errors.append(error)
        if errors:
            raise ConfigErrors(errors)

        def use(kept: Iterable[ServerTls | ClientTls]) -> None:
            for tls in kept:
                if tls in self._made and tls not in new._made:
                    new._made[tls] = self._made[tls]
                    new.ends.update({key: end for key, end in self.ends.items() if key[1] == str(tls.certificate)})
            self._made, self.ends = new._made, new.ends

        return use


def words(error: BaseException) -> str:
    """Describe a socket or TLS error, without the address."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate rejected: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLError) and error.reason:
        reason = error.reason.lower().replace("_", " ")
        return f"TLS: {reason}{_MEANING.get(error.reason, '')}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _ends(tls: ServerTls | ClientTls) -> dict[tuple[str, str], float]:
    """Return the expiry of our certificate, by side (downstream or upstream) and file; empty without a certificate."""
    if tls.certificate is None:
        return {}
    side = "downstream" if isinstance(tls, ServerTls) else "upstream"
    try:
        return {(side, str(tls.certificate)): certificate_end(tls.certificate.read_bytes())}
    except (OSError, ValueError) as error:
        raise _wrong(tls.certificate, f"the certificate's expiry can't be read: {error}") from error


def _prove(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    _content(certificate, b"CERTIFICATE", "a certificate")
    if b"ENCRYPTED" in _content(key, b"PRIVATE KEY", "a private key"):
        raise _wrong(key, "got a key with a passphrase, expected a key without a passphrase")
    try:
        context.load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            raise _wrong(key, f"expected the private key of the certificate in {certificate}") from None
        raise _wrong(certificate, f"can't be used with the key in {key}: {words(error)}") from None


def _trust(context: ssl.SSLContext, authorities: Path) -> None:
    _content(authorities, b"CERTIFICATE", "CA certificates")
    try:
        context.load_verify_locations(authorities)
    except (ssl.SSLError, OSError) as error:
        raise _wrong(authorities, f"expected CA certificates in PEM: {words(error)}") from None


def _content(path: Path, label: bytes, expected: str) -> bytes:
    """Read and check a PEM file, so that errors name the file. OpenSSL does not report which file is invalid."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _wrong(path, f"can't be read: {error.strerror or error}") from error
    if b"-----BEGIN " not in content or label + b"-----" not in content:
        raise _wrong(path, f"no PEM block {label.decode()}, expected {expected}")
    return content


def _wrong(path: Path, message: str) -> ConfigError:
    return ConfigError(str(path), 0, "", message)
