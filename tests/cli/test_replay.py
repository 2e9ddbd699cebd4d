"""Tests ``oxproxy replay`` with a sidecar and a real RabbitMQ."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import random
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from oxproxy.amqp.tables import encode_table
from oxproxy.cli.parked import ParkedMessage, parked_message
from oxproxy.net import client as net_client
from oxproxy.net.client import TakenMessage
from oxproxy.values import Table, Value
from tests import client
from tests.broker.delivery.site import Site, standing
from tests.broker.observed import Outside
from tests.private_broker import PrivateBroker
from tests.producer import Producer, headers, until
from tests.rabbitmq import Broker
from tests.sidecar import PROGRAM, oxproxy_here

#: The rules while messages are parked. `MENDED` routes them.
RULES = """\
queues: [orders.big, parked]
exchanges:
  - name: orders
    arguments: {alternate-exchange: rest, max-payload-size: 100000}
    bindings: [{queue: orders.big, when: {amount >=: 1000}}]
"""
SMALL = "queue: orders.big, when: {amount <:"
MENDED = RULES.replace("bindings: [", f"bindings: [{{{SMALL} 1000}}}}, ")


def prepare(outside: Outside) -> None:
    outside.make_exchange("rest", "fanout")
    outside.make_queue("parked")
    outside.bind("rest", "parked", "")


@pytest.fixture(scope="module")
def shared(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with standing(broker, tmp_path_factory.mktemp("replay"), RULES, prepare=prepare) as site:
        yield site


@pytest.fixture
def site(shared: Site) -> Iterator[Site]:
    shared.reload(RULES)
    yield shared
    shared.bodies("orders.big", "parked")
    shared.tidy()


def replay(site: Site, *more: str, queue: str = "parked", input: str = "") -> subprocess.CompletedProcess[str]:
    configured = ["--config", str(site.sidecar.configuration), "--vhost", site.vhost]
    return oxproxy_here("replay", "--queue", queue, *configured, *more, input=input)


def replayed(site: Site, *more: str, queue: str = "parked") -> tuple[int, list[dict[str, Any]], dict[str, Any]]:
    """Return the exit status, the messages and the summary."""
    done = replay(site, "--json", *more, queue=queue)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines, done.stderr
    return done.returncode, lines[:-1], lines[-1]["summary"]


def ready(site: Site, queue: str) -> int:
    """Return the number of ready messages in a queue."""
    declared = site.direct.ask(commands.Queue.Declare(queue=queue, passive=True))
    return int(str(declared.arguments["message_count"]))


def settled(site: Site, count: int) -> list[list[bytes]]:
    """Wait until as many messages as were published are ready again, and take them."""
    until(lambda: ready(site, "orders.big") + ready(site, "parked") >= count)
    return site.bodies("orders.big", "parked")


def park(site: Site, *amounts: int, **properties: bytes | int) -> None:
    producer = site.producer()
    for amount in amounts:
        body = str(amount).encode()
        assert producer.send_settled("orders", f"k.{amount}", headers({"amount": amount}), body, **properties).acked


def test_messages_reach_the_queues_that_the_mended_rules_name(site: Site) -> None:
    park(site, 1, 2, 3, message_id=b"m1")
    site.reload(MENDED)
    status, messages, summary = replayed(site)
    assert status == 0
    assert messages[0] == {
        "number": 1,
        "exchange": "orders",
        "routing_key": "k.1",
        "message_id": "m1",
        "result": "replayed",
        "outcome": "routed",
        "destinations": ["queue orders.big"],
        "reason": None,
    }
    assert (summary["replayed"], summary["stay"], summary["not_taken"], summary["in_flight"]) == (3, 0, 0, None)
    assert site.bodies("orders.big", "parked") == [[b"1", b"2", b"3"], []]


def test_each_message_is_acked_before_the_next_one_is_taken(site: Site) -> None:
    park(site, 1, 2)
    site.reload(MENDED)
    assert replayed(site)[0] == 0
    sent = [frame.name for frame in site.upstream().frames if frame.name.startswith("Basic.")]
    assert sent == ["Basic.Get", "Basic.Publish", "Basic.Ack"] * 2


def test_messages_that_no_rule_routes_stay_in_order_and_the_run_ends(site: Site) -> None:
    park(site, 1, 2, 3)
    status, messages, summary = replayed(site)
    assert status == 1
    assert {message["reason"] for message in messages} == {"no binding matches"}
    assert (summary["replayed"], summary["stay"]) == (0, 3)
    assert site.bodies("orders.big", "parked") == [[], [b"1", b"2", b"3"]]


def test_a_dry_run_prints_a_table_and_leaves_the_messages_in_order(site: Site) -> None:
    park(site, 1, 2, 3)
    site.direct.publish("rest", "elsewhere", body=b"4")
    site.reload(MENDED)
    done = replay(site, "--dry-run")
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in done.stdout.splitlines()]
    assert ["1", "orders", "k.1", "would be replayed", "queue orders.big"] in rows
    assert ["1", "rest", "elsewhere", "would be replayed", "exchange rest"] in rows
    assert done.stdout.splitlines()[-1] == "4 messages would be replayed, 0 stay in queue parked"
    assert site.bodies("orders.big", "parked") == [[], [b"1", b"2", b"3", b"4"]]


#: A value of every type that RabbitMQ can store.
EVERY_TYPE: Table = (
    (b"t", Value("t", True)), (b"b", Value("b", -1)), (b"B", Value("B", 255)), (b"s", Value("s", -2)),
    (b"u", Value("u", 65535)), (b"I", Value("I", 7)), (b"i", Value("i", 7)), (b"l", Value("l", 7)),
    (b"T", Value("T", 1)), (b"f", Value("f", 0.5)), (b"d", Value("d", 0.1)), (b"D", Value("D", (2, 150))),
    (b"S", Value("S", b"\xff\xfe")), (b"x", Value("x", b"\x00")), (b"V", Value("V", None)),
    (b"A", Value("A", (Value("s", 1), Value("l", 2), Value("V", None)))),
    (b"F", Value("F", ((b"z", Value("b", 1)), (b"a", Value("d", 2.0))))),
    (b"amount", Value("I", 5)), (b"\xff", Value("S", b"")),
)  # fmt: skip
PROPERTIES: dict[str, bytes | int] = {
    "content_type": b"text/plain", "content_encoding": b"\xff", "delivery_mode": 2, "priority": 3,
    "correlation_id": b"c", "reply_to": b"r", "expiration": b"600000", "message_id": b"\xfe", "timestamp": 7,
    "type": b"t", "user_id": b"guest", "app_id": b"a", "cluster_id": b"x",
}  # fmt: skip


def test_headers_of_every_type_and_all_properties_arrive_unchanged(site: Site) -> None:
    body = bytes(range(256)) * 300
    producer = site.producer()
    for table in (EVERY_TYPE, ((b"amount", Value("I", 1)), *reversed(EVERY_TYPE))):
        assert producer.send_settled("orders", "k", table, body, **PROPERTIES).acked
    parked = site.take("parked")
    for table in (EVERY_TYPE, ((b"amount", Value("I", 1)), *reversed(EVERY_TYPE))):
        assert producer.send_settled("orders", "k", table, body, **PROPERTIES).acked
    site.reload(MENDED)
    status, messages, _ = replayed(site)
    assert (status, [message["reason"] for message in messages]) == (0, [None, None])
    arrived = site.take("orders.big")
    assert [message.entries for message in arrived] == [message.entries for message in parked]
    assert [message.properties for message in arrived] == [message.properties for message in parked]
    assert [message.body for message in arrived] == [body, body]
    assert [message.address for message in arrived] == [("orders", "k"), ("orders", "k")]


# -- where a message was parked ----------------------------------------------------------------------------------------


def dead_letter(site: Site, queue: str, *amounts: int, table: Table = (), **arguments: object) -> None:
    """Publish messages to a queue of the rules, and let it dead-letter them to queue parked."""
    site.make_queue(queue, x_dead_letter_exchange="rest", x_message_ttl=1, **arguments)
    site.bind("amq.topic", queue, "order.#")
    for amount in amounts:
        site.direct.publish(
            "amq.topic", f"order.{amount}", (*headers({"amount": amount}), *table), str(amount).encode()
        )
    until(lambda: ready(site, "parked") == len(amounts))
    site.delete_queue(queue)


@pytest.fixture
def copies(site: Site) -> Iterator[str]:
    """A queue that gets the messages published to amq.topic with order."""
    site.make_queue("copies")
    site.bind("amq.topic", "copies", "order.#")
    yield "copies"
    site.delete_queue("copies")


def test_dead_lettered_messages_are_published_to_the_address_in_x_death(site: Site, copies: str) -> None:
    dead_letter(site, "late", 1, 2, x_dead_letter_routing_key="dead")
    site.bodies(copies)
    status, messages, _ = replayed(site)
    assert status == 0
    assert [(message["exchange"], message["routing_key"]) for message in messages] == [
        ("amq.topic", "order.1"),
        ("amq.topic", "order.2"),
    ]
    arrived = site.take(copies)
    assert [(message.address, message.body) for message in arrived] == [
        (("amq.topic", "order.1"), b"1"),
        (("amq.topic", "order.2"), b"2"),
    ]
    assert all("x-death" in message.headers for message in arrived)


def test_keys_in_cc_that_rabbitmq_has_moved_to_x_death_are_restored(site: Site, copies: str) -> None:
    cc = ((b"CC", Value("A", (Value("S", b"other.cc"),))),)
    site.make_queue("others")
    site.bind("amq.topic", "others", "other.cc")
    try:
        dead_letter(site, "late", 1, table=cc, x_dead_letter_routing_key="dead")
        site.bodies(copies, "others")
        status, _, _ = replayed(site)
        assert status == 0
        assert site.bodies(copies, "others", "parked") == [[b"1"], [b"1"], []]
    finally:
        site.delete_queue("others")


FORGED: list[tuple[Value, str]] = [
    (Value("S", b"text"), "orders"),
    (Value("A", ()), "orders"),
    (Value("A", (Value("S", b"x"),)), "orders"),
    (Value("A", (Value("F", ((b"exchange", Value("S", b"amq.topic")),)),)), "orders"),
    (Value("A", (Value("F", ((b"exchange", Value("I", 1)), (b"routing-keys", Value("A", ())))),)), "orders"),
]


@pytest.mark.parametrize(("death", "exchange"), FORGED)
def test_an_unusable_x_death_is_ignored(death: Value, exchange: str) -> None:
    frames = client.content_header(0, 0, encode_table(((b"x-death", death),)))
    taken = TakenMessage(1, b"orders", b"k", 0, frames[7:-1], b"")
    assert parked_message(taken) == ParkedMessage(exchange.encode(), b"k", frames[7:-1], None, ((b"x-death", death),))


def test_the_address_before_the_sidecar_changed_it_is_restored_from_x_death() -> None:
    death = Value("F", ((b"exchange", Value("S", b"carrier")), (b"routing-keys", Value("A", (Value("S", b"k"),)))))
    names = (b"exchange", b"routing-key", b"new-exchange", b"new-routing-key")
    fields = zip(names, (b"orders", b"k", b"carrier", b"k"), strict=True)
    original = Value("F", tuple((name, Value("S", content)) for name, content in fields))
    table = ((b"a", Value("l", 1)), (b"x-original-address", original), (b"x-death", Value("A", (death,))))
    header = client.content_header(0, 3, encode_table(table), {"message_id": b"m"})[7:-1]
    message = parked_message(TakenMessage(1, b"dlx", b"dead", 0, header, b"abc"))
    assert (message.exchange, message.routing_key, message.message_id) == (b"orders", b"k", "m")
    assert message.headers == (table[0], table[2])
    assert message.header == client.content_header(0, 3, encode_table((table[0], table[2])), {"message_id": b"m"})[7:-1]


# -- messages that stay ------------------------------------------------------------------------------------------------


def test_messages_that_the_broker_refuses_or_returns_stay_and_the_others_are_replayed(site: Site) -> None:
    impersonating = headers({"amount": 1})
    with site.broker.temporary_user() as name:
        site.broker.grant(name, site.vhost)
        beside = Producer(site.broker.port, site.vhost, name, name).open()
        beside.publish("rest", "k", impersonating, b"another user", user_id=name.encode())
        beside.close()
    site.direct.publish("rest", "no such queue", body=b"passed to rest")
    death = Value("F", ((b"exchange", Value("S", b"amq.direct")), (b"routing-keys", Value("A", (Value("S", b"k"),)))))
    site.direct.publish("rest", "k", ((b"x-death", Value("A", (death,))),), b"returned")
    park(site, 1)
    site.reload(MENDED)
    until(lambda: ready(site, "parked") == 4)
    status, messages, summary = replayed(site)
    assert status == 1
    reasons = {message["number"]: str(message["reason"]) for message in messages}
    assert "user_id property set to" in reasons[1]
    assert reasons[2] == "None"
    assert reasons[3] == "returned: no queue received it"
    assert reasons[4] == "None"
    assert (summary["replayed"], summary["stay"], summary["not_taken"]) == (2, 2, 0)
    assert site.bodies("orders.big", "parked") == [[b"1"], [b"another user", b"returned", b"passed to rest"]]


def test_a_message_that_a_full_queue_refuses_stays(site: Site) -> None:
    site.make_queue("full", x_max_length=1, x_overflow="reject-publish")
    park(site, 1, 2)
    site.reload(MENDED.replace(SMALL, "queue: full, when: {amount <:"))
    try:
        status, messages, _ = replayed(site)
        assert status == 1
        assert messages[1]["reason"].startswith("nacked: ")
        assert site.bodies("full", "parked") == [[b"1"], [b"2"]]
    finally:
        site.delete_queue("full")


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        (MENDED.replace("max-payload-size: 100000", "max-payload-size: 0"), "rejected: Max size payload hit."),
        (MENDED.replace(SMALL, "queue: absent, when: {amount <:"), "queue absent: does not exist"),
        (MENDED.replace(SMALL, "queue: parked, when: {amount <:"), "it would return to this queue"),
    ],
)
def test_a_message_that_would_not_reach_another_queue_stays(site: Site, rules: str, reason: str) -> None:
    park(site, 1)
    site.reload(rules)
    until(lambda: replayed(site, "--dry-run")[1][0]["reason"] == reason)
    status, messages, _ = replayed(site)
    assert (status, messages[0]["reason"]) == (1, reason)
    assert site.bodies("orders.big", "parked") == [[], [b"1"]]


def test_a_message_published_to_the_queue_itself_stays(site: Site) -> None:
    site.direct.publish("", "parked", body=b"1")
    status, messages, _ = replayed(site)
    assert (status, messages[0]["reason"]) == (1, "it would return to this queue")


# -- which messages ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "bodies", "summary"),
    [
        (["--match", "amount=2"], [b"2"], {"replayed": 1, "not_matched": 3, "not_taken": 0}),
        (["--match", "amount=2", "--match", "other=x"], [], {"replayed": 0, "not_matched": 4, "not_taken": 0}),
        (["--limit", "2"], [b"1", b"2"], {"replayed": 2, "not_matched": 0, "not_taken": 2}),
        (["--limit", "1", "--match", "amount=3"], [b"3"], {"replayed": 1, "not_matched": 2, "not_taken": 1}),
        (["--rate", "100"], [b"1", b"2", b"3", b"4"], {"replayed": 4, "not_matched": 0, "not_taken": 0}),
    ],
)
def test_messages_are_chosen_by_header_and_number(
    site: Site, options: list[str], bodies: list[bytes], summary: dict[str, int]
) -> None:
    park(site, 1, 2, 3, 4)
    site.reload(MENDED)
    status, _, found = replayed(site, *options)
    assert status == 0
    assert {key: found[key] for key in summary} == summary
    left = [body for body in (b"1", b"2", b"3", b"4") if body not in bodies]
    assert site.bodies("orders.big", "parked") == [bodies, left]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Value("S", b"text"), "text"), (Value("I", 5), "5"), (Value("l", -5), "-5"), (Value("d", 0.5), "0.5"),
        (Value("t", True), "true"), (Value("x", b"\x01"), '{"hex": "01"}'), (Value("V", None), "null"),
    ],
)  # fmt: skip
def test_a_header_matches_by_its_text(value: Value, text: str) -> None:
    message = ParkedMessage(b"", b"", b"", None, ((b"other", Value("I", 0)), (b"h", value)))
    assert message.has("h", text)
    assert not message.has("h", text + "0")
    assert not message.has("other", text)


def test_the_rate_limits_publishes(site: Site) -> None:
    park(site, 1, 2, 3)
    site.reload(MENDED)
    begin = time.monotonic()
    assert replayed(site, "--rate", "4")[0] == 0
    assert time.monotonic() - begin >= 0.5


def test_files_determine_which_messages_are_published(site: Site, tmp_path: Path) -> None:
    park(site, 1)
    file = tmp_path / "next.yaml"
    file.write_text(f"vhost: {site.vhost}\n{MENDED}")
    done = replay(site, "--dry-run", "--rules", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    assert "would be replayed" in done.stdout
    assert replay(site, "--dry-run").returncode == 1
    file.write_text(f"vhost: {site.vhost}\n{RULES}")
    site.reload(MENDED)
    done = replay(site, "--rules", str(file))
    assert done.returncode == 1
    assert done.stderr == (
        "the sidecar routes by its active rules; the files only determine which messages are published and what is "
        "shown\n"
    )
    assert replay(site).returncode == 0


# -- quorum queues -----------------------------------------------------------------------------------------------------


@pytest.fixture
def quorum(site: Site) -> Iterator[str]:
    site.broker.create_queue(site.vhost, "held", x_queue_type="quorum", x_delivery_limit=4)
    yield "held"
    site.delete_queue("held")


def hold(site: Site, *amounts: int) -> None:
    """Publish messages to exchange orders, and put them into the quorum queue."""
    death = Value("F", ((b"exchange", Value("S", b"orders")), (b"routing-keys", Value("A", (Value("S", b"k"),)))))
    for amount in amounts:
        table = (*headers({"amount": amount}), (b"x-death", Value("A", (death,))))
        site.direct.publish("", "held", table, str(amount).encode())
    until(lambda: ready(site, "held") == len(amounts))


def test_a_run_ends_before_a_quorum_queue_drops_a_message(site: Site, quorum: str) -> None:
    hold(site, 1, 2)
    for _ in range(2):
        assert replay(site, "--delivery-limit", "4", queue=quorum).returncode == 1
    done = replay(site, "--delivery-limit", "4", queue=quorum)
    assert done.returncode == 1
    assert "was returned to quorum queue held 2 times, and the queue drops or dead-letters it after 4" in done.stderr
    assert "each dry run, counts as a delivery" in done.stderr
    site.reload(MENDED)
    assert replay(site, "--delivery-limit", "4", queue=quorum).returncode == 0
    assert sorted(message.body for message in site.take("orders.big")) == [b"1", b"2"]


def test_headers_added_by_a_quorum_queue_are_removed(site: Site, quorum: str) -> None:
    hold(site, 1)
    replay(site, "--dry-run", queue=quorum)
    site.reload(MENDED)
    assert replay(site, queue=quorum).returncode == 0
    (message,) = site.take("orders.big")
    assert list(message.headers) == ["amount", "x-death"]


# -- ends of a run -----------------------------------------------------------------------------------------------------


def started(site: Site, *more: str) -> subprocess.Popen[str]:
    command = [str(PROGRAM), "replay", "--queue", "parked", "--config", str(site.sidecar.configuration)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*command, "--vhost", site.vhost, "--json", *more], **pipes)


def test_a_killed_run_loses_no_message_and_doubles_only_the_one_in_flight(site: Site) -> None:
    numbers = range(400)
    producer = site.producer()
    for number in numbers:
        producer.publish("orders", "k", headers({"amount": 1, "number": number}), str(number).encode())
    producer.settle_all(len(numbers))
    site.reload(MENDED)
    kills = 0
    choice = random.Random(7)
    while ready(site, "parked") and kills < 12:
        process = started(site)
        assert process.stdout is not None
        for _ in range(choice.randrange(1, 60)):
            if "summary" in process.stdout.readline():
                break
        time.sleep(choice.random() / 100)
        process.kill()
        process.communicate()
        kills += 1
        until(lambda: ready(site, "orders.big") + ready(site, "parked") >= len(numbers))
    assert kills > 4
    bodies, parked = settled(site, len(numbers))
    counts = Counter(map(int, [*bodies, *parked]))
    assert set(counts) == set(numbers)
    assert counts.total() - len(numbers) <= kills


def test_ctrl_c_doubles_no_message(site: Site) -> None:
    park(site, *range(1, 60))
    site.reload(MENDED)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        process = started(site, "--rate", "200")
        assert process.stdout is not None
        for _ in range(5):
            process.stdout.readline()
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 130, err
        summary = json.loads(out.splitlines()[-1])["summary"]
        assert (summary["in_flight"], summary["error"]) == (None, "interrupted")
        assert err == "oxproxy replay: the run ended early: interrupted\n"
    bodies, parked = site.bodies("orders.big", "parked")
    assert sorted(map(int, [*bodies, *parked])) == list(range(1, 60))
    assert len(bodies) >= 15


def test_a_broker_that_goes_away_ends_the_run_with_its_reason(site: Site) -> None:
    park(site, *range(1, 40))
    site.reload(MENDED)
    process = started(site, "--rate", "50")
    assert process.stdout is not None
    process.stdout.readline()
    site.upstream().cut()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    summary = json.loads(out.splitlines()[-1])["summary"]
    assert summary["error"].startswith(f"{site.sidecar.address}: ")
    lines = err.splitlines()
    assert lines[0] == f"oxproxy replay: the run ended early: {summary['error']}"
    assert "Traceback" not in err
    bodies, parked = settled(site, 39)
    counts = Counter(map(int, [*bodies, *parked]))
    assert set(counts) == set(range(1, 40))
    doubled = counts.total() - 39
    assert doubled <= 1
    assert not doubled or (len(lines) == 2 and "was in flight: it may have reached its destinations" in lines[1])


# -- a terminal, and a broker that blocks publishers ------------------------------------------------------------------


def test_a_terminal_shows_a_progress_bar_that_disappears_at_the_end(site: Site) -> None:
    park(site, *range(1, 9))
    site.reload(MENDED)
    ours, theirs = pty.openpty()
    configured = ["--config", str(site.sidecar.configuration), "--vhost", site.vhost, "--rate", "10"]
    with open(ours, "rb", buffering=0) as terminal:
        process = subprocess.Popen(
            [str(PROGRAM), "replay", "--queue", "parked", *configured],
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
            env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
        )
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the process has closed the terminal
            while part := terminal.read(4096):
                shown += part
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    bars = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", shown)
    assert re.search(rb"replayed .*[1-7]/8", bars), bars
    assert shown.rstrip().endswith(b"\x1b[2K"), shown[-80:]  # the line is erased
    assert out.splitlines()[-1] == "8 messages replayed, 0 stay in queue parked"
    assert b"\x1b" not in out.encode()


@pytest.fixture(scope="module")
def blocking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site with a broker of its own, whose memory alarm a test can raise."""
    with PrivateBroker() as broker, standing(broker, tmp_path_factory.mktemp("blocked"), RULES, None, prepare) as site:
        yield site


