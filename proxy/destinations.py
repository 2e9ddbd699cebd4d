"""Which destinations of the rules does a broker not have? It is asked by its management API or over AMQP.

Nothing is declared: queues and exchanges are listed, or looked for passively. TLS is as a sidecar of the same
configuration would speak it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from urllib.parse import unquote, urlsplit

from proxy.broker.connection import ControlConnection
from proxy.broker.declarer import Declarer
from proxy.broker.inventory import Inventory
from proxy.broker.presence import Presence
from proxy.broker.settings import ControlSettings
from proxy.errors import ConfigError, ConfigErrors, UpstreamError
from proxy.net.tls_wanted import WantedTls
from proxy.rules.examination import Named
from proxy.rules.faults import ConfigWarning
from proxy.rules.settings import Settings, Upstream
from proxy.rules.tls_settings import UpstreamTls

_PORTS = {"amqp": 5672, "amqps": 5671}


def lacking(address: str, named: Sequence[Named], configured: Iterable[Settings] = ()) -> list[ConfigWarning]:
    """Ask a broker.

    Args:
        address: ``http(s)://user:password@host:port`` of the management API, or ``amqp(s)://user:password@host:port``.
        named: the destinations of the rules.
        configured: the first of these with `upstream.tls` says how TLS is spoken; else it is the system's authorities
            that are trusted.

    Returns:
        One warning for each destination that is not there.

    Raises:
        ConfigErrors: the address is none, nobody answers there, or files of TLS can't be used; never with a password
            in it.
    """
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https", *_PORTS) or not parts.hostname:
        raise _wrong("expected http(s)://user:password@host:15672 or amqp(s)://user:password@host:5672")
    tls = _tls(address, configured) if parts.scheme in ("https", "amqps") else None
    settings = ControlSettings(
        hosts=((parts.hostname, port or _PORTS.get(parts.scheme, 0)),),
        username=unquote(parts.username or "guest"),
        password=unquote(parts.password or "guest"),
        tls=tls.control() if tls is not None else None,
        management=address,
        management_tls=tls.management() if tls is not None else None,
    )
    try:
        missing = asyncio.run(_missing(settings, named, parts.scheme in _PORTS))
    except UpstreamError as error:
        raise _wrong(str(error)) from error
    text = "the broker has no such {}"
    return [ConfigWarning(each.place, each.path, text.format(each.kind)) for each in missing]


def _tls(address: str, configured: Iterable[Settings]) -> WantedTls:
    """Say how TLS is spoken: as if the configuration named this broker."""
    secured = (one for one in configured if one.upstream.tls is not None)
    settings = next(secured, Settings(upstream=Upstream(tls=UpstreamTls())))
    wanted = WantedTls(replace(settings, upstream=replace(settings.upstream, management=address)))
    try:
        if wanted.upstream is not None:
            wanted.contexts.of(wanted.upstream)
    except ConfigError as error:
        raise ConfigErrors([error]) from error
    return wanted


def _wrong(message: str) -> ConfigErrors:
    return ConfigErrors([ConfigError("--broker", 0, "", message)])


async def _missing(settings: ControlSettings, named: Sequence[Named], passively: bool) -> list[Named]:
    found: list[Named] = []
    for vhost in sorted({each.vhost for each in named}):
        here = [each for each in named if each.vhost == vhost]
        found += await (_passively(settings, vhost, here) if passively else _listed(settings, vhost, here))
    return found


async def _listed(settings: ControlSettings, vhost: str, named: Iterable[Named]) -> list[Named]:
    inventory = Inventory(settings, settings.management or "")
    try:
        known: dict[str, Container[bytes]] = {
            "queue": await inventory.queues(vhost),
            "exchange": await inventory.exchanges(vhost),
        }
    finally:
        await inventory.close()
    return [each for each in named if each.name not in known[each.kind]]


async def _passively(settings: ControlSettings, vhost: str, named: Iterable[Named]) -> list[Named]:
    connection = ControlConnection(settings, vhost)
    await connection.connect()
    try:
        asked = {(each.kind, each.name): each for each in named}
        absent = await Declarer(connection, Presence(), settings.username).lacking(list(asked))
    finally:
        await connection.close()
    return [asked[destination] for destination in absent]
