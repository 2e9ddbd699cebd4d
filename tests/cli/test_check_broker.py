"""Destinations of rules that a broker does not have, as ``oxproxy check --broker`` says it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from proxy.cli import main as cli
from proxy.relay.tokens import FEW_DESTINATIONS, TokenForm
from tests.broker.world import Outside
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar

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
NOTHING = "queues: [a]\n"


def url_of(broker: Broker, scheme: str) -> str:
    place = broker.management.removeprefix("http://") if scheme == "http" else broker.address
    return f"{scheme}://{broker.username}:{broker.password}@{place}"


@pytest.mark.parametrize("scheme", ["http", "amqp"])
def test_each_missing_destination_is_warned_of_at_its_line(
    broker: Broker, vhost: str, tmp_path: Path, scheme: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Outside(broker, vhost).make_queue("there")
    path = tmp_path / "r.yaml"
    path.write_text(RULES.format(vhost))
    url = url_of(broker, scheme)
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


@pytest.mark.parametrize("scheme", ["http", "amqp"])
@pytest.mark.parametrize("text", [NOTHING, "listen: [{address: '127.0.0.1:5673'}]\nrules: []\n"])
def test_a_broker_that_can_not_be_asked_is_no_ok_where_the_rules_need_nothing_of_it(
    tmp_path: Path, scheme: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    assert cli.main(["check", "--broker", f"{scheme}://127.0.0.1:1", str(path)]) == 2
    captured = capsys.readouterr()
    assert "--broker: could not query the broker: " in captured.err
    assert "ok" not in captured.out


@pytest.mark.parametrize("scheme", ["http", "amqp"])
def test_a_broker_that_answers_is_fine_for_rules_that_need_nothing(broker: Broker, tmp_path: Path, scheme: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(NOTHING)
    assert cli.main(["check", "--broker", url_of(broker, scheme), str(path)]) == 0


@pytest.mark.parametrize("scheme", ["http", "amqp"])
def test_what_the_start_would_be_refused_for_is_an_error_at_its_line(
    broker: Broker, vhost: str, tmp_path: Path, scheme: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = Outside(broker, vhost)
    outside.make_exchange("typed", "topic")
    outside.make_exchange("other.carrier", "fanout")
    outside.make_exchange("differs", x_open_exchange=True, alternate_exchange="amq.fanout")
    path = tmp_path / "r.yaml"
    path.write_text(
        f"""\
vhost: {vhost}
queues: [a]
exchanges:
  - name: typed
    bindings: [{{queue: a}}]
  - name: fresh
    bindings: [{{queue: a}}]
  - name: other
    carrier: other.carrier
    bindings: [{{queue: a}}]
  - name: differs
    bindings: [{{queue: a}}]
"""
    )
    assert cli.main(["check", "--broker", url_of(broker, scheme), str(path)]) == 2
    captured = capsys.readouterr()
    found = [line.removeprefix(f"{path}:").partition(" exists on the broker")[0] for line in captured.err.splitlines()]
    assert found == [
        "4:5: exchanges[0].name: exchange typed",
        "8:5: exchanges[2].name: carrier other.carrier of exchange other",
        "11:5: exchanges[3].name: exchange differs",
    ]
    assert "ok" not in captured.out
    names = {item["name"] for item in broker.api("GET", f"exchanges/{vhost}")}
    assert "fresh" not in names


def test_an_internal_exchange_that_queue_delivery_would_publish_to_is_an_error(
    broker: Broker, vhost: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Outside(broker, vhost).make_exchange("inner", "fanout", internal=True)
    path = tmp_path / "r.yaml"
    path.write_text(f"vhost: {vhost}\nexchanges: [{{name: e, delivery: queue, bindings: [{{exchange: inner}}]}}]\n")
    assert cli.main(["check", "--broker", url_of(broker, "http"), str(path)]) == 2
    assert "exchange inner is internal" in capsys.readouterr().err


@pytest.mark.parametrize("scheme", ["http", "amqp"])
def test_what_the_address_table_rewrites_need_not_exist_but_what_stands_in_its_place(
    broker: Broker, vhost: str, tmp_path: Path, scheme: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(
        f"""\
