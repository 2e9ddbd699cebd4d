"""What of a set of rules would a broker refuse, and which destinations does it not have?

It is asked by its management API or over AMQP, with TLS as a sidecar of the same configuration would speak it. Nothing
is made: queues and exchanges are listed, or looked for passively; over AMQP an exchange that is there is declared as a
sidecar would declare it, so that the broker compares.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import unquote, urlsplit

from proxy.broker.connection import ControlConnection
from proxy.broker.management_api import ManagementApi
from proxy.broker.reconcile.checks import carrier_conflict, carrier_difference, internal_conflicts
from proxy.broker.reconcile.executor import Declarer
from proxy.broker.reconcile.observer import Presence
from proxy.broker.settings import ControlSettings
from proxy.config.settings import Settings, UpstreamSection, UpstreamTls
from proxy.errors import ConfigError, ConfigErrors, UpstreamError
from proxy.net.tls_config import WantedTls
from proxy.rules.lint.bindings import Evaluated, NamedDestination
from proxy.rules.wire import owned_exchange
from proxy.yamlfile.nodes import ConfigWarning

_PORTS = {"amqp": 5672, "amqps": 5671}
_CARRIER = "carrier"


@dataclass(slots=True)
class Verdict:
    """What a broker says of rules.

    Args:
        missing: one warning for each destination that is not there.
        conflicts: for what the start would be refused.
    """

    missing: list[ConfigWarning] = field(default_factory=list)
    conflicts: list[ConfigError] = field(default_factory=list)

    def lacks(self, named: Iterable[NamedDestination]) -> None:
        """Add destinations that are not there."""
        for each in named:
            text = f"the broker has no such {each.kind}"
            if each.translated:
                shown = each.name.decode("utf-8", "backslashreplace")
                text = f"the broker has no {each.kind} {shown}, where the address table sends it"
            self.missing.append(ConfigWarning(each.place, each.path, text))

    def refuses(self, exchange: Evaluated, why: str) -> None:
        """Add an exchange that stops the start."""
        place = exchange.place
        self.conflicts.append(ConfigError(place.source, place.line, exchange.path, why, place.column))


def ask_broker(
    address: str,
    named: Sequence[NamedDestination],
    exchanges: Sequence[Evaluated] = (),
    configured: Iterable[Settings] = (),
) -> Verdict:
    """Ask a broker.

    Args:
        address: ``http(s)://user:password@host:port`` of the management API, or ``amqp(s)://user:password@host:port``.
        named: the destinations of the rules.
        exchanges: the exchanges of the rules.
        configured: the first of these with `upstream.tls` says how TLS is spoken; else it is the system's authorities
            that are trusted.

    Raises:
        ConfigErrors: the address is none, the broker could not be asked, or files of TLS can't be used; never with a
            password in it.
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
    passively = parts.scheme in _PORTS
    try:
        return asyncio.run(_ask(settings, named, exchanges, passively, unquote(parts.path[1:]) or "/"))
    except UpstreamError as error:
        raise _wrong(f"could not ask the broker: {error}") from error


def _tls(address: str, configured: Iterable[Settings]) -> WantedTls:
    """Say how TLS is spoken: as if the configuration named this broker."""
    secured = (one for one in configured if one.upstream.tls is not None)
    settings = next(secured, Settings(upstream=UpstreamSection(tls=UpstreamTls())))
    wanted = WantedTls(replace(settings, upstream=replace(settings.upstream, management=address)))
    try:
        if wanted.upstream is not None:
            wanted.contexts.of(wanted.upstream)
    except ConfigError as error:
        raise ConfigErrors([error]) from error
    return wanted


def _wrong(message: str) -> ConfigErrors:
    return ConfigErrors([ConfigError("--broker", 0, "", message)])


async def _ask(
    settings: ControlSettings,
    named: Sequence[NamedDestination],
    exchanges: Sequence[Evaluated],
    passively: bool,
    default: str,
) -> Verdict:
    verdict = Verdict()
    vhosts = sorted({each.vhost for each in named} | {each.vhost for each in exchanges})
    if not vhosts and not passively:
        await _reach(settings)
    # Rules that need nothing are no reason to say that a broker is fine which nobody has asked.
    for vhost in vhosts or ([default] if passively else []):
        here = [each for each in named if each.vhost == vhost]
        owned = [each for each in exchanges if each.vhost == vhost]
        await (_passively if passively else _listed)(settings, vhost, here, owned, verdict)
    return verdict


async def _reach(settings: ControlSettings) -> None:
    inventory = ManagementApi(settings, settings.management or "")
    try:
        await inventory.vhosts()
    finally:
        await inventory.close()


async def _listed(
    settings: ControlSettings,
    vhost: str,
    named: Iterable[NamedDestination],
    exchanges: Iterable[Evaluated],
    verdict: Verdict,
) -> None:
    inventory = ManagementApi(settings, settings.management or "")
    try:
        queues, there = await inventory.queues(vhost), await inventory.exchanges(vhost)
    finally:
        await inventory.close()
    known: dict[str, Container[bytes]] = {"queue": queues, "exchange": there}
    verdict.lacks(each for each in named if each.name not in known[each.kind])
    for exchange in exchanges:
        name = exchange.rule.name
        why = None
        if exchange.rule.delivery == _CARRIER:
            owned, found = owned_exchange(exchange.rule), there.get(exchange.rule.carrier)
            why = carrier_conflict(owned, found) or carrier_difference(owned, found)
        why = why or internal_conflicts(dict.fromkeys(exchange.published, name), there).get(name)
        if why is not None:
            verdict.refuses(exchange, why)


async def _passively(
    settings: ControlSettings,
    vhost: str,
    named: Iterable[NamedDestination],
    exchanges: Iterable[Evaluated],
    verdict: Verdict,
) -> None:
    connection = ControlConnection(settings, vhost)
    await connection.connect()
    try:
        declarer = Declarer(connection, Presence(), settings.username)
        asked = {(each.kind, each.name): each for each in named}
        absent = await declarer.lacking(list(asked))
        verdict.lacks(asked[destination] for destination in absent)
        carried = {("exchange", each.rule.carrier): each for each in exchanges if each.rule.delivery == _CARRIER}
        lacking = await declarer.lacking(list(carried))
        for destination, exchange in carried.items():
            if destination not in lacking:
                for why in await declarer.carriers([owned_exchange(exchange.rule)]):
                    verdict.refuses(exchange, why)
    finally:
        await connection.close()
