"""Which destinations of the rules does a broker not have? It is asked by its management API or over AMQP.

Nothing is declared: queues and exchanges are listed, or looked for passively.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Sequence
from urllib.parse import unquote, urlsplit

from proxy.broker.connection import ControlConnection
from proxy.broker.declarer import Declarer
from proxy.broker.inventory import Inventory
from proxy.broker.presence import Presence
from proxy.broker.settings import ControlSettings
from proxy.errors import ConfigError, ConfigErrors, UpstreamError
from proxy.rules.examination import Named
from proxy.rules.faults import ConfigWarning

_AMQP_PORT = 5672


def lacking(address: str, named: Sequence[Named]) -> list[ConfigWarning]:
    """Ask a broker.

    Args:
        address: ``http(s)://user:password@host:port`` of the management API, or ``amqp://user:password@host:port``.
        named: the destinations of the rules.

    Returns:
        One warning for each destination that is not there.

    Raises:
        ConfigErrors: the address is none, or nobody answers there; never with a password in it.
    """
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https", "amqp") or not parts.hostname:
        raise _wrong("expected http://user:password@host:15672 or amqp://user:password@host:5672")
    settings = ControlSettings(
        hosts=((parts.hostname, port or _AMQP_PORT),),
        username=unquote(parts.username or "guest"),
        password=unquote(parts.password or "guest"),
        management=address,
    )
    try:
        missing = asyncio.run(_missing(settings, named, parts.scheme == "amqp"))
    except UpstreamError as error:
        raise _wrong(str(error)) from error
    text = "the broker has no such {}"
    return [ConfigWarning(each.place, each.path, text.format(each.kind)) for each in missing]


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
