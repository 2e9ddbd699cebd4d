"""Tests ``oxproxy check --broker``: destinations, permissions and planned changes, compared with a real broker."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Callable
from pathlib import Path

import pytest

from oxproxy.cli import main as cli
from oxproxy.relay.tokens import FEW_DESTINATIONS
from tests.broker.observed import Outside
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar

RULES = """\
vhost: {}
queues: [made]
exchanges:
  - name: e
    bindings:
      - queue: there
        arguments: {{x-addq-ontrue: [made, nowhere], x-delq-ontrue: removed, x-dele-onfalse: removed}}
      - exchange: gone
      - exchange: amq.topic
"""
NOTHING = "queues: [a]\n"


def url_of(broker: Broker, scheme: str = "http") -> str:
    place = broker.management.removeprefix("http://") if scheme == "http" else broker.address
    return f"{scheme}://{broker.username}:{broker.password}@{place}"


#: Checks a file and its exit status; returns standard output, and lines of standard error without the file's name.
Check = Callable[..., tuple[str, list[str]]]


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    return tmp_path / "r.yaml"


@pytest.fixture
def check(rules: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    def run(url: str, status: int, text: str, *options: str, file: Path = rules) -> tuple[str, list[str]]:
        rules.write_text(text)
        assert cli.main(["check", *options, "--broker", url, str(file)]) == status
        captured = capsys.readouterr()
        return captured.out, [line.removeprefix(f"{rules}:") for line in captured.err.splitlines()]

    return run


@pytest.mark.parametrize("scheme", ["http", "amqp"])
def test_each_missing_destination_is_a_warning_at_its_line(
    broker: Broker, vhost: str, scheme: str, check: Check
) -> None:
    Outside(broker, vhost).make_queue("there")
    _, err = check(url_of(broker, scheme), 0, RULES.format(vhost))
    assert err == [
        "7:21: exchanges[0].bindings[0].arguments.x-addq-ontrue: warning: the broker has no such queue",
        "8:9: exchanges[0].bindings[1].exchange: warning: the broker has no such exchange",
    ]


def test_bindings_that_rabbitmq_4_3_refuses_are_a_warning_at_the_exchange(
    broker: Broker, vhost: str, check: Check
) -> None:
    outside = Outside(broker, vhost)
    outside.make_queue("there")
    outside.make_exchange("far", "topic")
    outside.bind("far", "there", "#.a.#")
    text = f"vhost: {vhost}\nexchanges: [{{name: e, bindings: [{{exchange: far}}]}}]\n"
    assert check(url_of(broker), 0, text)[1] == []
    if broker.version >= (4, 3):
        with pytest.raises(urllib.error.HTTPError):
            outside.bind("far", "there", "#.a.#.b.#")
        return
    outside.bind("far", "there", "#.a.#.b.#")
    [warning] = check(url_of(broker), 0, text)[1]
    assert warning == (
        "2:34: exchanges[0].bindings[0].exchange: warning: this topic exchange has 1 binding with more than two '#', "
        "which RabbitMQ 4.3 refuses"
    )


@pytest.mark.parametrize(
    "url", ["nonsense", "ftp://host", "http://user:secret@127.0.0.1:1", "amqp://u:secret@127.0.0.1:1"]
)
def test_an_unreachable_broker_is_an_error_without_the_password(url: str, check: Check) -> None:
    _, err = check(url, 2, RULES.format("/"))
    assert "--broker" in str(err)
    assert "secret" not in str(err)


@pytest.mark.parametrize("scheme", ["http", "amqp"])
@pytest.mark.parametrize("text", [NOTHING, "listen: [{address: '127.0.0.1:5673'}]\nrules: []\n"])
def test_an_unreachable_broker_is_an_error_for_rules_without_destinations(scheme: str, text: str, check: Check) -> None:
    out, err = check(f"{scheme}://127.0.0.1:1", 2, text)
    assert "--broker: could not query the broker: " in str(err)
    assert "ok" not in out


@pytest.mark.parametrize("scheme", ["http", "amqp"])
def test_a_reachable_broker_is_sufficient_for_rules_without_destinations(
    broker: Broker, scheme: str, check: Check
) -> None:
    check(url_of(broker, scheme), 0, NOTHING)


@pytest.mark.parametrize("scheme", ["http", "amqp"])
def test_conflicts_that_prevent_the_start_are_errors_at_their_lines(
    broker: Broker, vhost: str, scheme: str, check: Check
) -> None:
    outside = Outside(broker, vhost)
    outside.make_exchange("typed", "topic")
    outside.make_exchange("other.carrier", "fanout")
    outside.make_exchange("differs", x_open_exchange=True, alternate_exchange="amq.fanout")
    out, err = check(
        url_of(broker, scheme),
        2,
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
""",
    )
    assert [line.partition(" exists on the broker")[0] for line in err] == [
        "4:5: exchanges[0].name: exchange typed",
        "8:5: exchanges[2].name: carrier other.carrier of exchange other",
        "11:5: exchanges[3].name: exchange differs",
    ]
    assert "ok" not in out
    assert ["which recognizes topic carriers" in line for line in err] == [scheme == "amqp", False, False]
    names = {item["name"] for item in broker.api("GET", f"exchanges/{vhost}")}
    assert "fresh" not in names


