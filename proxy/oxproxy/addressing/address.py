"""Parses addresses and masks their passwords.

The syntax is Messenger's, ``[scheme://][user[:password]@]host[:port][/name]``, but stricter where Messenger could send
a message or a password to the wrong place. Source: the messenger-addressing specification, 1.4 and Part 2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_PORT = re.compile(rb"0*([0-9]{0,5})")
_SCHEME = re.compile(rb"(?:[^/]*://)?")
_SCHEMES = frozenset({b"amqp", b"amqps"})
_AMQP_PORT, _TLS_PORT = 5672, 5671
_LARGEST_PORT = 65535
_HIDDEN = b"***"


class InvalidAddress(ValueError):  # noqa: N818 - describes the address, not an internal error
    """An invalid address; the message gives the reason and never quotes the address."""


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of an address.

    A part is None if the address does not contain it, and an empty string if it is present without a value.

    Args:
        scheme: in lower case.
        user: percent-decoded.
        password: percent-decoded.
        host: without brackets.
        port: None for the scheme's default.
        name: everything after the slash that ends the domain, not decoded.
        passive: True if the address is for listening, not for connecting.
        local: True if there is no scheme and the domain is empty. The address then refers to the sidecar's own broker.
    """

    scheme: bytes | None
    user: bytes | None
    password: bytes | None = field(repr=False)
    host: bytes
    port: int | None
    name: bytes | None
    passive: bool
    local: bool

    @property
    def tls(self) -> bool:
        return self.scheme == b"amqps"

    @property
    def effective_port(self) -> int:
        return self.port or (_TLS_PORT if self.tls else _AMQP_PORT)


def parse_address(address: bytes) -> Address:
    """Split an address into its parts.

    Raises:
        InvalidAddress: the address is invalid according to Part 2 of the specification: it has an unknown scheme, an
            invalid port, a second unescaped ``@``, a second colon outside brackets, an unclosed bracket, unexpected
            characters after a closing bracket, or a NUL byte in the credentials.
    """
    scheme, rest = _split_scheme(address)
    domain, slash, name = rest.partition(b"/")
    credentials, at, host_and_port = domain.rpartition(b"@")
    if b"@" in credentials:
        raise InvalidAddress("more than one unescaped @ before the name")
    user, password = _split_credentials(credentials) if at else (None, None)
    host, port, passive = _split_host(host_and_port)
    return Address(
        scheme, user, password, host, port, name if slash else None, passive, local=not domain and scheme is None
    )


def _split_scheme(address: bytes) -> tuple[bytes | None, bytes]:
    slash = address.find(b"/")
    if slash < 1 or address[slash - 1 : slash + 2] != b"://":
        return None, address
    scheme = address[: slash - 1].lower()
    if scheme not in _SCHEMES:
        raise InvalidAddress("the scheme is neither amqp nor amqps")
    return scheme, address[slash + 2 :]


def _split_credentials(credentials: bytes) -> tuple[bytes, bytes | None]:
    user, colon, password = credentials.partition(b":")
    decoded = [_ESCAPE.sub(lambda escape: bytes.fromhex(escape[1].decode()), part) for part in (user, password)]
    if any(b"\0" in part for part in decoded):
        raise InvalidAddress("NUL byte in the credentials")  # NUL separates the fields of SASL PLAIN
    return decoded[0], decoded[1] if colon else None


def _split_host(text: bytes) -> tuple[bytes, int | None, bool]:
    passive = text.startswith(b"~")
    text = text[passive:]
    if not text.startswith(b"["):
        if text.count(b":") > 1:
            raise InvalidAddress("more than one colon outside brackets")
        host, _, port = text.partition(b":")
        return host, _port(port), passive
    host, bracket, rest = text[1:].partition(b"]")
    if not bracket:
        raise InvalidAddress("[ is not closed")
    if rest and not rest.startswith(b":"):
        raise InvalidAddress("unexpected characters after ]")
    if host.startswith(b"~") and not passive:  # Messenger expects ~ in brackets
        host, passive = host[1:], True
    return host, _port(rest[1:]), passive


def _port(text: bytes) -> int | None:
    if not text:
        return None
    number = _PORT.fullmatch(text)
    if number is None or not 1 <= int(number[1] or b"0") <= _LARGEST_PORT:
        raise InvalidAddress("the port is not a number from 1 to 65535")
    return int(number[1])


def password_span(address: bytes) -> tuple[int, int] | None:
    """Return the start and end of everything that could be a password in an address or a translation.

    Accepts any text. If ``parse_address`` would reject the text because of an unescaped slash in the password, the
    password is assumed to end at the last ``@``.
    """
    scheme = _SCHEME.match(address)
    start = scheme.end() if scheme else 0
    domain = address[start:].partition(b"/")[0]
    if b"@" in domain:
        at = start + domain.rindex(b"@")
    elif domain.startswith(b"[") or _PORT.fullmatch(domain.partition(b":")[2]):
        return None
    else:
        at = max(address.rfind(b"@"), start)
    colon = address.find(b":", start, at)
    return None if colon < 0 else (colon + 1, at)


def without_password(address: bytes) -> bytes:
    """Return an address or a translation with its password masked."""
    span = password_span(address)
    return address if span is None else address[: span[0]] + _HIDDEN + address[span[1] :]
