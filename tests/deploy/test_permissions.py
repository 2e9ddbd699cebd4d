"""Tests the permissions in docs/explanation/security.md: they are sufficient, and further actions are refused.

The commands on the page are run unchanged on a broker. tests/broker/delivery/test_permissions.py tests why each
permission is required.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pamqp import base, commands
from pamqp.common import FieldTable

from oxproxy.relay.tokens import is_token
from tests.broker.observed import Outside
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
    """A sidecar with the page's rules, whose control user has the permissions of the page."""
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
def log_in(sidecar: Sidecar) -> Iterator[Callable[[str], Producer]]:
    opened: list[Producer] = []

    def open_as(user: str) -> Producer:
        opened.append(Producer(sidecar.port, "/", user, user).open(confirm=True))
        return opened[-1]

    yield open_as
    for producer in opened:
        producer.disconnect()


@pytest.fixture
def administrator(broker: PrivateBroker, sidecar: Sidecar) -> Iterator[Producer]:
    """A connection to the broker as administrator. The queues are emptied after each test."""
    with Producer(broker.port, "/").open() as producer:
        yield producer
        for queue in ("archive", "box", "fallback"):
            producer.take(queue)


LogIn = Callable[[str], Producer]


def assert_refused(producer: Producer, command: base.Frame) -> None:
    """Check that the broker closes the channel with ACCESS_REFUSED."""
    producer.call(command)
    assert producer.closed().code == 403
    producer.open(confirm=True)


def assert_publish_refused(producer: Producer, exchange: str) -> None:
    producer.publish(exchange, "archive", {"to": "archive"})
    assert producer.closed().code == 403
    producer.open(confirm=True)


def test_the_page_has_a_command_for_every_user() -> None:
    assert [line[3] for line in LINES if line[0] == "set_permissions"] == list(USERS)


def test_the_control_user_can_declare_and_bind_everything(sidecar: Sidecar) -> None:
    assert "topology_missing_destinations 0" in sidecar.get("/metrics")
    assert sidecar.get("/readyz") == "ready\n"


@pytest.mark.parametrize(("user", "exchange"), [("carrier-producer", "documents"), ("queue-producer", "orders")])
def test_a_producer_publishes_to_every_destination_of_its_exchange(
    log_in: LogIn, administrator: Producer, user: str, exchange: str
) -> None:
    producer = log_in(user)
    for to, queue in (("archive", "archive"), ("copies", "box"), ("nobody", "fallback")):
        assert producer.send_settled(exchange, "k", {"to": to}, to.encode()) == (True, [])
        assert [message.body for message in administrator.take(queue)] == [to.encode()]


@pytest.mark.parametrize(
    ("user", "exchanges"),
    [("carrier-producer", ("", "copies", "spare", "amq.direct")), ("queue-producer", ("documents", "amq.direct"))],
)
def test_a_producer_cannot_publish_elsewhere_declare_or_consume(
    log_in: LogIn, user: str, exchanges: tuple[str, ...]
) -> None:
    producer = log_in(user)
    for exchange in exchanges:
        assert_publish_refused(producer, exchange)
    assert_refused(producer, commands.Queue.Declare(queue="mine"))
    assert_refused(producer, commands.Exchange.Declare(exchange="mine", exchange_type="x-open"))
    assert_refused(producer, commands.Queue.Bind(queue="archive", exchange="documents", routing_key=""))
    assert_refused(producer, commands.Basic.Get(queue="archive"))
    assert_refused(producer, commands.Queue.Purge(queue="archive"))
    assert_refused(producer, commands.Queue.Delete(queue="archive"))


def test_a_team_can_declare_bind_publish_and_consume_its_own_objects(
    log_in: LogIn, sidecar: Sidecar, broker: PrivateBroker
) -> None:
    client = log_in("team")
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
    # The control user restores a token that was deleted on the broker, if a binding needs it.
    outside = Outside(broker, "/")
    path = "bindings/%2F/e/team.letters/q/team.b"
    [token] = [
        binding["properties_key"] for binding in broker.api("GET", path) if is_token(binding["routing_key"].encode())
    ]
    broker.api("DELETE", f"{path}/{quoted(token)}")
    assert outside.bound("team.letters") == {("queue", b"team.a")}
    until(lambda: outside.bound("team.letters") == {("queue", b"team.a"), ("queue", b"team.b")})
    client.ask(commands.Exchange.Delete(exchange="team.letters"))
    for queue in ("team.a", "team.b"):
        client.ask(commands.Queue.Delete(queue=queue))


def test_a_team_cannot_use_objects_of_others(log_in: LogIn) -> None:
    client = log_in("team")
    for exchange in ("documents", "orders", "copies", ""):
        assert_publish_refused(client, exchange)
    assert_refused(client, commands.Exchange.Declare(exchange="theirs", exchange_type="x-open"))
    assert_refused(client, commands.Queue.Declare(queue="theirs"))
    assert_refused(client, commands.Basic.Get(queue="archive"))
    client.ask(commands.Queue.Declare(queue="team.c"))
    assert_refused(client, commands.Queue.Bind(queue="team.c", exchange="documents", routing_key=""))
    assert_refused(client, commands.Queue.Bind(queue="archive", exchange="documents", routing_key=""))
    with pytest.raises(Closed, match="403"):
        client.ask(commands.Exchange.Delete(exchange="copies"))
