"""Mutated frames from the producer and from the broker, into a relay without sockets.

Each conversation has its own connection and its own rules. It consists of the steps of a valid conversation, some of
which are mutated. After each input:

- no exception leaves the relay: invalid input is answered with a close, or ends the connection.
- the output to each side consists of valid frames.

Some of the conversations are handshakes (``handshake``). After each of the others, another connection with the same
rules must route a message as before, once the bindings that the conversation created have been removed.
"""

from __future__ import annotations

import random
import traceback
from collections import Counter
from collections.abc import Callable

from oxproxy.relay.connection_state import LookUp, Phase
from oxproxy.relay.vhost import VhostState
from tests import client
from tests.client import frame
from tests.fuzz.handshake import HandshakeConversation
from tests.fuzz.mutation import cut, frames_of, mutated
from tests.fuzz.output import Defect, Output
from tests.relay.test_relay_conversation import recorded
from tests.relay.wire import Wire, ack, nack, publish, routed, several

#: Fraction of the steps that are mutated.
_MUTATED = 0.5

#: Fraction of the conversations that are handshakes.
_HANDSHAKES = 0.2

#: Steps of a conversation.
_STEPS = 60

#: Steps after the first close, which must be ignored or answered.
_CLOSING_STEPS = 5

_PRODUCER, _BROKER = "producer", "broker"


def seeds() -> list[tuple[str, list[bytes]]]:
    """Valid steps: the side that speaks, and its frames."""
    record = recorded()
    steps = [(_PRODUCER if side == record.steps[0][0] else _BROKER, data) for side, data in record.steps]
    steps += [
        (_PRODUCER, publish()),
        (_PRODUCER, publish(mandatory=True, message_id=b"1", timestamp=5)),
        (_PRODUCER, publish(headers=None)),
        (_PRODUCER, publish(body=b"x" * 5000, frame_max=1024)),
        (_PRODUCER, publish(to="unknown")),
        (_PRODUCER, publish(body=b"x" * 3000)),
        (_PRODUCER, client.queue_bind(1, b"q", b"xo", b"", b"\x04x-?rkS\x00\x00\x00\x01k")),
        (_PRODUCER, client.queue_unbind(1, b"q", b"xo", b"")),
        (_PRODUCER, client.exchange_bind(1, b"e", b"xo", b"")),
        (_BROKER, ack(1)),
        (_BROKER, ack(3, multiple=True)),
        (_BROKER, nack(2)),
        (_BROKER, frame(8, 0, b"")),
    ]
    return [(side, frames_of(data)) for side, data in steps]


def rules(draw: random.Random) -> VhostState:
    """Rules that use the different ways of a publish."""
    match draw.randrange(4):
        case 0:
            return routed("q")
        case 1:
            return routed("q", "r", bound=[("queue", b"q")])
        case 2:
            return routed("q", unmatched_pass=True)
    return several("e", queues=("q", "r"))


class Conversation:
    """One connection."""

    def __init__(self, draw: random.Random, steps: list[tuple[str, list[bytes]]]) -> None:
        self._draw = draw
        self._steps = steps
        self._state = rules(draw)
        self._before = self._canary()
        self._wire = Wire(self._state)
        self._wire.open(1, 2, confirm=draw.random() < 0.7)
        self._outputs = Output("broker"), Output("producer")
        self.inputs: list[tuple[str, bytes]] = []
        self.mutations = 0

    def run(self) -> str:
        """Run the conversation, and return the phase in which it ended."""
        draw, wire, steps = self._draw, self._wire, self._steps
        first = draw.randrange(len(steps))
        in_order = draw.random() < 0.6
        closing = 0
        for number in range(_STEPS):
            side, frames = steps[(first + number) % len(steps)] if in_order else draw.choice(steps)
            data = b"".join(frames)
            if frames and draw.random() < _MUTATED:
                data, count = mutated(frames, draw)
                self.mutations += count
            for piece in cut(data, draw):
                self._pass(side, piece)
            phase = wire.relay.connection.lifecycle.phase
            closing += phase is not Phase.OPEN
            if phase is Phase.CLOSED or wire.relay.connection.upstream.done or closing > _CLOSING_STEPS:
                break
        phase = wire.relay.connection.lifecycle.phase
        if draw.random() < 0.5:
            wire.relay.upstream_lost("the connection was lost")
        wire.relay.ended()
        self._check_output()
        return phase.value

    def _pass(self, side: str, data: bytes) -> None:
        wire = self._wire
        self.inputs.append((side, data))
        if side == _PRODUCER:
            wire.relay.producer_sent(data, wire.now)
        else:
            wire.relay.broker_sent(data, wire.now)
        self._check_output()
        requests = wire.relay.connection.pending.requests
        while requests:
            request = requests.pop(0)
            if isinstance(request, LookUp):
                wire.relay.answer(request, self._draw.choice((None, "direct", "topic", "x-open")))
            else:
                wire.relay.answer(request, ended=self._draw.random() < 0.5)
            self._check_output()

    def _check_output(self) -> None:
        self._outputs[0].add(self._wire.upstream())
        self._outputs[1].add(self._wire.sent())

    def check_others(self) -> None:
        """Remove the clients' bindings, and check that another connection routes as before."""
        for owned in self._state.exchanges.values():
            for stored in list(owned.clients.values()):
                self._state.remove_binding(stored)
        if (output := self._canary()) != self._before:
            raise Defect(f"another connection no longer routes as before: {output!r}, before: {self._before!r}")

    def _canary(self) -> bytes:
        """Publish a message on a new connection, and return the output to the broker."""
        return Wire(self._state).open(1).produce(publish(body=b"canary"))


def run(seed: int, frames: int, stop: float, clock: Callable[[], float]) -> tuple[Counter[str], list[str]]:
    """Run conversations until enough frames are mutated, or the time is over; mutate at least one frame.

    Args:
        seed: seed of the first conversation; each has its own.
        frames: number of mutated frames.
        stop: value of the clock at which no conversation begins.
        clock: returns seconds.

    Returns:
        Counts, and the defects found.
    """
    counts: Counter[str] = Counter()
    defects: list[str] = []
    steps = seeds()
    while not counts["mutated frames"] or (counts["mutated frames"] < frames and clock() < stop and len(defects) < 20):
        draw = random.Random(seed)
        is_handshake = draw.random() < _HANDSHAKES
        conversation: HandshakeConversation | Conversation
        conversation = HandshakeConversation(draw) if is_handshake else Conversation(draw, steps)
        try:
            counts[f"ended {conversation.run()}"] += 1
            conversation.check_others()
        except Exception as error:  # noqa: BLE001 - every exception is a defect
            last = traceback.extract_tb(error.__traceback__)[-1]
            side, data = conversation.inputs[-1]
            where = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
            defects.append(f"seed {seed}: {error!r} at {where}, input from the {side}: {data[:200]!r}")
        counts["conversations"] += 1
        counts["mutated frames"] += conversation.mutations
        counts["inputs"] += len(conversation.inputs)
        seed += 1
    return counts, defects
