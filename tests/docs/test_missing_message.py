"""Follows docs/how-to/missing-message.md: each command returns what the page states."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from oxproxy.cli.main import main
from tests.broker.delivery.site import Site, standing
from tests.producer import until
from tests.rabbitmq import Broker
from tests.routing.building import arguments

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "how-to" / "missing-message.md").read_text()
RULES = """\
queues: [documents.public]
exchanges:
  - name: documents
    bindings:
      - {queue: documents.public, name: public documents, arguments: {"x-?hkv= document.type": public}}
"""
#: `RULES` with a binding whose queue does not exist.
MISSING_QUEUE = (
    RULES
    + """\
      - {queue: documents.private, name: private documents, arguments: {"x-?hkv= document.type": private}}
"""
)
#: `MISSING_QUEUE` with a test that fails.
FAILING = (
    MISSING_QUEUE
    + """\
tests:
  - {name: no queue receives it, publish: {exchange: documents, headers: {document.type: private}}, expect: {}}
"""
)


@pytest.fixture(scope="module")
def shared(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("missing")
    (folder / "audit").mkdir()
    with standing(broker, folder, RULES, {"audit": {"directory": "audit"}}) as site:
        yield site


@pytest.fixture
def site(shared: Site) -> Iterator[Site]:
    write(shared, RULES)
    curl(shared, "/-/reload")
    yield shared
    shared.bodies("documents.public")
    shared.tidy()


def write(site: Site, rules: str) -> None:
    fresh = site.sidecar.folder / "rules.fresh"
    fresh.write_text(f"vhost: {site.vhost}\n{rules}")
    fresh.rename(site.sidecar.folder / "rules.yaml")


def curl(site: Site, path: str) -> str:
    """Run the page's curl command for a path."""
    (command,) = re.findall(rf"^    (curl [^#\n]*{re.escape(path)}\b[^#\n|]*)", PAGE, re.MULTILINE)
    address, headers, data, method = "", {}, None, None
    arguments_of_command = iter(shlex.split(command)[1:])
    for argument in arguments_of_command:
        match argument:
            case "-s":
                pass
            case "-H":
                name, _, value = next(arguments_of_command).partition(": ")
                headers[name] = value
            case "-X":
                method = next(arguments_of_command)
            case "--data":
                data = next(arguments_of_command).encode()
            case _:
                address = argument
    url = address.replace("http://127.0.0.1:15693", site.sidecar.admin)
    with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=30) as answer:
        text: bytes = answer.read()
    return text.decode()


def publish(site: Site) -> None:
    headers = arguments({"document.type": "private"})
    assert site.producer().send_settled("documents", "", headers, message_id=b"m1").acked


@pytest.mark.broker
def test_metrics_and_explanation_show_that_no_binding_matches(site: Site) -> None:
    publish(site)
    assert re.search(
        r'^oxproxy_publishes_total\{exchange="documents",outcome="unrouted".* [1-9]', curl(site, "/metrics"), re.M
    )
    explanation = curl(site, "/explain")
    assert 'mismatch  x-?hkv= document.type: "public", got "private"' in explanation
    assert "outcome   unrouted" in explanation


@pytest.mark.broker
def test_a_rules_file_that_is_not_in_force_is_detected(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(site, FAILING)
    with pytest.raises(urllib.error.HTTPError, match="422"):
        curl(site, "/-/reload")
    reload = json.loads(curl(site, "/status"))["last_reload"]
    assert "no queue receives it" in reload["errors"][0]
    message = tmp_path / "message.yaml"
    message.write_text("{exchange: documents, headers: {document.type: private}}")
    main(["explain", "--rules", str(site.sidecar.folder / "rules.yaml"), "--message", str(message)])
    of_file, in_force = (
        text.splitlines()[1].split(",")[0] for text in (capsys.readouterr().out, curl(site, "/explain"))
    )
    assert of_file.startswith("rules ")
    assert of_file != in_force


@pytest.mark.broker
def test_a_missing_destination_is_reported(site: Site) -> None:
    write(site, MISSING_QUEUE)
    assert json.loads(curl(site, "/-/reload"))["missing"] == ["queue documents.private"]
    publish(site)
    assert "missing   queue documents.private: " in curl(site, "/explain")
    until(lambda: "queue documents.private" in json.loads(curl(site, "/status"))["vhosts"][0]["missing"], 15)
    until(lambda: site.metric("topology_missing_destinations") == 1, 15)
    assert site.logged("destinations missing")
    site.make_queue("documents.private")
    until(lambda: site.metric("topology_missing_destinations") == 0, 15)
    publish(site)
    assert len(site.take("documents.private")) == 1
    assert json.loads(curl(site, "/-/reload"))["missing"] == []


@pytest.mark.broker
def test_a_deleted_queue_of_the_rules_is_declared_again_only_when_the_rules_change(site: Site) -> None:
    """docs/runbooks/OxproxyDestinationsMissing.md and docs/reference/rules.md."""
    site.delete_queue("documents.public")
    missing = {"queue documents.public": "does not exist"}
    until(lambda: json.loads(curl(site, "/status"))["vhosts"][0]["missing"] == missing, 15)
    assert json.loads(curl(site, "/-/reload"))["missing"] == ["queue documents.public"]
    write(site, f"{RULES}# changed\n")
    assert json.loads(curl(site, "/-/reload"))["missing"] == []
    assert site.queue("documents.public")["durable"]


@pytest.mark.broker
def test_the_audit_log_has_the_message_in_open_and_closed_segments(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    searched = '"message_id":"m1"'
    assert PAGE.count(f"'{searched}'") == 2
    with standing(broker, tmp_path, RULES, {"audit": {"directory": "audit"}}) as site:
        publish(site)
        until(lambda: any(searched in path.read_text() for path in (tmp_path / "audit").rglob("_audit-*.jsonl")))
    closed = list(tmp_path.glob("audit/date=*/hour=*/audit-*.gz"))
    assert [searched in gzip.open(path, "rt").read() for path in closed] == [True]


def test_panels_on_the_page_exist() -> None:
    sentences = re.findall(r"(?:The panels? (?:is|are)|in the panel) [^.]*\.", " ".join(PAGE.split()))
    named = {title for sentence in sentences for title in re.findall(r'"([^"]+)"', sentence)}
    board = json.loads((ROOT / "helm/oxproxy/files/dashboards/oxproxy-overview.json").read_text())
    titles = {panel["title"] for panel in board["panels"]}
    assert named
    assert named <= titles
