"""``oxproxy check --broker``: what a broker would refuse of rules, which destinations it lacks, and the plan.

The plan is what a sidecar with these rules would declare, bind and unbind there at its start.

The broker is asked over its management API or over AMQP, with TLS as a sidecar of the same configuration would use it.
Nothing is created: queues and exchanges are listed, or declared passively; over AMQP an exchange that exists is
declared as a sidecar would declare it, so that the broker compares.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from proxy.broker.connection import ControlConnection, ControlSettings
from proxy.broker.management_api import ManagementApi
from proxy.broker.reconcile.checks import carrier_conflict, carrier_difference, internal_conflicts
from proxy.broker.reconcile.desired import desired_state
from proxy.broker.reconcile.diff import Action, DeclareCarrier, Observation, RemoveBinding, diff
from proxy.broker.reconcile.executor import Executor
from proxy.broker.reconcile.observed import ObservedState
from proxy.config.settings import Settings, UpstreamSection, UpstreamTls
from proxy.errors import ConfigError, ConfigErrors, UpstreamError
from proxy.net.tls_config import SidecarTls
from proxy.rules.lint.destinations import EvaluatedExchange, NamedDestination
from proxy.rules.loader import LoadedRules
from proxy.rules.ruleset import VhostRules
from proxy.rules.wire import owned_exchange
from proxy.values import Destination
from proxy.yamlfile.document import ConfigWarning

_PORTS = {"amqp": 5672, "amqps": 5671}
_CARRIER = "carrier"


@dataclass(slots=True)
class BrokerAnswer:
    """What a broker lacks and refuses.

    Args:
        missing: one warning for each destination that does not exist.
        conflicts: why a sidecar with these rules would not start.
        plan: virtual host, and what a sidecar would do there at its start; None where the broker lists nothing.
    """

    missing: list[ConfigWarning] = field(default_factory=list)
    conflicts: list[ConfigError] = field(default_factory=list)
    plan: list[tuple[str, Action]] | None = None

    def add_missing(self, destinations: Iterable[NamedDestination]) -> None:
        """Add destinations that do not exist."""
        for destination in destinations:
            text = f"the broker has no such {destination.kind}"
            if destination.translated:
                shown = destination.name.decode("utf-8", "backslashreplace")
                text = f"the broker has no {destination.kind} {shown}, where the address table sends it"
            self.missing.append(ConfigWarning(destination.place, destination.path, text))

    def add_conflict(self, exchange: EvaluatedExchange, reason: str) -> None:
        """Add an exchange that prevents the start."""
        place = exchange.place
        self.conflicts.append(ConfigError(place.source, place.line, exchange.path, reason, place.column))


def ask_broker(
    address: str,
    named: Sequence[NamedDestination],
    exchanges: Sequence[EvaluatedExchange] = (),
    configured: Iterable[Settings] = (),
    sets: Sequence[LoadedRules] = (),
) -> BrokerAnswer:
    """Ask a broker.

    Args:
        address: ``http(s)://user:password@host:port`` of the management API, or ``amqp(s)://user:password@host:port``.
        named: the destinations of the rules.
        exchanges: the exchanges of the rules.
        configured: the first of these with `upstream.tls` defines TLS; without one, the system's authorities are
            trusted.
        sets: the compiled rules, for the plan.

    Raises:
        ConfigErrors: the address is invalid, the broker could not be asked, or files of TLS can't be used; never with a
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
        answer = asyncio.run(_ask(settings, named, exchanges, passively, unquote(parts.path[1:]) or "/"))
        if not passively:
            answer.plan = asyncio.run(_plan(settings, sets))
        return answer
    except UpstreamError as error:
        raise _wrong(f"could not ask the broker: {error}") from error


def _tls(address: str, configured: Iterable[Settings]) -> SidecarTls:
    """Return the TLS settings as if the configuration named this broker."""
    secured = (settings for settings in configured if settings.upstream.tls is not None)
    settings = next(secured, Settings(upstream=UpstreamSection(tls=UpstreamTls())))
    upstream = settings.upstream.model_copy(update={"management": address})
    wanted = SidecarTls(settings.model_copy(update={"upstream": upstream}))
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
    exchanges: Sequence[EvaluatedExchange],
    passively: bool,
    default: str,
) -> BrokerAnswer:
    answer = BrokerAnswer()
    vhosts = sorted({destination.vhost for destination in named} | {exchange.vhost for exchange in exchanges})
    if not vhosts and not passively:
        await _reach(settings)
    # A broker that was not asked must not be reported as fine, even if the rules need nothing of it.
    for vhost in vhosts or ([default] if passively else []):
        here = [destination for destination in named if destination.vhost == vhost]
        owned = [exchange for exchange in exchanges if exchange.vhost == vhost]
        await (_passively if passively else _listed)(settings, vhost, here, owned, answer)
    return answer


