"""What does the configuration ask of each room? Settings put in the words that rooms take.

The rooms do not know the configuration file, and this module does not know what they do.
"""

from __future__ import annotations

from collections.abc import Mapping

from proxy.amqp.plan import ClientRules
from proxy.amqp.vhost import Delivery
from proxy.audit.opening import AuditRequest
from proxy.audit.record import Privacy
from proxy.errors import ConfigError
from proxy.rules.clock import SystemZone
from proxy.rules.settings import Settings


def client_rules(settings: Settings) -> ClientRules:
    """Give what the configuration says of what clients declare."""
    declared = settings.declared
    return ClientRules(
        Delivery(declared.delivery),
        strict_unbind=declared.unbind == "strict",
        own_routes=declared.client_routes == "own",
        local_time=SystemZone(),
    )


def audit_request(settings: Settings, environ: Mapping[str, str]) -> AuditRequest | None:
    """Give what the configuration asks of the audit log; None where it asks for none.

    Raises:
        ConfigError: the key of the hashes can't be read.
    """
    audit = settings.audit
    if audit.directory is None:
        return None
    return AuditRequest(
        settings.folder / audit.directory,
        audit.mode,
        audit.scope == "ruled",
        audit.instance,
        audit.buffer_mib,
        audit.segment_mib,
        audit.segment_seconds,
        audit.keep_days,
        audit.keep_mib,
        audit.headers,
        audit.hash,
        _hash_key(settings, environ),
    )


def audit_privacy(settings: Settings, environ: Mapping[str, str]) -> Privacy:
    """Give what the configuration lets be told of a message, in audit lines and elsewhere.

    Raises:
        ConfigError: the key of the hashes can't be read or used.
    """
    audit = settings.audit
    shown = frozenset(name.encode() for name in audit.headers)
    return Privacy(shown, frozenset(audit.hash), _hash_key(settings, environ))


def _hash_key(settings: Settings, environ: Mapping[str, str]) -> bytes:
    audit = settings.audit
    if audit.hash_key_env is not None:
        if audit.hash_key_env not in environ:
            raise ConfigError("audit", 0, "audit.hash_key_env", f"there is no variable {audit.hash_key_env}")
        return environ[audit.hash_key_env].encode()
    if audit.hash_key_file is not None:
        try:
            return (settings.folder / audit.hash_key_file).read_bytes().removesuffix(b"\n")
        except OSError as error:
            message = f"{audit.hash_key_file} can't be read: {error.strerror or error}"
            raise ConfigError("audit", 0, "audit.hash_key_file", message) from error
    return b""
