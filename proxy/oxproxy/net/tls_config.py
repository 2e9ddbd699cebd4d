"""Reads the TLS settings in the configuration and in rules files, and checks the files that these settings name.

`SidecarTls` translates settings for `net.tls` and the control plane. `check_settings` and `broker_tls` create contexts
to find unusable files, report each file at the line that names it, and discard the contexts. The contents of files are
never shown. Sources: RabbitMQ "TLS Support", "Management Plugin" (TLS).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from oxproxy.broker.connection import TlsSettings
from oxproxy.config.settings import ListenTls, Settings, UpstreamTls
from oxproxy.errors import ConfigError
from oxproxy.net.remote.endpoints import RemoteBroker
from oxproxy.net.tls import CIPHERS, ClientTls, ContextProvider, ServerTls, TlsContexts, TlsPolicy, policy_words
from oxproxy.rules.addresses import BrokerRule
from oxproxy.yamlfile.document import Faults, Place, join
from oxproxy.yamlfile.models import path_in


class SidecarTls:
    """TLS settings of one sidecar, and the contexts in use."""

    def __init__(self, settings: Settings) -> None:
        self.contexts = TlsContexts()
        self._management = settings.upstream.management
        self._addresses = settings.upstream.addresses
        #: TLS settings of each section of the configuration, by dotted path
        self.sections: dict[str, ServerTls | ClientTls] = {}
        #: TLS settings of the listeners with TLS, by index in `listen`
        self.listeners: dict[int, ServerTls] = {}
        for index, listener in enumerate(settings.listen):
            server_tls = _server_tls(settings.folder, listener.tls)
            if server_tls is not None:
                self.listeners[index] = server_tls
                self.sections[f"listen[{index}].tls"] = server_tls
        #: TLS settings of the admin address; None for plain TCP
        self.admin = _server_tls(settings.folder, settings.admin.tls)
        if self.admin is not None:
            self.sections["admin.tls"] = self.admin
        #: TLS settings of the connection to the broker; None for plain TCP
        self.upstream: ClientTls | None = None
        tls = settings.upstream.tls
        if tls is not None:
            ca, certificate, key = (path_in(settings.folder, name) for name in (tls.ca, tls.certificate, tls.key))
            self.upstream = ClientTls(ca, tls.server_name, certificate, key, tls.verify, _policy(tls))
            self.sections["upstream.tls"] = self.upstream
        #: TLS settings of connections to brokers named by the active rules
        self._remote: list[ClientTls] = []

    def read(
        self, brokers: Mapping[str, Mapping[bytes, RemoteBroker]]
    ) -> Callable[[Mapping[str, Mapping[bytes, RemoteBroker]]], None]:
        """Read all TLS files, including the files of the given brokers (by virtual host and name).

        Returns:
            A function that puts the contexts into use for new connections. It receives the brokers in use. The contexts
            of brokers that have not been read are kept.

        Raises:
            ConfigErrors: some files can't be used.
        """
        use_contexts = self.contexts.read([*self.sections.values(), *_tls_of(brokers)])

        def use(in_use: Mapping[str, Mapping[bytes, RemoteBroker]]) -> None:
            self._remote = _tls_of(in_use)
            use_contexts(self._remote)

        return use

    def policies(self) -> dict[str, dict[str, object]]:
        """Describe what is in force for each section of the configuration."""
        return {section: policy_words(self.contexts.of(tls)) for section, tls in self.sections.items()}

    def files(self) -> list[Path]:
        """List the files named by TLS settings in the configuration and by brokers in the active rules."""
        return sorted({path for tls in (*self.sections.values(), *self._remote) for path in files_of(tls)})

    def providers(self) -> dict[int, ContextProvider]:
        """Return providers of contexts for producers, by index of the listener."""
        return {index: partial(self.contexts.of, tls) for index, tls in self.listeners.items()}

    def admin_provider(self) -> ContextProvider | None:
        return None if self.admin is None else partial(self.contexts.of, self.admin)

    def client(self, tls: ClientTls, server_name: str | None) -> TlsSettings:
        """Return TLS settings for the client libraries.

        The certificate must have the name `server_name`, or the host name if this argument is None.
        """
        return TlsSettings(partial(self.contexts.of, tls), server_name, tls.words)

    def control(self) -> TlsSettings | None:
        return None if self.upstream is None else self.client(self.upstream, self.upstream.server_name)

    def management(self) -> TlsSettings | None:
        """Return the TLS settings for the management API.

        The broker's settings are used, but `server_name` only if the API and the broker have the same host.
        """
        parts = urlsplit(self._management or "")
        if self.upstream is None or parts.scheme != "https":
            return None
        same = any(address.host == parts.hostname for address in self._addresses)
        return self.client(self.upstream, self.upstream.server_name if same else None)


def _tls_of(brokers: Mapping[str, Mapping[bytes, RemoteBroker]]) -> list[ClientTls]:
    return [broker.tls for named in brokers.values() for broker in named.values() if broker.tls is not None]


def _server_tls(folder: Path, tls: ListenTls | None) -> ServerTls | None:
    if tls is None or tls.certificate is None or tls.key is None:
        return None
    ca = path_in(folder, tls.client_ca)
    required = tls.client_verify == "required"
    return ServerTls(folder / tls.certificate, folder / tls.key, ca, required, _policy(tls))


def _policy(tls: ListenTls | UpstreamTls) -> TlsPolicy:
    return TlsPolicy(tls.minimum_version, tls.ciphers)


#: Keys that name files; they are also fields of `ServerTls` and `ClientTls`.
_KEYS = ("certificate", "key", "client_ca", "ca")


def files_of(tls: ServerTls | ClientTls) -> Iterator[Path]:
    return (path for key in _KEYS if (path := getattr(tls, key, None)) is not None)


def check_settings(settings: Settings, faults: Faults) -> None:
    """Report unusable files named by a configuration; `load_settings` reports missing files."""
    for path, tls in SidecarTls(settings).sections.items():
        if all(os.path.isfile(file) for file in files_of(tls)):
            above = settings.places.get(path, Place("configuration", 0))
            _check(tls, path, settings.places, above, faults)


def broker_tls(rule: BrokerRule, faults: Faults) -> ClientTls | None:
    """Return the TLS settings of a broker in the rules, or None for plain TCP, and report unusable files."""
    if rule.tls is None:
        return None
    ca, certificate, key = (path_in(rule.folder, name) for name in (rule.tls.ca, rule.tls.certificate, rule.tls.key))
    tls = ClientTls(ca, rule.tls.server_name, certificate, key)
    section = join("brokers", rule.name.decode())
    places = {f"{section}.{key}": place for key, place in rule.places.items()}
    _check(tls, join(section, "tls"), places, rule.place, faults)
    return tls


def _check(tls: ServerTls | ClientTls, path: str, places: Mapping[str, Place], above: Place, faults: Faults) -> None:
    try:
        tls.context()
    except ConfigError as error:
        if error.file == CIPHERS:
            key = join(path, CIPHERS)
            faults.error(places.get(key, above), key, error.message)
            return
        key = join(path, next(key for key in _KEYS if str(getattr(tls, key, None)) == error.file))
        report = faults.missing if isinstance(error.__cause__, OSError) else faults.error
        report(places.get(key, above), key, str(error))
