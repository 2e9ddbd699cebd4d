from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from proxy.cli.admin_client import configuration
from proxy.cli.main import main
from proxy.config.loader import parse_settings
from proxy.errors import ConfigErrors
from proxy.yamlfile.document import Faults


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:abc", "http://127.0.0.1:1 5", "http://[::1", "http://127.0.0.1:99999"]
)
def test_an_unusable_url_is_an_error(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--admin", url]) == 2
    assert capsys.readouterr().err.startswith("oxproxy status: ")


@pytest.mark.parametrize("answer", [b"AMQP\0\0\x09\x01", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}"])
def test_a_port_that_does_not_serve_http_is_an_error(answer: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def respond() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

        thread = threading.Thread(target=respond)
        thread.start()
        port = server.getsockname()[1]
        assert main(["status", "--admin", f"http://127.0.0.1:{port}"]) == 2
        thread.join()
    assert "check that this is the admin address of a sidecar" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rules: [" + "a" * 300 + "]", "rules[0]"),
        ('rules: ["\\0.yaml"]', "rules[0]"),
        ('rules: ["\\0/*.yaml"]', "rules[0]"),
        ('declared: {secrets: [{file: "\\0"}]}', "declared.secrets[0].file"),
        ('exchanges: []\ntests: "\\0_test.yaml"', "tests"),
        ('brokers: {b: {address: "h:1", tls: {}, username: u, password_file: "\\0"}}', "brokers.b.password_file"),
    ],
)
def test_an_unusable_file_name_is_reported_at_its_key(
    text: str, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(text)
    main(["check", str(file)])
    assert f": {shown}: " in capsys.readouterr().err


def test_a_configuration_in_a_directory_without_permission_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.cli.admin_client._CONFIGURATIONS", [Path("a" * 300)])  # as with EACCES, is_file() raises
    assert configuration(argparse.Namespace(config=None)) is None


@pytest.mark.parametrize(
    ("name", "value"), [("OXPROXY_LISTEN__\u00b2__ADDRESS", "a:1"), ("OXPROXY_UPSTREAM__CONTROL__PASSWORD", "\udcff")]
)
def test_unusable_variables_are_errors(name: str, value: str) -> None:
    with pytest.raises(ConfigErrors) as raised:
        parse_settings(b"", Path("oxproxy.yaml"), {name: value}, Faults())
    assert [error.file for error in raised.value.errors] == [name]


def test_a_closed_standard_output_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("exchanges: []\n")
    command = f'exec "$0" -m proxy.cli.main check "{file}" >&-'
    finished = subprocess.run(["sh", "-c", command, sys.executable], stderr=subprocess.PIPE, check=False)
    assert (finished.returncode, finished.stderr) == (0, b"")
