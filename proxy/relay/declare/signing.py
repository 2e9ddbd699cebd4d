"""Keyed hashes: signatures of what the sidecar stores on the broker, and keys for destination tokens.

The secrets are arguments: they are read from files and the environment elsewhere. Each purpose has a key of its own,
derived from the secret, so that a value made for one of them never serves another.

Source: RFC 2104 (HMAC), FIPS 198-1.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from hashlib import sha256
from itertools import chain

from proxy.amqp.frames import U32

_SIGNING, _TOKENS = b"oxproxy binding signature 1", b"oxproxy destination token 1"


class Secrets:
    """The secrets that all sidecars of a broker share: the first signs, all verify.

    Args:
        secrets: the current one, then previous ones. Without any, signatures hold among objects of this process and
            others without a secret alone, which is what explanations and tests need: they never meet a broker.
    """

    __slots__ = ("_signing", "token_keys")

    def __init__(self, secrets: Iterable[bytes] = ()) -> None:
        """Derive the keys of each purpose."""
        every = tuple(secrets) or (b"no secret",)
        self._signing = tuple(_derived(secret, _SIGNING) for secret in every)
        #: Keys for hashes of destinations' names, that of the current secret first.
        self.token_keys = tuple(_derived(secret, _TOKENS) for secret in every)

    def sign(self, *fields: bytes) -> bytes:
        """Sign some fields with the current secret; gives 64 hexadecimal digits."""
        return _signature(self._signing[0], fields)

    def verify(self, signature: bytes, *fields: bytes) -> int | None:
        """Find the secret that signed these fields.

        Returns:
            0 for the current secret, 1 and more for previous ones; None where the signature is none of theirs.
        """
        for index, key in enumerate(self._signing):
            if hmac.compare_digest(_signature(key, fields), signature):
                return index
        return None

    def __repr__(self) -> str:
        """Never a secret."""
        return f"Secrets({len(self._signing)} keys)"


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return hmac.digest(secret, purpose, sha256)


def _signature(key: bytes, fields: Iterable[bytes]) -> bytes:
    # The length in front of each field: other fields never give the same bytes.
    parts = chain.from_iterable((U32.pack(len(field)), field) for field in fields)
    return hmac.digest(key, b"".join(parts), sha256).hex().encode()
