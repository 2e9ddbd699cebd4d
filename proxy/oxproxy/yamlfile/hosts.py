"""Parses and compares the addresses (host and port) of TCP connections."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

MOST_PORT = 65535
_WRITTEN = re.compile(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:/@\[\]]+)):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class HostPort:
    """Host and port of one end of a TCP connection."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Return True for a loopback address and for localhost."""
    address = _ip(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def _ip(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def parse_address(text: str, least: int = 1) -> HostPort:
    """Parse ``host:port``.

    Args:
        least: smallest permitted port; 0 if port 0 may stand for any free port.

    Raises:
        ValueError: the message states what was expected.
    """
    parts = _WRITTEN.fullmatch(text)
    if not parts or int(parts[3]) > MOST_PORT:
        raise ValueError("host:port such as 127.0.0.1:5672 or [::1]:5672")
    host, port = parts[1] or parts[2], int(parts[3])
    if port < least:
        raise ValueError(f"a port from {least} to {MOST_PORT}")
    if not can_be_looked_up(host):
        raise ValueError("host:port with a name whose parts between dots have 1 to 63 characters")
    return HostPort(host, port)


def can_be_looked_up(host: str) -> bool:
    """Return False if the system can't look up a host name, for example because a part between dots is empty."""
    if "\0" in host:  # asyncio raises ValueError, or the system ignores the rest of the name
        return False
    try:
        host.encode("idna")  # as the name lookup does
    except UnicodeError:
        return False
    return True


def is_own_address(host: str, port: int, listening: Collection[HostPort]) -> bool:
    """Return True if an address is one of our listening addresses. Host names are not resolved."""
    return any(
        port == own.port and (host.lower() == own.host.lower() or (_is_here(host) and _is_here(own.host)))
        for own in listening
    )


def _is_here(host: str) -> bool:
    """Return True for loopback, and for a wildcard address, which includes loopback."""
    address = _ip(host)
    return is_loopback(host) or (address is not None and address.is_unspecified)


def listen_conflict(first: HostPort, second: HostPort) -> bool:
    """Return True if two listen addresses conflict. Host names are not resolved. Port 0 means any free port."""
    if first.port != second.port or not first.port:
        return False
    ours, theirs = _bound(first.host), _bound(second.host)
    return bool(ours & theirs) or any(_covers(a, b) or _covers(b, a) for a in ours for b in theirs)


def _bound(host: str) -> frozenset[IPv4Address | IPv6Address | str]:
    """Return the addresses that a listener on a host occupies. No host name other than localhost is resolved."""
    if host.lower() == "localhost":
        return frozenset((ip_address("127.0.0.1"), ip_address("::1")))
    return frozenset((_ip(host) or host.lower(),))


def _covers(host: IPv4Address | IPv6Address | str, other: IPv4Address | IPv6Address | str) -> bool:
    if isinstance(host, str) or isinstance(other, str):
        return False
    return host.is_unspecified and host.version == other.version
