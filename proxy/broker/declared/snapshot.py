"""The snapshot file, which stores client declarations.

The file is needed for exchanges with ``delivery: queue``, which are not stored on the broker. If there is no management
API, it is needed for all client declarations, since they can't be read back from the broker.

The first line contains the name of the format, its version and a checksum; every other line is a JSON array. The file
is replaced atomically. A damaged file is rejected and renamed, but not deleted, since it may be the only copy.

`Recorder` decides when the file is written. Each write is followed by a pause that is proportional to the duration of
the write, so that bursts of changes do not delay producers. A change is written at once, unless a write or a pause is
in progress. Changes made during this time are written together after the pause.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from proxy.broker.task_supervisor import Supervisor
from proxy.relay.tokens import token
from proxy.relay.vhost import BindingCopy, DeclaredExchange, Delivery, VhostState
from proxy.values import Destination

log = structlog.get_logger(__name__)

_MAGIC = b"oxproxy-snapshot"
_VERSION = b"1"


class ExchangeRecord(NamedTuple):
    """An exchange that a client declared."""

    vhost: str
    name: bytes
    delivery: Delivery
    declared: DeclaredExchange


class BindingRecord(NamedTuple):
    """A binding created by a client.

    Args:
        exchange: the source exchange, which is defined in a rules file or was declared by a client.
        copies: all copies on the broker. Their `secret` is not stored in the file, but determined by verifying the
            signatures. Files from older versions contain no keys. The key of a mark (see `marks`) is then set to the
            unkeyed token, and the keys of other copies are empty.
        marks: sequence numbers of the copies whose key is the destination's token.
    """

    vhost: str
    exchange: bytes
    destination: Destination
    routing_key: bytes
    entries: bytes
    copies: tuple[BindingCopy, ...]
    marks: frozenset[int] = frozenset()


class GrantRecord(NamedTuple):
    """Record of a client's permission to bind a destination.

    Args:
        key: hash computed from the client's name and the destination.
    """

    vhost: str
    exchange: bytes
    destination: Destination
    key: bytes


class SnapshotRecords(NamedTuple):
    """The content of a snapshot."""

    exchanges: tuple[ExchangeRecord, ...] = ()
    bindings: tuple[BindingRecord, ...] = ()
    grants: tuple[GrantRecord, ...] = ()


def load_snapshot(path: Path) -> SnapshotRecords:
    """Read a snapshot file. The result is empty if there is no file.

    Raises:
        ValueError: the file is damaged. It has been renamed, and the message contains its new name.
        OSError: the file can't be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return SnapshotRecords()
    try:
        return decode(data)
    except ValueError as error:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        aside = path.with_name(f"{path.name}.damaged-{stamp}")
        os.replace(path, aside)
        raise ValueError(f"{path} is damaged: {error}; kept as {aside}") from error


def save_snapshot(path: Path, records: SnapshotRecords) -> None:
    """Replace a snapshot file atomically, so that it is never incomplete, even after a power failure.

    Raises:
        OSError: the file can't be written.
    """
    fresh = path.with_name(f".{path.name}.new")
    with open(fresh, "wb", opener=_private) as file:
        file.write(encode(records))
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def encode(records: SnapshotRecords) -> bytes:
    lines = b"".join(_line(item) for item in _rows(records))
    return b" ".join((_MAGIC, _VERSION, _checksum(lines))) + b"\n" + lines


def decode(data: bytes) -> SnapshotRecords:
    """Decode the output of `encode`.

    Raises:
        ValueError: the data is malformed or has been changed.
    """
    head, newline, lines = data.partition(b"\n")
    parts = head.split(b" ")
    if not newline or parts[0] != _MAGIC or len(parts) != 3:
        raise ValueError("it has no snapshot header")
    if parts[1] != _VERSION:
        raise ValueError(f"its version is {parts[1].decode(errors='replace')}, expected {_VERSION.decode()}")
    if parts[2] != _checksum(lines):
        raise ValueError("its checksum does not match")
    exchanges: list[ExchangeRecord] = []
    bindings: list[BindingRecord] = []
    grants: list[GrantRecord] = []
    try:
        for line in lines.splitlines():
            kind, *values = json.loads(line)
            if kind == "exchange":
                exchanges.append(_exchange(*values))
            elif kind == "grant":
                vhost, exchange, destination_type, name, key = values
                grants.append(GrantRecord(vhost, _bytes(exchange), (destination_type, _bytes(name)), _bytes(key)))
            else:
                bindings.append(_binding(*values))
    except (TypeError, KeyError, IndexError, AttributeError) as error:
        raise ValueError(f"malformed line: {error}") from error
    return SnapshotRecords(tuple(exchanges), tuple(bindings), tuple(grants))


def _rows(records: SnapshotRecords) -> Iterator[Iterable[object]]:
    for exchange in records.exchanges:
        flags = (exchange.declared.durable, exchange.declared.auto_delete, exchange.declared.internal)
        kept = (*flags, _packed(exchange.declared.entries), exchange.declared.sequence)
        yield "exchange", exchange.vhost, _text(exchange.name), exchange.delivery.value, *kept
    for binding in records.bindings:
        destination_type, name = binding.destination
        names = _text(binding.exchange), destination_type, _text(name), _text(binding.routing_key)
        copies = (
            [copy.sequence for copy in binding.copies],
            [copy.client for copy in binding.copies],
            sorted(binding.marks),
            # Signatures and keys are written as numbers, since version 0.1 expects only numbers in the lists after the
            # list of clients.
            [_number(copy.signature) for copy in binding.copies],
            [_number(copy.key) for copy in binding.copies],
        )
        yield "binding", binding.vhost, *names, _packed(binding.entries), *copies
    for grant in records.grants:
        destination_type, name = grant.destination
        yield "grant", grant.vhost, _text(grant.exchange), destination_type, _text(name), _text(grant.key)


