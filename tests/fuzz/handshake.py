"""Mutated frames during the handshake, before the user is known; see ``wire``."""

from __future__ import annotations

import random

from oxproxy.errors import UpstreamError, UpstreamFailure
from oxproxy.relay.handshake.machine import HandshakeState
from tests.client import HEARTBEAT, PROTOCOL_HEADER
from tests.fuzz.mutation import cut, mutated
from tests.fuzz.output import Output
from tests.relay.handshakes import CONVERSATION, close, new, said_to_producer, said_to_upstream, say

#: Steps without an answer after which a handshake is abandoned.
_STEPS = 30

_ERRORS = (None, UpstreamError(UpstreamFailure.UNAVAILABLE, "connection refused"))


class HandshakeConversation:
    """One handshake."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._handshake = new()
        self._outputs = Output("broker", PROTOCOL_HEADER), Output("producer", PROTOCOL_HEADER)
        self.inputs: list[tuple[str, bytes]] = []
        self.mutations = 0

    def run(self) -> str:
        """Run the handshake, and return the state in which it ended."""
        draw = self._draw
        steps = list(CONVERSATION)
        if draw.random() < 0.3:
            steps.insert(draw.randrange(len(steps)), draw.choice((("upstream", close()), ("producer", HEARTBEAT))))
        for number in range(_STEPS):
            side, data = steps[number] if number < len(steps) else draw.choice(steps)
            if draw.random() < 0.3:
                data, count = mutated([data], draw)
                self.mutations += count
            for piece in cut(data, draw):
                self.inputs.append((side, piece))
                say(self._handshake, side, piece)
                self._check_output()
            if self._handshake.state in (HandshakeState.OPEN, HandshakeState.CLOSED):
                break
        state = self._handshake.state
        if state is not HandshakeState.OPEN:
            if draw.random() < 0.5:
                self._handshake.producer_lost()
            self._handshake.upstream_lost(draw.choice(_ERRORS))
            self._check_output()
        return f"handshake {state.name.lower().replace('_', ' ')}"

    def check_others(self) -> None:
        """A handshake shares nothing with others."""

    def _check_output(self) -> None:
        self._outputs[0].add(said_to_upstream(self._handshake))
        self._outputs[1].add(said_to_producer(self._handshake))
