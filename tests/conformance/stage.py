"""A virtual host with queues and sinks in which vectors are played through a running sidecar.

Queues and sinks stay from vector to vector, since regex routes see every queue there is; exchanges and bindings come
and go with each vector, on one channel, in one go. What a sink got is read from an exclusive queue of the connection
that looks on: nobody else can bind it, and what is published to it by name is told apart by its address, so that what
counts has come through the sink.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Self

from pamqp import commands

from proxy.amqp.method_frames import Close, exchange_declare, read_method
from proxy.amqp.tables import decode_table, encode_table
from proxy.values import Table, Value
from tests import client
from tests.client import Frame, exchange_bind, exchange_unbind, queue_bind, queue_unbind
from tests.conformance.open_exchange import without_reason
from tests.conformance.typed import Json, table_of
from tests.producer import Message, Producer
from tests.rabbitmq import Broker

TESTED = "xo"
_MAKERS: dict[tuple[str, str], tuple[Callable[..., bytes], str]] = {
    ("queue", "bindings"): (queue_bind, "Queue.BindOk"),
    ("queue", "unbind"): (queue_unbind, "Queue.UnbindOk"),
    ("exchange", "bindings"): (exchange_bind, "Exchange.BindOk"),
    ("exchange", "unbind"): (exchange_unbind, "Exchange.UnbindOk"),
}


class Place(NamedTuple):
    """What exists in a virtual host while vectors are played there.

    Args:
        queues: every queue.
        sinks: exchanges that only record that a message arrived.
    """

    queues: tuple[str, ...]
    sinks: tuple[str, ...]

    @classmethod
    def of(cls, vector: Json) -> Self:
        """What a vector wants to exist."""
        return cls(tuple(sorted(vector["queues"])), tuple(sorted(vector["exchanges"])))


class Refused(Exception):  # noqa: N818 - reads as the fact it states
    """The sidecar, or the broker behind it, closed a channel."""

    def __init__(self, channel: int, code: int, text: bytes) -> None:
        super().__init__(channel, code, text)
        self.channel = channel
        self.error: Json = {"code": code, "text": without_reason(text)}


class Stage:
    """A virtual host in which vectors of one place are played one after another.

    Args:
        broker: the broker.
        port: of the sidecar.
        vhost: virtual host that exists and is empty.
        place: what to make there.
        carrier_type: asked for in declarations of open exchanges; "" asks for none.
    """

    def __init__(self, broker: Broker, port: int, vhost: str, place: Place, carrier_type: str = "") -> None:
        self._place = place
        self._carrier_type = carrier_type
        #: exchanges of the vector played last
        self._left: Sequence[str] = ()
        self._at_broker = partial(Producer, broker.port, vhost, broker.username, broker.password)
        self._looker = self._at_broker().open()
        for sink in place.sinks:
            self._looker.ask(commands.Exchange.Declare(exchange=sink, exchange_type="fanout", durable=True))
            self._looker.declare(_record(sink), exclusive=True)
            self._looker.ask(commands.Queue.Bind(queue=_record(sink), exchange=sink))
        self._producer = Producer(port, vhost, broker.username, broker.password).open()
        for queue in place.queues:
            self._producer.declare(queue, durable=True)

    def leave(self) -> None:
        """End both connections; what was made stays."""
        self._producer.vanish()
        self._looker.vanish()

    def play(self, vector: Json) -> Json:
        """Declare, bind and publish what a vector says, and give what became of its message, in a vector's form."""
        score = Score(vector, self._left, self._carrier_type)
        self._left = score.exchanges
        gets = [client.method(1, commands.Basic.Get(queue=queue, no_ack=True)) for queue in self._place.queues]
        self._producer.send(*score.frames, score.publish, *gets)
        answered = 0
        try:
            for name in score.answers:
                found = self._expect(name)
                assert found.name == name, (vector["id"], found)
                answered += 1
            got: Json = {"queues": self._reached(score)}
        except Refused as refused:
            if refused.channel == 0:
                raise
            self._producer.call(commands.Channel.CloseOk())
            self._producer.open()
            got = score.refused(answered, refused.error)
            left = [queue for queue in self._place.queues if self._producer.take(queue)]
            if left:
                got["queues"] = left
        if self._place.sinks:
            got["exchanges"] = [sink for sink in self._place.sinks if self._sunk(sink)]
            if "queues" not in got and not got["exchanges"]:
                del got["exchanges"]
        return got

    def play_beside(self, vector: Json) -> Json:
        """Do the same at the broker itself, past the sidecar; for exchanges that only the broker knows."""
        through, self._producer = self._producer, self._at_broker().open()
        try:
            return self.play(vector)
        finally:
            self._producer.vanish()
            self._producer = through

    def _sunk(self, sink: str) -> bool:
        # A regex route may have chosen the record itself; only by way of the default exchange can that reach it.
        return any(message.exchange for message in self._looker.take(_record(sink)))

    def _reached(self, score: Score) -> list[str]:
        reached, again = [], []
        for queue in self._place.queues:
            found = self._expect("Basic.GetOk", "Basic.GetEmpty")
            if found.name == "Basic.GetOk":
                message = self._producer.message(found)
                fault = score.fault(message)
                reached.append(f"{queue}: {fault}" if fault else queue)
                if found.arguments["message_count"]:
                    again.append(queue)
        for queue in again:
            reached += [f"{queue} again" for _ in self._producer.take(queue)]
        return reached

    def _expect(self, *names: str) -> Frame:
        found = self._producer.frame()
        if found.name in ("Channel.Close", "Connection.Close"):
            code, text, _, _ = read_method(Close, found.payload)
            raise Refused(found.channel, code, text)
        assert found.name in names, (names, found)
        return found