def _line(row: Iterable[object]) -> bytes:
    return json.dumps(tuple(row), separators=(",", ":")).encode() + b"\n"


def _exchange(vhost: str, name: str, delivery: str, *values: Any) -> ExchangeRecord:  # JSON of any shape
    durable, auto_delete, internal, entries, sequence = values
    declared = DeclaredExchange(bool(durable), bool(auto_delete), bool(internal), b64decode(entries), int(sequence))
    return ExchangeRecord(vhost, _bytes(name), Delivery(delivery), declared)


def _binding(vhost: str, exchange: str, kind: str, name: str, *values: Any) -> BindingRecord:  # as above
    routing_key, entries, sequences, clients, *more = values  # files written by older versions have no marks
    if not sequences:
        raise ValueError("a binding without a sequence number")
    destination = kind, _bytes(name)
    marks, signatures, keys, *_ = (*(tuple(map(int, row)) for row in more), (), (), ())
    copies = tuple(
        BindingCopy(
            int(sequence),
            str(client or ""),
            _of_number(key) or (token(*destination) if sequence in marks else b""),
            _of_number(signature),
        )
        for sequence, client, key, signature in zip_longest(sequences, clients, keys, signatures, fillvalue=0)
    )
    content = destination, _bytes(routing_key), b64decode(entries)
    return BindingRecord(vhost, _bytes(exchange), *content, copies, frozenset(marks))


def _checksum(lines: bytes) -> bytes:
    return blake2b(lines, digest_size=16).hexdigest().encode()


def _number(data: bytes) -> int:
    return int.from_bytes(b"\1" + data, "big")  # the first byte preserves leading zeros


def _of_number(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "big")[1:]


def _packed(entries: bytes) -> str:
    return b64encode(entries).decode()


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


#: Length of the pause after a write, as a multiple of the write's duration.
_SHARE = 4
#: Pause after a failed write.
_RETRY_SECONDS = 1.0


class Recorder:
    """Writes the snapshot of client declarations to a file; does nothing if there is no path."""

    def __init__(self, path: Path | None, states: Callable[[], Iterable[VhostState]], supervisor: Supervisor) -> None:
        self._path = path
        #: Error from the last access to the file; empty if the access succeeded.
        self.fault = ""
        self._states = states
        self._supervisor = supervisor
        self._wanted = False
        self._ending = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None

    async def load(self) -> SnapshotRecords:
        """Read the snapshot. If the file is damaged or unreadable, log an error and return an empty result."""
        if self._path is None:
            return SnapshotRecords()
        try:
            return await asyncio.to_thread(load_snapshot, self._path)
        except ValueError as error:
            log.error("snapshot rejected: client declarations may be lost", error=str(error))
        except OSError as error:
            self.fault = f"snapshot {self._path} can't be read: {error}"
            self._path = None  # an unreadable file must not be overwritten
            log.error("snapshot not used: client declarations may be lost", error=self.fault)
        return SnapshotRecords()

    def record(self) -> None:
        """Schedule a write of the current declarations."""
        if self._path is None:
            return
        self._wanted = True
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write(self._path))

    async def close(self) -> None:
        """Write pending changes and stop."""
        self._ending.set()
        if self._writing is not None:
            await self._writing

    async def _write(self, path: Path) -> None:
        loop = asyncio.get_running_loop()
        while self._wanted:
            self._wanted = False
            began_at = loop.time()
            done = await self._save(path)
            if self._ending.is_set() and not done:
                return
            pause_seconds = _SHARE * (loop.time() - began_at) if done else _RETRY_SECONDS
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_seconds):
                    await self._ending.wait()
            self._wanted |= not done

    async def _save(self, path: Path) -> bool:
        try:
            await asyncio.to_thread(save_snapshot, path, records_of(self._states()))
        except OSError as error:
            fault = f"snapshot {path} can't be written: {error}"
            if fault != self.fault:
                log.error("snapshot not written", error=fault)
            self.fault = fault
            return False
        except Exception as error:  # noqa: BLE001 -- retried and reported like other failures
            self._supervisor.failed("snapshot", error)
            return False
        self._supervisor.recovered("snapshot")
        if self.fault:
            log.info("snapshot can be written again", path=str(path))
        self.fault = ""
        return True


def records_of(states: Iterable[VhostState]) -> SnapshotRecords:
    """Collect the client declarations of the given virtual hosts."""
    exchanges: list[ExchangeRecord] = []
    bindings: list[BindingRecord] = []
    grants: list[GrantRecord] = []
    for state in states:
        for name, owned in state.exchanges.items():
            if owned.declared is not None:
                exchanges.append(ExchangeRecord(state.name, name, owned.delivery, owned.declared))
            for stored in owned.clients.values():
                content = stored.destination, stored.binding.routing_key, stored.entries
                bindings.append(BindingRecord(state.name, name, *content, stored.copies, stored.marks))
            grants += [GrantRecord(state.name, name, destination, key) for key, destination in owned.grants.items()]
    return SnapshotRecords(tuple(exchanges), tuple(bindings), tuple(grants))
