"""Converts sections of the configuration to the arguments of other packages.

Other packages do not use `Settings`. No socket is opened here. This module also checks the other brokers named in the
rules: their passwords and certificates must be usable, and their addresses must differ from this sidecar's addresses
(messenger-addressing specification, section 3.2).
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Collection, Mapping
from pathlib import Path

from oxproxy.admin.access import AdminToken, Role
from oxproxy.audit.policy import AuditMode, AuditPolicy
from oxproxy.audit.retention import Retention
from oxproxy.broker.connection import ControlSettings, DeclaredSettings
from oxproxy.config.secrets import read_tokens
from oxproxy.config.settings import Settings
from oxproxy.net.context import SessionLimits
from oxproxy.net.listener import ListenerLimits
from oxproxy.net.remote.endpoints import RemoteBroker, RemoteLimits
from oxproxy.net.tls_config import SidecarTls, broker_tls
from oxproxy.relay.connection_state import MOST_MESSAGE_BYTES, RelayLimits
from oxproxy.relay.plan.plan import ClientRules
from oxproxy.relay.rate_limits import RateLimits
from oxproxy.relay.records.facts_record import FactsMode, FactsTable
from oxproxy.relay.records.privacy import Privacy
from oxproxy.relay.tokens import Secrets
from oxproxy.relay.vhost import ClientRoutes
from oxproxy.rules.addresses import BrokerRule, broker_password
from oxproxy.rules.lint.addresses import check_loops
from oxproxy.rules.loader import LoadedRules
from oxproxy.yamlfile.document import Faults
from oxproxy.yamlfile.hosts import HostPort

#: Maximum number of channels if no limit is configured. Channel numbers have 16 bits.
_MOST_CHANNELS = 65535
#: Parameter n of scrypt. With this value, a derivation takes 16 MiB and about 50 ms, once at startup.
_SCRYPT_COST = 2**14
_MIB = 1 << 20
_SECONDS_OF_A_DAY = 86400.0


def session_limits(settings: Settings) -> SessionLimits:
    limits = settings.limits
    return SessionLimits(
        handshake_seconds=limits.handshake_timeout_seconds,
        frame_max=limits.frame_max,
        channels=limits.channels or _MOST_CHANNELS,
        idle_seconds=limits.idle_timeout_seconds or 0.0,
        relay=RelayLimits(message_bytes=limits.message_size or MOST_MESSAGE_BYTES),
    )


def listener_limits(settings: Settings) -> ListenerLimits:
    """Return the limits for all producers of a process."""
    limits = settings.limits
    deadline_seconds = settings.shutdown.deadline_seconds
    per_peer = limits.connections_per_peer or 0
    return ListenerLimits(limits.connections, per_peer, deadline_seconds)


def rates(settings: Settings) -> RateLimits:
    limits = settings.limits
    return RateLimits(
        limits.publish_rate or 0,
        limits.publish_bytes or 0,
        limits.burst_seconds,
        limits.patience_seconds or 0.0,
    )


def control_settings(settings: Settings, tls: SidecarTls, secrets: Secrets) -> ControlSettings:
    """Return the settings of the control plane, which uses `secrets` to sign client declarations."""
    upstream, declared = settings.upstream, settings.declared
    return ControlSettings(
        hosts=tuple((address.host, address.port) for address in upstream.addresses),
        username=upstream.control.username,
        password=upstream.control.password.get_secret_value(),
        tls=tls.control(),
        management=upstream.management,
        management_tls=tls.management(),
        refresh_seconds=settings.inventory.refresh_seconds,
        remove_foreign=settings.inventory.foreign_bindings == "remove",
        declared=DeclaredSettings(
            client_routes=ClientRoutes(declared.client_routes),
            announce=declared.announce,
            secrets=secrets,
        ),
    )


def client_rules(settings: Settings) -> ClientRules:
    declared = settings.declared
    return ClientRules(
        strict_unbind=declared.unbind == "strict",
        regexes=declared.regexes,
        regex_budget=settings.limits.regex_budget,
        extensions=declared.extensions,
    )


def secrets_of(settings: Settings) -> Secrets:
    """Return the secrets that sign client bindings.

    The last secret is derived from the control user's password, so that sidecars with this user agree before
    `declared.secrets` is configured and while it is being configured on one after the other. The derivation is
    deliberately slow, since guessed passwords can be tested against signatures.
    """
    given = [source.value for source in settings.declared.secrets]
    control = settings.upstream.control
    salt = b"oxproxy declared.secrets " + control.username.encode()
    password = control.password.get_secret_value().encode()
    return Secrets([*given, hashlib.scrypt(password, salt=salt, n=_SCRYPT_COST, r=8, p=1, dklen=32)])


def audit_policy(settings: Settings) -> AuditPolicy | None:
    audit = settings.audit
    if audit.directory is None:
        return None
    return AuditPolicy(
        settings.folder / audit.directory,
        audit.instance or socket.gethostname(),
        AuditMode(audit.mode),
        audit.buffer_mib * _MIB,
        segment_bytes=audit.segment_mib * _MIB,
        segment_seconds=audit.segment_seconds,
        retention=Retention(
            None if audit.keep_days is None else audit.keep_days * _SECONDS_OF_A_DAY,
            None if audit.keep_mib is None else audit.keep_mib * _MIB,
        ),
    )


def audit_privacy(settings: Settings) -> Privacy:
    """Return the settings that define which parts of a message may be shown, in audit records and elsewhere."""
    audit = settings.audit
    shown = frozenset(name.encode() for name in audit.headers)
    return Privacy(shown, frozenset(audit.hash), audit.hash_key)


def audit_facts(settings: Settings, instance: str) -> FactsTable | None:
    """Return the table of the facts in audit records; None if facts are not recorded."""
    if settings.audit.facts is False:
        return None
    mode = FactsMode.LISTED if settings.audit.facts is True else FactsMode.ALL_MENTIONED
    return FactsTable(instance, audit_privacy(settings), mode)


def admin_tokens(settings: Settings) -> list[AdminToken]:
    """Read the tokens for the admin address.

    Raises:
        ConfigErrors: a token is unusable.
    """
    faults = Faults()
    tokens = read_tokens(settings, faults)
    faults.check()
    sections = zip(settings.admin.tokens, tokens, strict=True)
    return [AdminToken.of(section.name, Role(section.role), token) for section, token in sections]


def token_files(settings: Settings) -> list[Path]:
    return [settings.folder / section.token_file for section in settings.admin.tokens]


def remote_brokers(
    loaded: LoadedRules, environ: Mapping[str, str], listening: Collection[HostPort]
) -> dict[str, dict[bytes, RemoteBroker]]:
    """Return the configured brokers by virtual host and name.

    Args:
        environ: the environment, for passwords.

    Raises:
        ConfigErrors: a password is missing, a certificate is unusable, or a broker's address is that of this sidecar.
    """
    faults = Faults()
    brokers = {
        name: {broker.name: _broker(broker, environ, faults) for broker in vhost.brokers}
        for name, vhost in loaded.rules.vhosts.items()
    }
    check_loops(loaded.rules, listening, faults)
    faults.check()
    return brokers


def _broker(rule: BrokerRule, environ: Mapping[str, str], faults: Faults) -> RemoteBroker:
    settings = rule.settings
    return RemoteBroker(
        settings.address.host,
        settings.address.port,
        broker_tls(rule, faults),
        None if settings.username is None else settings.username.encode(),
        broker_password(rule, environ, faults).get_secret_value().encode(),
        settings.vhost,
        RemoteLimits(settings.deadline, settings.unconfirmed, settings.unconfirmed_mib * _MIB),
    )
