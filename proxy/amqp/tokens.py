"""Destination tokens: the routing keys under which a carrier exchange knows its destinations.

Eight words and more, so that hardly any topic pattern downstream matches one, and only ``[a-z0-9.]``, because some
other characters break listings of RabbitMQ 3.10's management API.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

#: No producer may use a routing key or CC entry that begins so: tokens are ours alone.
RESERVED = b"x.o.p.e.n.x."
#: A key that is never bound: publishing to it reaches nobody.
NOWHERE = RESERVED + b"n.0000000000000000"


@lru_cache(maxsize=65536)
def token(kind: str, name: bytes) -> bytes:
    """Give the token of one destination.

    Args:
        kind: ``queue`` or ``exchange``.
        name: the destination's name.

    Returns:
        ``x.o.p.e.n.x.q.<hash>`` or ``x.o.p.e.n.x.e.<hash>``, hash being 16 hex digits of BLAKE2b of the name.
    """
    letter = b"q." if kind == "queue" else b"e."
    return RESERVED + letter + blake2b(name, digest_size=8).hexdigest().encode()


#: What the keys of grants begin with.
GRANTS = RESERVED + b"r."


@lru_cache(maxsize=65536)
def grant_key(client: str, kind: str, name: bytes) -> bytes:
    """Give the key under which a destination is bound in witness that a client could bind it; no publish uses it.

    Args:
        client: user name.
        kind: ``queue`` or ``exchange``.
        name: the destination's name.
    """
    witness = repr((client, kind, name)).encode()
    return GRANTS + blake2b(witness, digest_size=8).hexdigest().encode()
