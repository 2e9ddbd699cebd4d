"""``oxproxy check --broker``: determines what a sidecar with these rules would change on a broker at startup, and what
would prevent the sidecar from starting.

With the management API, queues, exchanges and bindings are listed to compute the plan, and the permissions of the
control user are checked. With AMQP, queues and exchanges are declared passively, and an existing carrier is declared as
a sidecar would declare it, so that the broker reports any difference. Nothing is created. TLS settings are taken from
the configuration. Failed queries are errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from oxproxy.broker.connection import ControlConnection, ControlSettings
from oxproxy.broker.management_api import ExchangeInfo, ManagementApi, Permissions, QueueInfo
from oxproxy.broker.methods import DeclareQueue
from oxproxy.broker.reconcile.carrier_types import CarrierBindings, adopt_types
from oxproxy.broker.reconcile.checks import carrier_conflict, carrier_difference, internal_conflicts
from oxproxy.broker.reconcile.desired import DesiredState, desired_state
from oxproxy.broker.reconcile.diff import Action, DeclareCarrier, Observation, diff
from oxproxy.broker.reconcile.executor import Executor
from oxproxy.broker.reconcile.observed import ObservedState
from oxproxy.cli.findings import Findings
from oxproxy.config.settings import Settings, UpstreamSection, UpstreamTls
from oxproxy.errors import ConfigError, ConfigErrors, UpstreamError
from oxproxy.net.tls_config import SidecarTls
from oxproxy.relay.tokens import Tokens, is_token
from oxproxy.relay.vhost import VhostState
from oxproxy.routing.bindings.patterns import Budget, InvalidPattern, compile_pattern
from oxproxy.routing.router import Router
from oxproxy.rules.lint.destinations import EvaluatedExchange, NamedDestination
from oxproxy.rules.ruleset import QueueRule
from oxproxy.rules.wire import owned_exchange, owned_exchanges
from oxproxy.values import EXCHANGE, QUEUE, counted, shown_user, text
from oxproxy.yamlfile.document import ConfigWarning

_PORTS = {"amqp": 5672, "amqps": 5671}
_CARRIER = "carrier"
#: Maximum number of '#' in a binding of a topic exchange of RabbitMQ 4.3.
_MOST_HASHES = 2


def ask_broker(address: str, findings: Findings) -> None:
    """Check the rules against a broker, and add the results to the findings.

    Args:
        address: ``http(s)://user:password@host:port`` of the management API, or ``amqp(s)://user:password@host:port``.
        findings: receives the results. TLS settings are taken from the first configuration with `upstream.tls`; if
            there is none, the system's CA certificates are trusted. The control user is taken from the first
            configuration or, without a configuration, from the address.

    Raises:
        ConfigErrors: an address or TLS file is unusable, or the broker can't be queried. Messages contain no password.
    """
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https", *_PORTS) or not parts.hostname:
        raise _wrong("expected http(s)://user:password@host:15672 or amqp(s)://user:password@host:5672")
    tls = _tls(address, findings.settings) if parts.scheme in ("https", "amqps") else None
    settings = ControlSettings(
        hosts=((parts.hostname, port or _PORTS.get(parts.scheme, 0)),),
        username=unquote(parts.username or "guest"),
        password=unquote(parts.password or "guest"),
        tls=tls.control() if tls is not None else None,
        management=address,
        management_tls=tls.management() if tls is not None else None,
    )
    passively = parts.scheme in _PORTS
    asking = _ask_amqp(settings, unquote(parts.path[1:]) or "/", findings) if passively else _list(settings, findings)
    try:
        asyncio.run(asking)
    except UpstreamError as error:
        raise _wrong(f"could not query the broker: {error}") from error


def _tls(address: str, configured: Iterable[Settings]) -> SidecarTls:
    """Return the TLS settings that would apply if the configuration named this broker."""
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


def _vhosts(findings: Findings) -> list[str]:
    """Return the virtual hosts in which the rules need an object on the broker."""
    needed = {named.vhost for named in (*findings.destinations, *findings.queues)}
    return sorted(needed.union(exchange.vhost for exchange in findings.exchanges))


def _add_missing(destinations: Iterable[NamedDestination], findings: Findings) -> None:
    for destination in destinations:
        message = f"the broker has no such {destination.kind}"
        if destination.translated:
            name = f"{destination.kind} {text(destination.name)}"
            message = f"the broker has no {name}, to which the address table translates this address"
        findings.warnings.append(ConfigWarning(destination.place, destination.path, message))


# -- over AMQP ---------------------------------------------------------------------------------------------------------


async def _ask_amqp(settings: ControlSettings, default_vhost: str, findings: Findings) -> None:
    # Query the broker even if the rules need nothing on it, so that an unreachable broker is always reported.
    for vhost in _vhosts(findings) or [default_vhost]:
        connection = ControlConnection(settings, vhost)
        await connection.connect()
        try:
            named = {
                (destination.kind, destination.name): destination
                for destination in findings.destinations
                if destination.vhost == vhost
            }
            absent = await connection.find_missing(named)
            _add_missing((named[destination] for destination in absent), findings)
            carried = {
                (EXCHANGE, exchange.rule.carrier): exchange
                for exchange in findings.exchanges
                if exchange.vhost == vhost and exchange.rule.delivery == _CARRIER
            }
            absent = await connection.find_missing(carried)
            declares: dict[Action, EvaluatedExchange] = {
                DeclareCarrier(owned_exchange(exchange.rule)): exchange
                for destination, exchange in carried.items()
                if destination not in absent
            }
            existing = ObservedState()
            # The executor logs the declares of other exchanges. Over AMQP, the type is unknown.
            existing.exchanges_listed({name: ExchangeInfo(name, "") for kind, name in carried.keys() - absent.keys()})
            executor = Executor(settings, VhostState(vhost, Router(())), connection, existing)
            await executor.carry_out(list(declares))
            for action, failure in executor.failures.items():
                exchange, why = declares[action], failure.why
                if exchange.rule.carrier_type == "auto" and "current is 'topic'" in why:
                    why += "; if it is a carrier, use --broker http(s)://..., which recognizes topic carriers"
                findings.errors.append(exchange.place.error(exchange.path, why))
        finally:
            await connection.close()


# -- over the management API -------------------------------------------------------------------------------------------


async def _list(settings: ControlSettings, findings: Findings) -> None:
    management = ManagementApi(settings, settings.management or "")
    user = findings.settings[0].upstream.control.username if findings.settings else settings.username
    plan: list[tuple[str, str]] = []
    try:
        vhosts = _vhosts(findings)
        if not vhosts:
            await management.vhosts()
        scans = (await management.version()).scans_bindings
        for vhost in vhosts:
            queues, exchanges = await management.queues(vhost), await management.exchanges(vhost)
            _compare(vhost, queues, exchanges, findings)
            await _add_refused_topics(management, vhost, exchanges, findings)
            permissions = await _permissions(management, vhost, user)
            for loaded in findings.sets:
                if vhost in loaded.rules.vhosts:
                    rules = loaded.rules.vhosts[vhost]
                    desired = desired_state(owned_exchanges(rules), loaded.routers[vhost], book=loaded.books.get(vhost))
                    state = VhostState(vhost, loaded.routers[vhost], scans_bindings=scans)
                    adopt_types(state, desired, exchanges)
                    observation = await _observe(management, vhost, desired, queues, exchanges)
                    _add_unfit(vhost, desired, observation, scans, findings)
                    declares = [DeclareQueue(queue.name, queue.arguments) for queue in rules.queues]
                    plan += [(vhost, str(action)) for action in diff(desired, declares, observation)]
                    needs = _needs(vhost, desired, rules.queues, queues, findings)
                    _add_lacking(user, vhost, permissions, needs, findings)
    finally:
        await management.close()
    findings.plan = plan


def _compare(vhost: str, queues: Container[bytes], exchanges: Mapping[bytes, ExchangeInfo], findings: Findings) -> None:
    """Report destinations that are missing on the broker, and conflicts that prevent a sidecar from starting."""
    known: dict[str, Container[bytes]] = {QUEUE: queues, EXCHANGE: exchanges}
    named = (destination for destination in findings.destinations if destination.vhost == vhost)
    _add_missing((destination for destination in named if destination.name not in known[destination.kind]), findings)
    for exchange in findings.exchanges:
        if exchange.vhost != vhost:
            continue
        name = exchange.rule.name
        why = None
        if exchange.rule.delivery == _CARRIER:
            owned, info = owned_exchange(exchange.rule), exchanges.get(exchange.rule.carrier)
            why = carrier_conflict(owned, info) or carrier_difference(owned, info)
        why = why or internal_conflicts(dict.fromkeys(exchange.published, name), exchanges).get(name)
        if why is not None:
            findings.errors.append(exchange.place.error(exchange.path, why))


async def _add_refused_topics(
    management: ManagementApi, vhost: str, exchanges: Mapping[bytes, ExchangeInfo], findings: Findings
) -> None:
    """Add warnings about the broker's own topic exchanges with bindings that newer brokers refuse."""
    for named in findings.destinations:
        info = exchanges.get(named.name) if (named.vhost, named.kind) == (vhost, EXCHANGE) else None
        if info is None or info.type != "topic" or info.marked:
            continue
        bindings = await management.bindings(vhost, named.name)
        refused = sum(binding.routing_key.split(b".").count(b"#") > _MOST_HASHES for binding in bindings)
        if refused:
            which = f"{counted(refused, 'binding')} with more than two '#'"
            message = f"this topic exchange has {which}, which RabbitMQ 4.3 refuses"
            findings.warnings.append(ConfigWarning(named.place, named.path, message))


