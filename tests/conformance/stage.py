"""Runs vectors through a running sidecar, in a virtual host with queues and sinks.

Queues and sinks are kept between vectors, since regex routes see every existing queue. Exchanges and bindings are
created for each vector, on one channel, without waiting for replies. The messages of a sink are read from an exclusive
queue of a second connection. Only that connection can bind the queue. Messages that are published to the queue by name
are recognized by their address and not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Self

from pamqp import commands

from oxproxy.amqp.method_frames import Close, exchange_declare, read_method
from oxproxy.amqp.tables import decode_table, encode_table
from oxproxy.values import Table, Value
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
    """The queues and exchanges of a virtual host while vectors are run there.

    Args:
        queues: every queue.
        sinks: exchanges that only record that a message arrived.
    """

    queues: tuple[str, ...]
    sinks: tuple[str, ...]

    @classmethod
    def of(cls, vector: Json) -> Self:
        """The queues and exchanges that a vector requires."""
        return cls(tuple(sorted(vector["queues"])), tuple(sorted(vector["exchanges"])))


class Refused(Exception):  # noqa: N818 - named after the event
    """The sidecar or the broker closed a channel."""

    def __init__(self, channel: int, code: int, text: bytes) -> None:
        super().__init__(channel, code, text)
        self.channel = channel
        self.error: Json = {"code": code, "text": without_reason(text)}


class Stage:
    """A virtual host in which vectors with the same queues and sinks are run in sequence.

    Args:
        broker: the broker.
        port: port of the sidecar.
        vhost: an existing, empty virtual host.
        place: queues and sinks to create.
        carrier_type: type requested in declarations of open exchanges; empty for none.
    """

    def __init__(self, broker: Broker, port: int, vhost: str, place: Place, carrier_type: str = "") -> None:
        self._place = place
        self._carrier_type = carrier_type
        #: exchanges of the previous vector
        self._left: Sequence[str] = ()
        self._at_broker = partial(Producer, broker.port, vhost, broker.username, broker.password)
        self._observer = self._at_broker().open()
        for sink in place.sinks:
            self._observer.ask(commands.Exchange.Declare(exchange=sink, exchange_type="fanout", durable=True))
            self._observer.declare(_record(sink), exclusive=True)
            self._observer.ask(commands.Queue.Bind(queue=_record(sink), exchange=sink))
        self._producer = Producer(port, vhost, broker.username, broker.password).open()
        for queue in place.queues:
            self._producer.declare(queue, durable=True)

    def leave(self) -> None:
        """Close both connections; queues and exchanges are kept."""
        self._producer.disconnect()
        self._observer.disconnect()

    def play(self, vector: Json) -> Json:
        """Declare, bind and publish as a vector specifies; return the result in the form that vectors use."""
        score = Score(vector, self._left, self._carrier_type)
        self._left = score.exchanges
        gets = [client.method(1, commands.Basic.Get(queue=queue, no_ack=True)) for queue in self._place.queues]
        self._producer.send(*score.frames, score.publish, *gets)
        answered = 0
        try:
            for name in score.answers:
                frame = self._expect(name)
                assert frame.name == name, (vector["id"], frame)
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

    def play_on_broker(self, vector: Json) -> Json:
        """Run a vector directly on the broker, for exchange types that the broker evaluates."""
        through, self._producer = self._producer, self._at_broker().open()
        try:
            return self.play(vector)
        finally:
            self._producer.disconnect()
            self._producer = through

    def _sunk(self, sink: str) -> bool:
        # A regex route may have selected this queue by name. Such a message has arrived through the default exchange.
        return any(message.exchange for message in self._observer.take(_record(sink)))

    def _reached(self, score: Score) -> list[str]:
        reached, again = [], []
        for queue in self._place.queues:
            frame = self._expect("Basic.GetOk", "Basic.GetEmpty")
            if frame.name == "Basic.GetOk":
                message = self._producer.message(frame)
                fault = score.fault(message)
                reached.append(f"{queue}: {fault}" if fault else queue)
                if frame.arguments["message_count"]:
                    again.append(queue)
        for queue in again:
            reached += [f"{queue} again" for _ in self._producer.take(queue)]
        return reached

    def _expect(self, *names: str) -> Frame:
        frame = self._producer.frame()
        if frame.name in ("Channel.Close", "Connection.Close"):
            code, text, _, _ = read_method(Close, frame.payload)
            raise Refused(frame.channel, code, text)
        assert frame.name in names, (names, frame)
        return frame


def _record(sink: str) -> str:
    return f"record of {sink}"


class Score:
    """The frames of a vector, in order, and the expected replies.

    Args:
        vector: the vector.
        left: exchanges left by an earlier vector, which are deleted first.
        carrier_type: type requested in declarations of open exchanges; empty for none.
    """

    def __init__(self, vector: Json, left: Sequence[str], carrier_type: str = "") -> None:
        self.frames: list[bytes] = []
        #: names of the replies if nothing is refused
        self.answers: list[str] = []
        tested = {
            "name": TESTED,
            "type": vector.get("exchange_type", "x-open"),
            "arguments": vector["exchange_arguments"],
            "bindings": vector["bindings"],
            "unbind": vector.get("unbind", ()),
        }
        exchanges = [tested, *vector.get("extra_exchanges", ())]
        #: names of the declared exchanges
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
        """Return the result of a vector with a refused step.

        Args:
            answered: number of steps before the refused one.
            error: error of the refused step.
        """
        if answered < self._declared:
            return {"declare_error": error}
        if answered < len(self.answers):
            return {"bind_error": error | {"binding": answered - self._declared}}
        return {"publish_error": error}

    def fault(self, message: Message) -> str:
        """Return the difference between the received and the published message; empty if there is none."""
        if message.address != (TESTED, self._key.decode()):
            return f"arrived as from {message.address}"
        if message.body != self._body:
            return f"arrived with a different body of {len(message.body)} bytes"
        entries = message.entries or b""
        headers = decode_table(entries, 0, len(entries))
        if sorted(map(repr, headers)) != sorted(map(repr, self._kept())):
            return f"arrived with headers {headers}"
        return ""

    def _kept(self) -> Sequence[object]:
        kept: Table = tuple(entry for entry in self._headers or () if entry[0] != b"BCC")
        return kept
