"""Is what docs/how-to/operations.md and docs/explanation/security.md say of a running sidecar so?"""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pika
import pytest
import yaml

from proxy.config.loader import parse_settings
from proxy.yamlfile.document import Faults
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

#: Seconds until the control plane has noticed that its connection is gone.
NOTICE_SECONDS = 20.0

#: Seconds until it has one again: the longest pause between two attempts, and a look at everything.
RETURN_SECONDS = 60.0


def metric(sidecar: Sidecar, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (.*)$", sidecar.get("/metrics"), re.MULTILINE)
    assert found
    return float(found[1])


def producer(sidecar: Sidecar) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(Broker("127.0.0.1", sidecar.port, "").url()))


def test_a_producer_takes_two_file_descriptors(broker: Broker) -> None:
    with Sidecar(broker) as sidecar, ExitStack() as producers:
        before = metric(sidecar, "process_open_fds")
        for _ in range(PRODUCERS):
            producers.enter_context(producer(sidecar))
        assert metric(sidecar, "process_open_fds") - before == pytest.approx(2 * PRODUCERS, abs=2)


@pytest.mark.broker
def test_with_the_broker_gone_it_lives_and_stays_ready_but_says_so_until_it_is_back() -> None:
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
    found = set()
    for page in PAGES:
        for name in re.findall(r"(?:^ {4,}|`|/)oxproxy ([a-z]+)\b", page.read_text(), re.MULTILINE):
            found.add((page.name, name))
    return found


def test_every_command_that_the_pages_name_is_one() -> None:
    known = oxproxy("--help", check=True).stdout
    assert sorted((page, name) for page, name in commands() if not re.search(rf"^    {name}\b", known, re.M)) == []


def test_every_setting_that_the_pages_name_is_one() -> None:
    known = set(
        re.findall(r"^\| `([a-z_.\[\]]+)` \|", (DOCS / "reference" / "configuration.md").read_text(), re.MULTILINE)
    )
    known |= {key.rpartition(".")[0].removesuffix("[]") for key in known}  # a section as a whole
    sections = {key.split(".")[0] for key in known if "." in key and "[" not in key}
    pattern = re.compile(rf"`((?:{'|'.join(sections)})\.[a-z_.]+)(?:: [^`]*)?`")
    wrong = [(page.name, key) for page in PAGES for key in pattern.findall(page.read_text()) if key not in known]
    assert wrong == []


def test_the_configuration_of_the_install_page_is_right() -> None:
    (text,) = re.findall(r"```yaml\n(listen:.*?)```", (DOCS / "how-to" / "install.md").read_text(), re.DOTALL)
    faults = Faults()
    settings = parse_settings(text.encode(), Path("/etc/oxproxy/oxproxy.yaml"), {}, faults, secrets_required=False)
    assert settings.upstream.management == "https://rabbit.example:15671"
    assert yaml.safe_load(text)["audit"]["directory"] == "/var/lib/oxproxy/audit"
