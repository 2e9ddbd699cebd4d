"""Tests statements of docs/how-to/operations.md and other pages about a running sidecar, commands and settings."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pika
import pytest
import yaml

from oxproxy.config.loader import parse_settings
from oxproxy.yamlfile.document import Faults
from tests.deploy.prometheus import ROOT
from tests.private_broker import BrokerMissing, PrivateBroker
from tests.producer import until
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar, oxproxy

DOCS = ROOT / "docs"
PAGES = [
    *(
        DOCS / f"{name}.md"
        for name in (
            "how-to/operations",
            "how-to/install",
            "how-to/cut-over",
            "how-to/several-sidecars",
            "how-to/tls",
            "explanation/security",
            "explanation/lifecycle",
            "how-to/migration",
        )
    ),
    *sorted((DOCS / "runbooks").glob("*.md")),
]
RULES = ROOT / "config" / "rules" / "documents.yaml"
PRODUCERS = 10

#: Timeout in seconds for the control plane to notice the lost connection.
NOTICE_SECONDS = 20.0

#: Timeout in seconds for a new connection: the longest back-off plus a complete reconciliation.
RETURN_SECONDS = 60.0


def metric(sidecar: Sidecar, name: str) -> float:
    match = re.search(rf"^{re.escape(name)} (.*)$", sidecar.get("/metrics"), re.MULTILINE)
    assert match
    return float(match[1])


def producer(sidecar: Sidecar) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(Broker("127.0.0.1", sidecar.port, "").url()))


def test_a_producer_takes_two_file_descriptors(broker: Broker) -> None:
    with Sidecar(broker) as sidecar, ExitStack() as producers:
        before = metric(sidecar, "process_open_fds")
        for _ in range(PRODUCERS):
            producers.enter_context(producer(sidecar))
        assert metric(sidecar, "process_open_fds") - before == pytest.approx(2 * PRODUCERS, abs=2)


@pytest.mark.broker
def test_without_the_broker_the_sidecar_stays_ready_and_reports_degraded() -> None:
    with ExitStack() as stack:
        try:
            own = stack.enter_context(PrivateBroker())
        except BrokerMissing as missing:
            pytest.skip(str(missing))
        sidecar = stack.enter_context(Sidecar(own, [RULES]))
        assert sidecar.get("/readyz") == "ready\n"
        own.kill()
        with pytest.raises(pika.exceptions.AMQPConnectionError, match="320"):
            producer(sidecar)
        assert sidecar.get("/livez") == "alive\n"
        until(lambda: sidecar.get("/readyz").startswith("ready\ndegraded: "), NOTICE_SECONDS)
        assert sidecar.get("/livez") == "alive\n"
        own.start()
        until(lambda: sidecar.get("/readyz") == "ready\n", RETURN_SECONDS)
        producer(sidecar).close()


def commands() -> set[tuple[str, str]]:
    """Return (page, subcommand) for each ``oxproxy SUBCOMMAND`` in the pages."""
    named = set()
    for page in PAGES:
        for name in re.findall(r"(?:^ {4,}|`|/)oxproxy ([a-z]+)\b", page.read_text(), re.MULTILINE):
            named.add((page.name, name))
    return named


def test_every_command_in_the_pages_exists() -> None:
    known = oxproxy("--help", check=True).stdout
    assert sorted((page, name) for page, name in commands() if not re.search(rf"^    {name}\b", known, re.M)) == []


def test_every_setting_in_the_pages_exists() -> None:
    known = set(
        re.findall(r"^\| `([a-z_.\[\]]+)` \|", (DOCS / "reference" / "configuration.md").read_text(), re.MULTILINE)
    )
    known |= {key.rpartition(".")[0].removesuffix("[]") for key in known}  # sections
    sections = {key.split(".")[0] for key in known if "." in key and "[" not in key}
    pattern = re.compile(rf"`((?:{'|'.join(sections)})\.[a-z_.]+)(?:: [^`]*)?`")
    wrong = [(page.name, key) for page in PAGES for key in pattern.findall(page.read_text()) if key not in known]
    assert wrong == []


def test_the_configuration_in_the_install_page_is_valid() -> None:
    (text,) = re.findall(r"```yaml\n(listen:.*?)```", (DOCS / "how-to" / "install.md").read_text(), re.DOTALL)
    faults = Faults(secrets_required=False)
    settings = parse_settings(text.encode(), Path("/etc/oxproxy/oxproxy.yaml"), {}, faults)
    assert settings.upstream.management == "https://rabbit.example:15671"
    assert yaml.safe_load(text)["audit"]["directory"] == "/var/lib/oxproxy/audit"
