"""How destinations are bound, deleted and bound again: tokens on a real broker, while producers publish."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pamqp import commands

from tests.broker.delivery.site import Site, standing
from tests.broker.observed import Outside
from tests.client import method
from tests.producer import Closed, Producer, until
from tests.rabbitmq import Broker

RULES = """
queues: [base]
exchanges:
  - name: jobs
    bindings:
      - queue: base
        arguments:
          "x-?hkex": chosen
          x-msg-addq-ontrue: ""
          x-msg-adde-ontrue: ""
      - {queue: mine, arguments: {"x-?hkv= to": mine, x-addq-ontrue: base}}
      - {queue: theirs, arguments: {"x-?hkv= to": theirs, x-addq-ontrue: base}}
      - {queue: late, arguments: {"x-?hkv= to": late}}
      - {queue: flighty, arguments: {"x-?hkv= to": flighty}}
      - {queue: base, arguments: {"x-?hkv= to": teams, x-addqre-ontrue: "^team[.]"}}
      - {exchange: downstream, arguments: {"x-?hkv= to": downstream}}
"""
SETTINGS = {"inventory": {"refresh": "100ms"}}


def prepare(outside: Outside) -> None:
    outside.make_exchange("downstream", "topic")
    for queue, key in (("under.key", "*.key"), ("under.cc", "cc"), ("under.tokens", "x.#")):
        outside.make_queue(queue)
        outside.bind("downstream", queue, key)
    outside.make_exchange("not.downstream", "topic")
    outside.bind("not.downstream", "under.tokens", "x.#")


# -- exclusive queues --------------------------------------------------------------------------------------------------


def test_an_exclusive_queue_declared_through_us_is_bound_before_its_declare_ok(site: Site, producer: Producer) -> None:
    owner = site.producer()
    owner.declare("mine", exclusive=True)
    top = owner.tune["channel_max"]
    assert isinstance(top, int)
    # The highest channel is the sidecar's own, so a refused bind does not close a channel of the producer.
    sent = [frame.name for frame in site.upstream().frames if frame.channel == top + 1]
    assert (sent[0], set(sent[1:])) == ("Channel.Open", {"Queue.Bind"})  # with each candidate
    assert producer.send_settled("jobs", "k", {"to": "mine"}, b"1") == (True, [])
    assert [message.body for message in owner.take("mine")] == [b"1"]
    assert site.bodies("base") == [[b"1"]]
    owner.close()
    until(lambda: "queue mine" in site.status["missing"])


def test_an_exclusive_queue_of_a_client_of_the_broker_is_missing_with_the_reason(
    site: Site, producer: Producer
) -> None:
    with Producer(site.broker.port, site.vhost).open() as owner:
        owner.declare("theirs", exclusive=True)
        until(lambda: "exclusive" in site.status["missing"].get("queue theirs", ""))
        assert producer.send_settled("jobs", "k", {"to": "theirs"}, b"1") == (True, [])
        assert owner.take("theirs") == []
    assert site.bodies("base") == [[b"1"]]


def test_an_exclusive_queue_that_a_producer_chooses_never_closes_its_channel(site: Site, producer: Producer) -> None:
    with Producer(site.broker.port, site.vhost).open() as owner:
        owner.declare("private", exclusive=True)
        for body in (b"1", b"2"):
            table = {"chosen": 1, "x-addq-ontrue": "private"}
            assert producer.send_settled("jobs", "k", table, body, mandatory=True) == (True, [])
        assert owner.take("private") == []
    assert site.bodies("base") == [[b"1", b"2"]]


# -- binding on demand -------------------------------------------------------------------------------------------------


def test_a_queue_that_a_producer_chooses_is_bound_once(site: Site, producer: Producer) -> None:
    site.make_queue("extra")
    for body in (b"1", b"2"):
        assert producer.send_settled("jobs", "k", {"chosen": 1, "x-addq-ontrue": "extra"}, body).acked
    assert len(site.upstream().named("Basic.Publish")) == 2
    assert site.bodies("base", "extra") == [[b"1", b"2"], [b"1", b"2"]]
    assert ("queue", b"extra") in site.bound("jobs")


def test_an_exchange_that_a_producer_chooses_is_bound_first(site: Site, producer: Producer) -> None:
    assert producer.send_settled("jobs", "some.key", {"chosen": 1, "x-adde-ontrue": "downstream"}).acked
    assert site.bodies("base", "under.key") == [[b"body"], [b"body"]]


def test_publishes_of_a_channel_keep_their_order_while_one_waits_for_its_queue(site: Site, producer: Producer) -> None:
    names = [f"new.{number}" for number in range(5)]
    site.make_queues(*names)
    bodies = []
    for number, name in enumerate(names):
        bodies += [b"chosen %d" % number, b"plain %d" % number]
        producer.publish("jobs", "k", {"chosen": 1, "x-addq-ontrue": name}, bodies[-2])
        producer.publish("jobs", "k", {"chosen": 1}, bodies[-1])
    producer.settle_all(len(bodies))
    assert site.bodies("base", *names) == [bodies, *([body] for body in bodies[::2])]


def test_a_missing_destination_is_skipped(site: Site, producer: Producer) -> None:
    for body in (b"1", b"2"):
        table = {"chosen": 1, "x-addq-ontrue": ["nowhere", "", "nowhere.else"]}
        assert producer.send_settled("jobs", "k", table, body, mandatory=True) == (True, [])
    assert site.bodies("base") == [[b"1", b"2"]]


def test_a_missing_queue_is_found_once_it_is_declared_through_us(site: Site, producer: Producer) -> None:
    table = {"chosen": 1, "x-addq-ontrue": "newborn"}
    producer.send_settled("jobs", "k", table, b"1")
    site.producer().declare("newborn")
    producer.send_settled("jobs", "k", table, b"2")
    assert site.bodies("base", "newborn") == [[b"1", b"2"], [b"2"]]


def test_a_regex_route_sees_a_queue_as_soon_as_its_declare_is_answered(site: Site, producer: Producer) -> None:
    producer.send_settled("jobs", "k", {"to": "teams"}, b"1")
    declaring = site.producer()
    declaring.declare("team.blue")
    producer.send_settled("jobs", "k", {"to": "teams"}, b"2")
    declaring.ask(commands.Queue.Delete(queue="team.blue"))
    assert producer.send_settled("jobs", "k", {"to": "teams"}, b"3").acked
    declaring.declare("team.blue")
    producer.send_settled("jobs", "k", {"to": "teams"}, b"4")
    assert site.bodies("base", "team.blue") == [[b"1", b"2", b"3", b"4"], [b"4"]]
    declaring.ask(commands.Queue.Delete(queue="team.blue"))


def test_a_regex_route_sees_a_queue_declared_on_the_broker(site: Site, producer: Producer) -> None:
    site.make_queue("team.red")

    def arrives() -> bool:
        producer.send_settled("jobs", "k", {"to": "teams"}, b"x")
        return bool(site.take("team.red"))

    until(arrives, seconds=5)
    site.delete_queue("team.red")
    site.take("base")


# -- queues that are deleted and declared again ------------------------------------------------------------------------


def test_a_queue_declared_again_through_us_is_bound_before_its_declare_ok(site: Site, producer: Producer) -> None:
    declaring = site.producer()
    for body in (b"1", b"2", b"3"):
        declaring.declare("late")
        assert producer.send_settled("jobs", "k", {"to": "late"}, body, mandatory=True) == (True, [])
        assert [message.body for message in declaring.take("late")] == [body]
        declaring.ask(commands.Queue.Delete(queue="late"))
        assert len(producer.send_settled("jobs", "k", {"to": "late"}, mandatory=True).returned) == 1


def test_a_repeated_declare_is_answered_by_the_broker(site: Site, producer: Producer) -> None:
    producer.declare("late")
    producer.publish("jobs", "k", {"to": "late"})
    producer.settle()
    answer = producer.ask(commands.Queue.Declare(queue="late", passive=True))
    assert answer.arguments == {"queue": "late", "message_count": 1, "consumer_count": 0}
    producer.ask(commands.Queue.Delete(queue="late"))
    with pytest.raises(Closed, match="no queue 'late'"):
        producer.ask(commands.Queue.Declare(queue="late", passive=True))


def test_a_queue_declared_with_nowait_is_found_in_the_next_pass_at_the_latest(site: Site, producer: Producer) -> None:
    producer.call(commands.Queue.Declare(queue="at.once", nowait=True))

    def arrives() -> bool:
        producer.send_settled("jobs", "k", {"chosen": 1, "x-addq-ontrue": "at.once"})
        return bool(site.take("at.once"))

    until(arrives, seconds=5)
    site.take("base")


def test_a_queue_deleted_and_declared_again_on_the_broker_is_bound_again(site: Site, producer: Producer) -> None:
    site.make_queue("flighty")
    until(lambda: ("queue", b"flighty") in site.bound("jobs"), seconds=5)
    for _ in range(2):
        site.delete_queue("flighty")
        site.make_queue("flighty")
        until(lambda: ("queue", b"flighty") in site.bound("jobs"), seconds=5)
        assert producer.send_settled("jobs", "k", {"to": "flighty"}, b"x", mandatory=True) == (True, [])
        assert site.bodies("flighty") == [[b"x"]]


def test_a_queue_deleted_on_the_broker_is_missing_in_the_metric_and_in_one_log_line(
    site: Site, producer: Producer
) -> None:
    site.make_queue("flighty")
    until(lambda: "queue flighty" not in site.status["missing"])
    until(lambda: site.metric("topology_missing_destinations") == len(site.status["missing"]))
    before, lines = len(site.status["missing"]), len(flighty_lines(site))
    site.delete_queue("flighty")
    until(lambda: site.metric("topology_missing_destinations") == before + 1)
    looked = site.status["refreshed_at"]
    until(lambda: site.status["refreshed_at"] > looked + 0.3)
    assert len(flighty_lines(site)) == lines + 1
    assert site.status["missing"]["queue flighty"] == "does not exist"
    site.make_queue("flighty")
    until(lambda: [line for line in site.logged("destinations found") if "queue flighty" in line])


def flighty_lines(site: Site) -> list[str]:
    return [line for line in site.logged("destinations missing") if "queue flighty: does not exist" in line]


# -- exchanges as destinations, and foreign bindings -------------------------------------------------------------------


def test_an_exchange_as_destination_routes_by_key_and_cc(site: Site, producer: Producer) -> None:
    producer.send_settled("jobs", "some.key", {"to": "downstream", "CC": ["cc"]})
    assert site.bodies("under.key", "under.cc") == [[b"body"], [b"body"]]
    site.take("under.tokens")


def test_a_pattern_that_matches_tokens_causes_a_warning_at_load(site: Site) -> None:
    [line] = site.logged("pattern that matches destination tokens")
    assert "downstream" in line
    assert "under.tokens" in line
    assert "x.#" in line


def test_a_foreign_binding_is_reported(site: Site, producer: Producer) -> None:
    site.make_queue("foreign")
    site.bind("jobs", "foreign", "foreign.key")
    until(lambda: site.metric("topology_foreign_bindings") == 1)
    assert site.status["foreign"] == {"jobs": ["queue foreign with key 'foreign.key'"]}
    producer.send_settled("jobs", "k", {"chosen": 1, "CC": ["foreign.key"]}, b"cc")
    producer.send_settled("jobs", "foreign.key", {"chosen": 1}, b"key")
    assert site.bodies("foreign") == [[b"cc", b"key"]]
    site.delete_queue("foreign")
    until(lambda: site.metric("topology_foreign_bindings") == 0)
    [line] = site.logged("bypass the rules")  # once, although several passes have found it
    assert "queue foreign with key 'foreign.key'" in line
    site.take("base")


def test_a_foreign_binding_is_removed_if_so_configured(
    broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = {"inventory": {"refresh": "100ms", "foreign_bindings": "remove"}}
    rules = "queues: [a]\nexchanges: [{name: strict, bindings: [{queue: a}]}]\n"
    with standing(broker, tmp_path_factory.mktemp("strict"), rules, settings) as site:
        ours = site.bindings("strict")
        site.bind("strict", "a", "foreign.key", x=1)
        until(lambda: site.logged("foreign binding removed"))
        assert site.bindings("strict") == ours


#: Exchanges whose destinations are declared later.
LATER_RULES = """
exchanges:
  - {name: carrier, bindings: [{exchange: behind.carrier}]}
  - {name: queue, delivery: queue, bindings: [{exchange: behind.queue}]}
  - {name: both, bindings: [{queue: late}, {exchange: behind.both}]}
  - {name: temporary, bindings: [{exchange: behind.temporary}]}
  - {name: queued, delivery: queue, bindings: [{queue: newborn}]}
