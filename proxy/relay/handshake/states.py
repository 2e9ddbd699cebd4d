"""Which states does a handshake have, and whose turn is it in each?

Source: AMQP 0-9-1 spec, 2.2.4 "The connection class" (the order of its methods).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

#: Bytes from one side that may wait until the other has answered, and the largest frame before OpenOk.
#: StartOk can carry a token of some KiB; 128 KiB is RabbitMQ's frame-max. Beyond: 506; a larger frame: 501.
WAITING_BYTES = 131072


class HandshakeState(Enum):
    """What is awaited; the value says it for texts."""

    AWAITING_HEADER = "protocol header"
    AWAITING_START = "Connection.Start"
    AWAITING_START_OK = "Connection.StartOk"
    AWAITING_TUNE = "Connection.Secure or Connection.Tune"
    AWAITING_SECURE_OK = "Connection.SecureOk"
    AWAITING_TUNE_OK = "Connection.TuneOk"
    AWAITING_OPEN = "Connection.Open"
    AWAITING_OPEN_OK = "Connection.OpenOk"
    REFUSING = "Connection.StartOk, to be refused"
    CLOSING = "Connection.CloseOk"
    OPEN = "nothing: open"
    CLOSED = "nothing: closed"


PRODUCERS_TURN = frozenset(
    {
        HandshakeState.AWAITING_HEADER,
        HandshakeState.AWAITING_START_OK,
        HandshakeState.AWAITING_SECURE_OK,
        HandshakeState.AWAITING_TUNE_OK,
        HandshakeState.AWAITING_OPEN,
        HandshakeState.REFUSING,
        HandshakeState.CLOSING,
    }
)

BROKERS_TURN = frozenset({HandshakeState.AWAITING_START, HandshakeState.AWAITING_TUNE, HandshakeState.AWAITING_OPEN_OK})

#: There is no broker yet or no more; what comes from there is dropped.
WITHOUT_BROKER = frozenset(
    {
        HandshakeState.AWAITING_HEADER,
        HandshakeState.REFUSING,
        HandshakeState.CLOSING,
        HandshakeState.CLOSED,
    }
)

#: The broker may close the connection (whose turn it is does not matter).
WITH_BROKER = frozenset(HandshakeState) - WITHOUT_BROKER - {HandshakeState.OPEN}


class Side(Enum):
    """One of the two peers."""

    PRODUCER = "producer"
    UPSTREAM = "upstream"


@dataclass(frozen=True, slots=True)
class HandshakeLimits:
    """Limits of one handshake.

    Args:
        frame_max: largest frame that is offered to producers, in bytes; at least 4096.
        waiting_bytes: see `WAITING_BYTES`.
        channel_max: most channels that are offered.
    """

    frame_max: int = 131072
    waiting_bytes: int = WAITING_BYTES
    channel_max: int = 65535


@dataclass(frozen=True, slots=True)
class Ending:
    """Why there is no open connection, for logs and metrics.

    Args:
        side: whose doing it was.
        reply_code: what the producer was told, 0 where it was told nothing.
        text: reply text, or what was seen.
    """

    side: Side
    reply_code: int
    text: str
