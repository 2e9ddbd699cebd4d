"""Client for RabbitMQ's management HTTP API: lists, looks up and removes objects.

Only cheap and reliable listings are requested: queues and exchanges with a few columns, and the bindings of one
exchange. On RabbitMQ 3.10, a single unusual routing key makes a listing of the bindings of all exchanges fail.

`QueueInfo`, `ExchangeInfo` and `BindingInfo` are the rows of these listings. Before the first producer is accepted,
`VhostDiscovery` finds the virtual hosts with client declarations, since the sidecar needs the declarations for routing.
If the management API does not respond within a limited time, `VhostDiscovery` reports the error, continues without the
declarations, and retries later. Source: RabbitMQ's management HTTP API reference.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote, urlsplit

import aiohttp
import structlog

from oxproxy.broker.connection import ControlSettings
from oxproxy.broker.task_supervisor import gather_all
from oxproxy.broker.versions import BrokerVersion
from oxproxy.errors import UpstreamError, UpstreamFailure
from oxproxy.garbage import without_collection
from oxproxy.relay.declare.storage import KEPT, MARK, SIGNATURE
from oxproxy.relay.tokens import is_storage_key, is_token
from oxproxy.values import Destination, describe, shown, shown_user

log = structlog.get_logger(__name__)

_MARK, _KEPT, _SIGNATURE = MARK.decode(), KEPT.decode(), SIGNATURE.decode()
_BLANK = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()

#: Exchange types that a carrier can have.
CARRIER_TYPES = ("direct", "topic")

_NO_ARGUMENTS: Mapping[str, object] = MappingProxyType({})


class QueueInfo(NamedTuple):
    """An existing queue."""

    name: bytes
    exclusive: bool = False
    arguments: Mapping[str, object] = _NO_ARGUMENTS


class ExchangeInfo(NamedTuple):
    """An existing exchange."""

    name: bytes
    type: str
    internal: bool = False
    arguments: Mapping[str, object] = _NO_ARGUMENTS
    durable: bool = True
    auto_delete: bool = False

    @property
    def marked(self) -> bool:
        """True if the exchange has our mark, which means that a sidecar declared it, possibly for a client."""
        return self.type in CARRIER_TYPES and self.arguments.get(_MARK) is True

    @property
    def kept(self) -> str:
        """The stored data of a client's declare; empty if the exchange has no mark or was declared for the rules."""
        return _own_text(self.arguments, _KEPT) if self.marked else ""


class BindingInfo(NamedTuple):
    """A binding of one exchange.

    Args:
        properties_key: identifier of the binding in the management API.
        kept: the stored data of a client's bind; may be empty.
        signature: signature of the stored data; may be empty.
    """

    destination: Destination
    routing_key: bytes
    properties_key: str
    kept: str = ""
    signature: str = ""

    @property
    def stores(self) -> bool:
        """True if this binding stores a client's binding."""
        return is_storage_key(self.routing_key)

    def __str__(self) -> str:
        named = describe(self.destination)
        if is_token(self.routing_key):  # the token of a destination is secret
            return f"{named} with a token"
        return f"{named} with key {shown(self.routing_key)!r}"


class Permissions(NamedTuple):
    """Permissions of a user in a virtual host, as regular expressions for names."""

    configure: str
    write: str
    read: str


def _arguments(item: Mapping[str, Any]) -> Mapping[str, object]:  # JSON of any shape
    arguments = item.get("arguments") or _NO_ARGUMENTS
    if not isinstance(arguments, Mapping):
        raise TypeError("arguments are not an object")
    return arguments


def queue_info(item: Mapping[str, Any]) -> QueueInfo:
    # While a queue is starting, it may be listed without statistics and without these columns.
    return QueueInfo(item["name"].encode(), bool(item.get("exclusive")), _arguments(item))


def exchange_info(item: Mapping[str, Any]) -> ExchangeInfo:
    return ExchangeInfo(
        item["name"].encode(),
        item["type"],
        bool(item.get("internal")),
        _arguments(item),
        bool(item.get("durable", True)),
        bool(item.get("auto_delete")),
    )


def binding_info(item: Mapping[str, Any]) -> BindingInfo:
    arguments = _arguments(item)
    return BindingInfo(
        (item["destination_type"], item["destination"].encode()),
        item["routing_key"].encode(),
        item["properties_key"],
        _own_text(arguments, _KEPT),
        _own_text(arguments, _SIGNATURE),
    )