"""


@pytest.fixture(scope="module")
def unrefreshed(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site that learns of new destinations only from the declarations that pass through it."""
    settings = {"inventory": {"refresh": "1h"}}
    with standing(broker, tmp_path_factory.mktemp("later"), LATER_RULES, settings) as site:
        site.make_queue("under")
        yield site


@pytest.fixture
def later(unrefreshed: Site) -> Iterator[Site]:
    yield unrefreshed
    unrefreshed.tidy()


@pytest.mark.parametrize("nowait", [False, True])
@pytest.mark.parametrize("delivery", ["carrier", "queue"])
def test_an_exchange_that_was_missing_gets_messages_as_soon_as_it_is_declared_through_us(
    later: Site, delivery: str, nowait: bool
) -> None:
    behind = f"behind.{delivery}"
    declare = commands.Exchange.Declare(exchange=behind, exchange_type="fanout", nowait=nowait)
    producer, declaring = later.producer(), later.producer()
    for body in (b"1", b"2"):
        assert len(producer.send_settled(delivery, "k", {}, b"lost", mandatory=True).returned) == 1
        declaring.call(declare)
        if not nowait:
            declaring.expect("Exchange.DeclareOk")
        declaring.ask(commands.Queue.Bind(queue="under", exchange=behind))
        assert producer.send_settled(delivery, "k", {}, body, mandatory=True) == (True, [])
        assert later.bodies("under") == [[body]]
        declaring.ask(commands.Exchange.Delete(exchange=behind))


