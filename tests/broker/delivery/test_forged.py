"""Bindings written directly to the broker, as if a sidecar had stored them for a client, grant no permissions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pytest

from oxproxy.amqp import methods
from oxproxy.amqp.tables import decode_table, encode_table
from oxproxy.relay.declare.storage import kept_arguments, pack
from oxproxy.relay.tokens import is_token
from oxproxy.values import Table, Value
from tests.broker.clients import storage_key
from tests.broker.delivery.applications import Application, declared, entries
from tests.broker.delivery.site import vhost_status
from tests.broker.observed import Outside
from tests.producer import headers, until
from tests.rabbitmq import Broker
from tests.relay.wire import token
from tests.sidecar import Sidecar

MATCH: dict[str, object] = {"x-?hkex": "a"}
LATEST = 2**64 - 1


class Scene(NamedTuple):
    """A sidecar with two connected clients: one with all permissions, one only with those on ``att.`` names."""

    sidecar: Sidecar
    broker: Broker
    vhost: str
    alice: Application
    mallory: str

    def forged_exchange(self, sequence: int = 1) -> Table:
        return (
            (b"x-open-exchange", Value("t", True)),
            (b"x-oxproxy", Value("S", pack(sequence, b""))),
        )

    def forge(
        self,
        queue: str,
        arguments: Mapping[str, object],
        *,
        client: str = "guest",
        sequence: int = 1,
    ) -> None:
        """Bind to ``att.x`` on the broker, with the arguments of a stored binding but without a signature."""
        own = entries(arguments)
        key = storage_key("queue", queue.encode(), b"", own)
        with Application(self.broker.port, self.vhost, self.mallory) as direct:
            kept = kept_arguments(sequence, own, b"", client)
            direct.bind(queue, "att.x", _table(kept), key.decode())

    def known(self, count: int) -> None:
        """Wait until the sidecar has seen this number of bindings of ``att.x``."""
        until(lambda: declared(self.sidecar, self.vhost).get("att.x") == count)


def _table(raw: bytes) -> Table:
    return decode_table(raw, 0, len(raw))


@pytest.fixture
def scene(sidecar: Sidecar, broker: Broker, vhost: str) -> Iterator[Scene]:
    Outside(broker, vhost).make_queues("secret", "att.q", "att.p")
    with broker.temporary_user() as mallory, Application(sidecar.port, vhost) as alice:
        broker.grant(mallory, vhost, "^att\\.", "^att\\.", "^att\\.")
        yield Scene(sidecar, broker, vhost, alice, mallory)


def forged(scene: Scene, **more: int) -> None:
    """Declare ``att.x`` on the broker, marked as an open exchange."""
    with Application(scene.broker.port, scene.vhost, scene.mallory) as direct:
        direct.exchange("att.x", scene.forged_exchange(**more), kind="direct", durable=True)


@pytest.mark.parametrize(
    "route",
    [{"x-addq-ontrue": "secret"}, {"x-addqre-ontrue": "^sec"}, {"x-msg-addq-ontrue": ""}],
    ids=["named", "by regex", "by the message"],
)
def test_a_forged_binding_reaches_its_own_destination_and_nothing_else(scene: Scene, route: dict[str, object]) -> None:
    forged(scene)
    scene.forge("att.q", MATCH | route)
    scene.known(1)
    with Application(scene.sidecar.port, scene.vhost, scene.mallory) as sender:
        for _ in range(3):  # the first publish would have requested missing tokens
            assert sender.send_settled("att.x", "k", {"a": 1, "x-addq-ontrue": "secret"}).acked
    assert [len(scene.alice.take(queue)) for queue in ("secret", "att.q")] == [0, 3]


def test_forged_bindings_are_reported_until_they_are_removed(scene: Scene) -> None:
    forged(scene)
    with Sidecar(scene.broker, settings={"inventory": {"refresh": "200ms"}}) as alone:
        own = scene._replace(sidecar=alone)
        with Application(alone.port, scene.vhost, scene.mallory) as owner:
            assert _unsigned(own) == (0, set())
            own.forge("att.q", MATCH)
            until(lambda: _unsigned(own) == (1, {"att.x"}))
            assert "without a valid signature" in alone.log.read_text()
            owner.bind("att.q", "att.x", MATCH)
            owner.unbind("att.q", "att.x", MATCH)
            until(lambda: _unsigned(own) == (0, set()))


def _unsigned(scene: Scene) -> tuple[float, set[str]]:
    """The value of the metric, and the exchanges of this virtual host that /status lists."""
    name = "oxproxy_topology_unsigned_bindings "
    (line,) = (line for line in scene.sidecar.get("/metrics").splitlines() if line.startswith(name))
    named = vhost_status(scene.sidecar, scene.vhost)["unsigned"]
    assert all("claimed user 'guest'): no signature" in text for texts in named.values() for text in texts)
    return float(line.removeprefix(name)), set(named)


def test_a_forged_binding_comes_after_all_others_regardless_of_its_sequence(scene: Scene) -> None:
    with Application(scene.sidecar.port, scene.vhost, scene.mallory) as owner:
        owner.exchange("att.x", durable=True)
        owner.bind("att.p", "att.x", MATCH)
    scene.forge("att.q", MATCH | {"x-order": 100, "x-stop-ontrue": ""}, sequence=2**60)
    scene.forge("att.q", MATCH | {"x-order": 101, "x-stop-ontrue": ""}, sequence=2**50)
    scene.known(2)  # an invalid sequence is not read at all
    assert scene.alice.reached("att.x", {"a": 1}, "att.p", "att.q") == ["att.p", "att.q"]


def test_a_binding_without_signature_routes_only_to_its_queue_until_its_client_binds_again(scene: Scene) -> None:
    forged(scene)
    scene.forge("att.q", MATCH | {"x-addq-ontrue": "att.p"}, client=scene.mallory)
    scene.known(1)
    with Application(scene.sidecar.port, scene.vhost, scene.mallory) as owner:
        assert owner.reached("att.x", {"a": 1}, "att.q", "att.p") == ["att.q"]
        owner.bind("att.q", "att.x", MATCH | {"x-addq-ontrue": "att.p"})
        assert owner.reached("att.x", {"a": 1}, "att.q", "att.p") == ["att.q", "att.p"]
        owner.unbind("att.q", "att.x", MATCH | {"x-addq-ontrue": "att.p"})
        assert owner.reached("att.x", {"a": 1}, "att.q", "att.p") == []
    left = scene.broker.api("GET", f"exchanges/{scene.vhost}/att.x/bindings/source")
    assert [binding for binding in left if "x-oxproxy" in binding["arguments"]] == []


def test_a_binding_with_the_token_of_another_queue_is_reported_as_foreign(scene: Scene) -> None:
    with Application(scene.sidecar.port, scene.vhost, scene.mallory) as owner:
        owner.exchange("att.x", durable=True)
        owner.bind("att.p", "att.x", MATCH)
    rows = scene.broker.api("GET", f"exchanges/{scene.vhost}/att.x/bindings/source")
    (leaked,) = (row["routing_key"] for row in rows if is_token(row["routing_key"].encode()))
    with Application(scene.broker.port, scene.vhost, scene.mallory) as direct:
        direct.bind("att.q", "att.x", {}, leaked)
    until(lambda: vhost_status(scene.sidecar, scene.vhost)["foreign"] == {"att.x": ["queue att.q with a token"]})


def test_a_token_of_no_listed_secret_is_counted_and_routes_nothing(scene: Scene) -> None:
    with Application(scene.sidecar.port, scene.vhost, scene.mallory) as owner:
        owner.exchange("att.x", durable=True)
        owner.bind("att.p", "att.x", MATCH)
        with Application(scene.broker.port, scene.vhost, scene.mallory) as direct:
            direct.bind("att.q", "att.x", {}, "x.o.p.e.n.x.q.0123456789abcdef")
        until(lambda: vhost_status(scene.sidecar, scene.vhost)["stale_tokens"] == {"att.x": 1})
        assert vhost_status(scene.sidecar, scene.vhost)["foreign"] == {}
        assert owner.reached("att.x", {"a": 1}, "att.p", "att.q") == ["att.p"]


def test_a_forged_alternate_exchange_gets_no_messages(scene: Scene) -> None:
    """The broker checks write permission for the declared alternate exchange, but does not know the stored one."""
    scene.alice.exchange("vault", kind="fanout")
    scene.alice.bind("secret", "vault")
    with Application(scene.broker.port, scene.vhost, scene.mallory) as direct:
        kept = pack(1, entries({"alternate-exchange": "vault"}))
        marked = ((b"x-open-exchange", Value("t", True)), (b"x-oxproxy", Value("S", kept)))
        direct.exchange("att.y", marked, kind="direct", durable=True)
    with Application(scene.sidecar.port, scene.vhost, scene.mallory) as owner:
        owner.exchange("att.x", durable=True)
        owner.chain("att.y", "att.x", MATCH)
        until(lambda: "its stored alternate exchange differs" in scene.sidecar.log.read_text())
        for _ in range(3):
            assert owner.send_settled("att.x", "k", {"a": 1}).acked
    bound = scene.broker.api("GET", f"exchanges/{scene.vhost}/att.x/bindings/source")
    assert "vault" not in {row["destination"] for row in bound}
    assert scene.alice.take("secret") == []


def test_a_forged_sequence_does_not_affect_other_clients(scene: Scene) -> None:
    forged(scene, sequence=LATEST)
    with Application(scene.sidecar.port, scene.vhost, scene.mallory) as owner:
        owner.exchange("att.y")
        owner.bind("att.q", "att.y", MATCH)
    before = declared(scene.sidecar, scene.vhost)
    with Application(scene.broker.port, scene.vhost, scene.mallory) as direct:
        kept = _table(kept_arguments(LATEST, b"", b"", "guest"))
        direct.bind("att.p", "att.y", kept, storage_key("queue", b"att.p", b"", b"").decode())
        direct.exchange("att.z", scene.forged_exchange(2**53 - 1), kind="direct", durable=True)
        kept = _table(kept_arguments(2**53 - 1, b""))
        direct.bind("att.p", "att.z", kept, storage_key("queue", b"att.p", b"", b"").decode())
    until(lambda: declared(scene.sidecar, scene.vhost) == before | {"att.z": 1})
    scene.alice.exchange("open")
    scene.alice.bind("att.q", "open", MATCH)
    assert scene.alice.reached("open", {"a": 1}, "att.q") == ["att.q"]
    scene.alice.exchange("att.z")
    scene.alice.bind("att.q", "att.z", MATCH)
    assert scene.alice.reached("att.z", {"a": 1}, "att.q") == ["att.q"]


OURS: tuple[dict[str, object], ...] = (
    {"x-open-exchange": True},
    {"x-oxproxy": pack(1, b"").decode()},
    {"x-oxproxy-signature": "0" * 64},
    {"x-oxproxy-anything": 1},
)


@pytest.mark.parametrize("mark", OURS, ids=lambda mark: next(iter(mark)))
def test_a_client_cannot_use_the_arguments_that_sidecars_store(scene: Scene, mark: dict[str, object]) -> None:
    client = scene.alice
    client.exchange("open")
    client.exchange("plain", kind="topic")
    for frame in (
        client.declaring("made", mark),
        client.declaring("made", mark, kind="direct"),
        client.declaring("open", mark),
        client.binding("att.q", "open", mark),
        client.binding("att.q", "plain", mark),
        client.chaining("plain", "open", mark),
        client.chaining("amq.fanout", "plain", mark),
    ):
        refused = client.refused(frame)
        assert (refused.code, next(iter(mark)) in refused.text) == (403, True)
    assert client.refused(client.declaring("made", passive=True)).code == 404
    assert client.refused(_queue_declare("made", mark)).code == 403


@pytest.mark.parametrize("exchange", ["open", "plain", "amq.direct"])
def test_a_client_cannot_bind_under_the_reserved_prefix(scene: Scene, exchange: str) -> None:
    client = scene.alice
    client.exchange("open")
    client.exchange("plain", kind="direct")
    for key in (token("queue", b"att.q").decode(), "x.o.p.e.n.x."):
        for frame in (client.binding("att.q", exchange, {}, key), client.chaining("amq.fanout", exchange, {}, key)):
            refused = client.refused(frame)
            assert (refused.code, "x.o.p.e.n.x." in refused.text) == (403, True)


def _queue_declare(name: str, arguments: dict[str, object]) -> bytes:
    bits = (False, True, False, False, False)
    return methods.method_frame(1, methods.QUEUE_DECLARE, 0, name.encode(), *bits, encode_table(headers(arguments)))
