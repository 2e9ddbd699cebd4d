"""Where did the producer address a message that left under another exchange or key?

`x-original-address` is the one header we add to a publish whose exchange or routing key we change: a table with the
original pair and the new one. `x-original-cc` keeps a producer's CC where it must not route. Both are taken out
again for consumers that come through a sidecar, if the frame still shows the pair that we gave it.

Source: spec "Messenger addressing", 3.3; delivery notes, "The original address can't be forged".
"""

from __future__ import annotations

from typing import NamedTuple

from proxy.amqp.frames import U32, shortstr
from proxy.amqp.tables import decode_value, pick, without

ADDRESS_HEADER = b"x-original-address"
CC_ASIDE = b"x-original-cc"
#: headers that only we may set; cut from every publish that we change
OURS = frozenset((ADDRESS_HEADER, CC_ASIDE))
_WANTED = OURS
_NAMES = (b"exchange", b"routing-key", b"new-exchange", b"new-routing-key")


class OriginalAddress(NamedTuple):
    """An exchange and a routing key."""

    exchange: bytes
    routing_key: bytes


def longstr_entry(name: bytes, text: bytes) -> bytes:
    """Encode one table entry that holds a long string."""
    return shortstr(name) + b"S" + U32.pack(len(text)) + text


def entry(original: OriginalAddress, new: OriginalAddress) -> bytes:
    """Encode the header entry for a publish that leaves as `new`."""
    table = b"".join(map(longstr_entry, _NAMES, (*original, *new)))
    return shortstr(ADDRESS_HEADER) + b"F" + U32.pack(len(table)) + table


def read(entries: bytes) -> tuple[OriginalAddress, OriginalAddress] | None:
    """Find (original, new) in the entries of a header table; None where there is no such header or it is not ours."""
    if ADDRESS_HEADER not in entries:
        return None
    for name, raw in pick(entries, 0, len(entries), frozenset((ADDRESS_HEADER,))):
        value = decode_value(raw)
        if name != ADDRESS_HEADER or not isinstance(value.value, tuple) or value.letter != "F":
            return None
        found = {key: field.value for key, field in value.value if field.letter == "S"}
        parts = [found.get(key) for key in _NAMES]
        if len(value.value) == len(_NAMES) and all(isinstance(part, bytes) for part in parts):
            texts = [part for part in parts if isinstance(part, bytes)]
            return OriginalAddress(texts[0], texts[1]), OriginalAddress(texts[2], texts[3])
        return None
    return None


def restored(entries: bytes) -> bytes:
    """Take our headers out of a table's entries and put a CC that was kept aside back."""
    aside = [raw for name, raw in pick(entries, 0, len(entries), _WANTED) if name == CC_ASIDE]
    rest = without(entries, 0, len(entries), OURS)
    return rest + b"".join(shortstr(b"CC") + raw for raw in aside)
