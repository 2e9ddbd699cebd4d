"""A sidecar with all that its metrics tell of: an audit log, and a listener with a certificate."""

from __future__ import annotations

from pathlib import Path

from tests.certificates import Authority
from tests.private_broker import free_port
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar


def whole_sidecar(broker: Broker, rules: Path, folder: Path) -> Sidecar:
    """Give one that is yet to be started.

    Args:
        broker: its upstream.
        rules: its rules file.
        folder: for the audit log and certificates.
    """
    certificate, key = Authority(folder / "tls").certificate("localhost", days=60)
    audit = folder / "audit"
    audit.mkdir()
    settings: dict[str, object] = {"audit": {"directory": str(audit)}}
    sidecar = Sidecar(broker, [rules], settings)
    secure = f"127.0.0.1:{free_port(sidecar.port)}"
    tls = {"certificate": str(certificate), "key": str(key)}
    settings["listen"] = [{"address": sidecar.address}, {"address": secure, "tls": tls}]
    return sidecar
