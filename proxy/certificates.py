"""Can files of TLS be used that configuration and rules name? Looked at for ``oxproxy check``, as a start would.

Keys are read, never shown; what only the machine that serves has is a warning here.
"""

from __future__ import annotations

from proxy.net.tls_faults import broker_tls, check_settings
from proxy.rules.faults import Faults
from proxy.rules.inspection import Findings


def check_certificates(findings: Findings) -> None:
    """Add what is wrong with them to what was found in the files themselves."""
    faults = Faults()
    for settings in findings.settings:
        check_settings(settings, faults)
    for loaded in findings.sets:
        for vhost in loaded.rules.vhosts.values():
            for broker in vhost.brokers:
                broker_tls(broker, faults, required=False)
    findings.take(faults)
