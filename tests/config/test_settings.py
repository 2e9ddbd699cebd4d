from __future__ import annotations

import contextlib
import os
from base64 import b64encode
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from deploy.reference import entries
from oxproxy.config.keys import override
from oxproxy.config.loader import ChangedSettings, changed_since, load_settings, parse_settings
from oxproxy.config.secrets import HASH_KEY_BYTES
from oxproxy.config.settings import ListenSection, Settings
from oxproxy.errors import ConfigErrors
from oxproxy.relay.records.privacy import HASHABLE, KEY_BYTES
from oxproxy.yamlfile.document import Faults, Mapping, Node, Scalar, Sequence, read_document
from oxproxy.yamlfile.hosts import HostPort

KEYS = st.sampled_from([part for entry in entries(Settings()) for part in entry.path.replace("[]", "").split(".")])
SCALARS = st.sampled_from(["a:1", "5s", "", 5, -1, 1.5, True, None, "json", "http://a", "password_env"])
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=20
)

VARIABLES = st.lists(KEYS | st.just("0"), min_size=1, max_size=4).map(lambda keys: "OXPROXY_" + "__".join(keys).upper())


def write(folder: Path, text: str) -> Path:
    path = folder / "oxproxy.yaml"
    path.write_text(text)
    return path


def load(folder: Path, text: str, **environ: str) -> Settings:
    return load_settings(write(folder, text), environ)[0]


def faults(folder: Path, text: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigErrors) as raised:
        load(folder, text, **environ)
    return str(raised.value).replace(f"{folder}/", "").splitlines()


def warnings(folder: Path, text: str, **environ: str) -> list[str]:
    messages = load_settings(write(folder, text), environ)[1]
    return [str(warning).replace(f"{folder}/", "") for warning in messages]


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "---\n"])
def test_a_file_without_keys_is_an_error(tmp_path: Path, text: str) -> None:
    (fault,) = faults(tmp_path, text, OXPROXY_UPSTREAM__ADDRESS="broker:5672")
    assert fault.startswith("oxproxy.yaml:")
    assert "got the keys (none), expected those of a configuration (listen, upstream, " in fault


def test_omitted_keys_have_default_values(tmp_path: Path) -> None:
    settings = load(tmp_path, "rules: []\n")
    assert settings.listen == (ListenSection(address=HostPort("127.0.0.1", 5673)),)
    assert settings.upstream.addresses == (HostPort("127.0.0.1", 5672),)
    assert settings.upstream.control.password.get_secret_value() == "guest"
    assert settings.folder == tmp_path


def test_every_configuration_key_is_read(tmp_path: Path) -> None:
    text = """
listen: [{address: 0.0.0.0:5673}]
upstream:
  address: [a:1, b:2]
  control: {username: me, password: secret}
  management: http://127.0.0.1:15672
rules: [rules/*.yaml]
admin: {address: 127.0.0.1:1}
"""
    settings = load(tmp_path, text)
    assert settings.listen[0].address == HostPort("0.0.0.0", 5673)
    assert settings.upstream.addresses == (HostPort("a", 1), HostPort("b", 2))
    assert (settings.upstream.control.username, settings.upstream.control.password.get_secret_value()) == (
        "me",
        "secret",
    )
    assert settings.upstream.management == "http://127.0.0.1:15672"
    assert (settings.rules, settings.admin.address) == (("rules/*.yaml",), HostPort("127.0.0.1", 1))


def test_all_errors_are_reported_together_with_file_and_line(tmp_path: Path) -> None:
    text = "listen:\n  - adress: a:1\nlimits: {connections: 0}\nlog: {level: loud}\nnothing: {directory: x}\n"
    assert faults(tmp_path, text, OXPROXY_ADMIN__ADDRESS="nowhere") == [
        "oxproxy.yaml:2:5: listen[0].adress: unknown key; did you mean address?",
        "oxproxy.yaml:3:23: limits.connections: got the number 0, expected an integer from 1 to 1000000",
        'oxproxy.yaml:4:14: log.level: got the string "loud", expected one of debug, info, warning, error',
        "oxproxy.yaml:5:1: nothing: unknown key, expected one of admin, audit, declared, inventory, limits, listen, "
        "log, metrics, rules, shutdown, upstream",
        'OXPROXY_ADMIN__ADDRESS: admin.address: got the string "nowhere", expected host:port such as '
        "127.0.0.1:5672 or [::1]:5672",
    ]


