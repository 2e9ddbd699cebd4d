"""docs/how-to/missing-message.md, followed with a message that does not arrive: each command answers as it says."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.cli.main import main
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
#: with a binding whose queue nobody has made
NEXT = (
    RULES
    + """\
      - {queue: documents.private, name: private documents, arguments: {"x-?hkv= document.type": private}}
"""
)
#: the same, and a test that does not hold
FAILING = (
    NEXT
    + """\
tests:
  - {name: nobody gets it, publish: {exchange: documents, headers: {document.type: private}}, expect: {}}
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
    asked(shared, "/-/reload")
    yield shared
    shared.bodies("documents.public")
    shared.tidy()


def write(site: Site, rules: str) -> None:
    fresh = site.sidecar.folder / "rules.fresh"
    fresh.write_text(f"vhost: {site.vhost}\n{rules}")
    fresh.rename(site.sidecar.folder / "rules.yaml")


def asked(site: Site, path: str) -> str:
    """Run the page's curl command for a path."""
    (command,) = re.findall(rf"^    (curl [^#\n]*{re.escape(path)}\b[^#\n|]*)", PAGE, re.MULTILINE)
    address, headers, data, method = "", {}, None, None
    words = iter(shlex.split(command)[1:])
    for word in words:
        match word:
            case "-s":
                pass
            case "-H":
                name, _, value = next(words).partition(": ")
                headers[name] = value
            case "-X":
                method = next(words)
            case "--data":
                data = next(words).encode()
            case _:
                address = word
    url = address.replace("http://127.0.0.1:15693", site.sidecar.admin)
    with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=30) as answer:
        text: bytes = answer.read()
    return text.decode()


def publish(site: Site) -> None:
    headers = arguments({"document.type": "private"})
    assert site.producer().send_settled("documents", "", headers, message_id=b"m1").acked


@pytest.mark.broker
def test_the_numbers_and_the_explanation_say_that_no_binding_is_for_it(site: Site) -> None:
    publish(site)
    assert re.search(
        r'^oxproxy_publishes_total\{exchange="documents",outcome="unrouted".* [1-9]', asked(site, "/metrics"), re.M
    )
    said = asked(site, "/explain")
    assert 'mismatch  x-?hkv= document.type: "public", saw "private"' in said
    assert "outcome   unrouted" in said


@pytest.mark.broker
def test_a_file_that_is_not_in_force_is_found_out(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(site, FAILING)
    with pytest.raises(urllib.error.HTTPError, match="422"):
        asked(site, "/-/reload")
    reload = json.loads(asked(site, "/status"))["last_reload"]
    assert "nobody gets it" in reload["errors"][0]
    message = tmp_path / "message.yaml"
    message.write_text("{exchange: documents, headers: {document.type: private}}")
    main(["explain", "--rules", str(site.sidecar.folder / "rules.yaml"), "--message", str(message)])
    of_file, in_force = (
        text.splitlines()[1].split(",")[0] for text in (capsys.readouterr().out, asked(site, "/explain"))
    )
    assert of_file.startswith("rules ")
    assert of_file != in_force


@pytest.mark.broker
def test_a_destination_that_is_not_there_is_named_wherever_the_page_says(site: Site) -> None:
    write(site, NEXT)
    assert json.loads(asked(site, "/-/reload"))["missing"] == ["queue documents.private"]
    publish(site)
    assert "missing   queue documents.private: " in asked(site, "/explain")
    until(lambda: "queue documents.private" in json.loads(asked(site, "/status"))["vhosts"][0]["missing"], 15)
    until(lambda: site.metric("topology_missing_destinations") == 1, 15)
    assert site.logged("destinations missing")
    site.make_queue("documents.private")
    until(lambda: site.metric("topology_missing_destinations") == 0, 15)
    publish(site)
    assert len(site.take("documents.private")) == 1
    assert json.loads(asked(site, "/-/reload"))["missing"] == []


@pytest.mark.broker
def test_the_audit_log_has_the_message_in_the_segment_that_is_open_and_when_it_is_closed(
    broker: Broker, tmp_path: Path
) -> None:
    (tmp_path / "audit").mkdir()
    looked = '"message_id":"m1"'
    assert PAGE.count(f"'{looked}'") == 2
    with standing(broker, tmp_path, RULES, {"audit": {"directory": "audit"}}) as site:
        publish(site)
        until(lambda: any(looked in path.read_text() for path in (tmp_path / "audit").rglob("_audit-*.jsonl")))
    closed = list(tmp_path.glob("audit/date=*/hour=*/audit-*.gz"))
    assert [looked in gzip.open(path, "rt").read() for path in closed] == [True]


def test_panels_that_the_page_names_are_there() -> None:
    sentences = re.findall(r"(?:The panels? (?:is|are)|in the panel) [^.]*\.", " ".join(PAGE.split()))
    named = {title for sentence in sentences for title in re.findall(r'"([^"]+)"', sentence)}
    board = json.loads((ROOT / "deploy" / "grafana" / "dashboards" / "oxproxy-overview.json").read_text())
    titles = {panel["title"] for panel in board["panels"]}
    assert named
    assert named <= titles
