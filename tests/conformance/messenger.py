"""Runs vectors of the messenger-addressing format; ``python -m tests.conformance --times`` measures them.

The kind of a vector follows from its members: translations have rules, addresses have parts, receiver vectors have
``send_to`` among the expected values. The expected result is ``recommended``, else ``seed_expected``, else
``expected``; in receiver vectors each of them replaces only the keys that it lists.

The address at the receiver comes from the code that writes ``x-original-address`` and restores addresses from it.
Messenger also has rewrites, a second table for the addresses at the receiver. Rules files have no rewrites: in vectors
with rewrites, the receiver is expected to see the unchanged address.
"""

from __future__ import annotations

import sys
from base64 import b64decode
from pathlib import Path
from time import thread_time
from types import FrameType
from typing import TYPE_CHECKING, Any

from oxproxy.addressing import table as address_patterns
from oxproxy.addressing.address import Address, InvalidAddress, parse_address
from oxproxy.addressing.table import AddressPattern, AddressRule, AddressTable
from oxproxy.addressing.targets import AddressBook, FailedTranslation, Publication
from oxproxy.amqp.method_frames import Deliver, read_method
from oxproxy.amqp.methods import BASIC_DELIVER, method_frame
from oxproxy.relay.original_address import entry, read, restored_content
from oxproxy.relay.vhost import VhostState
from oxproxy.routing.router import Router
from tests.client import content_header
from tests.conformance.files import vectors

if TYPE_CHECKING:
    from _typeshed import TraceFunction

Json = dict[str, Any]  # any JSON object

VECTORS = Path(__file__).parent / "vectors" / "messenger"
_REFUSED = "refused"


def run(vector: Json) -> tuple[bool, object, object]:
    """Return whether the vector passes, the expected result, and the actual result."""
    layers = [vector[key] for key in ("expected", "seed_expected", "recommended") if vector.get(key) is not None]
    if "send_to" in (vector["expected"] or ()):
        expected, got = _receiver(vector, {key: value for layer in layers for key, value in layer.items()})
    elif "rules" in vector:
        expected, got = _translation(vector, layers[-1])
    else:
        expected, got = _parts(vector, layers[-1])
    return expected == got, expected, got


def _bytes(values: Json, key: str) -> bytes | None:
    if f"{key}_b64" in values:
        return b64decode(values[f"{key}_b64"])
    text = values.get(key)
    return None if text is None else text.encode()


def _table(rules: list[Json]) -> AddressTable:
    return AddressTable([AddressRule(_bytes(rule, "pattern") or b"", _bytes(rule, "translation")) for rule in rules])


def _translated(table: AddressTable, address: bytes | None) -> tuple[int | None, bytes | None]:
    translation = table.translate(address)
    return (translation.rule, translation.address) if translation else (None, address)


def _translation(vector: Json, expected: Json) -> tuple[object, object]:
    got = _translated(_table(vector["rules"]), _bytes(vector, "address"))
    return (expected["matched_rule"], _bytes(expected, "address")), got


def _parts(vector: Json, expected: Json) -> tuple[object, object]:
    return _expected_parts(expected), _got_parts(_bytes(vector, "address") or b"")


def _expected_parts(expected: Json) -> object:
    if expected.get("invalid"):
        return _REFUSED
    texts = [_bytes(expected, key) for key in ("scheme", "user", "password", "host", "name")]
    return (*texts, int(expected["port"]) if expected["port"] is not None else None, expected["passive"])


def _got_parts(text: bytes) -> object:
    try:
        address: Address = parse_address(text)
    except InvalidAddress:
        return _REFUSED
    parts = (address.scheme, address.user, address.password, address.host, address.name)
    return (*parts, address.port, address.passive)


def _receiver(vector: Json, expected: Json) -> tuple[object, object]:
    """The target of the message, and its address at the receiver."""
    address = _bytes(vector, "address") or b""
    table = _table(vector["rules"])
    rule, result = _translated(table, address)
    refused = isinstance(expected["send_to"], dict)
    wanted_address = vector["address"] if vector["rewrites"] else expected["receiver_address"]
    seen = _received(table, Publication(b"", address))
    return (
        (
            expected["matched_rule"],
            None if refused else expected["send_to"],
            _REFUSED if refused else _expected_parts(expected["send_to_parsed"]),
            wanted_address if seen is not None else None,
        ),
        (
            rule,
            None if refused else (result or b"").decode(),
            _got_parts(result or b""),
            seen.routing_key.decode() if seen is not None else None,
        ),
    )


def _received(table: AddressTable, original: Publication) -> Publication | None:
    """Return exchange and routing key at the consumer; None if the table has no valid target for the message.

    A consumer of this broker connects through a sidecar with the same table, which restores the address. A consumer of
    another broker reads the header.
    """
    book = AddressBook(table)
    target = book.look_up(*original)
    if isinstance(target, FailedTranslation):
        return None
    new = original if target is None else target.publication
    moved = target is not None and (target.remote is not None or new != original)
    entries = entry(original, new) if moved else b""
    if target is not None and target.remote is not None:
        pairs = read(entries)
        return Publication(*pairs[0]) if pairs is not None else new
    method = method_frame(1, BASIC_DELIVER, b"consumer", 1, False, *new)
    state = VhostState("/", Router([]))
    state.set_addresses(book)
    restored, _ = restored_content(state, method, content_header(1, 0, entries))
    delivered = read_method(Deliver, restored[7:-1])
    return Publication(delivered.exchange, delivered.routing_key)


def measure(vector: Json) -> tuple[float, float]:
    """Return the translation time of a timed vector in milliseconds, the best of three, and the permitted time."""
    table, address = _table(vector["rules"]), _bytes(vector, "address")
    best = float("inf")
    for _ in range(3):
        start = thread_time()
        table.translate(address)
        best = min(best, (thread_time() - start) * 1000)
    return best, float(vector["max_ms"])


def steps_of_match(pattern: bytes, address: bytes) -> int:
    """Return the number of lines that the matcher executes for one match; each is at most one pass over the address."""
    compiled, count = AddressPattern(pattern), 0

    def trace(frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        nonlocal count
        count += event == "line"
        return trace if frame.f_code.co_filename == address_patterns.__file__ else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        compiled.match(address)
    finally:
        sys.settrace(before)
    return count


def main(arguments: list[str]) -> int:
    timed = [
        (*measure(vector), vector["id"])
        for path in [Path(argument) for argument in arguments] or sorted(VECTORS.glob("*.jsonl.gz"))
        for vector in vectors(path)
        if "max_ms" in vector
    ]
    late = [row for row in timed if row[0] > row[1]]
    for took, allowed, name in sorted(timed, reverse=True)[:10]:
        print(f"{name}  {took:.3f} ms of {allowed:.0f}")
    print(f"{len(timed) - len(late)} in time, {len(late)} late")
    return 1 if late else 0
