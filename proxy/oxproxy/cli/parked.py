"""Parked messages: the address to which each is published again, and what the rules would do with it.

A message is parked in a queue of an alternate exchange, whose deliveries show the original exchange and routing key, or
it was dead-lettered, and the first entry of `x-death` has them. The content header is otherwise unchanged.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oxproxy.addressing.targets import Publication
from oxproxy.amqp.frames import HEADER, LEAST_HEADER_FRAME, OVERHEAD, U32, frame, shortstr
from oxproxy.amqp.method_frames import basic_publish
from oxproxy.amqp.properties import decode_properties, header_table
from oxproxy.amqp.tables import decode_table, decode_value, encode_value, pick, without
from oxproxy.net.client import TakenMessage
from oxproxy.relay import original_address
from oxproxy.rules.evaluation import PASSED
from oxproxy.rules.message import json_value
from oxproxy.rules.wire import UNBOUND
from oxproxy.values import LONGEST_NAME_BYTES, Table, Value, text

_DEATHS, _CC = b"x-death", b"CC"
#: Headers that a quorum queue adds to a message when it delivers it. They count how often the message was returned.
_RETURNS = b"x-delivery-count"
_OF_QUORUM_QUEUES = frozenset((_RETURNS, b"x-acquired-count"))
#: Offsets in the payload of a content header frame: the property flags, and the first property.
_FLAGS, _PROPERTIES = LEAST_HEADER_FRAME - OVERHEAD - 2, LEAST_HEADER_FRAME - OVERHEAD


@dataclass(frozen=True, slots=True)
class ParkedMessage:
    """A message as it is published again.

    Args:
        header: payload of the content header frame.
        returns: how often the message was returned to its queue, if it is a quorum queue; otherwise 0.
    """

    exchange: bytes
    routing_key: bytes
    header: bytes
    message_id: str | None = None
    headers: Table = ()
    returns: int = 0

    @property
    def frames(self) -> bytes:
        """The frames that precede the body."""
        return basic_publish(0, self.exchange, self.routing_key) + frame(HEADER, 0, self.header)

    def has(self, name: str, value: str) -> bool:
        """Return True if a header has this value: a string, a number, or true or false."""
        for header, found in self.headers:
            if header == name.encode():
                content = json_value(found)
                return (content if isinstance(content, str) else json.dumps(content)) == value
        return False


def parked_message(delivery: TakenMessage) -> ParkedMessage:
    """Return the message of a delivery, with its address before it was parked.

    Raises:
        ProtocolError: the content header is malformed.
    """
    header = delivery.header
    at, first, last = header_table(header, _PROPERTIES, len(header))
    entries = header[first:last]
    returns = [decode_value(raw).value for _, raw in pick(entries, 0, len(entries), frozenset((_RETURNS,)))]
    changed = without(entries, 0, len(entries), _OF_QUORUM_QUEUES)
    address = Publication(delivery.exchange, delivery.routing_key)
    death = _last_death(entries)
    if death is not None:
        address, keys = death
        if keys and not pick(entries, 0, len(entries), frozenset((_CC,))):
            # With `x-dead-letter-routing-key`, RabbitMQ removes CC, whose keys remain only in x-death.
            changed += shortstr(_CC) + encode_value(Value("A", tuple(Value("S", key) for key in keys)))
        # With another carrier name or queue delivery, x-death has the address that the sidecar has set.
        moved = original_address.read(changed)
        if moved is not None and moved[1] == address:
            address, changed = moved[0], original_address.restored(changed)
    flags = int.from_bytes(header[_FLAGS:_PROPERTIES], "big")
    properties = decode_properties(header, _PROPERTIES, len(header), flags, frozenset(("message_id",)))
    message_id = properties.get("message_id")
    if changed != entries:
        header = header[:at] + U32.pack(len(changed)) + changed + header[last:]
    return ParkedMessage(
        *address,
        header,
        text(message_id) if isinstance(message_id, bytes) else None,
        decode_table(changed, 0, len(changed)),
        returns[0] if returns and isinstance(returns[0], int) else 0,
    )


def _last_death(entries: bytes) -> tuple[Publication, list[bytes]] | None:
    """Return the address before the last dead-lettering, and the keys in CC; None if the message was not dead-lettered.

    Source: RabbitMQ "Dead Letter Exchanges": the most recent event is the first entry.
    """
    raw = next((raw for _, raw in pick(entries, 0, len(entries), frozenset((_DEATHS,)))), None)
    if raw is None:
        return None
    match decode_value(raw):
        case Value("A", (Value("F", tuple() as fields), *_)):
            death: dict[bytes, Value] = dict(fields)
        case _:
            return None
    exchange, keys = death.get(b"exchange"), death.get(b"routing-keys")
    match exchange, keys:
        case Value("S", bytes() as name), Value("A", tuple() as elements) if elements:
            strings = [element.value for element in elements if isinstance(element.value, bytes)]
            if len(strings) == len(elements) and max(map(len, (name, *strings))) <= LONGEST_NAME_BYTES:
                return Publication(name, strings[0]), strings[1:]
    return None


def question(message: ParkedMessage, vhost: str) -> bytes:
    """Return the request with which `explain` evaluates a message."""
    return json.dumps({"vhost": vhost, "frames": base64.b64encode(message.frames).decode()}).encode()


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What the rules would do with a message.

    Args:
        outcome: as in the explanation.
        destinations: where the message would be sent, such as ``queue orders``.
        stays: why the message would not reach another queue; None if it would.
    """

    outcome: str
    destinations: tuple[str, ...]
    stays: str | None


def verdict(answer: Mapping[str, Any], message: ParkedMessage, queue: str) -> ReplayPlan:  # Any: JSON
    """Evaluate an explanation.

    Args:
        queue: the queue from which the message was taken.
    """
    outcome = str(answer["outcome"])
    destinations = tuple(_destinations(answer))
    if outcome == PASSED:
        destinations = (
            f"exchange {text(message.exchange)}" if message.exchange else f"queue {text(message.routing_key)}",
        )
    missing = {name: why for name, why in answer["missing"].items() if why != UNBOUND}
    if outcome in ("unrouted", "filtered", "rejected"):
        stays: str | None = _reason(answer)
    elif not destinations:
        stays = "; ".join(answer["failed"]) or "no destination"
    elif all(destination in missing for destination in destinations):
        stays = f"{destinations[0]}: {missing[destinations[0]]}"
    elif destinations == (f"queue {queue}",):
        stays = "it would return to this queue"
    else:
        stays = None
    return ReplayPlan(outcome, destinations, stays)


def _destinations(answer: Mapping[str, Any]) -> Iterator[str]:  # Any: JSON
    for kind, names in (("queue", "queues"), ("exchange", "exchanges"), ("broker", "remotes")):
        yield from (f"{kind} {name}" for name in answer[names])


def _reason(answer: Mapping[str, Any]) -> str:  # Any: JSON
    """Return why a message reaches no destination."""
    steps: Sequence[Mapping[str, Any]] = answer["walk"]
    if answer["error"]:
        return f"rejected: {answer['error']}"
    breaches = [check["breach"] for step in steps for check in step["filters"] if check["breach"]]
    if breaches:
        return f"filtered: {breaches[0]}"
    return "; ".join(answer["failed"]) or "no binding matches"
