"""Which key names a file that TLS can't use; `test_check_tls` has the same of whole files."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy.config.loader import parse_settings
from proxy.net.tls import ClientTls
from proxy.net.tls_config import broker_tls, check_settings
from proxy.yamlfile.document import Faults
from tests.rules.loading import load


def broker_faults(text: str, required: bool) -> tuple[ClientTls | None, Faults]:
    faults = Faults()
    [broker] = load(f"brokers: {{a: {{address: 'h:1', {text}}}}}").rules.vhosts["/"].brokers
    return broker_tls(broker, faults, required), faults


def test_plain_tcp_needs_no_files() -> None:
    assert broker_faults("deadline: 2s", required=True) == (None, Faults())


def test_the_authorities_of_the_system_need_no_file() -> None:
    assert broker_faults("tls: {server_name: n}", required=True) == (ClientTls(server_name="n"), Faults())


@pytest.mark.parametrize("required", [True, False])
def test_a_file_that_is_not_there_is_an_error_where_it_is_needed(tmp_path: Path, required: bool) -> None:
    _, faults = broker_faults(f"tls: {{ca: {tmp_path / 'none'}}}", required)
    [said] = faults.errors if required else faults.warnings
    assert str(said).replace("warning: ", "") == (
        f"a.yaml:1:37: brokers.a.tls.ca: {tmp_path / 'none'}: can't be read: No such file or directory"
    )
    assert len(faults.errors) + len(faults.warnings) == 1


def test_a_file_without_what_it_is_for_is_an_error_anywhere(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("none")
    _, faults = broker_faults(f"tls: {{ca: {tmp_path / 'ca'}}}", required=False)
    assert [str(error) for error in faults.errors] == [
        f"a.yaml:1:37: brokers.a.tls.ca: {tmp_path / 'ca'}: no CERTIFICATE in PEM, expected CA certificates"
    ]


def test_a_variable_that_names_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("none")
    environ = {"OXPROXY_UPSTREAM__TLS__CA": str(tmp_path / "ca")}
    faults = Faults()
    check_settings(parse_settings(b"{}", tmp_path / "o.yaml", environ, faults), faults)
    [error] = faults.errors
    assert str(error).startswith("OXPROXY_UPSTREAM__TLS__CA: upstream.tls.ca: ")
