"""Publishers of the campaign: threads that send numbered messages, and know the outcome of each.

After a lost connection, a publisher connects again, often through the other sidecar, and publishes the messages with an
unknown outcome again.
"""

from __future__ import annotations

import random
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence

from pamqp import commands

from oxproxy.amqp.tables import encode_table
from tests import client
from tests.broker.delivery.applications import Application
from tests.campaign.matching import Outcome, Route, Stream
from tests.campaign.pausable import PausableThread
from tests.client import Frame, method
from tests.producer import Closed, Gone, Producer, headers

#: Seconds without any reply after which a publisher reports a stall. No fault lasts as long.
SILENCE_SECONDS = 60.0

#: Reply codes that a fault explains: connection forced; internal error of a broker that is shutting down.
EXPECTED_CODES = (320, 541)

_ACK, _NACK, _RETURN = b"\x00\x3c\x00\x50", b"\x00\x3c\x00\x78", b"\x00\x3c\x00\x32"
_LINGER = struct.pack("ii", 1, 0)


class Patient(Producer):
    """A connection that ignores the broker's notifications of alarms.

    Attributes:
        published: publishes on channel 1 since it was opened.
    """

    published = 0

    def frame(self) -> Frame:
        while True:
            frame = super().frame()
            if frame.channel or frame.name not in ("Connection.Blocked", "Connection.Unblocked"):
                return frame


class Declaring(Patient, Application):
    """The same for an application that declares."""


class Publisher(PausableThread, ABC):
    """A publisher with one connection at a time. It pauses when the outcome of all its messages is known.

    Args:
        stream: its messages.
        ports: ports to connect to, in turn.
        vhost: virtual host.
        seed: seed of the random choices.
    """

    def __init__(self, stream: Stream, ports: Sequence[int], vhost: str, seed: int) -> None:
        super().__init__(stream.name)
        self.stream = stream
        self.random = random.Random(seed)
        self.connections = 0
        self.closes: Counter[str] = Counter()
        self.failures: list[str] = []
        self.settled = 0
        self._ports = ports
        self._vhost = vhost
        self._producer: Patient | None = None
        #: messages of the current batch whose outcome is not known
        self.open: list[int] = []
        self._templates = [_Template(route) for route in stream.routes]
        #: further properties of the messages
        self._properties: dict[str, bytes] = {}

    # -- control -------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """End the thread, and wait for it; close its connection, since it may wait for a reply."""
        self._ended = True
        self.reset()
        super().end()

    def reset(self) -> None:
        """Close the connection with RST, as a crashed client does."""
        producer = self._producer
        if producer is not None:
            try:
                producer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
                producer.socket.shutdown(socket.SHUT_RD)  # wakes the thread, which then closes the socket
            except OSError:
                pass

    # -- the thread ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        turn = self.stream.number
        while not self._ended:
            began = time.monotonic()
            try:
                with self.connected(self._ports[turn % len(self._ports)]) as producer:
                    self.connections += 1
                    producer.socket.settimeout(SILENCE_SECONDS)
                    self._producer = producer
                    while not self._ended:
                        self._wait_while_paused()
                        if not self._ended:
                            self.work(producer)
            except Closed as closed:
                self._report_close(closed)
            except TimeoutError:
                self.failures.append(f"{self.name}: no reply for {time.monotonic() - began:.0f} s")
            except (Gone, OSError):
                self.closes["connection lost"] += 1
            except Exception as error:  # noqa: BLE001 - a thread must not end silently
                self.failures.append(f"{self.name}: {error!r}")
            self._producer = None
            turn += self.random.random() < 0.7
            time.sleep(0.1)

    def connected(self, port: int) -> Patient:
        """Open a connection with channel 1."""
        return Patient(port, self._vhost).open(confirm=True)

    @abstractmethod
    def work(self, producer: Patient) -> None:
        """Publish a batch, and return when all outcomes are known."""

    def _wait_while_paused(self) -> None:
        if not self._running.is_set() and not self.open:
            self._wait_until_resumed()

    def _report_close(self, closed: Closed) -> None:
        self.closes[f"{closed.code} {closed.text[:60]}" if closed.code not in EXPECTED_CODES else str(closed.code)] += 1
        if closed.code not in EXPECTED_CODES:
            self.failures.append(f"{self.name}: closed with {closed.code} {closed.text}")

    # -- messages ------------------------------------------------------------------------------------------------------

    def draw(self, most: int) -> list[int]:
        """Add some new messages, or return those whose outcome is unknown."""
        if not self.open:
            routes = range(len(self.stream.routes))
            count = self.random.randint(1, most)
            self.open = [self.stream.add(route) for route in self.random.choices(routes, k=count)]
        return self.open

    def frames(self, messages: Sequence[int], frame_max: int) -> bytes:
        """Frames of publishes. The messages count as sent."""
        return b"".join(self._frames(message, frame_max) for message in messages)

    def _frames(self, message: int, frame_max: int) -> bytes:
        self.stream.send(message)
        template = self._templates[self.stream.route[message]]
        body, message_id = self.stream.body(message), self.stream.message_id(message)
        return template.frames(body, message_id, frame_max, **self._properties)

    def settle(self, messages: Sequence[int], outcome: Outcome) -> None:
        for message in messages:
            self.stream.outcome[message] = outcome
        self.settled += len(messages)

    def returned(self, producer: Producer, frame: Frame) -> int:
        """Read a returned message and return its number."""
        body = producer.message(frame).body
        return int(body.split(b" ", 2)[1])