def test_a_queue_that_was_missing_gets_messages_of_queue_delivery_as_soon_as_it_is_declared_through_us(
    later: Site,
) -> None:
    producer = later.producer()
    assert len(producer.send_settled("queued", "k", {}, mandatory=True).returned) == 1
    later.producer().declare("newborn")
    assert producer.send_settled("queued", "k", {}, mandatory=True) == (True, [])
    assert later.bodies("newborn") == [[b"body"]]


def test_destinations_deleted_elsewhere_get_messages_as_soon_as_they_are_declared_again_with_nowait(
    later: Site,
) -> None:
    exchange = commands.Exchange.Declare(exchange="behind.both", exchange_type="fanout", nowait=True)
    queue = commands.Queue.Declare(queue="late", durable=True, nowait=True)
    bind = commands.Queue.Bind(queue="under", exchange="behind.both", nowait=True)
    delete = (
        commands.Exchange.Delete(exchange="behind.both", nowait=True),
        commands.Queue.Delete(queue="late", nowait=True),
    )
    producer = later.producer()
    for number, deleted in enumerate(((), (), delete, delete), start=1):
        producer.send(*(method(1, command) for command in (*deleted, exchange, queue, bind)))
        assert producer.send_settled("both", "k", {}, mandatory=True) == (True, [])
        assert later.bodies("late", "under") == [[b"body"], [b"body"]]
        if number == 1:
            later.delete_queue("late")
            later.delete_exchange("behind.both")