@contextlib.contextmanager
def memory_alarm(site: Site) -> Iterator[None]:
    assert isinstance(site.broker, PrivateBroker)
    site.broker.rabbitmqctl("set_vm_memory_high_watermark", "absolute", "1MB")
    try:
        yield
    finally:
        site.broker.rabbitmqctl("set_vm_memory_high_watermark", "0.4")


def test_a_run_waits_while_the_broker_blocks_publishers_and_doubles_no_message(blocking: Site) -> None:
    blocking.reload(RULES)
    park(blocking, *range(1, 21))
    blocking.reload(MENDED)
    with memory_alarm(blocking):
        process = started(blocking)
        until(lambda: blocking.metric("upstream_blocked") >= 1)
        assert process.poll() is None
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert json.loads(out.splitlines()[-1])["summary"]["replayed"] == 20
    assert sorted(map(int, blocking.bodies("orders.big")[0])) == list(range(1, 21))
    assert ready(blocking, "parked") == 0


def test_a_run_ends_with_the_reason_if_the_broker_blocks_publishers_for_too_long(
    blocking: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocking.reload(RULES)
    park(blocking, 1, 2, 3)
    blocking.reload(MENDED)
    monkeypatch.setattr(net_client, "_REPLY_SECONDS", 4.0)
    with memory_alarm(blocking):
        done = replay(blocking, "--json")
    assert done.returncode == 1
    summary = json.loads(done.stdout.splitlines()[-1])["summary"]
    assert "no response within 4 s; the broker blocks publishers: " in summary["error"]
    assert summary["in_flight"].startswith("message 1 (exchange orders, routing key k.1)")
    until(lambda: ready(blocking, "orders.big") + ready(blocking, "parked") >= 3)
    bodies, parked = blocking.bodies("orders.big", "parked")
    counts = Counter(map(int, [*bodies, *parked]))
    assert set(counts) == {1, 2, 3}
    assert counts.total() <= 4


# -- invalid input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--match", "amount"], '--match: got "amount", expected HEADER=VALUE'),
        (["--match", "=5"], '--match: got "=5", expected HEADER=VALUE'),
        (["--limit", "0"], "argument --limit: got 0, expected an integer from 1 to 2147483647"),
        (["--limit", "x"], "argument --limit: got x, expected an integer from 1 to 2147483647"),
        (["--rate", "0"], "argument --rate: got 0, expected 0.001 to 1000000 messages per second"),
        (["--rate", "nan"], "argument --rate: got nan, expected 0.001 to 1000000 messages per second"),
        (["--password-file", "x"], "--password-file contains the password of the user in --url: --url is required"),
        (["--rules", "x", "--admin", "http://x"], "--admin is not allowed with --rules, which evaluates files"),
        (["--queue", ""], '--queue: got "", expected the name of a queue'),
        (["--queue", "x" * 256], f'--queue: got "{"x" * 256}", expected the name of a queue'),
    ],
)
def test_invalid_options_are_errors(options: list[str], error: str) -> None:
    done = oxproxy_here("replay", "--queue", "q", *options)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == f"oxproxy replay: error: {error}"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--url", "http://x"], "--url: expected amqp(s)://user:password@host:port/vhost of a sidecar"),
        (["--url", "amqp://u:secret@h:x/"], "--url: expected amqp(s)://user:password@host:port/vhost of a sidecar"),
        (["--url", "amqp://h/a/b"], "--url: expected amqp(s)://user:password@host:port/vhost of a sidecar"),
        (["--url", "amqp://h/a", "--vhost", "b"], "--vhost: got virtual host b, but --url has virtual host a"),
        (["--url", "amqp://h", "--password-file", "/no/such"], "/no/such: can't be read: No such file or directory"),
        (["--url", "amqps://h", "--ca-file", "/no/such"], "/no/such: can't be used: No such file or directory"),
        (["--rules", "/no/such.yaml", "--url", "amqp://h"], "/no/such.yaml: can't be read: No such file or directory"),
        (["--url", "amqp://127.0.0.1:1"], "oxproxy replay: 127.0.0.1:1: Connection refused"),
    ],
)
def test_unusable_addresses_and_files_are_errors_in_one_sentence(options: list[str], error: str) -> None:
    done = oxproxy_here("replay", "--queue", "q", *options)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{error}\n")