def test_an_existing_carrier_is_not_logged_as_declared(broker: Broker, vhost: str, rules: Path, check: Check) -> None:
    text = f"vhost: {vhost}\nqueues: [a]\nexchanges: [{{name: e, bindings: [{{queue: a}}]}}]\n"
    rules.write_text(text)
    with Sidecar(broker, [rules]) as sidecar:
        assert sidecar.logged("exchange declared")
        out, err = check(url_of(broker, "amqp"), 0, text)
    assert "declared" not in out + str(err)


def test_an_internal_exchange_in_queue_delivery_is_an_error(broker: Broker, vhost: str, check: Check) -> None:
    Outside(broker, vhost).make_exchange("inner", "fanout", internal=True)
    text = f"vhost: {vhost}\nexchanges: [{{name: e, delivery: queue, bindings: [{{exchange: inner}}]}}]\n"
    _, err = check(url_of(broker), 2, text)
    assert "exchange inner is internal" in str(err)


@pytest.mark.parametrize("scheme", ["http", "amqp"])
def test_the_result_of_an_address_translation_must_exist_instead_of_the_original(
    broker: Broker, vhost: str, scheme: str, check: Check
) -> None:
    _, err = check(
        url_of(broker, scheme),
        0,
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
""",
    )
    assert sorted(line for line in err if "the broker has no" in line) == [
        "6:9: exchanges[0].bindings[1].queue: warning: the broker has no queue new, to which the address table "
        "translates this address",
        "7:9: exchanges[0].bindings[2].queue: warning: the broker has no such queue",
        "9:9: exchanges[0].bindings[4].exchange: warning: the broker has no such exchange",
    ]


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
def test_missing_permissions_of_the_control_user_are_errors_at_their_lines(
    broker: Broker,
    vhost: str,
    tmp_path: Path,
    rights: tuple[str, str, str],
    status: int,
    lines: list[str],
    check: Check,
) -> None:
    config = tmp_path / "oxproxy.yaml"
    with broker.temporary_user("monitoring") as name:
        broker.grant(name, vhost, *rights)
        config.write_text(f"rules: r.yaml\nupstream: {{control: {{username: {name}, password: x}}}}\n")
        _, err = check(url_of(broker), status, OWNED.format(vhost), file=config)
    begin = f"the control user '{name}' lacks permissions in virtual host {vhost}: "
    assert [line.replace(begin, "") for line in err] == lines


@pytest.mark.parametrize(
    ("tags", "granted", "why"),
    [
        ("monitoring", True, "could not query the permissions of the control user"),
        ("monitoring", True, "expected a user with the tag administrator in the address"),
        ("administrator", False, "has no permissions in virtual host"),
    ],
)
def test_permissions_that_cannot_be_queried_are_an_error(
    broker: Broker, vhost: str, tags: str, granted: bool, why: str, check: Check
) -> None:
    with broker.temporary_user(tags) as name:
        if granted:
            broker.grant(name, vhost)
        url = url_of(broker).replace(f"{broker.username}:{broker.password}@", f"{name}:{name}@")
        out, err = check(url, 2, OWNED.format(vhost))
    assert why in "".join(err)
    assert "ok" not in out


def test_an_unknown_control_user_is_an_error(broker: Broker, vhost: str, tmp_path: Path, check: Check) -> None:
    config = tmp_path / "oxproxy.yaml"
    config.write_text("rules: r.yaml\nupstream: {control: {username: nobody, password: x}}\n")
    out, err = check(url_of(broker), 2, OWNED.format(vhost), file=config)
    message = f"--broker: the control user 'nobody' has no permissions in virtual host {vhost} "
    assert message in "".join(err)
    assert "ok" not in out


def plan(out: str) -> list[str]:
    return [line for line in out.splitlines() if line.startswith("plan: ")]


def test_the_plan_lists_declarations_and_bindings_of_a_sidecar(
    broker: Broker, vhost: str, rules: Path, check: Check
) -> None:
    Outside(broker, vhost).make_queue("there")
    text = (
        f"vhost: {vhost}\nqueues: [made]\nexchanges:\n"
        "  - {name: e, bindings: [{queue: made}, {queue: there}, {queue: nowhere}]}\n"
    )
    begin = f"plan: vhost {vhost}: "
    assert plan(check(url_of(broker), 0, text)[0]) == [
        f"{begin}declare queue made",
        f"{begin}declare direct exchange e",
        f"{begin}bind queue made to exchange e",
        f"{begin}bind queue there to exchange e",
    ]
    assert json.loads(check(url_of(broker), 0, text, "--json")[0])["plan"][0] == {
        "vhost": vhost,
        "action": "declare queue made",
    }
    with Sidecar(broker, [rules]):  # carries out the plan
        pass
    assert plan(check(url_of(broker), 0, text)[0]) == ["plan: nothing to declare or bind"]
    text = f"vhost: {vhost}\nexchanges: [{{name: e, bindings: [{{queue: made}}]}}]\n"
    assert plan(check(url_of(broker), 0, text)[0]) == ["plan: nothing to declare or bind"]  # tokens are never removed


def test_the_plan_lists_types_of_carriers_and_warns_of_conflicting_types(
    broker: Broker, vhost: str, check: Check
) -> None:
    Outside(broker, vhost).make_exchange("there", x_open_exchange=True)
    many = [f"q{number}" for number in range(FEW_DESTINATIONS + 1)]
    bindings = "".join(f"      - {{queue: {queue}}}\n" for queue in many)
    out, err = check(
        url_of(broker),
        0,
        f"vhost: {vhost}\nqueues: [{', '.join(many)}]\nexchanges:\n"
        f"  - name: there\n    bindings:\n{bindings}"
        "  - {name: asked, carrier_type: topic, bindings: [{queue: q0}]}\n"
        f"  - name: many\n    bindings:\n{bindings}",
    )
    declared = [line.partition(": declare ")[2] for line in plan(out) if " exchange " in line]
    chosen = "topic" if broker.version < (3, 13) else "direct"
    assert [line for line in declared if line] == ["topic exchange asked", f"{chosen} exchange many"]
    warned = [line for line in err if "carrier" in line]
    assert warned == (
        [
            "4:5: exchanges[0].name: warning: exchange there: carrier there is a direct exchange with "
            f"{len(many)} bindings; RabbitMQ before 3.13 compares all of them with every message"
        ]
        if broker.version < (3, 13)
        else []
    )


def test_nothing_is_planned_for_an_exchange_that_prevents_the_start(broker: Broker, vhost: str, check: Check) -> None:
    Outside(broker, vhost).make_exchange("e")
    text = f"vhost: {vhost}\nqueues: [made]\nexchanges: [{{name: e, bindings: [{{queue: made}}]}}]\n"
    out, err = check(url_of(broker), 2, text)
    assert err[0].startswith("3:")
    assert out == f"plan: vhost {vhost}: declare queue made\n"