vhost: {vhost}
exchanges:
  - name: e
    bindings:
      - {{queue: away}}
      - {{queue: moved}}
      - {{queue: real}}
      - {{exchange: whole}}
      - {{exchange: partly}}
brokers: {{archive: {{address: "archive.example:5672"}}}}
addresses:
  - {{pattern: away, translation: archive/queue/there}}
  - {{pattern: moved, translation: /queue/new}}
  - {{pattern: "/exchange/whole/*", translation: archive}}
  - {{pattern: "/exchange/partly/a.*", translation: archive}}
"""
    )
    assert cli.main(["check", "--broker", url_of(broker, scheme), str(path)]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert sorted(line.removeprefix(f"{path}:") for line in lines if "the broker has no" in line) == [
        "6:9: exchanges[0].bindings[1].queue: warning: the broker has no queue new, to which the address table "
        "translates this address",
        "7:9: exchanges[0].bindings[2].queue: warning: the broker has no such queue",
        "9:9: exchanges[0].bindings[4].exchange: warning: the broker has no such exchange",
    ]


@contextmanager
def user(broker: Broker, tags: str) -> Iterator[str]:
    name = f"user-{secrets.token_hex(4)}"
    broker.create_user(name, name, tags)
    try:
        yield name
    finally:
        broker.delete_user(name)


OWNED = """\
vhost: {}
queues: [made]
exchanges:
  - name: e
    bindings: [{{queue: made}}, {{exchange: amq.fanout}}]
  - name: f
    arguments: {{alternate-exchange: amq.topic}}
    bindings: [{{queue: made}}]