class _Template:
    """A route's frames, as far as they are the same for all messages."""

    def __init__(self, route: Route) -> None:
        publish = commands.Basic.Publish(exchange=route.exchange, routing_key=route.key, mandatory=route.mandatory)
        self._method = method(1, publish)
        self._entries = encode_table(headers(route.headers))

    def frames(self, body: bytes, message_id: bytes, frame_max: int, **more: bytes) -> bytes:
        properties: dict[str, bytes | int] = {"delivery_mode": 2, "message_id": message_id, **more}
        header = client.content_header(1, len(body), self._entries, properties)
        size = frame_max - 8
        return b"".join(
            (self._method, header, *(client.frame(3, 1, body[at : at + size]) for at in range(0, len(body), size)))
        )


class ConfirmPublisher(Publisher):
    """Publishes batches in confirm mode. The broker confirms single messages, or several together."""

    #: Largest batch.
    MOST = 200

    def work(self, producer: Patient) -> None:
        messages = self.draw(self.MOST)
        unsettled = dict(enumerate(messages, producer.published + 1))
        producer.published += len(messages)
        for message in messages:
            self.stream.attempts[message] += 1
        producer.send(self.frames(messages, producer.frame_max))
        nacked: list[int] = []
        try:
            self._await_confirms(producer, unsettled, nacked)
        finally:
            self.open = [*unsettled.values(), *nacked]
        if nacked:
            self.closes["nack"] += len(nacked)
            time.sleep(0.05)

    def _await_confirms(self, producer: Patient, unsettled: dict[int, int], nacked: list[int]) -> None:
        """Read confirms until no message by delivery tag is left; nacked messages are added to a list."""
        returned: set[int] = set()
        while unsettled:
            frame = producer.frame()
            kind = frame.payload[:4]
            if frame.kind == 1 and kind in (_ACK, _NACK):
                tag = int.from_bytes(frame.payload[4:12], "big")
                tags = [tag]
                if frame.payload[12] & 1:
                    tags = [earlier for earlier in unsettled if earlier <= tag or tag == 0]
                done = [unsettled.pop(tag) for tag in tags]  # KeyError: a second confirm, which is a failure
                if kind == _ACK:
                    self._acked(done, returned)
                else:
                    nacked += done
            elif frame.kind == 1 and kind == _RETURN:
                returned.add(self.returned(producer, frame))
            else:
                unexpected(frame)

    def _acked(self, messages: Sequence[int], returned: set[int]) -> None:
        self.settle([message for message in messages if message not in returned], Outcome.ACKED)
        self.settle([message for message in messages if message in returned], Outcome.RETURNED)


class SlowPublisher(ConfirmPublisher):
    """Publishes small batches with pauses, so that it takes little CPU time from the others."""

    MOST = 10

    def work(self, producer: Patient) -> None:
        super().work(producer)
        time.sleep(0.05)