def test_an_auto_delete_exchange_gets_messages_as_soon_as_it_is_declared_again(later: Site) -> None:
    declare = commands.Exchange.Declare(exchange="behind.temporary", exchange_type="fanout", auto_delete=True)
    producer, declaring = later.producer(), later.producer()
    for body in (b"1", b"2", b"3"):
        for _ in range(2):
            declaring.ask(declare)
        declaring.ask(commands.Queue.Bind(queue="under", exchange="behind.temporary"))
        assert producer.send_settled("temporary", "k", {}, body, mandatory=True) == (True, [])
        assert later.bodies("under") == [[body]]
        # With its last binding, the broker also deletes the exchange and the bindings to it.
        declaring.ask(commands.Queue.Unbind(queue="under", exchange="behind.temporary"))


def test_an_exchange_declared_again_gets_messages_of_the_rules_if_a_client_has_bound_it_too(
    broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rules = "exchanges: [{name: jobs, bindings: [{exchange: downstream}]}]"
    settings = {"inventory": {"refresh": "1h"}}
    declare = commands.Exchange.Declare(exchange="downstream", exchange_type="fanout")
    with standing(broker, tmp_path_factory.mktemp("again"), rules, settings) as site:
        site.make_queue("under")
        producer = site.producer()
        producer.ask(declare)
        producer.ask(commands.Exchange.Bind(destination="downstream", source="jobs", arguments={"x-?hkv= to": "x"}))
        site.direct.ask(commands.Exchange.Delete(exchange="downstream"))
        producer.ask(declare)
        producer.ask(commands.Queue.Bind(queue="under", exchange="downstream"))
        assert producer.send_settled("jobs", "k", {}, b"body", mandatory=True) == (True, [])
        assert site.bodies("under") == [[b"body"]]


def test_a_queue_declared_again_gets_messages_of_a_regex_route_if_a_client_had_bound_it(
    broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rules = "queues: [a]\nexchanges: [{name: jobs, bindings: [{queue: a, arguments: {x-addqre-ontrue: '^b'}}]}]"
    settings = {"inventory": {"refresh": "1h"}}
    with standing(broker, tmp_path_factory.mktemp("again"), rules, settings) as site:
        producer = site.producer()
        producer.declare("b", durable=True)
        producer.ask(commands.Queue.Bind(queue="b", exchange="jobs", arguments={"x-?hkv= to": "x"}))
        site.direct.ask(commands.Queue.Delete(queue="b"))
        producer.declare("b", durable=True)
        assert producer.send_settled("jobs", "k", {}, b"body") == (True, [])
        assert site.bodies("a", "b") == [[b"body"], [b"body"]]


def test_a_publish_waits_for_its_destination_if_the_control_connection_is_lost(
    broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rules = "queues: [a]\nexchanges: [{name: jobs, bindings: [{queue: a, arguments: {x-addqre-ontrue: '^b'}}]}]"
    settings = {"inventory": {"refresh": "1h"}}
    with standing(
        broker, tmp_path_factory.mktemp("lost"), rules, settings, lambda outside: outside.make_queue("b")
    ) as site:
        control, producer = site.upstream(), site.producer()
        before = len(control.named("Queue.Bind"))
        control.reading.clear()
        producer.publish("jobs", "k", {}, b"body")
        until(lambda: len(control.named("Queue.Bind")) > before)
        control.cut()
        assert producer.settle().acked
        assert site.bodies("a", "b") == [[b"body"], [b"body"]]


FORGED_RULES = """
exchanges:
  - name: strict
    carrier_type: topic
    bindings: [{queue: theirs}, {exchange: downstream, arguments: {"x-?hkv= to": downstream}}]
"""


def prepare_forgery(outside: Outside) -> None:
    outside.make_exchange("downstream", "topic")
    outside.make_queue("theirs")
    outside.make_queue("mine")


@pytest.fixture(scope="module")
def strict(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site that removes foreign bindings, with a client's binding to the queue `mine`."""
    settings = {"inventory": {"refresh": "100ms", "foreign_bindings": "remove"}}
    with standing(broker, tmp_path_factory.mktemp("forged"), FORGED_RULES, settings, prepare_forgery) as site:
        client = site.producer()
        client.ask(commands.Queue.Bind(queue="mine", exchange="strict", arguments={"x-?hkv= to": "mine"}))
        yield site


@pytest.mark.parametrize("key", ["x.o.p.e.n.x.r.#", "x.o.p.e.n.x.r.*.*", "x.o.p.e.n.x.r.q.*", "token"])
def test_a_foreign_binding_that_looks_like_one_of_the_sidecar_is_removed(strict: Site, key: str) -> None:
    [token] = [key.decode() for _, name, key in strict.bindings("strict") if name == b"theirs"]
    [signed] = [row["arguments"] for row in strict.rows("strict") if "x-oxproxy" in row["arguments"]]
    before, removed = strict.rows("strict"), len(strict.logged("foreign binding removed"))
    strict.broker.api(
        "POST",
        f"bindings/{strict.vhost}/e/strict/q/mine",
        {"routing_key": token if key == "token" else key, "arguments": signed},
    )
    until(lambda: len(strict.logged("foreign binding removed")) > removed)
    assert strict.rows("strict") == before
    producer = strict.producer()
    assert producer.send_settled("strict", "k", {}, b"x", mandatory=True) == (True, [])
    assert strict.bodies("theirs", "mine") == [[b"x"], []]


@pytest.mark.parametrize("key", ["x.o.p.e.n.x.r.#", "x.o.p.e.n.x.r.*.*"])
def test_a_foreign_binding_with_the_prefix_of_a_grant_is_reported(site: Site, producer: Producer, key: str) -> None:
    site.make_queue("foreign")
    site.bind("jobs", "foreign", key)
    until(lambda: site.metric("topology_foreign_bindings") == 1)
    site.delete_queue("foreign")
    until(lambda: site.metric("topology_foreign_bindings") == 0)
