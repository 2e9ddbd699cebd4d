"""The permissions that each step needs, tested with users that have exactly these, on a real broker.

The source is the table of permissions: the control user declares and binds, producers publish.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.broker.delivery.site import Site, standing
from tests.broker.observed import Outside
from tests.producer import Producer
from tests.rabbitmq import Broker
from tests.sidecar import SidecarFailed

RULES = """
queues: [a]
exchanges:
  - name: carried
    arguments: {alternate-exchange: spare}
    bindings:
      - {queue: a, arguments: {"x-?hkv= to": a}}
      - {exchange: copies, arguments: {"x-?hkv= to": copies}}
"""
QUEUED = """
queues: [a]
exchanges:
  - name: queued
    delivery: queue
    arguments: {alternate-exchange: spare}
    bindings:
      - {queue: a, arguments: {"x-?hkv= to": a}}
      - {exchange: copies, arguments: {"x-?hkv= to": copies}}
"""
#: The control user's permissions for RULES: configure, write, read.
CONTROL = ("carried", "spare|a|copies", "carried")


def prepare(outside: Outside) -> None:
    outside.make_queues("a", "b", "fallback")
    for name, queue in (("spare", "fallback"), ("copies", "b")):
        outside.make_exchange(name, "fanout")
        outside.bind(name, queue, "")


def grant(outside: Outside, name: str, configure: str = "", write: str = "", read: str = "") -> None:
    """Give a user permissions on exactly these names, each list separated by bars."""
    outside.broker.grant(
        name, outside.vhost, *(f"^({names})$" if names else "^$" for names in (configure, write, read))
    )


@contextmanager
def controlled(broker: Broker, folder: Path, rules: str, *rights: str) -> Iterator[Site]:
    """A site whose control user has exactly these permissions: configure, write, read."""
    with broker.temporary_user("monitoring") as name:

        def arrange(outside: Outside) -> None:
            prepare(outside)
            grant(outside, name, *rights)

        control = {"upstream": {"control": {"username": name, "password": name}}}
        with standing(broker, folder, rules, control, arrange) as site:
            yield site


@pytest.fixture(scope="module")
def carried(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with controlled(broker, tmp_path_factory.mktemp("carried"), RULES, *CONTROL) as site:
        yield site


@pytest.fixture(scope="module")
def queued(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with controlled(broker, tmp_path_factory.mktemp("queued"), QUEUED) as site:
        yield site


Publisher = Callable[[Site, str], Producer]


@pytest.fixture
def publisher(broker: Broker) -> Iterator[Publisher]:
    """A producer through the sidecar whose user may write to exactly these names."""
    with ExitStack() as stack:

        def make(site: Site, write: str) -> Producer:
            name = stack.enter_context(broker.temporary_user())
            grant(site, name, write=write)
            return stack.enter_context(Producer(site.sidecar.port, site.vhost, name, name)).open(confirm=True)

        yield make


# -- carrier delivery --------------------------------------------------------------------------------------------------


def test_declaring_and_binding_needs_the_documented_permissions(carried: Site) -> None:
    assert carried.bound("carried") == {("queue", b"a"), ("exchange", b"copies")}
    assert carried.metric("topology_missing_destinations") == 0


@pytest.mark.parametrize(
    ("rights", "lacks"),
    [
        (("", "spare|a|copies", "carried"), "configure permission on it"),
        (("carried", "spare|a|copies", ""), "read permission on it"),
        (("carried", "a|copies", "carried"), "write permission on its alternate exchange spare"),
    ],
)
def test_a_refused_carrier_is_an_error_that_names_the_missing_permission(
    broker: Broker, tmp_path: Path, rights: tuple[str, str, str], lacks: str
) -> None:
    with pytest.raises(SidecarFailed) as caught, controlled(broker, tmp_path, RULES, *rights):
        pass
    assert "exchange carried: to declare it, user 'user-" in str(caught.value)
    assert lacks in str(caught.value)


def test_a_destination_that_cannot_be_bound_is_missing_with_the_reason(broker: Broker, tmp_path: Path) -> None:
    with controlled(broker, tmp_path, RULES, "carried", "spare|copies", "carried") as site:
        assert site.bound("carried") == {("exchange", b"copies")}
        [line] = site.logged("destinations missing")
        assert "queue a: " in line
        assert "access to queue" in line


def test_publishing_needs_write_permission_for_the_carrier_only(carried: Site, publisher: Publisher) -> None:
    producer = publisher(carried, "carried")
    for to in ("a", "copies", "nobody"):
        assert producer.send_settled("carried", "k", {"to": to}, to.encode()) == (True, [])
    assert carried.bodies("a", "b", "fallback") == [[b"a"], [b"copies"], [b"nobody"]]


def test_without_write_permission_for_the_carrier_the_broker_refuses_the_publish(
    carried: Site, publisher: Publisher
) -> None:
    producer = publisher(carried, "amq.default|a|copies|spare")
    producer.publish("carried", "k", {"to": "a"})
    close = producer.closed()
    assert (close.code, close.method) == (403, (60, 40))
    assert re.search("write access to exchange 'carried'|access to exchange 'carried'", close.text)
    assert carried.bodies("a") == [[]]


# -- queue delivery ----------------------------------------------------------------------------------------------------


def test_the_control_user_needs_no_permission_at_all(queued: Site) -> None:
    assert queued.metric("topology_missing_destinations") == 0


@pytest.mark.parametrize(
    ("to", "write", "queue"),
    [("a", "amq.default", "a"), ("copies", "copies", "b"), ("nobody", "spare", "fallback")],
)
def test_publishing_needs_write_permission_for_the_exchange_that_is_used(
    queued: Site, publisher: Publisher, to: str, write: str, queue: str
) -> None:
    producer = publisher(queued, write)
    assert producer.send_settled("queued", "k", {"to": to}) == (True, [])
    assert queued.bodies(queue) == [[b"body"]]


@pytest.mark.parametrize(("to", "refused"), [("a", "amq.default"), ("copies", "copies"), ("nobody", "spare")])
def test_without_write_permission_the_broker_refuses_and_names_the_exchange(
    queued: Site, publisher: Publisher, to: str, refused: str
) -> None:
    producer = publisher(queued, "queued")
    producer.publish("queued", "k", {"to": to})
    close = producer.closed()
    assert close.code == 403
    assert refused in close.text
    assert queued.bodies("a", "b", "fallback") == [[], [], []]