class TransactionPublisher(Publisher):
    """Publishes in transactions. Some of them are rolled back."""

    MOST = 60

    def connected(self, port: int) -> Patient:
        producer = Patient(port, self._vhost).open()
        producer.ask(commands.Tx.Select())
        return producer

    def work(self, producer: Patient) -> None:
        messages = self.draw(self.MOST)
        producer.send(self.frames(messages, producer.frame_max))
        if self.random.random() < 0.1 and not any(self.stream.attempts[message] for message in messages):
            # The broker discards them even if the connection is lost before the reply.
            self.open = []
            self.settle(messages, Outcome.ABSENT)
            producer.call(commands.Tx.Rollback())
            self._reply(producer, "Tx.RollbackOk")
            return
        for message in messages:
            self.stream.attempts[message] += 1
        producer.call(commands.Tx.Commit())
        returned = self._reply(producer, "Tx.CommitOk")
        self.open = []
        self.settle([message for message in messages if message not in returned], Outcome.ACKED)
        self.settle([message for message in messages if message in returned], Outcome.RETURNED)

    def _reply(self, producer: Producer, name: str) -> set[int]:
        returned: set[int] = set()
        while (frame := producer.frame()).name != name:
            if frame.name != "Basic.Return":
                unexpected(frame)
            returned.add(self.returned(producer, frame))
        return returned


class DeclaringPublisher(Publisher):
    """Declares an exchange, binds and unbinds its queue again and again, and publishes after each change.

    Route 0 is a message that the binding selects, route 1 the same message without the binding. In addition, exclusive
    queues come and go with a binding that selects no message.

    Each connection has a binding of its own, which selects only its messages. A bind of an earlier connection may still
    take effect: if its outcome is unknown, or if it went to the other sidecar, and this one has not listed it yet.

    Args:
        exchange: the exchange.
        queue: its queue.
        changed: called after each change.
    """

    def __init__(
        self,
        stream: Stream,
        ports: Sequence[int],
        vhost: str,
        seed: int,
        exchange: str,
        queue: str,
        changed: Callable[[], None],
    ) -> None:
        super().__init__(stream, ports, vhost, seed)
        self._exchange = exchange
        self._queue = queue
        self._changed = changed

    def connected(self, port: int) -> Patient:
        application = Declaring(port, self._vhost)
        try:
            application.exchange(self._exchange)
            application.queues(self._queue)
        except BaseException:
            application.disconnect()
            raise
        return application

    def work(self, producer: Patient) -> None:
        assert isinstance(producer, Declaring)
        if not self.open:
            self.open = [self.stream.add(self.random.randint(0, 1))]
        self._properties = {"app_id": f"connection {self.connections}".encode()}
        [message] = self.open
        bound = self.stream.route[message] == 0
        arguments = {"x-?hkv= to": self._queue, "x-?pr= app_id": self._properties["app_id"].decode()}
        producer.bind(self._queue, self._exchange, arguments)
        if not bound:
            producer.unbind(self._queue, self._exchange, arguments)
        passing = ""
        if bound and self.random.random() < 0.3:
            passing = producer.declare(exclusive=True)
            producer.bind(passing, self._exchange, {"x-?hkv= to": passing})
        self._changed()
        self._publish(producer, message)
        if passing:
            producer.ask(commands.Queue.Delete(queue=passing))

    def _publish(self, producer: Declaring, message: int) -> None:
        self.stream.attempts[message] += 1
        producer.send(self.frames([message], producer.frame_max))
        settled = producer.settle()
        if settled.acked:
            self.open = []
            self.settle([message], Outcome.RETURNED if settled.returned else Outcome.ACKED)


def unexpected(frame: Frame) -> None:
    """Raise the close in a frame, or an error.

    Raises:
        Closed: the frame is a close.
        AssertionError: the frame is not expected.
    """
    decoded = frame.method if frame.kind == 1 else None
    if isinstance(decoded, commands.Channel.Close | commands.Connection.Close):
        ids = decoded.class_id or 0, decoded.method_id or 0
        raise Closed(frame.channel, decoded.reply_code or 0, decoded.reply_text, ids)
    raise AssertionError(f"unexpected frame {frame.name}")