def _record(sink: str) -> str:
    return f"record of {sink}"


class Score:
    """The frames of one vector, in order, and what answers them.

    Args:
        vector: the vector.
        left: exchanges that an earlier one has left behind, to be deleted first.
        carrier_type: asked for in declarations of open exchanges; "" asks for none.
    """

    def __init__(self, vector: Json, left: Sequence[str], carrier_type: str = "") -> None:
        self.frames: list[bytes] = []
        #: names of the methods that answer the frames, where nothing is refused
        self.answers: list[str] = []
        tested = {
            "name": TESTED,
            "type": vector.get("exchange_type", "x-open"),
            "arguments": vector["exchange_arguments"],
            "bindings": vector["bindings"],
            "unbind": vector.get("unbind", ()),
        }
        exchanges = [tested, *vector.get("extra_exchanges", ())]
        #: names of what is declared
        self.exchanges = [exchange["name"] for exchange in exchanges]
        for name in left:
            self._add(client.method(1, commands.Exchange.Delete(exchange=name)), "Exchange.DeleteOk")
        for exchange in exchanges:
            arguments = encode_table(table_of(exchange["arguments"]))
            if carrier_type and exchange["type"] == "x-open":
                arguments += encode_table(((b"x-carrier-type", Value("S", carrier_type.encode())),))
            declare = exchange_declare(1, exchange["name"].encode(), exchange["type"].encode(), arguments)
            self._add(declare, "Exchange.DeclareOk")
        self._declared = len(self.answers)
        for exchange in reversed(exchanges):
            for what in ("bindings", "unbind"):
                for binding in exchange.get(what, ()):
                    self._bind(exchange["name"], what, binding)
        message = vector["message"]
        self._key = message["routing_key"].encode()
        self._headers = None if message["headers"] is None else table_of(message["headers"])
        self._body = message["body"].encode() if "body" in message else b"x" * message["body_size"]
        properties = {
            name: value.encode() if isinstance(value, str) else value for name, value in message["properties"].items()
        }
        self._properties = client.encode_properties(properties)
        self.publish = client.publish(1, TESTED.encode(), self._key, self._headers, self._body, properties)

    def _add(self, frame: bytes, answer: str) -> None:
        self.frames.append(frame)
        self.answers.append(answer)

    def _bind(self, source: str, what: str, binding: Json) -> None:
        make, answer = _MAKERS[binding["destination_type"], what]
        names = (binding["destination"], source, binding["routing_key"])
        entries = encode_table(table_of(binding["arguments"]))
        self._add(make(1, *(name.encode() for name in names), entries), answer)

    def refused(self, answered: int, error: Json) -> Json:
        """Give the result of a vector of which a step was refused.

        Args:
            answered: how many steps were not.
            error: of the step behind them.
        """
        if answered < self._declared:
            return {"declare_error": error}
        if answered < len(self.answers):
            return {"bind_error": error | {"binding": answered - self._declared}}
        return {"publish_error": error}

    def fault(self, message: Message) -> str:
        """Say in what a message that arrived differs from the one that was published; "" where it does not."""
        if message.address != (TESTED, self._key.decode()):
            return f"arrived as from {message.address}"
        if message.body != self._body:
            return f"arrived with another body of {len(message.body)} bytes"
        entries = message.entries or b""
        headers = decode_table(entries, 0, len(entries))
        if sorted(map(repr, headers)) != sorted(map(repr, self._kept())):
            return f"arrived with headers {headers}"
        return ""

    def _kept(self) -> Sequence[object]:
        kept: Table = tuple(entry for entry in self._headers or () if entry[0] != b"BCC")
        return kept
