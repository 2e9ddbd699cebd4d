"""Hashes that all sidecars of a broker compute in the same way: destination tokens and signatures.

A destination token is the routing key with which a destination is bound to a carrier exchange. A producer that knew a
token could bypass the rules, for example by publishing with this key to an exchange whose alternate exchange is the
carrier. A token is therefore a keyed hash, and the key is derived from a secret that all sidecars share. Tokens contain
only ``[a-z0-9.-]``, since some other characters break listings in RabbitMQ 3.10's management API, and ``*`` and ``#``
are wildcards on topic exchanges.

A token has one of two forms. Tokens of eight words may be used everywhere, since hardly any topic pattern on an
exchange downstream of the carrier matches eight words. On a topic carrier, tokens of one word cost the broker less
(docs/how-to/carrier-types.md, "Costs"), but ``*`` matches them, so they are used only if messages can't be routed on to
another exchange.

The secrets are passed in as arguments; other modules read them from files and the environment. Each purpose has its own
key, derived from the secret, so that a hash for one purpose is never valid for another.

Source: RFC 2104 (HMAC), FIPS 198-1.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b, sha256

from oxproxy.amqp.frames import U32
from oxproxy.values import EXCHANGE, QUEUE, RESERVED_PREFIX, RESERVED_WORD, Destination

#: A key that is never bound, so that a message published with it reaches no queue.
NOWHERE = RESERVED_PREFIX + b"n.0000000000000000"
#: Prefixes of tokens by the kind of the destination, for tokens of eight words and of one word.
_EIGHT_WORDS = {QUEUE: RESERVED_PREFIX + b"q.", EXCHANGE: RESERVED_PREFIX + b"e."}
_ONE_WORD = {QUEUE: RESERVED_WORD + b"q-", EXCHANGE: RESERVED_WORD + b"e-"}
#: Prefixes of tokens of eight words.
TOKEN_PREFIXES = tuple(_EIGHT_WORDS.values())
#: Prefixes of storage keys, of which the second consists of one word and is used on topic carriers.
STORAGE, STORAGE_WORD = RESERVED_PREFIX + b"b.", RESERVED_WORD + b"b-"
#: Number of destinations up to which a direct carrier costs RabbitMQ before 3.13 less than a topic carrier.
FEW_DESTINATIONS = 50
#: Patterns of keys. A wildcard instead of the hash would match the tokens of several destinations on a topic carrier.
_HASH = rb"[0-9a-f]{16}"


def _pattern(*prefixes: bytes) -> re.Pattern[bytes]:
    return re.compile(b"(?:%s)%s" % (b"|".join(map(re.escape, prefixes)), _HASH))


_TOKEN = _pattern(*_EIGHT_WORDS.values(), *_ONE_WORD.values())
_STORAGE_KEY = _pattern(STORAGE, STORAGE_WORD)
#: Maximum number of destinations whose tokens are cached; computing a hash takes a microsecond.
_REMEMBERED = 65536
_SIGNING, _TOKENS = b"oxproxy binding signature 1", b"oxproxy destination token 1"
#: Takes the place of the secrets between processes without a secret. This suffices for `explain` and for tests of
#: rules, which use no broker.
_NO_SECRET = b"no secret"


def is_token(routing_key: bytes) -> bool:
    """Return True if a routing key has the form of a token, regardless of the secret and the destination."""
    return _TOKEN.fullmatch(routing_key) is not None


def is_storage_key(routing_key: bytes) -> bool:
    """Return True if a routing key has the form of a storage key."""
    return _STORAGE_KEY.fullmatch(routing_key) is not None


class Secrets:
    """The secrets that all sidecars of a broker share. The first is used to sign, and all of them are used to verify.

    Args:
        secrets: the current secret, followed by the others.
    """

    def __init__(self, secrets: Iterable[bytes] = ()) -> None:
        every = tuple(dict.fromkeys(secrets)) or (_NO_SECRET,)
        self._signing = tuple(_derived(secret, _SIGNING) for secret in every)
        #: Keys for hashes of destination names, starting with the key derived from the current secret.
        self.token_keys = tuple(_derived(secret, _TOKENS) for secret in every)

    def sign(self, *fields: bytes) -> bytes:
        """Sign the fields with the current secret; return 64 hexadecimal digits."""
        return _signature(self._signing[0], fields)

    def verify(self, signature: bytes, *fields: bytes) -> int | None:
        """Return the index of the secret that signed these fields (0: the current secret), or None if no secret did."""
        for index, key in enumerate(self._signing):
            if hmac.compare_digest(_signature(key, fields), signature):
                return index
        return None


class Tokens:
    """Computes the tokens of the destinations in one virtual host.

    Sidecars are restarted one after another, so for a while their secrets may differ. A destination may therefore be
    bound with any of several tokens, its candidates. A sidecar uses the first candidate that is bound, and binds the
    first candidate if none is bound (`relay.token_table`). A token that is no longer used stays bound; it routes
    nothing, since no publish carries it.

    Args:
        keys: the keys derived from the secrets, the current one first (`Secrets.token_keys`); empty without a secret.
    """

    def __init__(self, vhost: str = "/", keys: Sequence[bytes] = ()) -> None:
        self._vhost = vhost.encode() + b"\0"
        self._keys = tuple(keys) or Secrets().token_keys
        self._known: dict[tuple[Destination, bool], tuple[bytes, ...]] = {}

    def candidates(self, destination: Destination, *, one_word: bool) -> tuple[bytes, ...]:
        """Return the tokens with which a destination may be bound, in the order of preference.

        Args:
            one_word: whether tokens of one word may be used in addition to those of eight words.
        """
        known = self._known.get((destination, one_word))
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            forms = (_ONE_WORD, _EIGHT_WORDS) if one_word else (_EIGHT_WORDS,)
            kind, name = destination
            hashes = [blake2b(self._vhost + name, key=key, digest_size=8).hexdigest().encode() for key in self._keys]
            known = tuple(form[kind] + digest for digest in hashes for form in forms)
            self._known[destination, one_word] = known
        return known


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return hmac.digest(secret, purpose, sha256)


def _signature(key: bytes, fields: Iterable[bytes]) -> bytes:
    # Each field is preceded by its length, so that no other sequence of fields has the same bytes.
    content = b"".join([U32.pack(len(field)) + field for field in fields])
    return hmac.digest(key, content, sha256).hex().encode()
