from __future__ import annotations

from pathlib import Path
from socket import gethostname

from pydantic import SecretStr

from oxproxy.app.composition import (
    audit_policy,
    audit_privacy,
    client_rules,
    control_settings,
    listener_limits,
    rates,
    secrets_of,
    session_limits,
)
from oxproxy.audit.policy import AuditMode, AuditPolicy
from oxproxy.audit.retention import Retention
from oxproxy.config.loader import load_settings, parse_settings
from oxproxy.config.settings import Settings
from oxproxy.net.tls_config import SidecarTls
from oxproxy.relay.rate_limits import UserRateLimits
from oxproxy.relay.records.privacy import Privacy
from oxproxy.relay.tokens import Secrets
from oxproxy.relay.vhost import ClientRoutes
from oxproxy.yamlfile.document import Faults


def configured(text: str) -> Settings:
    return parse_settings(text.encode(), Path("oxproxy.yaml"), {}, Faults())


def test_by_default_only_connections_and_handshakes_are_limited() -> None:
    settings = Settings()
    assert not UserRateLimits(rates(settings))
    session = session_limits(settings)
    assert (session.channels, session.idle_seconds, session.relay.message_bytes) == (65535, 0, 2**63 - 1)
    assert session.handshake_seconds == 10
    assert (listener_limits(settings).connections, listener_limits(settings).connections_per_peer) == (10_000, 0)
    assert audit_policy(settings) is None
    assert client_rules(settings).strict_unbind


def test_every_limit_is_passed_on() -> None:
    settings = configured("""
limits:
  connections: 5
  connections_per_peer: 2
  channels: 7
  message_size: 1000
  publish_rate: 10
  publish_bytes: 2000
  burst: 2s
  patience: null
  idle_timeout: 1m
shutdown: {deadline: 3s}
""")
    assert rates(settings) == (10, 2000, 2.0, 0.0)
    session = session_limits(settings)
    assert (session.channels, session.idle_seconds, session.relay.message_bytes) == (7, 60, 1000)
    listener = listener_limits(settings)
    assert (listener.connections, listener.connections_per_peer, listener.settle_seconds) == (5, 2, 3)


KEY = "0123456789abcdef"
SETTINGS = """\
listen: [{address: "127.0.0.1:5673"}]
upstream:
  address: 127.0.0.1:5672
  control: {username: guest, password: guest}
"""


def loaded(folder: Path, more: str = "") -> Settings:
    file = folder / "oxproxy.yaml"
    file.write_text(SETTINGS + more)
    return load_settings(file, {"KEY": KEY})[0]


def test_without_a_directory_there_is_no_audit_log_but_privacy_applies(tmp_path: Path) -> None:
    settings = loaded(tmp_path, "audit: {headers: [type]}\n")
    assert audit_policy(settings) is None
    assert audit_privacy(settings).headers == {b"type"}


def test_the_audit_log_has_the_configured_policy(tmp_path: Path) -> None:
    settings = loaded(tmp_path, "audit: {directory: log, hash: [rk], hash_key_env: KEY}\n")
    policy, privacy = audit_policy(settings), audit_privacy(settings)
    assert policy is not None
    assert (policy.directory, policy.mode, policy.instance) == (tmp_path / "log", AuditMode.BEST_EFFORT, gethostname())
    assert (policy.retention, policy.segment_bytes) == (Retention(), 128 << 20)
    assert privacy == Privacy(hashed=frozenset(("rk",)), key=KEY.encode())


def test_sizes_and_times_of_the_audit_log_are_converted_to_bytes_and_seconds(tmp_path: Path) -> None:
    audit = "{directory: log, mode: strict, instance: a, buffer_mib: 2, segment_mib: 3, keep_days: 4, keep_mib: 5}"
    policy = audit_policy(loaded(tmp_path, f"audit: {audit}\n"))
    assert policy == AuditPolicy(
        tmp_path / "log",
        "a",
        AuditMode.STRICT,
        2 << 20,
        segment_bytes=3 << 20,
        retention=Retention(4 * 86400.0, 5 << 20),
    )


def test_declarations_of_clients_follow_the_configuration(tmp_path: Path) -> None:
    settings = loaded(tmp_path, "declared: {unbind: broker, client_routes: any}\n")
    rules = client_rules(settings)
    assert not rules.strict_unbind
    tls = SidecarTls(settings)
    tls.read({})({})
    assert control_settings(settings, tls, Secrets()).declared.client_routes is ClientRoutes.ANY


def test_without_secrets_the_key_is_derived_from_the_control_users_login(tmp_path: Path) -> None:
    secrets = secrets_of(loaded(tmp_path))
    assert secrets.verify(secrets_of(loaded(tmp_path)).sign(b"a"), b"a") == 0
    settings = loaded(tmp_path)
    control = settings.upstream.control.model_copy(update={"password": SecretStr("guess")})
    upstream = settings.upstream.model_copy(update={"control": control})
    assert secrets.verify(secrets_of(settings.model_copy(update={"upstream": upstream})).sign(b"a"), b"a") is None
    assert secrets.verify(Secrets().sign(b"a"), b"a") is None


def test_secrets_are_used_in_their_order(tmp_path: Path) -> None:
    for name, value in (("new", bytes(32)), ("old", bytes(range(32)))):
        (tmp_path / name).write_bytes(value)
    secrets = secrets_of(loaded(tmp_path, "declared: {secrets: [{file: new}, {file: old}]}\n"))
    assert secrets.verify(Secrets([bytes(32)]).sign(b"a"), b"a") == 0
    assert secrets.verify(Secrets([bytes(range(32))]).sign(b"a"), b"a") == 1
    assert secrets.verify(secrets_of(loaded(tmp_path)).sign(b"a"), b"a") == 2  # the one derived from the password