def test_settings_of_client_declarations_are_read(tmp_path: Path) -> None:
    text = "declared: {unbind: broker, client_routes: any, announce: true}\n"
    declared = load(tmp_path, text).declared
    assert (declared.unbind, declared.client_routes, declared.announce) == ("broker", "any", True)
    assert load(tmp_path, "rules: []", OXPROXY_DECLARED__ANNOUNCE="true").declared.announce


def test_a_list_as_configuration_is_an_error(tmp_path: Path) -> None:
    assert faults(tmp_path, "- a\n") == ["oxproxy.yaml:1:1: got a list, expected a mapping"]


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors, match="can't be read: No such file"):
        load_settings(tmp_path / "none.yaml", {})


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        "upstream: {address: a:1}\nlimits: {connections: 5}\n",
        OXPROXY_UPSTREAM__ADDRESS="[b:2, c:3]",
        OXPROXY_LIMITS__CONNECTIONS="7",
        OXPROXY_LISTEN__0__ADDRESS="d:4",
        OXPROXY_RULES="[one.yaml, two.yaml]",
        OXPROXY_INVENTORY__REFRESH="1m",
        OXPROXY_ADMIN__ADDRESS="null",
    )
    assert settings.upstream.addresses == (HostPort("b", 2), HostPort("c", 3))
    assert (settings.limits.connections, settings.inventory.refresh_seconds) == (7, 60.0)
    assert (settings.listen[0].address, settings.admin.address) == (HostPort("d", 4), None)
    assert settings.rules == ("one.yaml", "two.yaml")


def test_an_unknown_variable_is_an_error_with_its_name(tmp_path: Path) -> None:
    assert faults(tmp_path, "rules: []", OXPROXY_LOG__LEVL="info") == [
        "OXPROXY_LOG__LEVL: log.levl: unknown key; did you mean level?"
    ]


def test_a_password_from_the_environment_is_used_unchanged(tmp_path: Path) -> None:
    settings = load(tmp_path, "rules: []", OXPROXY_UPSTREAM__CONTROL__PASSWORD="a: #b [c")
    assert settings.upstream.control.password.get_secret_value() == "a: #b [c"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("upstream: {control: {username: me, password: hunter2, hunter2: 1}}", "upstream.control.***: unknown key"),
        ("upstream: {control: {password_env: NAME, hunter2: 1}}", "upstream.control.***: unknown key"),
        ("upstream: {control: {passwort: hunter2, hunter2: 1}}", "upstream.control.***: unknown key"),
        ("upstream: {control: {password:hunter2}}", 'upstream.control["password:***"]: unknown key'),
        ("upstream: {'u:hunter2@h': 1}", 'upstream["u:***@h"]: unknown key'),
        ("upstream: {address: hunter2, control: {password: hunter2}}", 'got the string "***", expected host:port'),
        ("upstream: {control: {username: 'u:hunter2'}}", 'no password for the user "u:***"'),
        ("upstream: {tls: {ca: 'u:hunter2/x@y'}}", "upstream.tls.ca: "),
        ("upstream: {address: 'amqp://u:hunter2/x@host:5672'}", 'got the string "amqp://u:***@host:5672"'),
        ("{upstream: {control: {password: hunter2}}, hunter2: 1}", " ***: unknown key"),
    ],
)
def test_a_secret_in_the_wrong_place_is_not_shown(tmp_path: Path, text: str, shown: str) -> None:
    messages = faults(tmp_path, text, NAME="hunter2")
    assert any(shown in message for message in messages)
    assert "hunter2" not in str(messages)


def test_a_password_is_read_from_a_named_variable(tmp_path: Path) -> None:
    settings = load(tmp_path, "upstream: {control: {password_env: SECRET}}", SECRET="hunter2")
    assert settings.upstream.control.password.get_secret_value() == "hunter2"


def test_a_named_variable_that_is_not_set_is_an_error(tmp_path: Path) -> None:
    assert faults(tmp_path, "upstream:\n  control: {password_env: SECRET}\n") == [
        'oxproxy.yaml:2:13: upstream.control.password_env: there is no environment variable "SECRET"'
    ]