def items(text: str) -> Iterator[Any]:  # JSON of any shape
    """Read a JSON array item by item, since decoding a long array at once would block the event loop.

    Raises:
        ValueError: the text is malformed.
    """
    at = _after_blanks(text, 0)
    expected = "["
    while text[at : at + 1] == expected:
        at = _after_blanks(text, at + 1)
        if expected == "[" and text[at : at + 1] == "]":
            break
        item, at = _DECODER.raw_decode(text, at)
        yield item
        at = _after_blanks(text, at)
        expected = ","
    if text[at : at + 1] != "]" or _after_blanks(text, at + 1) != len(text):
        raise ValueError(f"not a JSON array: unexpected content at {at}")


def _tls_words(error: ssl.SSLError) -> str:
    """Describe an error of a connection without TLS settings, which trusts the system's CA certificates."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate rejected: {error.verify_message.rstrip('.')}; a CA can be set under upstream.tls"
    return f"TLS: {(error.reason or 'connection failed').lower().replace('_', ' ')}"


def _after_blanks(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match is not None else at


def _own_text(arguments: Mapping[str, object], name: str) -> str:
    text = arguments.get(name)
    return text if isinstance(text, str) else ""


#: Maximum number of concurrent requests. It is low, since the management API shares the broker's CPU with the queues.
_CONCURRENT = 4

_QUEUE_COLUMNS = "name,exclusive,arguments"
_EXCHANGE_COLUMNS = "name,type,internal,durable,auto_delete,arguments"
#: Number of bindings that are read before control is returned to the event loop.
_STEP = 500

#: OpenSSL's reasons if the other side responds without TLS.
_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")

#: Clients can declare arguments with any nesting depth directly on the broker.
_NESTED = "the response can't be decoded: look for a queue, exchange or binding with deeply nested arguments"

T = TypeVar("T")

#: Processes a part of a list while the broker prepares other parts.
ReadAhead: TypeAlias = Callable[[list[BindingInfo]], Awaitable[None]]


class ManagementApi:
    """The management API of one broker.

    If a request fails, methods raise ``UpstreamError`` with the request and the response, but without credentials.

    Args:
        address: base URL of the management API, with or without ``/api`` at the end.
    """

    def __init__(self, settings: ControlSettings, address: str) -> None:
        parts = urlsplit(address)
        # The control user's credentials replace those in the address, which would appear in error messages.
        host = parts.netloc.rpartition("@")[2]
        # Some addresses include the path of the API, as shown in RabbitMQ's guide.
        path = parts.path.rstrip("/").removesuffix("/api")
        self._base = f"{parts.scheme}://{host}{path}/api"
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None
        #: Whether the last request was answered in time.
        self._responsive = True

    async def queues(self, vhost: str) -> dict[bytes, QueueInfo]:
        # These columns need no statistics, so listing 10,000 queues takes 0.2 s instead of 4 s.
        path = f"/queues/{_quoted(vhost)}?columns={_QUEUE_COLUMNS}&disable_stats=true"
        return {info.name: info for info in await self._rows(path, queue_info)}

    async def find(self, vhost: str, kind: str, name: bytes) -> QueueInfo | ExchangeInfo | None:
        """Return one queue or exchange; None if it does not exist."""
        columns = _QUEUE_COLUMNS if kind == "queue" else _EXCHANGE_COLUMNS
        path = f"/{kind}s/{_quoted(vhost)}/{_quoted(name)}?columns={columns}"
        return await self._row(path, queue_info if kind == "queue" else exchange_info)

    async def exchanges(self, vhost: str) -> dict[bytes, ExchangeInfo]:
        path = f"/exchanges/{_quoted(vhost)}?columns={_EXCHANGE_COLUMNS}"
        return {info.name: info for info in await self._rows(path, exchange_info)}

    async def exchanges_everywhere(self) -> list[tuple[str, ExchangeInfo]]:
        """List the exchanges in all virtual hosts, each with its virtual host.

        The attributes `internal`, `durable` and `auto_delete` are not requested, and have their default values.
        """
        path = "/exchanges?columns=name,vhost,type,arguments"
        return await self._rows(path, lambda item: (str(item["vhost"]), exchange_info(item)))

    async def version(self) -> BrokerVersion:
        """Return the product and version of the broker."""
        path = "/overview?columns=product_name,rabbitmq_version&disable_stats=true"

        def read(item: Any) -> BrokerVersion:  # Any: JSON
            return BrokerVersion(str(item.get("product_name", "")), str(item["rabbitmq_version"]))

        return _read(read, [await self._get(path)], path)[0]

    async def vhosts(self) -> set[str]:
        """List the virtual hosts that are visible to the control user."""
        path = "/vhosts?columns=name"
        return set(await self._rows(path, lambda item: str(item["name"])))

    async def permissions(self, vhost: str, user: str) -> Permissions | None:
        """Return a user's permissions in a virtual host; None if the user has none.

        The control user must have the administrator tag.
        """
        path = f"/permissions/{_quoted(vhost)}/{_quoted(user)}"
        return await self._row(path, lambda item: Permissions(item["configure"], item["write"], item["read"]))

    async def bindings(self, vhost: str, exchange: bytes) -> list[BindingInfo]:
        """List the bindings whose source is the given exchange; empty if the exchange does not exist."""
        listing = await self.changed_bindings(vhost, exchange, b"")
        return [] if listing is None else listing[1]

    async def sources(self, vhost: str, exchange: bytes) -> set[bytes]:
        path = f"/exchanges/{_quoted(vhost)}/{_quoted(exchange)}/bindings/destination?columns=source"
        return set(await self._rows(path, lambda item: item["source"].encode()))

    async def destinations(self, vhost: str, exchange: str) -> set[str]:
        """Return the names of the queues and exchanges that are bound to an exchange."""
        path = f"/exchanges/{_quoted(vhost)}/{_quoted(exchange)}/bindings/source?columns=destination"
        return set(await self._rows(path, lambda item: str(item["destination"])))

    async def changed_bindings(
        self,
        vhost: str,
        exchange: bytes,
        digest: bytes,
        destinations: Iterable[Destination] | None = None,
        read_ahead: ReadAhead | None = None,
    ) -> tuple[bytes, list[BindingInfo]] | None:
        """List the bindings of an exchange; return None if the response has the given digest.

        Args:
            digest: digest of the last response; b"" if there is none.
            destinations: if given, the bindings to these destinations are listed, with one request for each.
                RabbitMQ then needs 8 s instead of 28 s for 100,000 bindings to 10 queues.
            read_ahead: called with each part of the list as soon as it has arrived, if `digest` is b"".

        Returns:
            The response's digest and the bindings; None if the digest has not changed.
        """
        columns = "columns=destination_type,destination,routing_key,properties_key,arguments"
        paths = [f"/exchanges/{_quoted(vhost)}/{_quoted(exchange)}/bindings/source?{columns}"]
        if destinations is not None:
            source = f"/bindings/{_quoted(vhost)}/e/{_quoted(exchange)}"
            paths = [f"{source}/{kind[0]}/{_quoted(name)}?{columns}" for kind, name in destinations]
        # If the last request was not answered in time, the longer timeout for listings is not used.
        limit_seconds = self._settings.listing_seconds if self._responsive else self._settings.deadline_seconds

        async def listed(path: str) -> tuple[bytes, bytes | list[BindingInfo]]:
            body = await self._request("GET", path, limit_seconds=limit_seconds)
            # A destination without bindings does not change the digest of the whole list.
            part_digest = blake2b(body, digest_size=16).digest() if body != b"[]" else b""
            # Parsing 10,000 bindings takes 60 ms, but computing the digest of the response takes only 3 ms.
            if digest:
                return part_digest, body
            bindings = await self._parsed(path, body)
            if read_ahead is not None:
                await read_ahead(bindings)
            return part_digest, bindings

        parts = await gather_all(listed(path) for path in paths)  # the session limits concurrent requests
        now = blake2b(b"".join(part_digest for part_digest, _ in parts), digest_size=16).digest()
        if now == digest:
            return None
        bindings: list[BindingInfo] = []
        for path, (_, part) in zip(paths, parts, strict=True):
            bindings += await self._parsed(path, part) if isinstance(part, bytes) else part
        return now, bindings

    async def _parsed(self, path: str, body: bytes) -> list[BindingInfo]:
        bindings: list[BindingInfo] = []
        try:
            with without_collection():
                rows = items(body.decode(errors="replace"))
                while step := list(islice(rows, _STEP)):
                    bindings += _read(binding_info, step, path)
                    await asyncio.sleep(0)
        except ValueError as error:
            raise self._error(UpstreamFailure.REFUSED, path, "the response is not a JSON array") from error
        except RecursionError as error:
            raise self._error(UpstreamFailure.REFUSED, path, _NESTED, Undecodable) from error
        return bindings

    async def remove_binding(self, vhost: str, exchange: bytes, binding: BindingInfo) -> None:
        """Remove one binding, regardless of its arguments."""
        kind, name = binding.destination
        path = f"/bindings/{_quoted(vhost)}/e/{_quoted(exchange)}/{kind[0]}/{_quoted(name)}"
        # The key begins with the routing key, which may be a token and must not appear in errors.
        await self._request("DELETE", path, hidden=f"/{_quoted(binding.properties_key)}")

    async def remove_exchange(self, vhost: str, exchange: bytes) -> None:
        await self._request("DELETE", f"/exchanges/{_quoted(vhost)}/{_quoted(exchange)}")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _rows(self, path: str, reader: Callable[[Mapping[str, Any]], T]) -> list[T]:
        listing = await self._get(path)
        if not isinstance(listing, list):
            raise self._error(UpstreamFailure.REFUSED, path, "the response is not a JSON array")
        return _read(reader, listing, path)

    async def _row(self, path: str, reader: Callable[[Mapping[str, Any]], T]) -> T | None:
        """Return one object; None if it does not exist."""
        try:
            item = await self._get(path)
        except NotListed:
            return None
        return _read(reader, [item], path)[0]

    async def _get(self, path: str) -> Any:  # JSON of any shape
        body = await self._request("GET", path)
        try:
            return json.loads(body)
        except ValueError as error:
            raise self._error(UpstreamFailure.REFUSED, path, "the response is not JSON") from error
        except RecursionError as error:
            raise self._error(UpstreamFailure.REFUSED, path, _NESTED, Undecodable) from error

    async def _request(self, method: str, path: str, *, hidden: str = "", limit_seconds: float | None = None) -> bytes:
        """Send a request. Errors contain `path`, but not `hidden`, which follows it in the address."""
        if self._session is None:
            self._session = self._open()
        seconds = limit_seconds or self._settings.deadline_seconds
        try:
            async with (
                asyncio.timeout(seconds),
                self._session.request(method, self._base + path + hidden, **self._how()) as answer,
            ):
                content = await self._body(answer, path)
        except TimeoutError as error:
            self._responsive = False
            raise self._error(UpstreamFailure.TIMEOUT, path, f"no response within {seconds:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._error(UpstreamFailure.UNAVAILABLE, path, self._cause(error)) from error
        self._responsive = True
        if answer.status >= 300:
            raise self._answered(answer.status, path, content)
        return content

    def _open(self) -> aiohttp.ClientSession:
        settings = self._settings
        credentials = b64encode(f"{settings.username}:{settings.password}".encode()).decode()
        return aiohttp.ClientSession(
            headers={"Authorization": f"Basic {credentials}"},
            connector=aiohttp.TCPConnector(limit=_CONCURRENT),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=settings.deadline_seconds),
        )

    def _how(self) -> dict[str, Any]:  # Any: arguments of several types
        """Return request options: no redirects, and TLS settings with the current certificates."""
        tls = self._settings.management_tls
        how: dict[str, Any] = {"allow_redirects": False}
        return how if tls is None else how | {"ssl": tls.context(), "server_hostname": tls.server_name}

    def _cause(self, error: Exception) -> str:
        tls = self._settings.management_tls
        under = error.__cause__
        if isinstance(under, ssl.SSLError):
            if under.reason in _NOT_TLS:
                return "the server does not use TLS on this port; expected a URL with http, or the port for https"
            return tls.words(under) if tls is not None else _tls_words(under)
        if (
            isinstance(error, OSError) and error.errno is not None and error.errno > 0
        ):  # negative numbers are resolver errors
            return os.strerror(error.errno)
        if isinstance(error, aiohttp.ClientConnectorDNSError):
            return error.os_error.strerror or "the host name can't be resolved"
        if isinstance(
            error, aiohttp.ClientResponseError | aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError
        ):
            return "the response is not HTTP or is incomplete; check that this is the address of the management API"
        # Only the class is named, since aiohttp's error messages may contain the configured address.
        return type(error).__name__

    async def _body(self, answer: aiohttp.ClientResponse, path: str) -> bytes:
        limit = self._settings.listing_bytes
        parts: list[bytes] = []
        size_bytes = 0
        async for part in answer.content.iter_any():
            size_bytes += len(part)
            if size_bytes > limit:
                raise self._error(UpstreamFailure.REFUSED, path, f"the response is longer than {limit} bytes")
            parts.append(part)
        return b"".join(parts)

    def _answered(self, status: int, path: str, body: bytes) -> UpstreamError:
        user = shown_user(self._settings.username)
        if status in (401, 403):
            says = (
                f"returned {status}: user {user!r} needs the correct password, a tag (monitoring or management), "
                "and permissions in the virtual host"
            )
            return self._error(UpstreamFailure.REFUSED, path, says)
        if status == 404:
            says = "returned 404: no such virtual host or object"
            return self._error(UpstreamFailure.REFUSED, path, says, NotListed)
        cause = body[:200].decode(errors="replace")
        failure = UpstreamFailure.UNAVAILABLE if status >= 500 else UpstreamFailure.REFUSED
        return self._error(failure, path, f"returned {status}: {cause}")

    def _error(
        self, failure: UpstreamFailure, path: str, says: str, kind: type[UpstreamError] = UpstreamError
    ) -> UpstreamError:
        return kind(failure, f"management API {self._base}{path.partition('?')[0]}: {says}")


class NotListed(UpstreamError):  # noqa: N818 - a response, not an error
    """According to the management API, the virtual host, queue or exchange does not exist."""


class Undecodable(UpstreamError):  # noqa: N818 - as above
    """The response is nested more deeply than the JSON decoder permits."""


def _quoted(name: str | bytes) -> str:
    return quote(name, safe="")


def _read(reader: Callable[[Mapping[str, Any]], T], listing: Iterable[Any], path: str) -> list[T]:  # JSON of any shape
    try:
        return [reader(item) for item in listing]
    except (KeyError, TypeError, AttributeError, ValueError) as error:  # ValueError: a name that UTF-8 can't encode
        raise UpstreamError(
            UpstreamFailure.REFUSED, f"management API {path}: unexpected structure of the response"
        ) from error


class VhostDiscovery:
    """Finds virtual hosts with client declarations."""

    def __init__(self, settings: ControlSettings, management: ManagementApi | None) -> None:
        self._settings = settings
        self._management = management
        #: Error of the last attempt; empty if it succeeded, or if there is no management API.
        self.fault = ""

    async def find(self) -> set[str]:
        """Return the virtual hosts. After a refusal or at the time limit, set `fault` and return an empty set."""
        if self._management is None:
            log.warning(
                "no management API: client declarations made through other sidecars, or before a restart, are unknown"
            )
            return set()
        loop = asyncio.get_running_loop()
        until = loop.time() + self._settings.patience_seconds
        while True:
            try:
                return await self._ask(self._management)
            except UpstreamError as error:
                self.fault = str(error)
                if error.failure is UpstreamFailure.REFUSED or loop.time() >= until:
                    log.error("virtual hosts with client declarations can't be listed", error=self.fault)
                    return set()
                log.warning("the management API is not reachable yet", error=self.fault, repeat="management")
            await asyncio.sleep(self._settings.retry_seconds)

    async def find_later(self) -> set[str]:
        """Retry until the management API responds; return the virtual hosts."""
        vhosts: set[str] = set()
        pause_seconds = self._settings.refresh_seconds
        while self._management is not None and self.fault:
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, self._settings.retry_limit_seconds)
            try:
                vhosts = await self._ask(self._management)
            except UpstreamError as error:
                self.fault = str(error)
            if not self.fault:
                log.info("client declarations can be read from the broker again")
        return vhosts

    async def _ask(self, management: ManagementApi) -> set[str]:
        try:
            listed_everywhere, faults = await management.exchanges_everywhere(), list[str]()
            vhosts = {vhost for vhost, info in listed_everywhere if info.kept}
        except Undecodable:
            # Each virtual host is queried separately, so that an undecodable exchange affects only its own
            # virtual host.
            vhosts, faults = set(), []
            for vhost in sorted(await management.vhosts()):
                try:
                    listed = await management.exchanges(vhost)
                except Undecodable as error:
                    faults.append(str(error))
                else:
                    vhosts |= {vhost} if any(info.kept for info in listed.values()) else set()
        self.fault = "; ".join(faults)
        return vhosts
