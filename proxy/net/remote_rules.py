"""Which brokers do the rules name, with which passwords, and does one of them lead back to ourselves? Asked at load.

Source: the messenger-addressing specification, 3.2 and 3.4 "Loops".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from proxy.errors import ConfigError
from proxy.net.remote_endpoints import RemoteBroker, RemoteLimits
from proxy.net.tls import ClientTls
from proxy.routing.address_lint import fixed_domain
from proxy.rules.faults import Faults
from proxy.rules.loader import LoadedRules
from proxy.rules.model import BrokerRule
from proxy.rules.nodes import join
from proxy.rules.remotes import password_of

_LOOPBACK = frozenset(("127.0.0.1", "::1", "localhost"))
_ANY = frozenset(("0.0.0.0", "::"))  # noqa: S104 -- compared with, not bound


def remote_brokers(
    loaded: LoadedRules, environ: Mapping[str, str], listening: Collection[tuple[str, int]]
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
        name: {broker.name: _broker(broker, environ, listening, faults) for broker in vhost.brokers}
        for name, vhost in loaded.rules.vhosts.items()
    }
    for name, book in loaded.books.items():
        brokers = found[name]
        for index, rule in enumerate(book.table.rules):
            address = fixed_domain(rule)
            if address is None or not address.host or (address.host in brokers and address.port is None):
                continue
            if leads_back(address.host.decode("ascii", "replace"), address.effective_port, listening):
                place = loaded.rules.vhosts[name].address_places[index]
                faults.error(place, f"addresses[{index}].translation", "leads back to this proxy")
    faults.check()
    return found


def leads_back(host: str, port: int, listening: Collection[tuple[str, int]]) -> bool:
    """Whether an address is one of those that we listen on, as far as its text tells."""
    return any(
        port == own_port and (host == own or (host in _LOOPBACK and own in (_LOOPBACK | _ANY)))
        for own, own_port in listening
    )


def _broker(
    rule: BrokerRule, environ: Mapping[str, str], listening: Collection[tuple[str, int]], faults: Faults
) -> RemoteBroker:
    path = join("brokers", rule.name.decode())
    if leads_back(rule.host, rule.port, listening):
        faults.error(rule.place, join(path, "address"), "leads back to this proxy")
    tls = None
    if rule.tls is not None:
        tls = ClientTls(rule.tls.ca, rule.tls.server_name, rule.tls.certificate, rule.tls.key)
        try:
            tls.context()
        except ConfigError as error:
            faults.error(rule.place, join(path, "tls"), str(error))
    return RemoteBroker(
        rule.host,
        rule.port,
        tls,
        None if rule.username is None else rule.username.encode(),
        password_of(rule, environ, faults).reveal().encode(),
        rule.vhost,
        RemoteLimits(rule.deadline_seconds, rule.unconfirmed, rule.unconfirmed_bytes),
    )
