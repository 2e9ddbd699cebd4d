"""Do the lines of docs/explanation/security.md give control user and producers just what they need?

Run as they stand, on a broker.

Each user can do what its line is for, and is refused one step further. What each single permission is for is tested in
tests/broker/delivery/test_permissions.py.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pamqp import base, commands
from pamqp.common import FieldTable

from proxy.relay.tokens import is_keyed
from tests.broker.world import Outside
from tests.deploy.prometheus import ROOT
from tests.private_broker import BrokerMissing, PrivateBroker
from tests.producer import Closed, Producer, until
from tests.rabbitmq import quoted
from tests.sidecar import Sidecar

PAGE = (ROOT / "docs" / "explanation" / "security.md").read_text()
LINES = [shlex.split(line) for line in re.findall(r"^ {4}rabbitmqctl (set_(?:permissions|user_tags) .*)$", PAGE, re.M)]
(RULES,) = re.findall(r"```yaml\n(queues: .*?)```", PAGE, re.DOTALL)
USERS = ("oxproxy", "carrier-producer", "queue-producer", "team")


@pytest.fixture(scope="module")
def broker() -> Iterator[PrivateBroker]:
    try:
        with PrivateBroker() as own:
            yield own
    except BrokerMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def sidecar(broker: PrivateBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """A sidecar with the page's rules whose control user has what the page gives it."""
    folder: Path = tmp_path_factory.mktemp("site")
    (folder / "rules.yaml").write_text(RULES)
    outside = Outside(broker, "/")
    outside.make_queues("box", "fallback")
    for name, queue in (("spare", "fallback"), ("copies", "box")):
        outside.make_exchange(name, "fanout")
        outside.bind(name, queue, "")
    for user in USERS:
        broker.create_user(user, user)
    for line in LINES:
        broker.rabbitmqctl(*line)
    control = {"upstream": {"control": {"username": "oxproxy", "password": "oxproxy"}}}
    with Sidecar(broker, [folder / "rules.yaml"], control, folder) as running:
        yield running


@pytest.fixture
def speak(sidecar: Sidecar) -> Iterator[Callable[[str], Producer]]:
    opened: list[Producer] = []

    def made(user: str) -> Producer:
        opened.append(Producer(sidecar.port, "/", user, user).open(confirm=True))
        return opened[-1]

    yield made
    for one in opened:
        one.vanish()


@pytest.fixture
def beside(broker: PrivateBroker, sidecar: Sidecar) -> Iterator[Producer]:
    """At the broker itself, with all rights; the queues are empty when a test ends."""
    with Producer(broker.port, "/").open() as one:
        yield one
        for queue in ("archive", "box", "fallback"):
            one.take(queue)


Speak = Callable[[str], Producer]


def refused(producer: Producer, command: base.Frame) -> None:
    """The broker closes the channel for what a user may not do."""
    producer.call(command)
    assert producer.closed().code == 403
    producer.open(confirm=True)


def refused_to_publish(producer: Producer, exchange: str) -> None:
    producer.publish(exchange, "archive", {"to": "archive"})
    assert producer.closed().code == 403
    producer.open(confirm=True)


def test_every_user_of_the_page_has_its_line() -> None:
    assert [line[3] for line in LINES if line[0] == "set_permissions"] == list(USERS)


def test_the_control_user_finds_nothing_missing(sidecar: Sidecar) -> None:
    assert "topology_missing_destinations 0" in sidecar.get("/metrics")
    assert sidecar.get("/readyz") == "ready\n"


@pytest.mark.parametrize(("user", "exchange"), [("carrier-producer", "documents"), ("queue-producer", "orders")])
def test_a_producer_publishes_to_every_destination_of_its_exchange(
    speak: Speak, beside: Producer, user: str, exchange: str
) -> None:
    producer = speak(user)
    for to, queue in (("archive", "archive"), ("copies", "box"), ("nobody", "fallback")):
        assert producer.send_settled(exchange, "k", {"to": to}, to.encode()) == (True, [])
        assert [message.body for message in beside.take(queue)] == [to.encode()]


@pytest.mark.parametrize(
    ("user", "others"),
    [("carrier-producer", ("", "copies", "spare", "amq.direct")), ("queue-producer", ("documents", "amq.direct"))],
)
def test_a_producer_may_do_no_more_than_that(speak: Speak, user: str, others: tuple[str, ...]) -> None:
    producer = speak(user)
    for exchange in others:
        refused_to_publish(producer, exchange)
    refused(producer, commands.Queue.Declare(queue="mine"))
    refused(producer, commands.Exchange.Declare(exchange="mine", exchange_type="x-open"))
    refused(producer, commands.Queue.Bind(queue="archive", exchange="documents", routing_key=""))
    refused(producer, commands.Basic.Get(queue="archive"))
    refused(producer, commands.Queue.Purge(queue="archive"))
    refused(producer, commands.Queue.Delete(queue="archive"))


def test_a_team_declares_binds_publishes_and_consumes_its_own(
    speak: Speak, sidecar: Sidecar, broker: PrivateBroker
) -> None:
    client = speak("team")
    client.ask(commands.Exchange.Declare(exchange="team.letters", exchange_type="x-open", durable=True))
    for queue in ("team.a", "team.b"):
        client.ask(commands.Queue.Declare(queue=queue, durable=True))
        arguments: FieldTable = {"x-match": "all", "x-?hkv= to": queue}
        client.ask(commands.Queue.Bind(queue=queue, exchange="team.letters", routing_key="", arguments=arguments))
    arguments = {"x-match": "all", "x-?hkv= copy": "team.b"}
    client.ask(commands.Queue.Bind(queue="team.b", exchange="team.letters", routing_key="", arguments=arguments))
    assert client.send_settled("team.letters", "k", {"to": "team.b"}, b"letter") == (True, [])
    message = client.get("team.b")
    assert message is not None
    assert (message.body, client.get("team.a")) == (b"letter", None)
    until(lambda: "topology_missing_destinations 0" in sidecar.get("/metrics"))
    # The control user's part: a token that somebody takes away at the broker is put back while a binding needs it.
    outside = Outside(broker, "/")
    here = "bindings/%2F/e/team.letters/q/team.b"
    [taken] = [one["properties_key"] for one in broker.api("GET", here) if is_keyed(one["routing_key"].encode())]
    broker.api("DELETE", f"{here}/{quoted(taken)}")
    assert outside.bound("team.letters") == {("queue", b"team.a")}
    until(lambda: outside.bound("team.letters") == {("queue", b"team.a"), ("queue", b"team.b")})
    client.ask(commands.Exchange.Delete(exchange="team.letters"))
    for queue in ("team.a", "team.b"):
        client.ask(commands.Queue.Delete(queue=queue))


def test_a_team_may_not_touch_what_others_own(speak: Speak) -> None:
    client = speak("team")
    for exchange in ("documents", "orders", "copies", ""):
        refused_to_publish(client, exchange)
    refused(client, commands.Exchange.Declare(exchange="theirs", exchange_type="x-open"))
    refused(client, commands.Queue.Declare(queue="theirs"))
    refused(client, commands.Basic.Get(queue="archive"))
    client.ask(commands.Queue.Declare(queue="team.c"))
    refused(client, commands.Queue.Bind(queue="team.c", exchange="documents", routing_key=""))
    refused(client, commands.Queue.Bind(queue="archive", exchange="documents", routing_key=""))
    with pytest.raises(Closed, match="403"):
        client.ask(commands.Exchange.Delete(exchange="copies"))
