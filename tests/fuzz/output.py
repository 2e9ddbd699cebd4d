"""Checks what a relay or a handshake sends."""

from __future__ import annotations

_MOST_BYTES = 1 << 20


class Defect(Exception):  # noqa: N818 - named after what it describes
    """The product did something that it must never do."""


class Output:
    """Checks that the output to one side consists of frames.

    Args:
        side: who receives it.
        header: a protocol header that may precede each frame; empty for none.
    """

    def __init__(self, side: str, header: bytes = b"") -> None:
        self._side = side
        self._header = header
        self._rest = b""

    def add(self, data: bytes) -> None:
        """Check further bytes.

        Raises:
            Defect: they are not frames.
        """
        data = self._rest + data
        at = 0
        while len(data) >= at + 8:
            if self._header and data.startswith(self._header, at):
                at += len(self._header)
                continue
            stop = at + 8 + int.from_bytes(data[at + 3 : at + 7], "big")
            if data[at] not in (1, 2, 3, 8) or stop - at > _MOST_BYTES:
                raise Defect(f"output to the {self._side} is not a frame: {data[at : at + 40]!r}")
            if stop > len(data):
                break
            if data[stop - 1] != 0xCE:
                raise Defect(f"output to the {self._side}: a frame without its end: {data[at : at + 40]!r}")
            at = stop
        self._rest = data[at:]