def _add_unfit(vhost: str, desired: DesiredState, observation: Observation, scans: bool, findings: Findings) -> None:
    """Add warnings about existing carriers whose type does not suit the number of their present and future bindings."""
    written = {exchange.rule.name: exchange for exchange in findings.exchanges if exchange.vhost == vhost}
    for exchange in desired.carriers:
        carrier = CarrierBindings(exchange, len(exchange.tokens.bound.keys() | desired.tokens_of(exchange)), scans)
        if not carrier.fits:
            place = written[exchange.name]
            findings.warnings.append(ConfigWarning(place.place, place.path, str(carrier)))


async def _observe(
    management: ManagementApi,
    vhost: str,
    desired: DesiredState,
    queues: Mapping[bytes, QueueInfo],
    exchanges: Mapping[bytes, ExchangeInfo],
) -> Observation:
    names = ObservedState()
    names.queues_listed({}, queues)
    names.exchanges_listed(exchanges)
    tokens = Tokens()
    conflicts: dict[bytes, str] = {}
    for exchange in desired.carriers:
        info = exchanges.get(exchange.carrier)
        if conflict := carrier_conflict(exchange, info) or carrier_difference(exchange, info):
            conflicts[exchange.name] = conflict
        elif info is not None:
            for binding in await management.bindings(vhost, exchange.carrier):
                if is_token(binding.routing_key):  # whatever the secret
                    candidates = tokens.candidates(binding.destination, one_word=True)
                    exchange.tokens.bind_ok(binding.destination, candidates)
    return Observation(names, tokens, conflicts=conflicts)


