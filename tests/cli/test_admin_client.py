"""Tests requests of commands to the admin addresses of running sidecars."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from oxproxy.cli import main as cli
from oxproxy.cli.admin_client import AdminClient, admin_url
from oxproxy.config.settings import AdminSection, Settings
from oxproxy.errors import ConfigErrors
from oxproxy.rules.loader import rules_version
from oxproxy.yamlfile.hosts import HostPort
from tests.sidecar import answering

ANSWER: dict[str, object] = {"rules": "new", "outcome": "routed", "queues": ["a"], "error": None}
ANSWER |= {"exchanges": [], "remotes": []}


def sidecar(answer: dict[str, object]) -> AbstractContextManager[int]:
    """Respond to every request with one explanation."""

    def explained(_: str, headers: Mapping[str, str]) -> tuple[int, str, bytes]:
        kind = headers["Accept"]
        text = json.dumps(answer) if kind == "application/json" else f"rules {answer['rules']}\n"
        return 200, kind, text.encode()

    return answering(explained, 0)


@pytest.mark.parametrize(
    ("other", "status", "shown"),
    [
        ({}, 0, "rules new\n"),
        ({"rules": "old"}, 1, "http://127.0.0.1:{0}:\nrules new\nhttp://127.0.0.1:{1}:\nrules old\n"),
    ],
)
def test_different_responses_of_sidecars_are_shown_separately(
    other: dict[str, object], status: int, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = tmp_path / "message.yaml"
    message.write_text("exchange: e\n")
    with sidecar(ANSWER) as first, sidecar({**ANSWER, **other}) as second:
        admins = [part for port in (first, second) for part in ("--admin", f"http://127.0.0.1:{port}")]
        assert cli.main(["explain", *admins, "--message", str(message)]) == status
    captured = capsys.readouterr()
    assert captured.out == shown.format(first, second)
    assert ("these sidecars returned different results" in captured.err) == bool(status)


def test_a_wildcard_admin_address_is_requested_on_loopback() -> None:
    settings = Settings(admin=AdminSection(address=HostPort("0.0.0.0", 15693)))
    assert admin_url(settings) == "http://127.0.0.1:15693"
    assert admin_url(Settings(admin=AdminSection(address=HostPort("::", 1)))) == "http://[::1]:1"


def test_metrics_are_read_with_escaped_labels() -> None:
    page = b'# HELP a_total b\n# TYPE a_total counter\na_total{c="d \\"e\\" \\\\ \\n"} 2.0\n'
    with answering(lambda path, headers: (200, "text/plain", page), 0) as port:
        (sample,) = AdminClient(f"http://127.0.0.1:{port}", "oxproxy top").metrics()
    assert (sample.name, sample.labels, sample.value) == ("a_total", {"c": 'd "e" \\ \n'}, 2.0)


def test_a_page_without_metrics_is_an_error() -> None:
    with answering(lambda path, headers: (200, "text/html", b"<html>\n</html>\n"), 0) as port:
        client = AdminClient(f"http://127.0.0.1:{port}", "oxproxy top")
        with pytest.raises(
            ConfigErrors, match="the response is not a metrics page; check that this is the admin address"
        ):
            client.metrics()


@pytest.mark.parametrize(
    ("status", "kind", "body", "error"),
    [
        (404, "text/plain", b"404: Not Found", "404 Not Found; check that this is the admin address of a sidecar"),
        (406, "text/plain", b"", "406 Not Acceptable; check that this is the admin address of a sidecar"),
        (502, "text/html", b"<html>\n</html>\n", "502 Bad Gateway; check that this is the admin address of a sidecar"),
        (403, "text/plain", b"available only from loopback\n", "403 available only from loopback"),
    ],
)
def test_a_refusal_by_another_server_is_distinguished_from_a_refusal_by_a_sidecar(
    status: int, kind: str, body: bytes, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(lambda path, headers: (status, kind, body), 0) as port:
        assert cli.main(["status", "--admin", f"http://127.0.0.1:{port}"]) == 2
    assert capsys.readouterr().err == f"oxproxy status: http://127.0.0.1:{port}/status: {error}\n"


@pytest.mark.parametrize(
    ("url", "error"),
    [
        (
            "http://user:hunter2@127.0.0.1:1",
            "got a user name in the URL, expected a URL such as http://127.0.0.1:15693",
        ),
        ("user:hunter2@127.0.0.1:1", "got a user name in the URL, expected a URL such as http://127.0.0.1:15693"),
        ("127.0.0.1:1", "got 127.0.0.1:1, expected a URL such as http://127.0.0.1:15693"),
        ("http://127.0.0.1:1", "http://127.0.0.1:1/status: Connection refused"),
    ],
)
def test_an_error_names_the_cause_without_a_password(url: str, error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--admin", url]) == 2
    assert capsys.readouterr().err == f"oxproxy status: {error}\n"


def test_rules_diff_finds_the_active_file_of_a_sidecar_in_another_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rules").mkdir()
    for name in ("orders", "mail"):
        (tmp_path / f"rules/{name}.yaml").write_text(f"exchanges: [{{name: {name}}}]\n")
    (tmp_path / "oxproxy.yaml").write_text("rules: [rules/*.yaml]\n")
    active = [
        {"name": f"gateway/rules/{name}.yaml", "text": f"exchanges: [{{name: {name}}}]\n"}
        for name in ("mail", "orders")
    ]
    monkeypatch.chdir(tmp_path)
    version = rules_version((file["name"], file["text"].encode()) for file in active)
    answer = json.dumps({"rules": version, "files": active}).encode()
    with answering(lambda path, headers: (200, "application/json", answer), 0) as port:
        url = f"http://127.0.0.1:{port}"
        assert cli.main(["rules", "diff", "--admin", url]) == 0, capsys.readouterr().out
        capsys.readouterr()
        (tmp_path / "rules/mail.yaml").write_text("exchanges: [{name: post}]\n")
        assert cli.main(["rules", "diff", "--admin", url]) == 1
    assert capsys.readouterr().out.splitlines()[:2] == ["--- gateway/rules/mail.yaml (active)", "+++ rules/mail.yaml"]


def test_status_lists_the_errors_of_the_last_reload_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    reload = {"result": "error", "rules": "a", "at": 0, "reason": "file", "missing": [], "restart": []}
    reload["errors"] = ['r.yaml:1:2: arguments["x-?hkw>= amount"]: unknown operator', "r.yaml:3:4: other"]
    vhost = {"vhost": "/", "connected": True, "queues": 1, "foreign": {"e": ["queue q with a token"]}}
    vhost["missing"], vhost["unfit_carriers"] = {"queue a": "there is no such queue"}, {"e": "is a topic exchange"}
    reload["missing"] = ["queue a"]
    vhost["broker"] = {"product": "RabbitMQ", "version": "5.0.1", "supported": False}
    answer = json.dumps(
        {"version": "1", "ready": True, "rules": "a", "last_reload": reload, "vhosts": [vhost]}
    ).encode()

    def answered(path: str, _: Mapping[str, str]) -> tuple[int, str, bytes]:
        return (200, "text/plain", b"") if path == "/metrics" else (200, "application/json", answer)

    with answering(answered, 0) as port:
        assert cli.main(["status", "--admin", f"http://127.0.0.1:{port}"]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "last reload     error at 1970-01-01T00:00:00Z, reason file",
        '  error         r.yaml:1:2: arguments["x-?hkw>= amount"]: unknown operator',
        "  error         r.yaml:3:4: other",
        "vhost           /: connected, 1 queue",
        "  broker        RabbitMQ 5.0.1, which is not supported",
        "  missing       queue a: there is no such queue",
        "  foreign       e: queue q with a token",
        "  carrier type  e: is a topic exchange",
    ]