@pytest.mark.parametrize("content", ["hunter2", "hunter2\n", "hunter2\r\n"])
def test_a_password_file_is_relative_to_the_configuration(tmp_path: Path, content: str) -> None:
    (tmp_path / "password").write_bytes(content.encode())
    settings = load(tmp_path, "upstream: {control: {password_file: password}}")
    assert settings.upstream.control.password.get_secret_value() == "hunter2"


@pytest.mark.parametrize("content", [None, b"\xff"])
def test_an_unreadable_password_file_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "password").write_bytes(content)
    errors = faults(tmp_path, "upstream: {control: {password_file: password}}")
    assert len(errors) == 1
    assert errors[0].startswith("oxproxy.yaml:1:22: upstream.control.password_file: password ")


def test_two_sources_of_a_password_are_an_error(tmp_path: Path) -> None:
    text = "upstream:\n  control:\n    password: a\n    password_env: B\n"
    assert faults(tmp_path, text, B="b") == [
        "oxproxy.yaml:4:5: upstream.control.password_env: got password and password_env, expected one of them"
    ]


def test_a_password_in_the_environment_overrides_the_file(tmp_path: Path) -> None:
    text = "upstream: {control: {password_file: none}}"
    assert (
        load(tmp_path, text, OXPROXY_UPSTREAM__CONTROL__PASSWORD="b").upstream.control.password.get_secret_value()
        == "b"
    )


def test_a_plain_text_password_is_a_warning_unless_every_broker_is_on_loopback(tmp_path: Path) -> None:
    control = "  control: {password: a}\n"
    assert warnings(tmp_path, "upstream:\n  address: [127.0.0.1:1, localhost:2, '[::1]:3']\n" + control) == []
    assert warnings(tmp_path, "upstream:\n  tls: {}\n  address: [127.0.0.1:1, rabbit:2]\n" + control) == [
        "oxproxy.yaml:4:13: upstream.control.password: warning: the password is in plain text and the broker is not on "
        "loopback; use password_env or password_file",
        "oxproxy.yaml:3:3: declared.secrets: warning: missing, expected a secret, because the broker is "
        "not on loopback: without a secret, the key that signs client bindings is derived from the control user's "
        "password",
    ]


SECRET = bytes(range(32))


@pytest.mark.parametrize(
    "content", [SECRET, SECRET.hex().encode() + b"\n", b64encode(SECRET) + b"\n", bytes(31) + b"\n"], ids=str
)
def test_a_secret_is_32_bytes_raw_or_in_hexadecimal_or_base64(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "current").write_bytes(content)
    settings = load(tmp_path, "declared: {secrets: [{file: current}]}")
    assert [source.value for source in settings.declared.secrets] == [content if len(content) == 32 else SECRET]
    assert SECRET.hex() not in repr(settings)
    assert str(SECRET) not in repr(settings)


def test_secrets_are_read_from_variables_for_remote_brokers(tmp_path: Path) -> None:
    upstream = "upstream: {address: 'rabbit:1', tls: {}, control: {password_env: B}}\n"
    path = write(tmp_path, upstream + "declared: {secrets: [{env: OXPROXY_SECRET}, {env: B}]}")
    settings, messages = load_settings(path, {"OXPROXY_SECRET": SECRET.hex(), "B": b64encode(bytes(32)).decode()})
    assert [source.value for source in settings.declared.secrets] == [SECRET, bytes(32)]
    assert messages == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{username: me}", '31: upstream.control.password: no password for the user "me", expected password_env, '),
        (
            "{username: me, password_env: EMPTY}",
            '45: upstream.control.password_env: the environment variable "EMPTY" is',
        ),
        ("{username: me, password_file: empty}", "45: upstream.control.password_file: empty is empty, expected a"),
    ],
)
def test_a_control_user_without_a_password_is_an_error_and_for_check_a_warning(
    tmp_path: Path, text: str, expected: str
) -> None:
    (tmp_path / "empty").write_text("\n")
    written = f"upstream: {{tls: {{}}, control: {text}}}\n"
    (message,) = faults(tmp_path, written, EMPTY="")
    assert message.startswith(f"oxproxy.yaml:1:{expected}")
    (warned,) = load_settings(write(tmp_path, written), {"EMPTY": ""}, secrets_required=False)[1]
    assert str(warned).replace(f"{tmp_path}/", "").replace("warning: ", "") == message


