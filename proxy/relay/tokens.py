"""Hashes that all sidecars of a broker compute in the same way: destination tokens, grant keys and signatures.

A destination token is the routing key with which a destination is bound to a carrier exchange. A producer that knew a
token could bypass the rules, for example by publishing with this key to an exchange whose alternate exchange is the
carrier. A token is therefore a keyed hash, and the key is derived from a secret that all sidecars share. Tokens contain
only ``[a-z0-9.-]``, since some other characters break listings in RabbitMQ 3.10's management API, and ``*`` and ``#``
are wildcards on topic exchanges. `TokenForm` determines whether a token is a single word or has eight words. Hardly any
topic pattern on a downstream exchange matches eight words.

The secrets are passed in as arguments; other modules read them from files and the environment. Each purpose has its own
key, derived from the secret, so that a hash for one purpose is never valid for another.

Source: RFC 2104 (HMAC), FIPS 198-1.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import lru_cache
from hashlib import blake2b, sha256

from proxy.amqp.frames import U32
from proxy.values import RESERVED_PREFIX, RESERVED_WORD

#: A key that is never bound, so that a message published with it reaches no queue.
NOWHERE = RESERVED_PREFIX + b"n.0000000000000000"
#: Prefix of the keys of grants.
GRANTS = RESERVED_PREFIX + b"r."
#: Prefixes of keyed tokens, by the kind of the destination. Version 0.1 treats bindings with such keys as grants: it
#: neither uses nor removes them, and does not report them as foreign.
_KEYED = {"queue": GRANTS + b"q.", "exchange": GRANTS + b"e."}
#: The same prefixes for tokens that are a single word.
_KEYED_WORD = {"queue": RESERVED_WORD + b"r-q-", "exchange": RESERVED_WORD + b"r-e-"}
_EIGHT_WORDS = tuple(_KEYED.values())
#: Pattern of the hash that follows the prefix of a keyed token or a grant. A key with a wildcard instead of the hash is
#: not a token, since it would match the tokens of several destinations on a topic carrier.
_HASH = rb"[0-9a-f]{16}"
_PREFIXES = b"|".join(map(re.escape, (*_EIGHT_WORDS, *_KEYED_WORD.values())))
_KEYED_TOKEN = re.compile(b"(?:%s)%s" % (_PREFIXES, _HASH))
_GRANT = re.compile(re.escape(GRANTS) + _HASH)
#: Prefix of the exchanges that record which tokens are no longer bound (see `Tokens.markers`).
_MARKERS = RESERVED_PREFIX + b"f."
#: Takes the place of a key in computing unkeyed tokens.
UNKEYED = b""
#: Maximum number of destinations whose tokens are cached; computing a hash takes a microsecond.
_REMEMBERED = 65536
_SIGNING, _TOKENS = b"oxproxy binding signature 1", b"oxproxy destination token 1"


class TokenForm(Enum):
    """Form of the destination tokens on a carrier.

    docs/explanation/performance.md ("Many destinations of one exchange") gives the reasons for the forms. An alternate
    exchange also requires tokens with eight words.

    A carrier changes from one-word to eight-word tokens when an exchange becomes one of the carrier's destinations. It
    never changes back, since another sidecar may rely on eight-word tokens. While the form is `CHANGING`, destinations
    are bound with both kinds of token, publishes carry both kinds, and publishes with an exchange among their
    destinations wait.
    """

    DIRECT = "direct"
    ONE_WORD = "topic, one word"
    CHANGING = "topic, one word and eight words"
    EIGHT_WORDS = "topic, eight words"


#: Number of destinations up to which a direct exchange costs RabbitMQ 3.10 less than a topic exchange with tokens in
#: the given form (docs/explanation/performance.md).
FEW_DESTINATIONS = {TokenForm.ONE_WORD: 50, TokenForm.EIGHT_WORDS: 200}
#: The kinds of token computed for a destination from one key, the kind of the current token first: True for tokens that
#: are a single word, False for tokens with eight words.
_ONE_WORD = {
    TokenForm.DIRECT: (False,),
    TokenForm.ONE_WORD: (True,),
    TokenForm.CHANGING: (True, False),
    TokenForm.EIGHT_WORDS: (False,),
}


@lru_cache(maxsize=65536)
def token(kind: str, name: bytes) -> bytes:
    """Return the unkeyed token of a destination, as used by version 0.1. It is not secret (see `Tokens`)."""
    letter = b"q." if kind == "queue" else b"e."
    return RESERVED_PREFIX + letter + blake2b(name, digest_size=8).hexdigest().encode()


@lru_cache(maxsize=65536)
def grant_key(client: str, kind: str, name: bytes) -> bytes:
    """Return the key of a grant, a binding that proves that a client is permitted to bind a destination.

    No publish uses this key.
    """
    witness = repr((client, kind, name)).encode()
    return GRANTS + blake2b(witness, digest_size=8).hexdigest().encode()


def is_keyed(routing_key: bytes) -> bool:
    """Return True if a routing key has the form of a keyed token, regardless of the secret."""
    return _KEYED_TOKEN.fullmatch(routing_key) is not None


def is_eight_words(routing_key: bytes) -> bool:
    """Return True if a routing key has the form of a keyed token with eight words, regardless of the secret."""
    return routing_key.startswith(_EIGHT_WORDS)


def is_grant(routing_key: bytes) -> bool:
    """Return True if a routing key has the form of a grant."""
    return _GRANT.fullmatch(routing_key) is not None


class Tokens:
    """Computes the tokens for the destinations in one virtual host.

    A destination has one token for each secret, and the unkeyed token that version 0.1 uses.

    Sidecars are restarted one after another, so for a while their secrets or versions may differ. Every token with
    which any sidecar may publish is bound by all sidecars that can compute it, and a publish carries every token that
    any sidecar may have bound. (The broker still delivers the message once.) Therefore, no message misses a queue,
    regardless of which sidecar bound the queue last. Only the operator can decide that tokens are no longer needed. The
    decision is recorded as an exchange on the broker (`markers`).

    Args:
        keys: the key derived from the current secret, followed by the keys derived from previous secrets; if empty,
            tokens are unkeyed.
        retired: keys whose tokens are no longer bound.
        form: form of the tokens. If there are keys, all tokens on topic carriers are keyed, since version 0.1 does not
            have topic carriers.
    """

    def __init__(
        self,
        vhost: str = "",
        keys: Sequence[bytes] = (),
        retired: frozenset[bytes] = frozenset(),
        form: TokenForm = TokenForm.DIRECT,
    ) -> None:
        self.vhost = vhost
        self.form = form
        #: keys whose tokens are bound, the current key first; `UNKEYED` last
        self.keys: tuple[bytes, ...] = tuple(key for key in (*keys, UNKEYED) if key not in retired)
        if form is not TokenForm.DIRECT and len(self.keys) > 1:
            self.keys = tuple(key for key in self.keys if key != UNKEYED)
        self._retired = retired
        self._one_word = _ONE_WORD[form]
        former = [(key, one_word) for key in sorted(retired) for one_word in self._one_word]
        if form is TokenForm.EIGHT_WORDS:
            former += [(key, True) for key in (*self.keys, *sorted(retired))]
        self._former = tuple(former)
        self._forms: dict[TokenForm, Tokens] = {}
        self._known: dict[tuple[str, bytes], tuple[bytes, ...]] = {}

    @property
    def count(self) -> int:
        """Number of tokens per destination."""
        return len(self.keys) * len(self._one_word)

    def in_form(self, form: TokenForm) -> Tokens:
        """Return the tokens for the same virtual host in another form."""
        if form is self.form:
            return self
        tokens = self._forms.get(form)
        if tokens is None:
            keys = tuple(key for key in self.keys if key != UNKEYED)
            tokens = self._forms[form] = Tokens(self.vhost, keys, self._retired, form)
        return tokens

    def of(self, kind: str, name: bytes) -> tuple[bytes, ...]:
        """Return the tokens that are bound for a destination, the current token first."""
        destination = (kind, name)
        tokens = self._known.get(destination)
        if tokens is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            tokens = self._known[destination] = tuple(
                self._token(key, kind, name, one_word) for one_word in self._one_word for key in self.keys
            )
        return tokens

    def former(self, kind: str, name: bytes) -> tuple[bytes, ...]:
        """Return a destination's former tokens, which must no longer be bound."""
        return tuple(self._token(key, kind, name, one_word) for key, one_word in self._former)

    def lead_to(self, later: Tokens) -> bool:
        """Return True if bindings with these tokens match messages with the `later` tokens of the same carrier."""
        return later._one_word[0] in self._one_word

    def markers(self) -> dict[bytes, tuple[bytes, bytes]]:
        """Return the names of the exchanges that record which tokens are no longer bound.

        A name is a keyed hash, so that only sidecars with the secret can compute it.

        Returns:
            For each name, the key of the hash and the key whose tokens are no longer bound.
        """
        return {self.marker(by, key): (by, key) for at, key in enumerate(self.keys) for by in self.keys[:at]}

    def marker(self, by: bytes, key: bytes) -> bytes:
        """Return the name of the exchange that marks tokens made with `key` as retired: a hash keyed with `by`."""
        text = b"retired\0" + self.vhost.encode() + b"\0" + key
        return _MARKERS + blake2b(text, key=by, digest_size=16).hexdigest().encode()

    def without(self, key: bytes) -> Tokens:
        """Return a copy without the tokens made with the given key."""
        return Tokens(self.vhost, tuple(kept for kept in self.keys if kept != UNKEYED), self._retired | {key})

    def _token(self, key: bytes, kind: str, name: bytes, one_word: bool) -> bytes:
        if key == UNKEYED:
            return token(kind, name).replace(b".", b"-") if one_word else token(kind, name)
        text = self.vhost.encode() + b"\0" + name
        return (_KEYED_WORD if one_word else _KEYED)[kind] + blake2b(text, key=key, digest_size=8).hexdigest().encode()


class Secrets:
    """The secrets that all sidecars of a broker share. The first is used to sign, and all of them are used to verify.

    Args:
        secrets: the current secret, followed by previous secrets. If empty, signatures are valid only between processes
            without a secret. This suffices for `explain` and for tests of rules, which use no broker.
    """

    def __init__(self, secrets: Iterable[bytes] = ()) -> None:
        every = tuple(secrets) or (b"no secret",)
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


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return hmac.digest(secret, purpose, sha256)


def _signature(key: bytes, fields: Iterable[bytes]) -> bytes:
    # Each field is preceded by its length, so that no other sequence of fields has the same bytes.
    content = b"".join([U32.pack(len(field)) + field for field in fields])
    return hmac.digest(key, content, sha256).hex().encode()
