"""Tests that the OpenAPI file describes every page and field of a running sidecar."""

from __future__ import annotations

import base64
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pika
import pytest

from oxproxy.admin import console
from oxproxy.values import Value
from tests import client
from tests.broker.delivery.site import Site, standing
from tests.rabbitmq import Broker
from tests.sidecar import pika_channel, request_page

FILE = files("oxproxy.admin") / "static" / "openapi.json"
DESCRIBED: dict[str, Any] = json.loads(FILE.read_text())
RULES = """\
queues: [good]
brokers:
  archive: {address: "127.0.0.1:1", username: mover, password: hunter2}
exchanges:
  - name: orders
    arguments: {max-payload-size: 1000, alternate-exchange: rest}
    bindings:
      - {queue: good, arguments: {"x-?hkv= amount": 1, x-order: 500}}
      - {queue: nowhere, name: lost, arguments: {"x-?hkv= amount": 3, "x-?hkv!= amount": 3}}
      - {exchange: rest}
  - {name: rest, bindings: [{queue: small, arguments: {"x-?hkv= amount": 2}}]}
addresses: [{name: kept, pattern: "*.kept", translation: amqp://archive/queue/$1}]
"""


@pytest.fixture(scope="module")
def site(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    settings = {"audit": {"headers": ["amount"]}}
    with standing(broker, tmp_path_factory.mktemp("openapi"), RULES, settings) as running:
        publish(running, 1)
        yield running


def publish(site: Site, amount: int) -> None:
    with pika_channel(site.sidecar.port, site.vhost) as channel:
        channel.basic_publish("orders", "k", b"12345", pika.BasicProperties(headers={"amount": amount, "other": "x"}))


def check(content: object, method: str, path: str, status: int = 200) -> None:
    """Validate a response against its description."""
    response = DESCRIBED["paths"][path][method]["responses"][str(status)]
    schema = {**response["content"]["application/json"]["schema"], "components": DESCRIBED["components"]}
    jsonschema.validate(content, schema, cls=jsonschema.Draft202012Validator)


def ask(site: Site, method: str, path: str, body: bytes | None = None) -> Any:
    """Request a page, and validate its status and content against the description."""
    status, text = request_page(site.sidecar.admin + path, body, method.upper(), Accept="application/json")
    content = json.loads(text)
    check(content, method, path.partition("?")[0], status)
    return content


def test_the_file_is_valid_and_every_schema_is_referenced() -> None:
    assert DESCRIBED["openapi"].startswith("3.1")
    named = set(re.findall(r'"#/components/schemas/(\w+)"', FILE.read_text()))
    assert named == DESCRIBED["components"]["schemas"].keys()
    for schema in DESCRIBED["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_the_described_pages_are_those_of_the_sidecar(site: Site) -> None:
    sources = "".join(
        path.read_text() for package in ("admin", "app") for path in Path(f"proxy/oxproxy/{package}").glob("*.py")
    )
    served = set(re.findall(r'(?:json_route|GuardedRoute)\(\s*"([A-Z]+)", "([^"]+)"', sources))
    served |= {("GET", path) for path in re.findall(r'add_get\("([^"]+)"', sources)}
    served |= {("GET", path) for path in console._PATHS.values()}
    described = {(method.upper(), path) for path, methods in DESCRIBED["paths"].items() for method in methods}
    assert described == served
    for path in DESCRIBED["paths"]:
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(urllib.request.Request(site.sidecar.admin + path, method="PATCH"), timeout=30)


@pytest.mark.parametrize(
    "path",
    ["/status", "/readyz", "/api/traffic", "/api/rules", "/api/rules/notes", "/api/rules/changes", "/api/routes",
     "/api/recent"],
)  # fmt: skip
def test_a_page_is_as_described(site: Site, path: str) -> None:
    ask(site, "get", path)


def test_recent_publishes_are_as_described(site: Site) -> None:
    ask(site, "get", "/api/recent")
    publish(site, 9)
    assert ask(site, "get", "/api/recent")["publishes"][-1]["result"] == "unroutable"
    assert ask(site, "get", "/api/recent?after=x")["errors"]


@pytest.mark.parametrize(
    "message",
    ["{exchange: orders, headers: {amount: 1}}", "{exchange: orders, body_size: 2000, at: 2026-11-21T08:00:00Z}",
     '{exchange: "", routing_key: letters.kept}', "{exchange: elsewhere}", "{address: letters.kept}", "{}"],
)  # fmt: skip
def test_explanations_are_as_described(site: Site, message: str) -> None:
    ask(site, "post", "/explain", message.encode())


def test_an_explanation_of_frames_is_as_described(site: Site) -> None:
    frames = base64.b64encode(client.publish(0, b"orders", b"k", ((b"amount", Value("D", (0, 1))),))).decode()
    request = {"frames": frames, "at": "2026-11-21T08:00:00Z"}
    schema = {"$ref": "#/components/schemas/Frames", "components": DESCRIBED["components"]}
    jsonschema.validate(request, schema, cls=jsonschema.Draft202012Validator)
    assert ask(site, "post", "/explain", json.dumps(request).encode())["exchange"] == "orders"


def test_the_explanation_has_the_time_of_the_message(site: Site) -> None:
    explanation = ask(site, "post", "/explain", b"{exchange: orders, at: '2026-11-21T08:00:00Z'}")
    assert explanation["at"] == "2026-11-21T08:00:00Z"


def test_reloads_are_as_described(site: Site) -> None:
    assert ask(site, "post", "/-/reload")["result"] == "ok"
    (file,) = (Path(entry["name"]) for entry in ask(site, "get", "/api/rules")["files"])
    written = file.read_text()
    try:
        file.write_text(written + "nonsense: 1\n")
        assert ask(site, "post", "/-/reload")["errors"]
        assert ask(site, "get", "/api/rules/changes")["same"] is False
        assert ask(site, "get", "/status")["last_reload"]["result"] == "error"
        file.unlink()
        assert ask(site, "get", "/api/rules/changes")["errors"]
    finally:
        file.write_text(written)
    assert ask(site, "post", "/-/reload")["result"] == "ok"


def test_comparisons_are_as_described(site: Site) -> None:
    ask(site, "get", "/-/shadow")
    assert ask(site, "post", "/-/shadow", b"nonsense: 1")["errors"]
    ask(site, "post", "/-/shadow", f"vhost: {site.vhost}\n{RULES.replace('queue: good', 'queue: small')}".encode())
    publish(site, 1)
    assert ask(site, "delete", "/-/shadow")["exchanges"][0]["differences"]
    assert ask(site, "delete", "/-/shadow")["errors"]


def test_events_are_as_described(site: Site) -> None:
    with urllib.request.urlopen(site.sidecar.admin + "/api/live", timeout=30) as stream:
        latest: dict[str, Any] = {}
        name = ""
        while len(latest) < 4:
            line = stream.readline().decode().strip()
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                latest[name] = json.loads(line[6:])
    check(latest["traffic"], "get", "/api/traffic")
    check(latest["status"], "get", "/status")
    check(latest["recent"], "get", "/api/recent")
    assert latest["shadow"] is None
