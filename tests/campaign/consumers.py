"""Counts what each queue receives: some queues while the faults happen, through the sidecars, and the rest afterwards.

A consumer that loses its connection gets its unacked deliveries again, and those whose acks the broker lost. This is
not a copy that the sidecar made, so a delivery does not count if it is marked as redelivered or belongs to a later
connection, and the message has been counted before. Copies in queues that are emptied afterwards always count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from pamqp import commands

from tests.campaign.matching import Tally
from tests.campaign.pausable import PausableThread
from tests.campaign.publishers import EXPECTED_CODES, Patient
from tests.client import Frame, method
from tests.producer import Closed, Gone, Producer

#: Deliveries per ack.
_ACK_EVERY = 50

#: Timeout of a reply.
_SILENCE_SECONDS = 60.0

#: Gets that are sent before the first reply is read.
_GETS = 200

_DELIVER, _GET_EMPTY = b"\x00\x3c\x00\x3c", b"\x00\x3c\x00\x48"


class Consumer(PausableThread):
    """Consumes one queue through the sidecars, with acks, until it is ended.

    Before a pause, it acks what it has counted and closes the channel, so that the broker gets the other messages back.

    Args:
        queue: the queue.
        tally: counts its messages.
        ports: ports to connect to, in turn.
        vhost: virtual host.
    """

    def __init__(self, queue: str, tally: Tally, ports: Sequence[int], vhost: str) -> None:
        super().__init__(f"consumer of {queue}")
        self.queue = queue
        self.tally = tally
        self.redelivered = 0
        self.failures: list[str] = []
        self._ports = ports
        self._vhost = vhost
        self._unacked = 0
        self._tag = 0
        self._session: dict[tuple[int, int], int] = {}

    def begin_session(self) -> None:
        """Begin a new connection."""
        self._session.clear()
        self._unacked = 0

    def count(self, body: bytes, redelivered: bool) -> None:
        """Count a delivery, unless it repeats one of an earlier connection."""
        place = self.tally.add(body)
        if place is None:
            return
        here = self._session.get(place, 0)
        self._session[place] = here + 1
        if self.tally.count(*place) > 1 and (redelivered or not here):
            self.tally.copies[place[0]][place[1]] -= 1
            self.redelivered += 1

    def run(self) -> None:
        turn = 0
        while not self._ended:
            turn += 1
            try:
                with Patient(self._ports[turn % len(self._ports)], self._vhost).open() as connection:
                    self._consume(connection)
            except Closed as closed:
                if closed.code not in EXPECTED_CODES:
                    self.failures.append(f"{self.name}: closed with {closed.code} {closed.text}")
            except (Gone, OSError):
                pass  # a fault; the next connection gets the unacked messages again
            except Exception as error:  # noqa: BLE001 - a thread must not end silently
                self.failures.append(f"{self.name}: {error!r}")
            time.sleep(0.1)

    def _consume(self, connection: Patient) -> None:
        self.begin_session()
        connection.ask(commands.Basic.Qos(prefetch_count=500))
        connection.ask(commands.Basic.Consume(queue=self.queue, consumer_tag="c"))
        while self._running.is_set() and not self._ended:
            connection.socket.settimeout(0.2)
            try:
                frame = connection.frame()
            except TimeoutError:
                self._ack(connection)
                continue
            connection.socket.settimeout(_SILENCE_SECONDS)
            if frame.payload[:4] != _DELIVER:
                connection_closed(frame)
            message = connection.message(frame)
            self.count(message.body, bool(message.method["redelivered"]))
            self._tag = int.from_bytes(frame.payload[6:14], "big")  # after the consumer tag, which has one character
            self._unacked += 1
            if self._unacked >= _ACK_EVERY:
                self._ack(connection)
        self._close(connection)

    def _ack(self, connection: Patient) -> None:
        if self._unacked:
            connection.send(method(1, commands.Basic.Ack(self._tag, multiple=True)))
            self._unacked = 0

    def _close(self, connection: Patient) -> None:
        connection.socket.settimeout(_SILENCE_SECONDS)
        self._ack(connection)
        connection.call(commands.Channel.Close(200, "paused", 0, 0))
        while connection.frame().name != "Channel.CloseOk":
            pass  # deliveries that were on their way are not counted; the broker gets them back
        self.begin_session()
        self._wait_until_resumed()


def connection_closed(frame: Frame) -> None:
    """Raise the close in a frame.

    Raises:
        Closed: the frame is a close.
        Gone: the broker cancelled the consumer.
        AssertionError: it is another frame.
    """
    decoded = frame.method
    if isinstance(decoded, commands.Basic.Cancel):
        raise Gone  # the queue ended on the broker; consume again
    if isinstance(decoded, commands.Channel.Close | commands.Connection.Close):
        raise Closed(frame.channel, decoded.reply_code or 0, decoded.reply_text, (0, 0))
    raise AssertionError(f"unexpected frame {frame.name}")


def empty(queue: str, count: Callable[[bytes, bool], object], producer: Producer) -> int:
    """Take all messages of a queue, call ``count`` with each body and redelivered flag, and return their number."""
    taken = 0
    get = method(1, commands.Basic.Get(queue=queue, no_ack=True))
    while True:
        producer.send(get * _GETS)
        missing = 0
        for _ in range(_GETS):
            frame = producer.expect("Basic.GetOk", "Basic.GetEmpty")
            if frame.payload[:4] == _GET_EMPTY:
                missing += 1
            else:
                message = producer.message(frame)
                count(message.body, bool(message.method["redelivered"]))
                taken += 1
        if missing:
            return taken