# -- permissions -------------------------------------------------------------------------------------------------------


class _Need(NamedTuple):
    """Permissions that the control user needs for one purpose.

    Args:
        written: the exchange or destination in the rules for which the permissions are needed.
        wanted: permissions, each with the kind and name of its object.
        stops: whether the sidecar refuses to start if permissions are missing.
    """

    written: EvaluatedExchange | NamedDestination
    wanted: Sequence[tuple[str, str, bytes]]
    stops: bool = False


async def _permissions(management: ManagementApi, vhost: str, user: str) -> Permissions:
    asked = f"could not query the permissions of the control user {shown_user(user)!r} in virtual host {vhost}"
    try:
        permissions = await management.permissions(vhost, user)
    except UpstreamError as error:
        raise _wrong(f"{asked}: {error}; expected a user with the tag administrator in the address") from error
    if permissions is None:
        text = (
            f"the control user {shown_user(user)!r} has no permissions in virtual host {vhost} in the broker's "
            "internal database"
        )
        raise _wrong(f"{text}; set them with `rabbitmqctl set_permissions`")
    return permissions


def _needs(
    vhost: str, desired: DesiredState, queues: Iterable[QueueRule], present: Container[bytes], findings: Findings
) -> Iterator[_Need]:
    exchanges = {exchange.rule.name: exchange for exchange in findings.exchanges if exchange.vhost == vhost}
    named = (*findings.destinations, *findings.queues)
    places = {(item.kind, item.name): item for item in named if item.vhost == vhost}
    for queue in queues:
        if queue.name not in present:
            yield _Need(places[QUEUE, queue.name], [("configure", QUEUE, queue.name)])
    for exchange in desired.made:
        written, carrier = exchanges[exchange.name], exchange.carrier
        declaring, binding = [("configure", EXCHANGE, carrier)], [("read", EXCHANGE, carrier)]
        if exchange.alternate is not None:
            declaring += [*binding, ("write", EXCHANGE, exchange.alternate)]
        yield _Need(written, declaring, stops=True)
        if exchange.alternate is None:
            yield _Need(written, binding)
        for destination in sorted(desired.tokens_of(exchange)):
            yield _Need(places.get(destination, written), [("write", *destination)])


def _add_lacking(user: str, vhost: str, permissions: Permissions, needs: Iterable[_Need], findings: Findings) -> None:
    """Report permissions that the control user lacks: errors if the sidecar would not start, otherwise warnings."""
    for need in needs:
        lacks = [
            f"{permission} on {kind} {text(name)}"
            for permission, kind, name in need.wanted
            if not _matches(getattr(permissions, permission), name)
        ]
        if not lacks:
            continue
        message = f"the control user {shown_user(user)!r} lacks permissions in virtual host {vhost}: {', '.join(lacks)}"
        place, path = need.written.place, need.written.path
        if need.stops:
            findings.errors.append(place.error(path, message))
        elif (warning := ConfigWarning(place, path, message)) not in findings.warnings:
            findings.warnings.append(warning)


def _matches(pattern: str, name: bytes) -> bool:
    """Return True if a permission covers a name. As on the broker, an empty pattern matches only the empty name."""
    try:
        return bool(compile_pattern(pattern.encode() or b"^$").search(name, Budget()))
    except InvalidPattern:
        return False
