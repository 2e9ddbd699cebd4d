"""Runs the program of `helm test` against a real sidecar."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from deploy.chart.readme import CHART
from tests.certificates import Authority
from tests.private_broker import free_port
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar

SCRIPT = (CHART / "files" / "test" / "handshake.py").read_text()


def run_script(port: int, security: str, readiness: str) -> tuple[int, str]:
    command = [sys.executable, "-c", SCRIPT, "127.0.0.1", str(port), security, readiness]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("security", ["plain", "tls", "mutual"])
def test_a_ready_sidecar_passes(broker: Broker, tmp_path: Path, security: str) -> None:
    listener: dict[str, object] = {}
    if security != "plain":
        authority = Authority(tmp_path / "authority")
        certificate, key = authority.certificate("gateway")
        listener = {"certificate": str(certificate), "key": str(key)}
        if security == "mutual":
            listener["client_ca"] = str(authority.ca)
    port = free_port()
    settings = {"listen": [{"address": f"127.0.0.1:{port}", **({"tls": listener} if listener else {})}]}
    with Sidecar(broker, settings=settings) as sidecar:
        status, text = run_script(port, security, f"{sidecar.admin}/readyz")
        assert (status, text.splitlines()) == (
            0,
            [f"127.0.0.1:{port} ({security}): answers", f"{sidecar.admin}/readyz: ready"],
        )
        wrong = "tls" if security == "plain" else "plain"
        status, text = run_script(port, wrong, f"{sidecar.admin}/readyz")
        assert status == 1, text
        assert "answers" not in text


def test_a_closed_port_fails_with_the_reason() -> None:
    port = free_port()
    status, text = run_script(port, "plain", f"http://127.0.0.1:{port}/readyz")
    assert status == 1
    assert text.count("refused") == 2
