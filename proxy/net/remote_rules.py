"""Which brokers do the rules name, with which passwords, and can they be reached as they say? Asked at load.

Source: the messenger-addressing specification, 3.2.
"""

from __future__ import annotations

from collections.abc import Mapping

from proxy.net.remote_endpoints import RemoteBroker, RemoteLimits
from proxy.net.tls_faults import broker_tls
from proxy.rules.lint.loops import Listening, check_loops
from proxy.rules.loader import LoadedRules
from proxy.rules.model import BrokerRule
from proxy.rules.remotes import password_of
from proxy.yamlfile.faults import Faults


def remote_brokers(
    loaded: LoadedRules, environ: Mapping[str, str], listening: Listening
) -> dict[str, dict[bytes, RemoteBroker]]:
    """Give the configured brokers by virtual host and name.

    Args:
        loaded: the rules.
        environ: the environment, for passwords.
        listening: (host, port) where we listen.

    Raises:
        ConfigErrors: a password that is not there, a certificate that can't be used, a way back to ourselves.
    """
    faults = Faults()
    found = {
        name: {broker.name: _broker(broker, environ, faults) for broker in vhost.brokers}
        for name, vhost in loaded.rules.vhosts.items()
    }
    check_loops(loaded, listening, faults)
    faults.check()
    return found


def _broker(rule: BrokerRule, environ: Mapping[str, str], faults: Faults) -> RemoteBroker:
    return RemoteBroker(
        rule.host,
        rule.port,
        broker_tls(rule, faults),
        None if rule.username is None else rule.username.encode(),
        password_of(rule, environ, faults).reveal().encode(),
        rule.vhost,
        RemoteLimits(rule.deadline_seconds, rule.unconfirmed, rule.unconfirmed_bytes),
    )
