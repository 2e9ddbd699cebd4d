"""The address table in a running sidecar: exchanges and queues on the same broker, other brokers, failures, returns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pamqp import commands

from tests import client
from tests.broker.delivery.distance import QUOTED, SECRET, VHOST, Far
from tests.broker.delivery.site import Site, only, standing
from tests.broker.delivery.test_audit import records
from tests.broker.observed import Outside
from tests.private_broker import free_port
from tests.producer import Closed, Producer, Settled, until, value
from tests.rabbitmq import Broker

RULES = """
queues: [a, b, c]
exchanges:
  - name: letters
    bindings:
      - {{queue: a, arguments: {{"x-?rk=": one}}}}
      - {{queue: swapped, arguments: {{"x-?rk=": swapped}}}}
      - {{queue: away, arguments: {{"x-?rk=": away}}}}
      - {{queue: a, arguments: {{"x-?rk=": both, x-addq-ontrue: [away]}}}}
      - {{queue: keyed, arguments: {{"x-?rk=": keyed}}}}
      - {{queue: broken, arguments: {{"x-?rk=": broken, x-addq-ontrue: [a]}}}}
  - name: plainly
    delivery: queue
    bindings:
      - {{queue: a}}
brokers:
  far: {{address: "127.0.0.1:{port}", username: mover, password: {secret}, vhost: {vhost}, deadline: 20s}}
  safe: {{address: "localhost:{tls}", tls: {{ca: {ca}}}, username: mover, password: {secret}, vhost: {vhost}}}
  strange: {{address: "127.0.0.1:{tls}", tls: {{ca: {ca}}}, username: mover, password: {secret}, deadline: 1s}}
  unknown: {{address: "localhost:{tls}", tls: {{}}, username: mover, password: {secret}, deadline: 1s}}
  stranger: {{address: "127.0.0.1:{port}", username: mover, password: not-{secret}, vhost: {vhost}, deadline: 1s}}
  nobody: {{address: "127.0.0.1:{nobody}", deadline: 1s}}