def test_a_queue_that_does_not_exist_or_is_in_use_is_an_error(site: Site) -> None:
    done = replay(site, queue="absent")
    assert done.returncode == 2
    assert done.stderr.startswith("oxproxy replay: NOT_FOUND - no queue 'absent' in vhost ")
    assert done.stderr.endswith(" (404)\n")
    assert done.stderr.count("\n") == 1


def test_a_broker_instead_of_a_sidecar_is_an_error(site: Site) -> None:
    done = oxproxy_here("replay", "--queue", "parked", "--url", site.broker.url(site.vhost))
    assert done.returncode == 2
    expected = "is not a sidecar; expected the address in `listen`, so that the rules apply"
    assert done.stderr == f"oxproxy replay: {site.broker.address} {expected}\n"


def test_a_refused_login_is_an_error_without_the_password(site: Site, tmp_path: Path) -> None:
    url = f"amqp://guest:hunter2@{site.sidecar.address}/{site.vhost}"
    done = oxproxy_here("replay", "--queue", "parked", "--url", url)
    assert done.returncode == 2
    assert done.stderr.startswith(f"oxproxy replay: {site.sidecar.address} refused user 'guest' in vhost ")
    assert "hunter2" not in done.stderr
    file = tmp_path / "password"
    file.write_text("guest\n")
    admin = ["--admin", site.sidecar.admin, "--password-file", str(file)]
    assert oxproxy_here("replay", "--queue", "parked", "--url", url, *admin).returncode == 0


def test_an_unreachable_admin_address_is_an_error_and_the_message_stays(site: Site) -> None:
    park(site, 1)
    done = replay(site, "--admin", "http://127.0.0.1:1")
    assert done.returncode == 2
    assert done.stderr == "oxproxy replay: http://127.0.0.1:1/explain: Connection refused\n"
    assert settled(site, 1) == [[], [b"1"]]


def test_an_empty_queue_is_no_error(site: Site) -> None:
    done = replay(site)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 messages replayed, 0 stay in queue parked\n", "")
