"""Objects on the broker that conflict with the rules when a sidecar starts, and the resulting errors."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.broker.delivery.site import standing
from tests.broker.observed import Outside
from tests.producer import Producer
from tests.rabbitmq import Broker
from tests.sidecar import PROGRAM

CARRIED = "queues: [a]\nexchanges: [{name: taken, bindings: [{queue: a}]}]\n"
QUEUED = """
exchanges:
  - {name: one, delivery: queue, bindings: [{exchange: inside}]}
  - {name: two, delivery: queue, bindings: [{exchange: open}], arguments: {alternate-exchange: inside}}
"""
WAYS_OUT = "give the carrier another name (carrier: NAME) or use delivery: queue"
#: Maximum seconds for a failing start; one takes half a second.
START_SECONDS = 30


@pytest.fixture
def outside(broker: Broker) -> Iterator[Outside]:
    name = f"loading-{secrets.token_hex(6)}"
    broker.create_vhost(name)
    yield Outside(broker, name)
    broker.delete_vhost(name)


@pytest.fixture
def refusal(outside: Outside, tmp_path: Path) -> Callable[..., str]:
    """Start a sidecar that must exit with status 2; return its standard error."""

    def start(rules: str, management: bool = True) -> str:
        broker = outside.broker
        (tmp_path / "rules.yaml").write_text(f"vhost: {outside.vhost}\n{rules}")
        (tmp_path / "other.yaml").write_text("vhost: /\nqueues: []\n")  # a virtual host without a conflict
        settings = {
            "listen": [{"address": "127.0.0.1:1"}],  # never used
            "upstream": {
                "address": broker.address,
                "control": {"username": broker.username, "password": broker.password},
                "management": broker.management if management else None,
            },
            "admin": {"address": None},
            "rules": ["other.yaml", "rules.yaml"],
        }
        (tmp_path / "oxproxy.yaml").write_text(yaml.safe_dump(settings))
        command = [str(PROGRAM), "serve", "--config", str(tmp_path / "oxproxy.yaml")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS, check=False)
        assert done.returncode == 2
        return done.stderr

    return start


MARKED = {"x_open_exchange": True}


@pytest.mark.parametrize(
    ("kind", "arguments", "management", "what", "detail"),
    [
        ("direct", {}, True, "as a direct exchange that no sidecar created", ""),
        ("topic", {}, False, "with different properties", "if a sidecar created it, set carrier_type: topic"),
        ("direct", {**MARKED, "alternate_exchange": "other"}, True, "with different properties",
         "inequivalent arg 'alternate-exchange'"),
    ],
    ids=["not marked", "without management API", "alternate exchange"],
)  # fmt: skip
def test_an_exchange_with_the_name_of_a_carrier_is_an_error_that_names_both_solutions(
    outside: Outside,
    refusal: Callable[..., str],
    kind: str,
    arguments: dict[str, Any],
    management: bool,
    what: str,
    detail: str,
) -> None:
    outside.make_exchange("taken", kind, **arguments)
    error = refusal(CARRIED, management=management)
    assert f"exchange taken exists on the broker {what}: {WAYS_OUT}" in error
    assert detail in error
    assert outside.vhost in error
    assert outside.bindings("taken") == set()


def test_an_internal_exchange_that_queue_delivery_would_publish_to_is_an_error(
    outside: Outside, refusal: Callable[..., str]
) -> None:
    outside.make_exchange("inside", "fanout", internal=True)
    outside.make_exchange("open", "fanout")
    assert "exchange inside is internal, so with delivery: queue, messages of exchange" in refusal(QUEUED)


def test_a_carrier_of_an_earlier_run_is_used_unchanged(broker: Broker, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with standing(broker, first, CARRIED) as site:
        before = site.exchange("taken"), site.bindings("taken")
        assert site.sidecar.stop()
        site.sidecar.start()
        assert (site.exchange("taken")["arguments"], site.bindings("taken")) == (before[0]["arguments"], before[1])
        with Producer(site.sidecar.port, site.vhost).open(confirm=True) as producer:
            assert producer.send_settled("taken", "k") == (True, [])
        assert site.bodies("a") == [[b"body"]]
