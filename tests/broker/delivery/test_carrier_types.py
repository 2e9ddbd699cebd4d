"""The types of carriers and their tokens: the choice of a type, existing carriers, and changes under load."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event

import pytest

from oxproxy.relay.tokens import FEW_DESTINATIONS
from tests.broker.delivery.applications import Application
from tests.broker.delivery.site import standing, vhost_status
from tests.broker.observed import Outside
from tests.producer import Closed, Producer, until
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar

ONE_WORD = re.compile(rb"x-o-p-e-n-x-[qe]-[0-9a-f]{16}")
EIGHT_WORDS = re.compile(rb"x\.o\.p\.e\.n\.x\.[qe]\.[0-9a-f]{16}")
REFRESH = {"inventory": {"refresh": "200ms"}}
#: More destinations than a direct carrier may have.
MANY = FEW_DESTINATIONS + 1

RULES = """
queues: [a, b]
exchanges:
  - name: letters
    carrier_type: topic
    bindings:
      - {queue: a, arguments: {"x-?hkex": n}}
      - {queue: b, arguments: {"x-?hkv= n": 1}}
"""
WITH_EXCHANGE = RULES + '      - {exchange: copies, arguments: {"x-?hkex": copy}}\n'
#: How a carrier changes its type, as described on the page "Choose a carrier type".
ANOTHER_CARRIER = RULES.replace("carrier_type: topic", "carrier: letters.2\n    carrier_type: direct")
NO_CARRIER = RULES.replace("carrier_type: topic", "delivery: queue")


def keys(outside: Outside, carrier: str) -> list[bytes]:
    return sorted(key for _, _, key in outside.bindings(carrier))


def copies(outside: Outside) -> None:
    """A topic exchange downstream with a pattern that matches every key of one word, and its queue."""
    outside.make_exchange("copies", "topic")
    outside.make_queues("copied", "one-word")
    outside.bind("copies", "copied", "a.key")
    outside.bind("copies", "one-word", "*")


def pass_runs(sidecar: Sidecar, vhost: str) -> None:
    """Wait until the next reconcile pass of a virtual host has ended."""
    seen = vhost_status(sidecar, vhost)["refreshed_at"]
    until(lambda: vhost_status(sidecar, vhost)["refreshed_at"] != seen)


def scans(broker: Broker) -> bool:
    return broker.version < (3, 13)


# -- choice of a type --------------------------------------------------------------------------------------------------


def test_a_carrier_has_the_type_that_the_rules_request_or_the_broker_needs(broker: Broker, tmp_path: Path) -> None:
    named = "".join(f"      - {{queue: many.{number}}}\n" for number in range(MANY))
    rules = f"""
