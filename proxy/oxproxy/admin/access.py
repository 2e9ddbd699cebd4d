"""Decides which requests the admin address answers, and records the changes that they make.

A guarded page answers requests from permitted networks, with a permitted ``Host`` header, that do not come from another
web page. If there are tokens, it also requires a token whose role permits the page.

Only hashes of tokens are kept. All of them are compared with the hash of a presented token, in constant time, so that
the duration reveals neither a token nor its position. A client that presents invalid tokens is slowed down.

Sources: RFC 6750 (bearer tokens); RFC 9110, 15.5; Fetch Metadata Request Headers.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import socket
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

import structlog
from aiohttp import web

_log = structlog.get_logger(__name__)

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
Network: TypeAlias = IPv4Network | IPv6Network

#: Networks from which guarded pages are available even if `admin.allow` does not contain them.
LOOPBACK: tuple[Network, ...] = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
#: Host names accepted for guarded pages, in addition to addresses and `admin.hosts`.
_LOCAL_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost")
#: A Host header: a name or an address, which is in brackets if it contains colons, and optionally a port.
_HOST = re.compile(r"(\[[^]]*\]|[^][:@/]*)(?::[0-9]*)?")
#: Number of invalid tokens that an address may present at once, and seconds until it may present another one.
GUESSES, GUESS_SECONDS = 10, 6.0
#: Maximum number of addresses whose invalid tokens are counted; the least recently seen address is dropped first.
_MOST_ADDRESSES = 1024
#: Size of the IPv6 network that counts as one address, since a host may use any address of its network.
_IPV6_PREFIX = 64
#: Stands for all loopback addresses.
_LOOPBACK_NAME = "loopback"
_BEARER = "bearer"
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="oxproxy"'}
_FOREIGN = "refused, because the request comes from another web page\n"
#: Results of a change.
_OK, _FAILED = "ok", "failed"


class Role(Enum):
    """What the holder of a token may do. Each role includes the roles before it."""

    VIEW = "view"
    OPERATE = "operate"

    def includes(self, role: Role) -> bool:
        roles = [*Role]
        return roles.index(self) >= roles.index(role)


@dataclass(frozen=True, slots=True)
class AdminToken:
    """A token that is accepted.

    Args:
        name: name of the holder, for records.
        digest: hash of the token.
    """

    name: str
    role: Role
    digest: bytes = field(repr=False)

    @classmethod
    def of(cls, name: str, role: Role, token: bytes) -> AdminToken:
        return cls(name, role, _digest(token))


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


@dataclass(frozen=True, slots=True)
class AdminChange:
    """A change made through the admin address.

    Args:
        what: the change, such as ``reload``.
        name: name of the token; None without tokens.
        role: role of the token; None without tokens.
        address: address of the client.
        result: ``ok`` or ``failed``.
    """

    what: str
    name: str | None
    role: str | None
    address: str | None
    result: str

    def as_json(self) -> dict[str, object]:
        who: dict[str, object] = {"name": self.name, "role": self.role, "address": self.address}
        return {"what": self.what, **who, "result": self.result}


class Access:
    """Guards pages.

    Args:
        allow: networks other than loopback from which guarded pages are available, as addresses or in CIDR notation.
        hosts: additional host names accepted for guarded pages.
        tokens: permitted tokens; without tokens, none is required.
        record: receives each change.
        timer: returns monotonic seconds.

    Raises:
        ValueError: a network of `allow` is invalid.
    """

    def __init__(
        self,
        allow: Iterable[str] = (),
        hosts: Iterable[str] = (),
        tokens: Sequence[AdminToken] = (),
        record: Callable[[AdminChange], None] = lambda change: None,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tokens = tuple(tokens)
        self._allowed = (*LOOPBACK, *map(ip_network, allow))
        self._hosts = frozenset(name.lower() for name in (*_LOCAL_NAMES, socket.gethostname(), *hosts))
        self._record = record
        self._guesses = _Guesses(timer)

    def use(self, tokens: Sequence[AdminToken]) -> bool:
        """Replace the tokens. Return whether they have changed."""
        before, self.tokens = self.tokens, tuple(tokens)
        return self.tokens != before

    def guarded(self, handler: Handler, role: Role | None, change: str = "") -> Handler:
        """Return a handler that answers only permitted requests.

        Args:
            role: role that the page requires if there are tokens; None for a page that needs no token.
            change: the change that the page makes; empty if it makes none.
        """

        async def guarded(request: web.Request) -> web.StreamResponse:
            self._check_origin(request)
            token = None if role is None else self._identify(request, role)
            return await (self._changing(handler, request, token, change) if change else handler(request))

        return guarded

    def with_token(self, handler: Handler, role: Role) -> Handler:
        """Return a handler that answers requests from any address that have a token with this role."""

        async def checked(request: web.Request) -> web.StreamResponse:
            self._identify(request, role)
            return await handler(request)

        return checked

    async def _changing(
        self, handler: Handler, request: web.Request, token: AdminToken | None, change: str
    ) -> web.StreamResponse:
        result = _FAILED
        try:
            response = await handler(request)
            result = _OK if response.status < web.HTTPBadRequest.status_code else _FAILED
            return response
        finally:
            name, role = (None, None) if token is None else (token.name, token.role.value)
            made = AdminChange(change, name, role, request.remote, result)
            _log.info("admin change", **made.as_json())
            self._record(made)

    def _identify(self, request: web.Request, role: Role) -> AdminToken | None:
        """Return the request's token; None if there are no tokens.

        Raises:
            HTTPException: the request has no valid token, or its role does not permit the page.
        """
        if not self.tokens:
            return None
        scheme, _, presented = request.headers.get("Authorization", "").partition(" ")
        if not scheme:
            text = "expected the header Authorization: Bearer TOKEN, with a token of admin.tokens\n"
            raise web.HTTPUnauthorized(text=text, headers=_CHALLENGE)
        address = _counted(request.remote)
        seconds = self._guesses.pause(address)
        if seconds:
            _log.warning("too many invalid admin tokens", address=request.remote, repeat=address)
            text = "too many invalid tokens from this address\n"
            raise web.HTTPTooManyRequests(text=text, headers={"Retry-After": str(math.ceil(seconds))})
        # A header may contain any bytes, which aiohttp decodes with surrogates.
        digest = _digest(presented.strip().encode(errors="surrogateescape"))
        token = None
        for known in self.tokens:  # without an early end, see above
            if hmac.compare_digest(known.digest, digest) and scheme.lower() == _BEARER:
                token = known
        if token is None:
            self._guesses.add(address)
            _log.warning("invalid admin token", address=request.remote, path=request.path, repeat=address)
            raise web.HTTPUnauthorized(text="the token is not valid\n", headers=_CHALLENGE)
        if not token.role.includes(role):
            _log.warning("admin request refused", name=token.name, path=request.path, repeat=token.name)
            text = f"the token of {token.name} has the role {token.role.value}, expected {role.value}\n"
            raise web.HTTPForbidden(text=text)
        return token

    def _check_origin(self, request: web.Request) -> None:
        if not self._is_allowed(request.remote):
            raise web.HTTPForbidden(text="available only from loopback and from the networks in admin.allow\n")
        host = request.headers.get("Host", "")
        # Any web page in an operator's browser can reach loopback. Browsers send an Origin header; tools do not.
        own = f"{request.scheme}://{host}"
        if request.headers.get("Origin", own) != own:
            raise web.HTTPForbidden(text=_FOREIGN)
        site, mode = request.headers.get("Sec-Fetch-Site", "none"), request.headers.get("Sec-Fetch-Mode")
        if site not in ("none", "same-origin") and mode != "navigate":  # links to the console are allowed
            raise web.HTTPForbidden(text=_FOREIGN)
        if not self._is_named(host):
            text = f"Host {host}: expected localhost, an IP address, the name of this host, or a name in admin.hosts\n"
            raise web.HTTPForbidden(text=text)

    def _is_allowed(self, remote: str | None) -> bool:
        address = _address(remote)
        return address is not None and any(address in network for network in self._allowed)

    def _is_named(self, host: str) -> bool:
        """Return True if a Host header is an address or a permitted name. Other sites' pages can't send such a header.

        This prevents DNS rebinding, in which the host name of another site resolves to this address. A missing header
        is accepted, because HTTP/1.0, which browsers do not use, does not require it.
        """
        parts = _HOST.fullmatch(host)
        if parts is None:
            return False
        name = parts[1]
        with suppress(ValueError):
            ip_address(name.removeprefix("[").removesuffix("]"))
            return True
        return not host or name.lower().removesuffix(".") in self._hosts


class _Guesses:
    """Limits the invalid tokens from each address: `GUESSES` at once, then one per `GUESS_SECONDS`.

    Tokens from an address at its limit are not checked, so that a valid token is not recognized either.
    """

    def __init__(self, timer: Callable[[], float]) -> None:
        self._timer = timer
        #: by address, the time at which all its invalid tokens are forgiven; each of them adds `GUESS_SECONDS`
        self._until: OrderedDict[str, float] = OrderedDict()

    def pause(self, address: str) -> float:
        """Return the seconds until a token from an address is checked; 0 if it is checked now."""
        return max(0.0, self._until.get(address, 0.0) - (GUESSES - 1) * GUESS_SECONDS - self._timer())

    def add(self, address: str) -> None:
        now = self._timer()
        self._until[address] = max(now, self._until.pop(address, now)) + GUESS_SECONDS
        if len(self._until) > _MOST_ADDRESSES:
            self._until.popitem(last=False)


def _address(remote: str | None) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(remote or "")
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _counted(remote: str | None) -> str:
    """Return the address or network whose invalid tokens are counted together.

    A process on this host can use any address of 127.0.0.0/8, so all loopback addresses are counted together.
    """
    address = _address(remote)
    if address is not None and address.is_loopback:
        return _LOOPBACK_NAME
    if isinstance(address, IPv6Address):
        return str(ip_network((int(address), _IPV6_PREFIX), strict=False))
    return str(address)