async def _plan(settings: ControlSettings, sets: Sequence[LoadedRules]) -> list[tuple[str, Action]]:
    """Return what sidecars with these rules would do at their start, by virtual host."""
    management = ManagementApi(settings, settings.management or "")
    try:
        return [
            (vhost.vhost, action)
            for loaded in sets
            for vhost in loaded.rules.vhosts.values()
            if vhost.exchanges or vhost.queues
            for action in await _actions(management, vhost, loaded)
        ]
    finally:
        await management.close()


async def _actions(management: ManagementApi, rules: VhostRules, loaded: LoadedRules) -> list[Action]:
    names = ObservedState()
    names.queues_listed({}, await management.queues(rules.vhost))
    names.exchanges_listed(await management.exchanges(rules.vhost))
    exchanges = {rule.name: owned_exchange(rule) for rule in rules.exchanges}
    desired = desired_state(exchanges, loaded.routers[rules.vhost], book=loaded.books.get(rules.vhost))
    tokens: dict[bytes, set[Destination]] = {}
    surplus: list[RemoveBinding] = []
    conflicts = set()
    for exchange in desired.carriers:
        there = names.exchanges.get(exchange.carrier)
        if carrier_conflict(exchange, there) or carrier_difference(exchange, there):
            conflicts.add(exchange.name)
        elif there is not None:
            bindings = await management.bindings(rules.vhost, exchange.carrier)
            bound = {(each.destination_type, each.destination): each for each in bindings if each.under_token}
            tokens[exchange.name] = set(bound)
            # What clients have bound needs tokens too, which only a running sidecar computes.
            if not any(each.stores for each in bindings):
                needed = desired.tokens_of(exchange)
                surplus += [
                    RemoveBinding(exchange.carrier, each, "not needed by the rules")
                    for destination, each in bound.items()
                    if destination not in needed
                ]
    return diff(desired, rules.queues, Observation(names, tokens, surplus=surplus, conflicts=conflicts))


async def _reach(settings: ControlSettings) -> None:
    management = ManagementApi(settings, settings.management or "")
    try:
        await management.vhosts()
    finally:
        await management.close()


async def _listed(
    settings: ControlSettings,
    vhost: str,
    named: Iterable[NamedDestination],
    exchanges: Iterable[EvaluatedExchange],
    answer: BrokerAnswer,
) -> None:
    management = ManagementApi(settings, settings.management or "")
    try:
        queues, there = await management.queues(vhost), await management.exchanges(vhost)
    finally:
        await management.close()
    known: dict[str, Container[bytes]] = {"queue": queues, "exchange": there}
    answer.add_missing(destination for destination in named if destination.name not in known[destination.kind])
    for exchange in exchanges:
        name = exchange.rule.name
        why = None
        if exchange.rule.delivery == _CARRIER:
            owned, found = owned_exchange(exchange.rule), there.get(exchange.rule.carrier)
            why = carrier_conflict(owned, found) or carrier_difference(owned, found)
        why = why or internal_conflicts(dict.fromkeys(exchange.published, name), there).get(name)
        if why is not None:
            answer.add_conflict(exchange, why)


async def _passively(
    settings: ControlSettings,
    vhost: str,
    named: Iterable[NamedDestination],
    exchanges: Iterable[EvaluatedExchange],
    answer: BrokerAnswer,
) -> None:
    connection = ControlConnection(settings, vhost)
    await connection.connect()
    try:
        executor = Executor(connection, ObservedState(), settings.username)
        asked = {(destination.kind, destination.name): destination for destination in named}
        absent = await executor.find_missing(list(asked))
        answer.add_missing(asked[destination] for destination in absent)
        carried = {
            ("exchange", exchange.rule.carrier): exchange
            for exchange in exchanges
            if exchange.rule.delivery == _CARRIER
        }
        lacking = await executor.find_missing(list(carried))
        there = [exchange for destination, exchange in carried.items() if destination not in lacking]
        declares: dict[Action, EvaluatedExchange] = {DeclareCarrier(owned_exchange(one.rule)): one for one in there}
        await executor.carry_out(list(declares))
        for action, failure in executor.failures.items():
            answer.add_conflict(declares[action], failure.why)
    finally:
        await connection.close()