exchanges:
  - {{name: few, bindings: [{{queue: a}}]}}
  - {{name: direct, carrier_type: direct, bindings: [{{queue: a, arguments: {{x-addqre-ontrue: "^b"}}}}]}}
  - {{name: topic, carrier_type: topic, bindings: [{{queue: a}}]}}
  - {{name: spare, carrier_type: topic, arguments: {{alternate-exchange: amq.fanout}}, bindings: [{{queue: a}}]}}
  - {{name: onward, carrier_type: topic, bindings: [{{queue: a}}, {{exchange: amq.fanout}}]}}
  - {{name: regex, bindings: [{{queue: a, arguments: {{x-addqre-ontrue: "^b"}}}}]}}
  - name: many
    bindings:
{named}"""

    def prepare(outside: Outside) -> None:
        outside.make_queues("a", *(f"many.{number}" for number in range(MANY)))

    with standing(broker, tmp_path, rules, prepare=prepare) as site:
        auto = "topic" if scans(broker) else "direct"
        expected = {"few": "direct", "direct": "direct", "topic": "topic", "spare": "topic", "onward": "topic"}
        for name, carrier_type in {**expected, "regex": auto, "many": auto}.items():
            assert (name, site.exchange(name)["type"]) == (name, carrier_type)
        assert all(map(ONE_WORD.fullmatch, keys(site, "topic")))
        for name in ("spare", "onward", "direct", "few"):
            assert all(map(EIGHT_WORDS.fullmatch, keys(site, name)))
        producer = site.producer()
        for name in ("few", "direct", "topic", "spare", "onward", "regex", "many"):
            assert producer.send_settled(name, "k", mandatory=True) == (True, [])
        assert len(site.take("a")) == 6
        assert site.bodies("many.0", f"many.{MANY - 1}") == [[b"body"], [b"body"]]


@pytest.mark.parametrize("carrier_type", ["direct", "topic"])
def test_a_declared_exchange_has_the_carrier_type_of_its_declaration(
    broker: Broker, sidecar: Sidecar, vhost: str, carrier_type: str
) -> None:
    outside = Outside(broker, vhost)
    outside.make_queues("a", "b")
    with Application(sidecar.port, vhost) as app:
        app.exchange("ox", {"x-carrier-type": carrier_type})
        app.bind("a", "ox", {"x-?hkv= n": 1})
        app.bind("a", "ox", {"x-?hkv= n": 2})
        assert outside.exchange("ox")["type"] == carrier_type
        dot = "." if carrier_type == "direct" else "-"
        prefixes = [f"x.o.p.e.n.x.{kind}".replace(".", dot).encode() for kind in ("b.", "b.", "q.")]
        assert [key[: len(prefix)] for key, prefix in zip(keys(outside, "ox"), prefixes, strict=True)] == prefixes
        app.exchange("ox", {"x-carrier-type": carrier_type})
        other_type = {"direct": "topic", "topic": "direct"}[carrier_type]
        with pytest.raises(
            Closed, match=f"inequivalent arg 'x-carrier-type' for exchange 'ox' .*'{other_type}'"
        ) as caught:
            app.exchange("ox", {"x-carrier-type": other_type})
        assert caught.value.code == 406


def test_a_declaration_with_an_unknown_carrier_type_is_refused(sidecar: Sidecar, vhost: str) -> None:
    for value in ("fanout", "Topic", "", 1):
        with Application(sidecar.port, vhost) as app:
            with pytest.raises(Closed, match="x-carrier-type: expected auto, direct or topic") as caught:
                app.exchange("ox", {"x-carrier-type": value})
            assert caught.value.code == 406


@pytest.mark.parametrize(("there", "wanted"), [("direct", "auto"), ("topic", "direct")])
def test_an_existing_carrier_keeps_its_type(broker: Broker, tmp_path: Path, there: str, wanted: str) -> None:
    def prepare(outside: Outside) -> None:
        outside.make_exchange("letters", there, **{"x-open-exchange": True})

    rules = RULES.replace("carrier_type: topic", f"carrier_type: {wanted}")
    with standing(broker, tmp_path, rules, prepare=prepare) as site:
        assert site.exchange("letters")["type"] == there
        assert site.producer().send_settled("letters", "k", {"n": 1}, mandatory=True) == (True, [])
        assert site.bodies("a", "b") == [[b"body"], [b"body"]]
        form = ONE_WORD if there == "topic" else EIGHT_WORDS
        assert all(map(form.fullmatch, keys(site, "letters")))


def test_a_carrier_whose_type_is_not_the_requested_one_is_reported(broker: Broker, tmp_path: Path) -> None:
    def prepare(outside: Outside) -> None:
        outside.make_exchange("letters", "direct", **{"x-open-exchange": True})

    with standing(broker, tmp_path, RULES, REFRESH, prepare) as site:
        until(lambda: site.metric("carrier_bindings", vhost=site.vhost, type="direct", fits="no") >= 2)
        (sentence,) = site.status["unfit_carriers"]
        assert sentence.startswith("exchange letters: carrier letters is a direct exchange with ")
        assert sentence.endswith("carrier_type requests topic")


# -- changes under load ------------------------------------------------------------------------------------------------


class Load:
    """Publishes numbered messages until the context ends; `acked` contains the confirmed numbers."""

    #: Pause between two messages, which leaves the CPU to the change under test.
    PAUSE_SECONDS = 0.002

    def __init__(self, port: int, vhost: str) -> None:
        self.acked: list[bytes] = []
        self.returned: list[bytes] = []
        self._ended = Event()
        self._place = (port, vhost)

    def run(self) -> None:
        with Producer(*self._place).open(confirm=True) as producer:
            number = 0
            while not self._ended.wait(self.PAUSE_SECONDS):
                number += 1
                body = str(number).encode()
                settled = producer.send_settled("letters", "a.key", {"n": number % 2}, body=body, mandatory=True)
                assert settled.acked
                self.acked.append(body)
                self.returned += [body] if settled.returned else []

    def goes_on(self) -> None:
        """Wait until more messages have been published."""
        count = len(self.acked) + 50
        until(lambda: len(self.acked) >= count)

    @contextmanager
    def running(self) -> Iterator[None]:
        with ThreadPoolExecutor() as pool:
            work: Future[None] = pool.submit(self.run)
            try:
                yield
            finally:
                self._ended.set()
            work.result()

    def check(self, site: Outside) -> None:
        """Check that each acked message is in each of its queues exactly once."""
        with Producer(site.broker.port, site.vhost).open() as direct:
            bodies = {queue: [message.body for message in direct.take(queue)] for queue in ("a", "b")}
        assert self.returned == []
        assert bodies["a"] == self.acked
        assert bodies["b"] == self.acked[::2]


def test_an_added_exchange_changes_the_tokens_and_no_message_is_lost(broker: Broker, tmp_path: Path) -> None:
    with standing(broker, tmp_path, RULES, REFRESH, copies) as site:
        assert all(map(ONE_WORD.fullmatch, keys(site, "letters")))
        load = Load(site.sidecar.port, site.vhost)
        with load.running():
            load.goes_on()
            site.reload(WITH_EXCHANGE)
            producer = site.producer()
            assert producer.send_settled("letters", "a.key", {"copy": 1}, mandatory=True) == (True, [])
            load.goes_on()
            assert len(keys(site, "letters")) > 3, "tokens of one word stay"
        load.check(site)
        assert site.bodies("copied", "one-word") == [[b"body"], []]


def test_a_client_may_bind_an_exchange_to_a_topic_carrier_under_load(
    broker: Broker, sidecar: Sidecar, vhost: str
) -> None:
    outside = Outside(broker, vhost)
    outside.make_queues("a", "b")
    copies(outside)
    with Application(sidecar.port, vhost) as app:
        app.exchange("letters", {"x-carrier-type": "topic"})
        app.bind("a", "letters", {"x-?hkex": "n"})
        app.bind("b", "letters", {"x-?hkv= n": 1})
        load = Load(sidecar.port, vhost)
        with load.running():
            load.goes_on()
            app.chain("copies", "letters", {"x-?hkex": "copy"})
            for _ in range(20):
                app.publish("letters", "a.key", {"copy": 1}, mandatory=True)
                assert app.settle() == (True, [])
            load.goes_on()
        load.check(outside)
        with Producer(broker.port, vhost).open() as direct:
            assert [len(direct.take(queue)) for queue in ("copied", "one-word")] == [20, 0]


def test_the_first_message_for_a_queue_and_an_exchange_reaches_both(
    broker: Broker, sidecar: Sidecar, vhost: str
) -> None:
    """The exchange, which needs tokens of eight words, and the queue are bound on demand."""
    outside = Outside(broker, vhost)
    outside.make_queues("a")
    copies(outside)
    with Application(sidecar.port, vhost) as app:
        for number in range(5):
            first, behind = f"first.{number}", f"behind.{number}"
            for name in (first, behind):
                app.exchange(name, {"x-carrier-type": "topic"})
            app.chain(behind, first, {"x-?hkex": "n"})
            app.bind("a", behind, {"x-?hkex": "n"})
            app.chain("copies", behind, {"x-?hkex": "n"})
            assert app.reached(first, {"n": 1}, "a", "copied", key="a.key") == ["a", "copied"]


def test_an_exclusive_queue_gets_its_messages_before_and_after_another_form_is_needed(
    broker: Broker, tmp_path: Path
) -> None:
    exclusive = '      - {queue: mine, arguments: {"x-?hkex": mine}}\n'
    with standing(broker, tmp_path, RULES + exclusive, REFRESH, copies) as site:
        owner, producer = site.producer(), site.producer()
        owner.declare("mine", exclusive=True)
        assert producer.send_settled("letters", "a.key", {"mine": 1}, b"1", mandatory=True) == (True, [])
        site.reload(WITH_EXCHANGE + exclusive)
        assert producer.send_settled("letters", "a.key", {"mine": 1}, b"2", mandatory=True) == (True, [])
        assert producer.send_settled("letters", "a.key", {"copy": 1}, b"3", mandatory=True) == (True, [])
        assert [message.body for message in owner.take("mine")] == [b"1", b"2"]
        assert site.bodies("copied", "one-word") == [[b"3"], []]


@pytest.mark.parametrize("exclusive", [False, True], ids=["a queue", "an exclusive queue"])
@pytest.mark.parametrize(
    ("publishes", "looks"), [(True, 0), (True, 2), (False, 2)], ids=["at once", "after two passes", "by a pass"]
)
def test_an_auto_delete_exchange_is_deleted_with_its_last_binding_after_the_tokens_changed(
    broker: Broker, sidecar: Sidecar, vhost: str, exclusive: bool, publishes: bool, looks: int
) -> None:
    outside = Outside(broker, vhost)
    outside.make_queues("a")
    copies(outside)
    with Application(sidecar.port, vhost) as app:
        app.declare("mine", exclusive=True)
        queue = "mine" if exclusive else "a"
        app.exchange("letters", {"x-carrier-type": "topic"}, auto_delete=True)
        app.bind(queue, "letters", {"x-?hkex": "n"})
        app.chain("copies", "letters", {"x-?hkex": "copy"})
        if publishes:
            app.publish("letters", "a.key", {"copy": 1}, mandatory=True)
            assert app.settle() == (True, [])
        for _ in range(looks):
            pass_runs(sidecar, vhost)
        app.unbind(queue, "letters", {"x-?hkex": "n"})
        app.unchain("copies", "letters", {"x-?hkex": "copy"})
        assert app.refused(app.declaring("letters", passive=True)).code == 404


def test_another_sidecar_changes_its_tokens_with_the_first(broker: Broker, tmp_path: Path) -> None:
    with ExitStack() as stack:
        site = stack.enter_context(standing(broker, tmp_path, RULES, REFRESH, copies))
        file = tmp_path / "other.yaml"
        file.write_text(f"vhost: {site.vhost}\n{RULES}")
        second = stack.enter_context(Sidecar(broker, [file], REFRESH))
        load = Load(second.port, site.vhost)
        with load.running():
            load.goes_on()
            site.reload(WITH_EXCHANGE)
            load.goes_on()
        load.check(site)


@pytest.mark.parametrize("rules", [ANOTHER_CARRIER, NO_CARRIER], ids=["another carrier", "delivery: queue"])
def test_a_reload_changes_the_carrier_type_and_no_message_is_lost(broker: Broker, tmp_path: Path, rules: str) -> None:
    with standing(broker, tmp_path, RULES, REFRESH) as site:
        load = Load(site.sidecar.port, site.vhost)
        with load.running():
            load.goes_on()
            site.reload(rules)
            load.goes_on()
        load.check(site)
        if rules is ANOTHER_CARRIER:
            assert site.exchange("letters.2")["type"] == "direct"
