"""Random pipelined methods on one channel have the same effect on open exchanges as on RabbitMQ's headers exchanges.

A binding whose arguments are names of headers means the same to both types. The tests compare the replies in their
order, the texts of errors, the returned messages, and the messages in each queue at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from types import MappingProxyType, TracebackType
from typing import NamedTuple, Self

import pytest
from pamqp import base, commands

from oxproxy.amqp.method_frames import exchange_declare
from tests import client
from tests.broker.delivery.applications import entries
from tests.client import Frame, method
from tests.producer import Closed, Producer, headers
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar

#: The last queue is exclusive.
QUEUES = ("one", "two", "three", "mine")
#: The second exchange may be deleted with its last binding. The third may be bound to the first.
EXCHANGES = ("kept", "brief", "further")
#: A predeclared exchange of the broker, and the queue that is bound to it.
COPIES, COPIED = "copies", "copied"
HEADERS = ("a", "b")


class Side(NamedTuple):
    """RabbitMQ or the sidecar.

    Args:
        port: port on loopback.
        vhost: virtual host.
        declared: type and arguments of exchanges.
        auto_delete: whether the second exchange is deleted with its last binding.
        prefix: prefix of the names of all objects declared there.
    """

    port: int
    vhost: str
    declared: tuple[str, dict[str, object]]
    auto_delete: bool
    prefix: str


class Step(NamedTuple):
    """A method.

    Args:
        what: kind of method.
        names: names of its queue or exchanges.
        table: arguments of a binding, or headers of a message.
        flag: nowait or mandatory flag.
        number: number of a message.
    """

    what: str
    names: tuple[str, ...]
    table: Mapping[str, object] = MappingProxyType({})
    flag: bool = False
    number: int = 0


def declares() -> list[Step]:
    return [Step("declare exchange", (name,)) for name in EXCHANGES] + [
        Step("declare queue", (name,)) for name in QUEUES
    ]


def steps(random: Random, count: int) -> Iterator[Step]:
    """Draw methods. Most unbinds concern existing bindings, and deleted objects are declared again."""
    bound: list[Step] = []
    for number in range(count):
        exchange, queue, nowait = random.choice(EXCHANGES), random.choice(QUEUES), random.random() < 0.15
        arguments: dict[str, object] = {"x-match": random.choice(("all", "any"))}
        arguments |= {name: random.choice("vw") for name in random.sample(HEADERS, random.choice((1, 1, 2)))}
        receivers = [("bind", (queue, exchange)), ("chain", (COPIES, exchange)), ("chain", ("kept", "further"))]
        bind = Step(*random.choices(receivers, (6, 2, 1))[0], arguments, nowait)
        match random.choices(("bind", "unbind", "queue", "exchange", "publish", "get"), (20, 12, 10, 6, 30, 12))[0]:
            case "bind":
                bound.append(bind)
                yield bind
            case "unbind":
                chosen = random.choice(bound) if bound and random.random() < 0.9 else bind
                yield chosen._replace(what=f"un{chosen.what}", flag=False)
            case "queue":
                if random.random() < 0.5:
                    yield Step("delete queue", (queue,), flag=nowait)
                yield Step("declare queue", (queue,), flag=nowait)
            case "exchange":
                if random.random() < 0.3:
                    yield Step("delete exchange", (exchange,), flag=nowait)
                yield Step("declare exchange", (exchange,), flag=nowait)
            case "publish":
                table: dict[str, object] = {name: random.choice("vwx") for name in HEADERS if random.random() < 0.8}
                yield Step("publish", (exchange,), table, random.random() < 0.4, number)
            case "get":
                yield Step("get", (queue,))


def messages(random: Random, count: int) -> Iterator[Step]:
    """Draw publishes, and methods about messages and modes, up to a commit; some of them are errors."""
    kinds = {"publish": 60, "get": 10, "ack": 6, "nack": 3, "purge": 2, "recover": 1, "cancel": 1}
    kinds |= {"select tx": 2, "commit": 6, "roll back": 3, "select confirm": 2}
    for number in range(count):
        (kind,) = random.choices(list(kinds), list(kinds.values()))
        table: dict[str, object] = {name: random.choice(("v", "w", 1)) for name in HEADERS if random.random() < 0.7}
        if random.random() < 0.1:
            table[random.choice(("CC", "BCC"))] = random.choice((["key"], [], ["a", "b"], "no list"))
        exchange = random.choice((*EXCHANGES * 3, COPIES, "missing"))
        name = exchange if kind == "publish" else random.choice(QUEUES)
        yield Step(kind, (name,), table, random.random() < 0.4, number)
        if kind == "commit":
            return  # until it answers, RabbitMQ may close a connection that sends other methods on the channel


def frames(step: Step, side: Side) -> bytes:
    names = [side.prefix + name for name in step.names]
    raw = [name.encode() for name in names]
    match step.what:
        case "bind":
            return client.queue_bind(1, raw[0], raw[1], b"", entries(step.table), nowait=step.flag)
        case "unbind":
            return client.queue_unbind(1, raw[0], raw[1], b"", entries(step.table))
        case "chain":
            return client.exchange_bind(1, raw[0], raw[1], b"", entries(step.table), nowait=step.flag)
        case "unchain":
            return client.exchange_unbind(1, raw[0], raw[1], b"", entries(step.table))
        case "declare queue":
            own = step.names[0] == "mine"
            return method(1, commands.Queue.Declare(queue=names[0], durable=not own, exclusive=own, nowait=step.flag))
        case "delete queue":
            return method(1, commands.Queue.Delete(queue=names[0], nowait=step.flag))
        case "declare exchange":
            kind, arguments = side.declared
            brief = side.auto_delete and step.names[0] == "brief"
            return exchange_declare(1, raw[0], kind.encode(), entries(arguments), auto_delete=brief, nowait=step.flag)
        case "delete exchange":
            return method(1, commands.Exchange.Delete(exchange=names[0], nowait=step.flag))
        case "publish":
            body = str(step.number).encode()
            return client.publish(1, raw[0], b"key", headers(step.table), body, mandatory=step.flag)
    return method(1, about_messages(step, names[0]))


def about_messages(step: Step, queue: str) -> base.Frame:
    made: dict[str, base.Frame] = {
        "get": commands.Basic.Get(queue=queue, no_ack=not step.flag),
        "ack": commands.Basic.Ack(step.number % 4, multiple=step.flag),
        "nack": commands.Basic.Nack(step.number % 4, multiple=False, requeue=step.flag),
        "purge": commands.Queue.Purge(queue=queue, nowait=step.flag),
        "recover": commands.Basic.Recover(requeue=True),
        "cancel": commands.Basic.Cancel(consumer_tag="unknown"),
        "select tx": commands.Tx.Select(),
        "commit": commands.Tx.Commit(),
        "roll back": commands.Tx.Rollback(),
        "select confirm": commands.Confirm.Select(),
    }
    return made[step.what]


class Conversation:
    """The replies of one side to batches of methods."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._producer = Producer(side.port, side.vhost).open()
        self._producer.ask(commands.Exchange.Declare(exchange=side.prefix + COPIES, exchange_type="fanout"))
        self._producer.ask(commands.Queue.Declare(queue=side.prefix + COPIED))
        self._producer.ask(commands.Queue.Bind(queue=side.prefix + COPIED, exchange=side.prefix + COPIES))
        self._reopened()

    def _reopened(self) -> None:
        self._mode = ""
        self._published = 0
        self._unconfirmed: set[int] = set()

    def replies_to(self, batch: Sequence[Step]) -> list[object]:
        """Send all methods at once; return the replies up to the last reply and all confirms, or up to a close."""
        for step in batch:
            self._mode = self._mode or step.what.startswith("select") * step.what
            if step.what == "publish" and self._mode == "select confirm":
                self._published += 1
                self._unconfirmed.add(self._published)
        self._producer.send(*(frames(step, self._side) for step in batch))
        last = "Tx.CommitOk"
        if batch[-1].what != "commit":
            self._producer.call(commands.Basic.Qos(prefetch_count=1))
            last = "Basic.QosOk"
        replies: list[object] = []
        while last not in replies or self._unconfirmed:
            try:
                replies += self._reply(self._producer.frame())
            except Closed as closed:
                replies.append((closed.code, closed.method, closed.text.replace(self._side.prefix, "")))
                self._producer.call(commands.Channel.CloseOk())
                self._producer.open()
                self._reopened()
                break
        return replies

    def _reply(self, frame: Frame) -> list[object]:
        match frame.name:
            case "Basic.Return" | "Basic.GetOk":
                message = self._producer.message(frame)
                return [(frame.name, message.method.get("redelivered"), message.body)]
            case "Basic.Ack":
                # Confirms have no fixed position among the replies.
                tag, multiple = int(str(frame.arguments["delivery_tag"])), frame.arguments["multiple"]
                self._unconfirmed -= {sent for sent in self._unconfirmed if sent == tag or (multiple and sent < tag)}
                return []
            case "Queue.DeleteOk":
                return [(frame.name, frame.arguments["message_count"])]
            case "Channel.Close" | "Connection.Close":
                close = frame.method
                assert isinstance(close, commands.Channel.Close | commands.Connection.Close)
                ids = (close.class_id or 0, close.method_id or 0)
                raise Closed(frame.channel, close.reply_code or 0, close.reply_text, ids)
        return [frame.name]

    def left(self) -> list[object]:
        """The messages in each queue."""
        self.replies_to(declares())
        return [
            (name, [message.body for message in self._producer.take(self._side.prefix + name)])
            for name in (*QUEUES, COPIED)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._producer.disconnect()


def seeds(first: int, count: int) -> list[object]:
    """The first seeds, and further ones for `make test-matrix`, up to this number."""
    return [*range(first), *(pytest.param(seed, marks=pytest.mark.matrix) for seed in range(first, count))]


@pytest.fixture(scope="module")
def sidecar(broker: Broker) -> Iterator[Sidecar]:
    """A sidecar that ignores an unbind of a missing binding, as the broker does."""
    with Sidecar(broker, settings={"declared": {"unbind": "broker"}}) as running:
        yield running


@pytest.mark.parametrize("seed", seeds(10, 25))
def test_pipelined_methods_have_the_same_results(broker: Broker, sidecar: Sidecar, vhost: str, seed: int) -> None:
    random = Random(seed)
    batches = [declares()]
    for _ in range(random.randrange(2, 6)):
        batches.append([*declares(), *steps(random, random.randrange(3, 40))])
    brief = True
    with (
        Conversation(Side(broker.port, vhost, ("headers", {}), brief, "beside.")) as direct,
        Conversation(Side(sidecar.port, vhost, ("x-open", {}), brief, "through.")) as through,
    ):
        for batch in batches:
            assert through.replies_to(batch) == direct.replies_to(batch), batch
        assert through.left() == direct.left(), batches


@pytest.mark.parametrize("seed", seeds(6, 15))
def test_pipelined_messages_have_the_same_results(broker: Broker, sidecar: Sidecar, vhost: str, seed: int) -> None:
    random = Random(seed)
    bindings = [step for step in steps(random, 30) if step.what in ("bind", "chain")]
    batches = [[*declares(), *bindings]]
    batches += [list(messages(random, random.randrange(1, 40))) for _ in range(random.randrange(3, 12))]
    with (
        Conversation(Side(broker.port, vhost, ("headers", {}), False, "beside.")) as direct,
        Conversation(Side(sidecar.port, vhost, ("x-open", {}), False, "through.")) as through,
    ):
        for batch in batches:
            assert through.replies_to(batch) == direct.replies_to(batch), batch
        assert through.left() == direct.left(), batches
