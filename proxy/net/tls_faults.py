"""Which key names a file that TLS can't use? What is wrong with files, said at the line that names them.

It makes contexts to find out, and throws them away. Never shows what is in a file.

Source: the interface of configuration and rules files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from proxy.config.settings import Settings
from proxy.errors import ConfigError
from proxy.net.tls import ClientTls, ServerTls
from proxy.net.tls_config import WantedTls, files_of
from proxy.rules.model import BrokerRule
from proxy.yamlfile.faults import Faults, Place
from proxy.yamlfile.nodes import join

#: Keys that name files, and the fields of `ServerTls` and `ClientTls`.
_KEYS = ("certificate", "key", "client_ca", "ca")


def check_settings(settings: Settings, faults: Faults) -> None:
    """Report files that a configuration names and that can't be used; `load_settings` reports those that are not there.

    Args:
        settings: the configuration.
        faults: takes the findings; a file that only the serving machine may read is a warning.
    """
    for path, tls in WantedTls(settings).sections.items():
        if all(os.path.isfile(file) for file in files_of(tls)):
            above = settings.places.get(path, Place("configuration", 0))
            _check(tls, path, settings.places, above, faults, required=False)


def broker_tls(rule: BrokerRule, faults: Faults, required: bool = True) -> ClientTls | None:
    """Give what TLS to a broker of the rules needs, None for plain TCP, and report its files that can't be used.

    Args:
        rule: the broker.
        faults: takes the findings.
        required: whether files must be readable; where not, one that is not is a warning: only the machine that serves
            needs it.
    """
    if rule.tls is None:
        return None
    tls = ClientTls(rule.tls.ca, rule.tls.server_name, rule.tls.certificate, rule.tls.key)
    section = join("brokers", rule.name.decode())
    places = {f"{section}.{key}": place for key, place in rule.places.items()}
    _check(tls, join(section, "tls"), places, rule.place, faults, required)
    return tls


def _check(
    tls: ServerTls | ClientTls, path: str, places: Mapping[str, Place], above: Place, faults: Faults, required: bool
) -> None:
    try:
        tls.context()
    except ConfigError as error:
        key = join(path, next(key for key in _KEYS if str(getattr(tls, key, None)) == error.file))
        unread = isinstance(error.__cause__, OSError)
        report = faults.warn if unread and not required else faults.error
        report(places.get(key, above), key, str(error))