"""


@pytest.mark.parametrize(
    ("rights", "status", "lines"),
    [
        (("^(made|e|f)$", "^(made|amq\\..*)$", "e|f"), 0, []),
        (
            ("^(made|f)$", "amq.topic|made", "^f$"),
            2,
            [
                "4:5: exchanges[0].name: warning: read on exchange e",
                "5:31: exchanges[0].bindings[1].exchange: warning: write on exchange amq.fanout",
                "4:5: exchanges[0].name: configure on exchange e",
            ],
        ),
        (
            ("^e$", "amq.fanout", "^e$"),
            2,
            [
                "2:10: queues[0]: warning: configure on queue made",
                "2:10: queues[0]: warning: write on queue made",
                "6:5: exchanges[1].name: configure on exchange f, read on exchange f, write on exchange amq.topic",
            ],
        ),
        (
            ("^(made|e|f)$", "^(made|amq.topic)$", "e|f"),
            0,
            ["5:31: exchanges[0].bindings[1].exchange: warning: write on exchange amq.fanout"],
        ),
    ],
)
def test_permissions_that_the_control_user_lacks_are_named_at_what_needs_them(
    broker: Broker,
    vhost: str,
    tmp_path: Path,
    rights: tuple[str, str, str],
    status: int,
    lines: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Given
    rules, config = tmp_path / "r.yaml", tmp_path / "oxproxy.yaml"
    rules.write_text(OWNED.format(vhost))
    with user(broker, "monitoring") as name:
        broker.grant(name, vhost, *rights)
        config.write_text(f"rules: r.yaml\nupstream: {{control: {{username: {name}, password: x}}}}\n")
        # When
        found = cli.main(["check", "--broker", url_of(broker, "http"), str(config)])
        # Then
        begin = f"the control user '{name}' lacks permissions in virtual host {vhost}: "
        seen = [line.removeprefix(f"{rules}:").replace(begin, "") for line in capsys.readouterr().err.splitlines()]
        assert (found, seen) == (status, lines)


@pytest.mark.parametrize(
    ("tags", "granted", "why"),
    [
        ("monitoring", True, "expected a user with the tag administrator in the address"),
        ("administrator", False, "the broker's internal database has none"),
    ],
)
def test_permissions_that_can_not_be_asked_for_are_no_ok(
    broker: Broker, vhost: str, tmp_path: Path, tags: str, granted: bool, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(OWNED.format(vhost))
    with user(broker, tags) as name:
        if granted:
            broker.grant(name, vhost)
        url = url_of(broker, "http").replace(f"{broker.username}:{broker.password}@", f"{name}:{name}@")
        assert cli.main(["check", "--broker", url, str(path)]) == 2
    captured = capsys.readouterr()
    assert "--broker: could not query " in captured.err
    assert why in captured.err
    assert "ok" not in captured.out


def test_a_control_user_that_the_broker_does_not_know_is_no_ok(
    broker: Broker, vhost: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.yaml").write_text(OWNED.format(vhost))
    config = tmp_path / "oxproxy.yaml"
    config.write_text("rules: r.yaml\nupstream: {control: {username: nobody, password: x}}\n")
    assert cli.main(["check", "--broker", url_of(broker, "http"), str(config)]) == 2
    captured = capsys.readouterr()
    asked = f"--broker: could not query the permissions of the control user 'nobody' in virtual host {vhost}: "
    assert asked in captured.err
    assert "ok" not in captured.out


def plan_of(broker: Broker, path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert cli.main(["check", "--broker", url_of(broker, "http"), str(path)]) == 0
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("plan: ")]


def test_the_plan_says_what_a_sidecar_would_declare_bind_and_unbind(
    broker: Broker, vhost: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Outside(broker, vhost).make_queue("there")
    path = tmp_path / "r.yaml"
    path.write_text(
        f"vhost: {vhost}\nqueues: [made]\nexchanges:\n"
        "  - {name: e, bindings: [{queue: made}, {queue: there}, {queue: nowhere}]}\n"
    )
    begin = f"plan: vhost {vhost}: "
    assert plan_of(broker, path, capsys) == [
        f"{begin}declare queue made",
        f"{begin}declare direct exchange e",
        f"{begin}bind queue made to exchange e",
        f"{begin}bind queue there to exchange e",
    ]
    assert cli.main(["check", "--json", "--broker", url_of(broker, "http"), str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["plan"][0] == {"vhost": vhost, "action": "declare queue made"}
    with Sidecar(broker, [path]):  # does just that
        pass
    assert plan_of(broker, path, capsys) == ["plan: nothing to declare, bind or unbind"]
    path.write_text(f"vhost: {vhost}\nexchanges: [{{name: e, bindings: [{{queue: made}}]}}]\n")
    assert plan_of(broker, path, capsys) == [f"{begin}remove binding of exchange e to queue there with a token"]


def test_the_plan_says_the_types_of_carriers_and_warns_where_one_does_not_fit(
    broker: Broker, vhost: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = Outside(broker, vhost)
    outside.make_exchange("there", x_open_exchange=True)
    many = [f"q{number}" for number in range(FEW_DESTINATIONS[TokenForm.ONE_WORD] + 1)]
    bindings = "".join(f"      - {{queue: {queue}}}\n" for queue in many)
    path = tmp_path / "r.yaml"
    path.write_text(
        f"vhost: {vhost}\nqueues: [{', '.join(many)}]\nexchanges:\n"
        f"  - name: there\n    bindings:\n{bindings}"
        "  - {name: asked, carrier_type: topic, bindings: [{queue: q0}]}\n"
        f"  - name: many\n    bindings:\n{bindings}"
    )
    assert cli.main(["check", "--broker", url_of(broker, "http"), str(path)]) == 0
    captured = capsys.readouterr()
    plan = [line.partition(": declare ")[2] for line in captured.out.splitlines() if " exchange " in line]
    chosen = "topic" if broker.version < (3, 13) else "direct"
    assert [line for line in plan if line] == ["topic exchange asked", f"{chosen} exchange many"]
    warned = [line for line in captured.err.splitlines() if "carrier" in line]
    assert warned == (
        [
            f"{path}:4:5: exchanges[0].name: warning: exchange there: carrier there is a direct exchange with "
            f"{len(many)} bindings; RabbitMQ before 3.13 compares all of them with every message"
        ]
        if broker.version < (3, 13)
        else []
    )


def test_nothing_is_planned_for_an_exchange_that_prevents_the_start(
    broker: Broker, vhost: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Outside(broker, vhost).make_exchange("e")
    path = tmp_path / "r.yaml"
    path.write_text(f"vhost: {vhost}\nqueues: [made]\nexchanges: [{{name: e, bindings: [{{queue: made}}]}}]\n")
    assert cli.main(["check", "--broker", url_of(broker, "http"), str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"{path}:3:")
    assert captured.out == f"plan: vhost {vhost}: declare queue made\n"
