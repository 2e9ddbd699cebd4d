from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from proxy.app.workers import WorkerSlot, _reserve
from proxy.config.loader import load_settings
from proxy.yamlfile.hosts import HostPort
from tests.private_broker import free_port
from tests.sidecar import PROGRAM


def test_a_worker_restarts_after_the_number_of_workers_was_reduced(tmp_path: Path) -> None:
    config = tmp_path / "oxproxy.yaml"
    config.write_text("{workers: 2, listen: [{address: 127.0.0.1:5673}], admin: {address: 127.0.0.1:15693}}")
    settings, _ = load_settings(config, {})
    worker = WorkerSlot(2, restarts=1).settings(settings)  # started when the file contained `workers: 3`
    assert worker.admin.address == HostPort("127.0.0.1", 15695)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_an_address_stays_reserved_while_no_worker_listens(host: str) -> None:
    port = free_port()
    with _reserve(HostPort("127.0.0.1", port)):
        with pytest.raises(OSError, match="in use") as caught:
            _reserve(HostPort(host, port)).close()  # a second supervisor
        assert caught.value.errno == errno.EADDRINUSE
        with pytest.raises(OSError, match="in use") as caught:
            socket.create_server((host, port)).close()  # a sidecar without workers
        assert caught.value.errno == errno.EADDRINUSE
        for _ in range(2):
            socket.create_server(("127.0.0.1", port), reuse_port=True).close()  # a worker


def test_a_file_name_that_the_system_refuses_is_an_error_at_its_key(tmp_path: Path) -> None:
    config = tmp_path / "oxproxy.yaml"
    config.write_text(f"rules: [{'a' * 300}.yaml]")
    done = subprocess.run([PROGRAM, "serve", "--config", config], capture_output=True, text=True, check=False)
    assert (done.returncode, "oxproxy.yaml:1:9: rules[0]: " in done.stderr) == (2, True)


def test_sighup_during_startup_does_not_end_the_sidecar(tmp_path: Path) -> None:
    port = free_port()
    config = tmp_path / "oxproxy.yaml"
    os.mkfifo(rules_pipe := tmp_path / "password")
    config.write_text(
        f"{{listen: [{{address: 127.0.0.1:{port}}}], admin: {{address: null}}, "
        f"upstream: {{address: 127.0.0.1:{free_port()}, control: {{username: me, password_file: password}}}}}}"
    )
    process = subprocess.Popen([PROGRAM, "serve", "--config", config])
    try:
        with rules_pipe.open("w") as password:  # blocks until the sidecar reads the file
            process.send_signal(signal.SIGHUP)
            time.sleep(0.1)
            password.write("secret")
        deadline = time.monotonic() + 20
        while process.poll() is None and time.monotonic() < deadline:
            with socket.socket() as probe:
                if not probe.connect_ex(("127.0.0.1", port)):
                    break
            time.sleep(0.05)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