def test_an_empty_password_is_an_error(tmp_path: Path) -> None:
    assert faults(tmp_path, "upstream: {control: {password: ''}}") == [
        "oxproxy.yaml:1:22: upstream.control.password: got an empty string, expected a password"
    ]


def test_guest_with_its_default_password_is_for_brokers_on_loopback(tmp_path: Path) -> None:
    assert warnings(tmp_path, "upstream: {address: 'localhost:1'}") == []
    messages = warnings(
        tmp_path, "upstream: {address: 'rabbit:1', tls: {}}\ndeclared: {secrets: [{env: A}]}", A="0" * 64
    )
    assert messages == [
        "oxproxy.yaml:1:1: upstream.control.password: warning: no password is set, and the default password of guest "
        "works only for brokers on loopback"
    ]


def test_unusable_secrets_are_errors(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("hunter2")
    text = "declared:\n  secrets:\n  - file: short\n  - {env: A}\n  - {}\n  - {file: a, env: B}\n  - file: none\n"
    errors = faults(tmp_path, text, A="z" * 64)
    assert "hunter2" not in str(errors)
    assert sorted(errors) == [
        "oxproxy.yaml:2:3: declared.secrets[2]: missing, expected file or env",
        "oxproxy.yaml:3:5: declared.secrets[0].file: short: got 7 bytes in a different format, "
        "expected 32 random bytes: raw (in a file), in hexadecimal or in base64",
        "oxproxy.yaml:4:6: declared.secrets[1].env: environment variable A: got 64 bytes in a different format, "
        "expected 32 random bytes: raw (in a file), in hexadecimal or in base64",
        "oxproxy.yaml:6:15: declared.secrets[3]: got file and env, expected one of them",
        "oxproxy.yaml:7:5: declared.secrets[4].file: none can't be read: No such file or directory",
    ]
    path = write(tmp_path, "declared: {secrets: [{file: none}]}")
    assert len(load_settings(path, {}, secrets_required=False)[1]) == 1


def test_an_address_that_can_not_be_read_conflicts_with_no_other(tmp_path: Path) -> None:
    text = "listen:\n- address: 127.0.0.1:5673\n- address: nowhere\nadmin: {address: 127.0.0.1:5672}\n"
    assert faults(tmp_path, text + "upstream: {address: rabbit}\n") == [
        'oxproxy.yaml:3:12: listen[1].address: got the string "nowhere", expected host:port such as 127.0.0.1:5672 '
        "or [::1]:5672",
        'oxproxy.yaml:5:21: upstream.address: got the string "rabbit", expected host:port such as 127.0.0.1:5672 '
        "or [::1]:5672",
    ]


@pytest.mark.parametrize(
    ("value", "seen"),
    [("rabbit:15672", "another string"), ("http://guest:hunter2@a", "another string"), ("[a]", "not a string")],
)
def test_a_wrong_url_is_described_without_its_text(tmp_path: Path, value: str, seen: str) -> None:
    [error] = faults(tmp_path, f"upstream: {{management: {value}}}\n")
    assert seen in error
    assert "expected http://host:port" in error
    assert "hunter2" not in error


def test_errors_and_settings_show_no_password(tmp_path: Path) -> None:
    text = "upstream: {control: {password: [hunter2]}, management: 'http://guest:hunter2@a'}\nlog: {level: x}\n"
    assert "hunter2" not in "\n".join(faults(tmp_path, text))
    assert "hunter2" not in repr(load(tmp_path, "upstream: {control: {password: hunter2}}"))


def test_a_null_password_source_is_ignored(tmp_path: Path) -> None:
    settings = load(tmp_path, "upstream: {control: {password: a, password_env: null, password_file: ~}}")
    assert settings.upstream.control.password.get_secret_value() == "a"


@pytest.mark.parametrize("source", ["password_env: NONE", "password_file: none"])
def test_check_accepts_missing_external_passwords(tmp_path: Path, source: str) -> None:
    messages = load_settings(write(tmp_path, f"upstream: {{control: {{{source}}}}}"), {}, secrets_required=False)[1]
    assert len(messages) == 1


def test_check_reports_an_audit_directory_that_can_not_be_created(tmp_path: Path) -> None:
    path = write(tmp_path, "audit: {directory: logs/audit}")
    (warning,) = load_settings(path, {}, secrets_required=False)[1]
    logs = tmp_path / "logs"
    assert str(warning).endswith(f"audit.directory: warning: {logs / 'audit'}: the parent directory does not exist")
    logs.mkdir()
    assert load_settings(path, {}, secrets_required=False)[1] == []


def test_unusable_tokens_are_errors_that_do_not_show_them(tmp_path: Path) -> None:
    (tmp_path / "good").write_text("g" * 32 + "\n")
    (tmp_path / "same").write_text("g" * 32)
    (tmp_path / "short").write_text("hunter2" * 4)
    (tmp_path / "spaced").write_text("hunter2 " * 8)
    text = """\
admin:
  metrics_role: view
  tokens:
    - {name: vera, role: view, token_file: good}
    - {name: vera, role: operate, token_file: same}
    - {name: "", role: view, token_file: short}
    - {name: otto, role: view, token_file: spaced}
    - {name: oda, role: view, token_file: nowhere}
    - {name: ole, role: admin, token_file: good}
    - {role: view, token_file: good}
"""
    size = "expected 32 to 512 printable ASCII characters without spaces"
    name = "expected a different name for each token"
    reported = faults(tmp_path, text)
    assert sorted(fault.partition(": ")[2] for fault in reported) == [
        f'admin.tokens[1].name: got "vera" again, {name}',
        'admin.tokens[1].token_file: got the token of "vera", expected a token of its own',
        f"admin.tokens[2].name: got an empty string, {name}",
        f"admin.tokens[2].token_file: got a token of 28 bytes, {size}",
        f"admin.tokens[3].token_file: got a token of 63 bytes, {size}",
        "admin.tokens[4].token_file: nowhere can't be read: No such file or directory",
        'admin.tokens[5].role: got the string "admin", expected one of view, operate',
        "admin.tokens[6].name: missing, expected the name of the holder",
    ]
    assert "hunter2" not in str(reported)
    assert faults(tmp_path, "admin: {metrics_role: view}") == [
        "oxproxy.yaml:1:9: admin.metrics_role: has no effect without admin.tokens"
    ]


def test_tokens_over_plain_tcp_to_a_remote_client_are_a_warning(tmp_path: Path) -> None:
    (tmp_path / "good").write_text("g" * 32)
    text = 'admin: {address: "0.0.0.0:1", tokens: [{name: vera, role: view, token_file: good}]}'
    assert warnings(tmp_path, text) == [
        "oxproxy.yaml:1:31: admin.tokens: warning: without admin.tls, tokens are sent to 0.0.0.0:1 in plain text"
    ]
    assert load(tmp_path, text, OXPROXY_TOKEN="g" * 32).admin.tokens[0].name == "vera"


@pytest.mark.parametrize("written", ["http://proxy.example", "proxy.example:15680", "*.example", ""])
def test_a_host_of_the_admin_address_is_a_name_without_a_port(tmp_path: Path, written: str) -> None:
    path = write(tmp_path, f'admin: {{hosts: [sidecar, proxy.example, "{written}"]}}')
    with pytest.raises(ConfigErrors) as caught:
        load_settings(path, {})
    (error,) = caught.value.errors
    assert error.key == "admin.hosts[2]"
    assert error.message == f'got the string "{written}", expected a host name without a port, such as proxy.example'


@pytest.mark.parametrize("secrets_required", [True, False])
def test_the_directory_of_the_audit_log_must_not_be_a_file(tmp_path: Path, secrets_required: bool) -> None:
    path = write(tmp_path, "audit: {directory: records}")
    records = tmp_path / "records"
    records.write_text("")
    with pytest.raises(ConfigErrors) as caught:
        load_settings(path, {}, secrets_required=secrets_required)
    assert [str(error) for error in caught.value.errors] == [
        f"{path}:1:9: audit.directory: {records}: got a file, expected a directory"
    ]
    records.unlink()
    records.mkdir()
    assert load_settings(path, {}, secrets_required=secrets_required)[1] == []


@given(st.dictionaries(KEYS, TREES, max_size=6), st.dictionaries(VARIABLES, st.text('ab:[]{}" 5s', max_size=8)))
def test_any_file_and_environment_give_settings_or_errors(file: object, environ: dict[str, str]) -> None:
    faults = Faults()
    with contextlib.suppress(ConfigErrors):
        parse_settings(yaml.safe_dump(file).encode(), Path("f.yaml"), environ, faults)
    assert all(str(error) for error in faults.errors)


@pytest.mark.parametrize("source", ["hash_key_env: KEY", "hash_key_file: none"])
def test_a_missing_hash_key_is_an_error_if_it_is_needed(tmp_path: Path, source: str) -> None:
    text = f"audit: {{directory: log, hash: [rk], {source}}}\n"
    (message,) = faults(tmp_path, text)
    assert message.startswith(f"oxproxy.yaml:1:37: audit.{source.split(':')[0]}: ")
    _, warned = load_settings(write(tmp_path, text), {}, secrets_required=False)
    assert any(f"audit.{source.split(':')[0]}: warning: " in str(warning) for warning in warned)


def test_several_hash_keys_are_an_error(tmp_path: Path) -> None:
    text = "audit: {directory: log, hash: [rk], hash_key_env: KEY, hash_key_file: key}\n"
    (tmp_path / "key").write_text("f" * 16)
    assert faults(tmp_path, text, KEY="k" * 16) == [
        "oxproxy.yaml:1:56: audit.hash_key_file: got hash_key_env and hash_key_file, expected one of them"
    ]
    settings = load(tmp_path, text, KEY="k" * 16, OXPROXY_AUDIT__HASH_KEY_FILE="key")
    assert settings.audit.hash_key == b"f" * 16


def test_a_hash_key_file_with_a_null_byte_in_its_name_is_an_error(tmp_path: Path) -> None:
    (message,) = faults(tmp_path, 'audit: {directory: log, hash: [rk], hash_key_file: "a\\0b"}\n')
    assert message.startswith("oxproxy.yaml:1:37: audit.hash_key_file: ")


def test_hashable_fields_are_fields_of_records(tmp_path: Path) -> None:
    settings = load(tmp_path, f"audit: {{hash: [{', '.join(sorted(HASHABLE))}], hash_key_env: KEY}}\n", KEY="k" * 16)
    assert set(settings.audit.hash) == HASHABLE
    assert HASH_KEY_BYTES == KEY_BYTES


def test_unreplaced_variables_are_warnings_without_their_text(tmp_path: Path) -> None:
    text = "upstream:\n  control: {username: me, password: '${HUNTER2}'}\nrules: ['{{ dir }}/a.yaml', b.yaml]\n"
    assert warnings(tmp_path, text) == [
        "oxproxy.yaml:2:37: upstream.control.password: warning: got a variable reference, which is not expanded; "
        "use password_env or password_file",
        "oxproxy.yaml:3:9: rules: warning: got a variable reference, which is not expanded; write the value itself",
    ]
    assert warnings(tmp_path, "log: {level: info}", OXPROXY_AUDIT__HEADERS="${x}") == []


def test_changed_settings_are_listed_by_key(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("0" * 64)
    (tmp_path / "password").write_text("one")
    text = "upstream: {control: {username: me, password_file: password}}\ndeclared: {secrets: [{file: secret}]}\n"
    settings = load(tmp_path, text)
    assert changed_since(settings, {}) == ChangedSettings()
    write(tmp_path, "# the same settings\n" + text.replace("{control", "{address: 127.0.0.1:5672, control"))
    assert changed_since(settings, {}) == ChangedSettings()
    (tmp_path / "secret").write_text("1" * 64)
    (tmp_path / "password").write_text("another")
    more = "listen: [{tls: {certificate: secret, key: secret}}]\nadmin: {address: null}\nrules: []\n"
    write(tmp_path, text + more)
    assert changed_since(settings, {}) == ChangedSettings(
        ("listen[0].tls", "upstream.control.password", "declared.secrets[0]", "admin.address")
    )
    (tmp_path / "oxproxy.yaml").write_text("logs: {}\n")
    assert changed_since(settings, {}).errors == (f"{tmp_path}/oxproxy.yaml:1:1: logs: unknown key; did you mean log?",)
    (tmp_path / "oxproxy.yaml").unlink()
    assert changed_since(settings, {}).errors == (f"{tmp_path}/oxproxy.yaml: can't be read: No such file or directory",)
    os.mkfifo(tmp_path / "oxproxy.yaml")
    assert changed_since(settings, {}) == ChangedSettings()


Shape = str | list["Shape"] | dict[str, "Shape"]

FILE = "log: {level: info}\nlisten:\n  - address: a:1\nupstream:\n"


def shape(node: Node) -> Shape:
    match node:
        case Scalar():
            return node.text
        case Sequence():
            return [shape(item) for item in node.items]
        case Mapping():
            return {key.text: shape(child) for key, child in node.entries}


def overridden(**environ: str) -> tuple[Shape, list[str]]:
    faults = Faults()
    root = read_document(FILE, "f.yaml", faults)
    assert root is not None
    result = override(root, environ, faults)
    return shape(result), [str(error) for error in faults.errors]


@pytest.mark.parametrize(
    ("environ", "changed"),
    [
        pytest.param({"OXPROXY_LOG__LEVEL": "debug"}, {"log": {"level": "debug"}}, id="replaced value"),
        pytest.param(
            {"OXPROXY_ADMIN__ADDRESS": "b:2", "OXPROXY_UPSTREAM__CONTROL__USERNAME": "me"},
            {"admin": {"address": "b:2"}, "upstream": {"control": {"username": "me"}}},
            id="added values",
        ),
        pytest.param(
            {"OXPROXY_LISTEN__0__ADDRESS": "b:2", "OXPROXY_LISTEN__1__ADDRESS": "c:3"},
            {"listen": [{"address": "b:2"}, {"address": "c:3"}]},
            id="items of a list",
        ),
        pytest.param({"OXPROXY_BROKERS__0__ADDRESS": "b:2"}, {"brokers": [{"address": "b:2"}]}, id="new list"),
        pytest.param(
            {"OXPROXY_UPSTREAM": "{address: a:1, management: b}", "OXPROXY_UPSTREAM__ADDRESS": "c:3"},
            {"upstream": {"address": "c:3", "management": "b"}},
            id="nested variable in addition to a shorter one",
        ),
    ],
)
def test_variables_replace_and_add_values(environ: dict[str, str], changed: dict[str, Shape]) -> None:
    unchanged, _ = overridden()
    assert isinstance(unchanged, dict)
    assert overridden(**environ) == (unchanged | changed, [])


@pytest.mark.parametrize("name", ["OXPROXY_LISTEN__2__ADDRESS", "OXPROXY_LISTEN__ADDRESS", "OXPROXY_LOG__LEVEL__X"])
def test_an_invalid_variable_is_an_error_with_its_name(name: str) -> None:
    errors = overridden(**{name: "x"})[1]
    key = name.removeprefix("OXPROXY_").lower().replace("__", ".")
    assert errors == [f"{name}: {key}: there is no such key"]


@pytest.mark.parametrize(
    "name",
    [
        "OXPROXY_PORT",
        "OXPROXY_SERVICE_HOST",
        "OXPROXY_SERVICE_PORT",
        "OXPROXY_SERVICE_PORT_AMQP",
        "OXPROXY_PORT_5672_TCP_ADDR",
        "OXPROXY_ADMIN_SERVICE_HOST",
        "OTHER_LOG__LEVEL",
    ],
)
def test_other_variables_are_ignored(name: str) -> None:
    assert overridden(**{name: "tcp://10.0.0.1:5672"}) == overridden()


def test_an_empty_variable_counts_as_not_set() -> None:
    assert overridden(OXPROXY_LOG__LEVEL="") == overridden()


@pytest.mark.parametrize(
    "environ", [{}, {"OXPROXY_UPSTREAM__CONTROL__PASSWORD_ENV": "OXPROXY_SECRET"}], ids=["file", "variable"]
)
def test_a_variable_named_as_a_password_source_is_not_a_key(environ: dict[str, str]) -> None:
    faults = Faults()
    text = "{}" if environ else "upstream: {control: [{password_env: OXPROXY_SECRET}]}"
    root = read_document(text, "f.yaml", faults)
    assert root is not None
    result = shape(override(root, {**environ, "OXPROXY_SECRET": "x"}, faults))
    assert "x" not in str(result).split("'")
    assert faults.errors == []
