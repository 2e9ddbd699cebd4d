"""Counts confirmed publishes by the acks in the bytes received from the broker.

Successive ack frames are counted without creating an object for each frame; other frames are parsed individually. A
nack, a return or a close is an error, since results are meaningless if messages are lost. Source: AMQP 0-9-1, 2.3.5;
RabbitMQ's publisher confirms (`multiple`).
"""

from __future__ import annotations

import struct

ACK = struct.Struct(">BHIHHQBB")
"""A whole basic.ack frame: type, channel, size, class, method, delivery tag, multiple, frame end."""
ACK_START = b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x50"
HEARTBEAT = 8


class ConfirmError(Exception):
    """The broker sent a frame other than an ack; the text contains the frame."""


class ConfirmCounter:
    """Counts the messages confirmed on channel 1, regardless of the order of the acks."""

    def __init__(self) -> None:
        self._rest = b""
        self._up_to = 0
        self._alone: set[int] = set()

    @property
    def confirmed(self) -> int:
        return self._up_to + len(self._alone)

    def feed(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        position = 0
        while True:
            if len(data) - position >= ACK.size and data.startswith(ACK_START, position):
                position = self._acks(data, position)
            elif (end := self._step_over(data, position)) > position:
                position = end
            else:
                break
        self._rest = data[position:]

    def _acks(self, data: bytes, position: int) -> int:
        up_to, alone = self._up_to, self._alone
        whole = position + (len(data) - position) // ACK.size * ACK.size
        for kind, channel, size, class_id, method, delivery_tag, multiple, _ in ACK.iter_unpack(
            memoryview(data)[position:whole]
        ):
            if kind != 1 or channel != 1 or size != 13 or class_id != 60 or method != 80:
                break
            position += ACK.size
            if multiple & 1:
                up_to = max(up_to, delivery_tag)
                alone = {one for one in alone if one > up_to} if alone else alone
            elif delivery_tag == up_to + 1:
                up_to = delivery_tag
                while alone and up_to + 1 in alone:
                    up_to += 1
                    alone.remove(up_to)
            elif delivery_tag > up_to:
                alone.add(delivery_tag)
        self._up_to, self._alone = up_to, alone
        return position

    def _step_over(self, data: bytes, position: int) -> int:
        """Return the end of the heartbeat at `position`, or `position` itself if the frame is not complete yet."""
        if len(data) - position < 7:
            return position
        kind, _, size = struct.unpack_from(">BHI", data, position)
        end = position + 8 + int(size)
        if end > len(data):
            return position
        if kind != HEARTBEAT:
            raise ConfirmError(f"expected only acks, got the frame {data[position:end][:300]!r}")
        return end
