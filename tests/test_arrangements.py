from __future__ import annotations

from pathlib import Path

import pytest

from proxy.amqp.vhost import Delivery
from proxy.arrangements import audit_privacy, audit_request, client_rules
from proxy.errors import ConfigError
from proxy.rules.settings import Settings, load_settings

KEY = "0123456789abcdef"
SETTINGS = """\
listen: [{address: "127.0.0.1:5673"}]
upstream:
  address: 127.0.0.1:5672
  control: {username: guest, password: guest}
"""


def settings(folder: Path, more: str = "") -> Settings:
    file = folder / "oxproxy.yaml"
    file.write_text(SETTINGS + more)
    return load_settings(file, {})[0]


def test_without_a_directory_there_is_no_audit_log_but_what_may_be_told_holds(tmp_path: Path) -> None:
    found = settings(tmp_path, "audit: {headers: [type]}\n")
    assert audit_request(found, {}) is None
    assert audit_privacy(found, {}).headers == {b"type"}


def test_the_audit_log_is_asked_for_as_configured(tmp_path: Path) -> None:
    found = settings(
        tmp_path, "audit: {directory: log, headers: [type], hash: [rk], hash_key_env: KEY, scope: ruled}\n"
    )
    request = audit_request(found, {"KEY": KEY})
    assert request is not None
    assert (request.directory, request.ruled_only, request.key) == (tmp_path / "log", True, KEY.encode())
    assert audit_privacy(found, {"KEY": KEY}).hashed == {"rk"}


def test_the_key_of_the_hashes_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY + "\n")
    found = settings(tmp_path, "audit: {directory: log, hash: [rk], hash_key_file: key}\n")
    assert audit_privacy(found, {}).key == KEY.encode()


@pytest.mark.parametrize("source", ["hash_key_env: KEY", "hash_key_file: none"])
def test_a_key_that_is_not_there_is_said(tmp_path: Path, source: str) -> None:
    found = settings(tmp_path, f"audit: {{directory: log, hash: [rk], {source}}}\n")
    with pytest.raises(ConfigError, match=r"audit\.hash_key"):
        audit_request(found, {})


def test_what_clients_declare_is_ruled_as_configured(tmp_path: Path) -> None:
    rules = client_rules(settings(tmp_path, "declared: {delivery: queue, unbind: broker, client_routes: any}\n"))
    assert (rules.delivery, rules.strict_unbind, rules.own_routes) == (Delivery.QUEUE, False, False)