addresses:
  - {{pattern: swapped, translation: /queue/b}}
  - {{pattern: away, translation: far/queue/away}}
  - {{pattern: keyed, translation: /exchange/plain/other}}
  - {{pattern: broken, translation: /exchange//nothing}}
  - {{pattern: "moved/*", translation: /queue/$1}}
  - {{pattern: "evaluated/*", translation: /exchange/letters/$1}}
  - {{pattern: "queued/*", translation: /exchange/plainly/$1}}
  - {{pattern: /exchange/other/*, translation: /exchange/plain/$1}}
  - {{pattern: /exchange/same/*, translation: far}}
  - {{pattern: "far/*", translation: far/queue/$1}}
  - {{pattern: "far-exchange/*", translation: far/exchange/$1/key}}
  - {{pattern: "uri/*", translation: "amqp://mover:{quoted}@127.0.0.1:{port}/queue/$1"}}
  - {{pattern: "tls/*", translation: safe/queue/$1}}
  - {{pattern: "strange/*", translation: strange/queue/$1}}
  - {{pattern: "unknown/*", translation: unknown/queue/$1}}
  - {{pattern: "stranger/*", translation: stranger/queue/$1}}
  - {{pattern: "nobody/*", translation: nobody/queue/$1}}
  - {{pattern: "dying/*", translation: /queue/dying}}
  - {{pattern: "amqp://*", translation: /queue/b}}
  - {{pattern: "loop/*", translation: "amqp://guest:guest@$1/loop/$1", hosts: ["*"]}}
"""


def prepare(outside: Outside) -> None:
    outside.make_exchange("plain", "topic")
    outside.make_exchange("other", "fanout")
    outside.make_queue("c")
    outside.make_exchange("graves", "fanout")
    outside.make_queues("b")
    outside.bind("graves", "b", "")
    outside.broker.create_queue(
        outside.vhost,
        "dying",
        x_message_ttl=0,
        x_dead_letter_exchange="graves",
        x_dead_letter_routing_key="dug",
    )
    outside.bind("plain", "c", "#")


@pytest.fixture(scope="module")
def running(broker: Broker, far: Far, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    (folder / "audit").mkdir()
    settings = {"audit": {"directory": "audit", "headers": []}}
    with standing(broker, folder, far.rules(RULES).replace('not-"', '"not-'), settings, prepare) as site:
        far.broker.create_vhost(site.vhost)
        far.broker.grant("mover", site.vhost)
        Outside(far.broker, site.vhost).make_queue("uri")
        yield site


def sent(producer: Producer, key: str, exchange: str = "", **more: object) -> Settled:
    return producer.send_settled(exchange, key, **more)


# -- on the same broker ------------------------------------------------------------------------------------------------


def test_a_publish_goes_to_another_queue_with_its_original_address(site: Site, producer: Producer) -> None:
    assert sent(producer, "moved/b", body=b"moved").acked
    message = site.next("b")
    assert (message.body, message.address) == (b"moved", ("", "b"))
    fields = {"exchange": b"", "routing-key": b"moved/b", "new-exchange": b"", "new-routing-key": b"b"}
    assert message.headers == {"x-original-address": value(fields)}


def test_a_consumer_through_the_sidecar_sees_the_original(site: Site, producer: Producer) -> None:
    for _ in range(2):
        sent(producer, "moved/b", table={"k": 1})
    got = producer.get("b")
    assert got is not None
    producer.ask(commands.Basic.Consume(queue="b", consumer_tag="me", no_ack=True))
    for message in (got, producer.delivery()):
        assert (message.address, list(message.headers)) == (("", "moved/b"), ["k"])
    producer.ask(commands.Basic.Cancel(consumer_tag="me"))


def test_a_dead_lettered_message_keeps_the_address_that_the_broker_set(site: Site, producer: Producer) -> None:
    """The message was dead-lettered out of the queue that the rule chose, so the broker has set its address."""
    sent(producer, "dying/one")
    message = site.next("b", producer)
    assert message.address == ("graves", "dug")
    assert {"x-original-address", "x-death"} <= set(message.headers)


def test_a_password_in_an_address_is_kept_for_receivers_and_causes_one_warning(site: Site, producer: Producer) -> None:
    for number in range(3):
        sent(producer, f"amqp://u:0pen@h/{number}")
    until(lambda: site.logged("passwords that receivers can see"))
    message = producer.get("b")
    assert message is not None
    assert message.key == "amqp://u:0pen@h/0"
    (line,) = site.logged("passwords that receivers can see")
    assert "rule=18" in line
    assert "0pen" not in site.sidecar.log.read_text()
    site.take("b")


def test_a_publish_to_an_exchange_goes_to_another_exchange_under_the_rules_key(site: Site, producer: Producer) -> None:
    sent(producer, "x.y", "other")
    message = site.next("c")
    assert message.address == ("plain", "x.y")


def test_a_translation_to_an_open_exchange_is_evaluated_there_under_the_new_key(site: Site, producer: Producer) -> None:
    assert sent(producer, "evaluated/one", body=b"e").acked
    message = site.next("a")
    assert (message.body, message.address) == (b"e", ("letters", "one"))
    sent(producer, "evaluated/one")
    through = only(producer.take("a"))
    assert (through.address, through.headers) == (("", "evaluated/one"), {})


def test_the_original_is_restored_after_a_translation_to_queue_delivery(site: Site, producer: Producer) -> None:
    sent(producer, "queued/k")
    through = only(producer.take("a"))
    assert (through.address, through.headers) == (("", "queued/k"), {})


def test_a_queue_that_an_open_exchange_chose_is_translated_without_a_header(site: Site, producer: Producer) -> None:
    assert sent(producer, "swapped", "letters").acked
    message = site.next("b")
    assert (message.address, message.headers) == (("letters", "swapped"), {})


def test_a_queue_that_an_open_exchange_chose_can_become_an_exchange_under_another_key(
    site: Site, producer: Producer
) -> None:
    assert sent(producer, "keyed", "letters").acked
    assert site.next("c").address == ("plain", "other")
    sent(producer, "keyed", "letters")
    through = only(producer.take("c"))
    assert (through.address, through.headers) == (("letters", "keyed"), {})


def test_an_unroutable_mandatory_publish_returns_with_its_original_address(producer: Producer) -> None:
    settled = sent(producer, "moved/none", mandatory=True)
    assert [message.address for message in settled.returned] == [("", "moved/none")]
    assert settled.acked


def test_with_one_unusable_destination_the_others_are_reached_and_the_publish_is_nacked(
    site: Site, producer: Producer
) -> None:
    assert not sent(producer, "broken", "letters", body=b"half").acked
    assert site.next("a").body == b"half"


# -- on other brokers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["far/one", "tls/one"])
@pytest.mark.parametrize("size", [0, 5, 300_000])
def test_a_publish_goes_to_another_broker_and_is_acked_by_it(far: Far, producer: Producer, key: str, size: int) -> None:
    assert sent(producer, key, body=b"x" * size).acked
    assert far.take("one") == [b"x" * size]


def test_credentials_in_an_address_log_in_to_the_producers_virtual_host(
    site: Site, far: Far, producer: Producer
) -> None:
    assert sent(producer, "uri/uri", body=b"u").acked
    with Producer(far.broker.port, site.vhost).open() as reader:
        assert [message.body for message in reader.take("uri")] == [b"u"]


def test_properties_are_sent_unchanged_with_one_added_header(far: Far, producer: Producer) -> None:
    table = {"n": 5, "t": {"deep": [1, "two"]}}
    sent(producer, "far/one", table=table, content_type=b"text/plain", priority=3, message_id=b"m-1")
    sent(producer, "k", "same", table=table, content_type=b"text/plain", priority=3, message_id=b"m-1")
    with far.reader() as reader:
        moved, same = reader.take("one")
    assert (same.address, moved.address) == (("same", "k"), ("", "one"))
    assert same.entries is not None
    assert moved.entries is not None
    assert "x-original-address" not in same.headers
    assert moved.entries.startswith(same.entries)
    assert set(moved.headers) == {"n", "t", "x-original-address"}
    assert moved.properties.endswith(b"\x03\x03m-1")


def test_a_destination_of_an_open_exchange_is_on_another_broker_and_the_others_are_here(
    site: Site, far: Far, producer: Producer
) -> None:
    assert sent(producer, "away", "letters", body=b"1").acked
    assert sent(producer, "both", "letters", body=b"2").acked
    assert far.take("away") == [b"1", b"2"]
    assert site.next("a").body == b"2"


def test_publishes_of_one_channel_stay_in_order_at_each_broker_and_every_tag_is_acked_once(
    site: Site, far: Far, producer: Producer
) -> None:
    keys = ["far/load", "moved/b", "b"] * 100
    for number, key in enumerate(keys):
        producer.publish("", key, body=b"%d" % number)
    producer.settle_all(len(keys))
    assert far.take("load") == [b"%d" % number for number in range(0, 300, 3)]
    assert [message.body for message in site.take("b")] == [b"%d" % n for n in range(300) if n % 3]


@pytest.mark.parametrize("confirm", [True, False])
def test_a_mandatory_publish_unroutable_at_the_other_broker_returns_with_its_original_address(
    site: Site, confirm: bool
) -> None:
    producer = site.producer(confirm=confirm)
    producer.publish("", "far/none", body=b"back", mandatory=True)
    returned = producer.message(producer.expect("Basic.Return"))
    assert (returned.address, returned.body, returned.method["reply_code"]) == (("", "far/none"), b"back", 312)
    if confirm:
        assert producer.settle().acked


def test_a_missing_exchange_fails_its_publish_and_keeps_the_channel(far: Far, producer: Producer) -> None:
    assert not sent(producer, "far-exchange/none").acked
    assert sent(producer, "far/one", body=b"after").acked
    assert far.take("one") == [b"after"]


def test_a_missing_exchange_of_one_producer_does_not_affect_another(site: Site, far: Far, producer: Producer) -> None:
    second = site.producer()
    for _ in range(20):
        producer.publish("", "far-exchange/none")
        second.publish("", "far/one")
    second.settle_all(20)
    assert not any(producer.settle().acked for _ in range(20))
    assert len(far.take("one")) == 20


def test_headers_that_no_broker_can_decode_end_only_the_connection_of_their_producer(site: Site, far: Far) -> None:
    good, bad = site.producer(), site.producer()
    for number in range(50):
        good.publish("", "far/one", body=b"%d" % number)
        if number == 25:
            bad.publish("", "far/one", {"n": float("nan")})
    closed = bad.closed(0)
    assert (closed.code, closed.text) == (502, "SYNTAX_ERROR - a number in the headers is infinite or NaN")
    good.settle_all(50)
    assert len(far.take("one")) == 50


@pytest.mark.parametrize("key", ["strange/one", "unknown/one", "stranger/one", "nobody/one"])
def test_an_unreachable_or_foreign_broker_causes_a_nack_at_the_deadline(producer: Producer, key: str) -> None:
    assert not sent(producer, key).acked
    assert sent(producer, "a").acked


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1"])
def test_a_translation_back_to_the_sidecar_fails_without_a_loop(site: Site, producer: Producer, host: str) -> None:
    before = site.metric("publishes_total", outcome="translated")
    assert not sent(producer, f"loop/{host}:{site.sidecar.port}").acked
    assert sent(producer, "a").acked
    assert site.metric("publishes_total", outcome="translated") - before <= 1
    site.take("a")


def test_the_log_states_why_a_broker_was_not_reached(site: Site, producer: Producer) -> None:
    for key in ("strange/one", "unknown/one", "stranger/one", "nobody/one"):
        producer.publish("", key)
    for word in (
        "IP address mismatch",
        "self-signed certificate in certificate chain",
        "403 ACCESS_REFUSED",
        "Connection refused",
    ):
        until(lambda word=word: word in site.sidecar.log.read_text().replace("self signed", "self-signed"))  # type: ignore[misc]


def test_a_user_id_of_somebody_else_fails_its_publish_only(far: Far, producer: Producer) -> None:
    assert not sent(producer, "far/one", user_id=b"guest").acked
    assert sent(producer, "far/one", user_id=b"mover", body=b"mine").acked
    assert far.take("one") == [b"mine"]


def test_the_audit_names_broker_and_rule(site: Site, producer: Producer) -> None:
    for key, exchange in (("far/one", ""), ("moved/b", ""), ("both", "letters"), ("broken", "")):
        sent(producer, key, exchange, message_id=f"audited {exchange}{key}".encode())
    audited: dict[object, dict[str, object]] = {}

    def all_there() -> bool:
        lines = records(site.sidecar.folder / "audit")
        audited.update({line["message_id"]: line for line in lines if str(line["message_id"]).startswith("audited")})
        return len(audited) == 4

    until(all_there)
    wanted = ("outcome", "queues", "remotes", "rule", "reason")
    fields = {str(key).removeprefix("audited "): [line[name] for name in wanted] for key, line in audited.items()}
    assert fields == {
        "far/one": ["translated", [], ["far"], 9, None],
        "moved/b": ["translated", ["b"], [], 4, None],
        "lettersboth": ["routed", ["a"], ["far"], 1, None],
        "broken": ["unrouted", [], [], 3, "translation_failed"],
    }
    site.take("a")
    site.take("b")


def test_a_transaction_can_not_reach_another_broker(site: Site) -> None:
    producer = site.producer(confirm=False)
    producer.ask(commands.Tx.Select())
    producer.publish("", "moved/b")
    producer.ask(commands.Tx.Commit())
    assert len(site.take("b")) == 1
    producer.publish("", "far/one")
    closed: Closed = producer.closed()
    assert (closed.code, closed.method) == (406, (60, 40))


def test_publishes_before_a_connection_close_are_delivered(site: Site, far: Far) -> None:
    producer = site.producer(confirm=False)
    for number in range(50):
        producer.publish("", "far/load", body=b"%d" % number)
    producer.close()
    bodies: list[bytes] = []

    def all_there() -> bool:
        bodies.extend(far.take("load"))
        return len(bodies) == 50

    until(all_there)
    assert bodies == [b"%d" % number for number in range(50)]


def test_a_blocked_broker_delays_only_its_own_publishes(site: Site, far: Far) -> None:
    home, away = site.producer(), site.producer()
    assert sent(away, "far/load").acked
    with far.blocked():
        for number in range(10):
            away.publish("", "far/load", body=b"%d" % number)
        for _ in range(10):
            assert sent(home, "b").acked
        assert away.silent()
    for tag in range(2, 12):
        assert away.settle().acked, tag
    assert len(far.take("load")) == 11
    site.take("b")


def test_metrics_cover_each_broker(site: Site, producer: Producer) -> None:
    before = site.metric("remote_publishes_total", broker="far", result="acked")
    assert sent(producer, "far/one").acked
    until(lambda: site.metric("remote_publishes_total", broker="far", result="acked") == before + 1)
    assert site.metric("remote_up", broker="far") == 1
    sent(producer, "nobody/one")
    until(lambda: site.metric("remote_publishes_total", broker="nobody", result="lost") >= 1)
    assert site.metric("remote_up", broker="nobody") == 0


def test_credentials_are_in_no_log_metric_status_or_audit_line(site: Site, far: Far, producer: Producer) -> None:
    for key in ("far/one", "uri/uri", "stranger/one", "broken"):
        sent(producer, key, mandatory=True)
    texts = [site.sidecar.log.read_text(), site.sidecar.get("/metrics"), site.sidecar.get("/status")]
    for word in (SECRET, QUOTED):
        assert not any(word in text for text in texts)
    folder = Path(site.sidecar.folder) / "audit"
    assert not any(SECRET.encode() in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_new_rules_change_the_table_and_the_brokers(broker: Broker, far: Far, tmp_path: Path) -> None:
    with standing(broker, tmp_path, "addresses: [{pattern: k, translation: /queue/none}]\n") as site:
        producer = site.producer()
        assert [message.key for message in sent(producer, "k", mandatory=True).returned] == ["k"]
        login = f"username: mover, password: {json.dumps(SECRET)}, vhost: {json.dumps(VHOST)}"
        text = f"brokers: {{new: {{address: '127.0.0.1:{far.broker.port}', {login}}}}}\n"
        table = "addresses: [{pattern: k, translation: new/queue/one}]\n"
        site.reload(text + table)
        assert sent(producer, "k", body=b"reloaded").acked
        assert far.take("one")[-1] == b"reloaded"


def test_open_channels_and_waiting_messages_follow_a_broker_to_its_new_address(
    broker: Broker, far: Far, tmp_path: Path
) -> None:
    def rules(port: int) -> str:
        login = f"username: mover, password: {json.dumps(SECRET)}, vhost: {json.dumps(VHOST)}, deadline: 60s"
        return (
            f"brokers: {{new: {{address: '127.0.0.1:{port}', {login}}}}}\n"
            "addresses: [{pattern: k, translation: new/queue/one}]\n"
        )

    def links(site: Site) -> list[dict[str, object]]:
        status: list[dict[str, object]] = json.loads(site.sidecar.get("/status"))["remotes"]
        return status

    far.take("one")
    with standing(broker, tmp_path, rules(free_port())) as site:
        producer = site.producer()
        producer.publish("", "k", body=b"waits")
        until(lambda: links(site))
        site.reload(rules(far.broker.port))
        producer.publish("", "k", body=b"follows")
        producer.settle_all(2)
        assert far.take("one") == [b"waits", b"follows"]
        assert [link["connected"] for link in links(site)] == [True]
        assert site.metric("remote_up", broker="new") == 1


def test_an_immediate_publish_to_another_broker_is_refused_as_by_the_broker(site: Site) -> None:
    texts = set()
    for port in (site.sidecar.port, site.broker.port):
        with Producer(port, site.vhost).open() as producer:
            producer.call(commands.Basic.Publish(exchange="", routing_key="far/one", immediate=True))
            producer.send(client.content(1, None, b"x"))
            closed = producer.closed(0)
            texts.add((closed.code, closed.text, closed.method))
    assert len(texts) == 1


def test_a_consumer_survives_a_forged_address_with_a_name_that_is_too_long(site: Site) -> None:
    fields = {"exchange": b"plainly", "routing-key": b"k" * 300, "new-exchange": b"", "new-routing-key": b"a"}
    site.direct.publish("", "a", {"x-original-address": fields}, body=b"forged")
    assert site.next("a", site.producer()).body == b"forged"
