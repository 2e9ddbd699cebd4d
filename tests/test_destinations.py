"""Destinations of rules that a broker does not have, as ``oxproxy check --broker`` says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxy import cli
from tests.broker.world import Outside
from tests.rabbitmq import Broker

RULES = """\
vhost: {}
queues: [made]
exchanges:
  - name: e
    bindings:
      - queue: there
        arguments: {{x-addq-ontrue: [made, nowhere]}}
      - exchange: gone
      - exchange: amq.topic
"""


@pytest.mark.parametrize("scheme", ["http", "amqp"])
def test_each_missing_destination_is_warned_of_at_its_line(
    broker: Broker, vhost: str, tmp_path: Path, scheme: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Outside(broker, vhost).make_queue("there")
    path = tmp_path / "r.yaml"
    path.write_text(RULES.format(vhost))
    place = broker.management.removeprefix("http://") if scheme == "http" else broker.address
    url = f"{scheme}://{broker.username}:{broker.password}@{place}"
    assert cli.main(["check", "--broker", url, str(path)]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.removeprefix(f"{path}:") for line in lines] == [
        "7:21: exchanges[0].bindings[0].arguments.x-addq-ontrue: warning: the broker has no such queue",
        "8:9: exchanges[0].bindings[1].exchange: warning: the broker has no such exchange",
    ]


@pytest.mark.parametrize(
    "url", ["nonsense", "ftp://host", "http://user:secret@127.0.0.1:1", "amqp://u:secret@127.0.0.1:1"]
)
def test_a_broker_that_can_not_be_asked_is_an_error_without_the_password(
    tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(RULES.format("/"))
    assert cli.main(["check", "--broker", url, str(path)]) == 2
    said = capsys.readouterr().err
    assert "--broker" in said
    assert "secret" not in said
