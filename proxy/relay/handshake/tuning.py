"""Which limits hold on the two sides of a proxied connection? Numbers in, numbers out.

The producer is offered one channel less than the broker gives: the top channel of the leased connection is
ours. Where the producer insists on smaller frames than the broker accepts, the two sides differ.

Source: AMQP 0-9-1 spec, 1.4.2.5 and 1.4.2.6 (tune, tune-ok), 4.9 "Limitations"; texts as RabbitMQ's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from proxy.amqp.methods import CONNECTION_TUNE
from proxy.errors import ProtocolError

#: Smallest frame-max that a peer must accept, in bytes (spec, 1.2 "frame-min-size").
FRAME_MIN_BYTES = 4096

#: Smallest frame-max that RabbitMQ accepts from version 4.1 on, in bytes.
FRAME_MIN_BYTES_4_1 = 8192

#: What "no limit" (0) comes to: channel numbers have 16 bits.
_TOP_CHANNEL = 65535

_NOT_ALLOWED = 530


class TuningLimits(NamedTuple):
    """Arguments of ``Connection.Tune`` and ``Connection.TuneOk``; 0 means no limit, no heartbeat.

    Args:
        channel_max: highest channel number.
        frame_max_bytes: largest whole frame.
        heartbeat_seconds: interval.
    """

    channel_max: int
    frame_max_bytes: int
    heartbeat_seconds: int


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was agreed. No number is 0 but a heartbeat that is off.

    Args:
        channel_max_producer: highest channel number the producer may use.
        channel_max_upstream: highest channel number towards the broker: the producer's and one more, which is
            ours.
            Equal to the producer's where the broker gives a single channel; then there is none of ours.
        frame_max_producer: largest whole frame on the producer's side, in bytes.
        frame_max_upstream: largest whole frame on the broker's side, in bytes.
        heartbeat_producer: heartbeat interval towards the producer in seconds, 0: off.
        heartbeat_upstream: heartbeat interval towards the broker in seconds, 0: off.
    """

    channel_max_producer: int
    channel_max_upstream: int
    frame_max_producer: int
    frame_max_upstream: int
    heartbeat_producer: int
    heartbeat_upstream: int


def offer(broker: TuningLimits, frame_max_bytes: int, most_channels: int = _TOP_CHANNEL) -> TuningLimits:
    """Say what the producer is offered.

    Args:
        broker: the broker's Tune.
        frame_max_bytes: largest frame that we handle.
        most_channels: most channels of one connection.
    """
    channels = broker.channel_max or _TOP_CHANNEL
    # 0 would mean "no limit": with a single channel the producer gets it and we have none.
    channel_max = min(max(channels - 1, 1), most_channels)
    frame_max = min(broker.frame_max_bytes or frame_max_bytes, frame_max_bytes)
    return TuningLimits(channel_max, frame_max, broker.heartbeat_seconds)


def agree(
    broker: TuningLimits, offered: TuningLimits, answer: TuningLimits, frame_min_bytes: int = FRAME_MIN_BYTES
) -> Tuning:
    """Join the producer's answer with the broker's offer.

    Args:
        broker: the broker's Tune.
        offered: what `offer` made of it.
        answer: the producer's TuneOk; a 0 for channels or frame size takes what was offered.
        frame_min_bytes: smallest frame-max that the broker accepts.

    Raises:
        ProtocolError: 530 with the ids of Tune, a value outside what was offered (RabbitMQ's ids and text).
    """
    _check("channel_max", answer.channel_max, 1, offered.channel_max)
    _check("frame_max", answer.frame_max_bytes, FRAME_MIN_BYTES, offered.frame_max_bytes)
    channel_max = answer.channel_max or offered.channel_max
    frame_max = answer.frame_max_bytes or offered.frame_max_bytes
    frame_max_upstream = max(frame_max, frame_min_bytes)
    return Tuning(
        channel_max_producer=channel_max,
        channel_max_upstream=min(channel_max + 1, broker.channel_max or _TOP_CHANNEL),
        frame_max_producer=frame_max,
        frame_max_upstream=min(frame_max_upstream, broker.frame_max_bytes or frame_max_upstream),
        heartbeat_producer=answer.heartbeat_seconds,
        heartbeat_upstream=answer.heartbeat_seconds or broker.heartbeat_seconds,
    )


def _check(name: str, value: int, lowest: int, highest: int) -> None:
    if value == 0 or lowest <= value <= highest:
        return
    side, bound = ("lower than the minimum", lowest) if value < lowest else ("higher than the maximum", highest)
    text = f"negotiated {name} = {value} is {side} allowed value ({bound})"
    raise ProtocolError(_NOT_ALLOWED, text, class_id=CONNECTION_TUNE >> 16, method_id=CONNECTION_TUNE & 0xFFFF)
