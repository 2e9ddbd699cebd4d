"""Migrates a virtual host from old destination tokens to current tokens, and removes the old tokens.

Version 0.1 binds unkeyed tokens, and while a secret is being replaced, some sidecars still have only the old secret.
Until the operator finishes the migration, all kinds of tokens are therefore bound and used by publishes
(`relay.tokens.Tokens`). The end of the migration is recorded on the broker by a marker exchange, whose name is a hash
keyed with the current secret. A virtual host that has never had a carrier needs no unkeyed tokens, unless another
virtual host on the broker still needs unkeyed tokens.

Invariant: a token is removed only if the current token of the same destination has been seen on the same carrier.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from proxy.broker.connection import ControlConnection
from proxy.broker.management_api import BindingInfo, ExchangeInfo, ManagementApi
from proxy.broker.methods import DeclareExchange
from proxy.broker.reconcile.diff import KeptRow, RemoveBinding
from proxy.broker.reconcile.observed import ObservedState
from proxy.errors import UpstreamError, UpstreamFailure
from proxy.relay.declare.storage import kept_rows
from proxy.relay.tokens import UNKEYED, Tokens
from proxy.relay.vhost import OwnedExchange, VhostState
from proxy.values import Destination

#: Number of attempts to determine whether sidecars of version 0.1 have used the virtual host, in case the management
#: API does not respond.
_ATTEMPTS = 3

log = structlog.get_logger(__name__)


class TokenMigration:
    """Token migration of one virtual host."""

    def __init__(
        self,
        state: VhostState,
        observed: ObservedState,
        connection: ControlConnection,
        management: ManagementApi | None,
    ) -> None:
        self._state = state
        self._observed = observed
        self._connection = connection
        self._management = management
        self._looked = False
        #: Keys whose tokens have been retired.
        self._ended: set[bytes] = set()
        self._declared: set[bytes] = set()
        self._refused: set[bytes] = set()

    async def look(self) -> None:
        """Determine which tokens have been retired, and stop using them.

        Must be called after exchanges have been listed.

        Raises:
            UpstreamError: the connection was lost.
        """
        tokens = self._state.tokens
        markers = tokens.markers()
        existing = await self._existing(list(markers))
        ended = {key for name, (_, key) in markers.items() if name in existing}
        if await self._is_new():
            ended.add(UNKEYED)
        self._looked = True
        self._declared |= existing
        for key in sorted(ended):
            self._state.set_tokens(self._state.tokens.without(key))
            kind = "unkeyed" if key == UNKEYED else "previous secret"
            log.info("destination tokens retired", vhost=self._state.name, tokens=kind)
        self._ended |= ended
        if self._state.carried():  # without carriers, nothing is declared
            await self._keep(tokens)

    @property
    def unkept(self) -> bool:
        """True if there are carriers, but retired tokens have not been recorded on the broker yet."""
        return len(self._declared | self._refused) < len(self._ended) and bool(self._state.carried())

    async def _keep(self, tokens: Tokens) -> None:
        for key in sorted(self._ended):
            # The marker's name is computed with the current secret, since the secret used for an older marker may be
            # retired next.
            marker = tokens.marker(tokens.keys[0], key)
            gone = self._observed.exchanges_complete and marker not in self._observed.exchanges
            if marker in self._declared and not gone:
                continue
            refusal = await self._connection.call(DeclareExchange(marker, b"fanout"))
            if refusal is None:
                self._declared.add(marker)
            elif marker not in self._refused:
                self._refused.add(marker)
                log.warning("can't record which tokens are retired", vhost=self._state.name, error=str(refusal))

    async def _existing(self, markers: Sequence[bytes]) -> set[bytes]:
        if self._observed.exchanges_complete:
            return {name for name in markers if name in self._observed.exchanges}
        lacking = await self._connection.find_missing([("exchange", name) for name in markers])
        return {name for name in markers if ("exchange", name) not in lacking}

    async def _is_new(self) -> bool:
        """Return True if no sidecar of version 0.1 can rely on tokens in this virtual host.

        Must be called before our first declaration.
        """
        if self._looked or self._management is None or not self._observed.exchanges_complete:
            return False
        if len(self._state.tokens.keys) < 2 or any(info.marked for info in self._observed.exchanges.values()):
            return False
        secrets = [key for key in self._state.tokens.keys if key != UNKEYED]
        # This can't be determined later: once we have declared a carrier, a new virtual host looks like an old one.
        for attempts_left in reversed(range(_ATTEMPTS)):
            try:
                return not _in_transition(await self._management.exchanges_everywhere(), secrets)
            except UpstreamError as error:
                if error.failure is UpstreamFailure.REFUSED or not attempts_left:
                    log.warning(
                        "can't determine whether sidecars of version 0.1 have used this virtual host",
                        vhost=self._state.name,
                        error=str(error),
                    )
                    return False
        return False


def _in_transition(listed: Sequence[tuple[str, ExchangeInfo]], secrets: Sequence[bytes]) -> bool:
    """Return True if sidecars may still need unkeyed tokens in at least one virtual host with carriers."""
    names: dict[str, set[bytes]] = {}
    for vhost, info in listed:
        names.setdefault(vhost, set()).add(info.name)
    carrying = {vhost for vhost, info in listed if info.marked}
    return any(
        names[vhost].isdisjoint({Tokens(vhost).marker(secret, UNKEYED) for secret in secrets}) for vhost in carrying
    )


def former_bindings(
    exchange: OwnedExchange, former: Sequence[BindingInfo], names: ObservedState
) -> list[RemoveBinding]:
    """Find the bindings to remove from a carrier because their tokens are no longer used.

    If such a binding stores a client's binding, the client's binding is first stored under its storage key. Bindings of
    an exclusive queue stay until the queue is deleted, since only the owner's connection can unbind the queue.

    Args:
        former: bindings with former tokens, to destinations whose current token is bound.
        names: existing queues.
    """
    stored_here: dict[tuple[Destination, bytes], list[KeptRow]] = {}
    for stored in exchange.clients.values() if any(info.kept for info in former) else ():
        for copy in stored.copies:
            elsewhere = stored._replace(copies=(copy._replace(key=stored.key),))
            rows = [(stored.destination, *row) for row in kept_rows(elsewhere)]
            stored_here.setdefault((stored.destination, copy.key), []).extend(rows)
    removals: list[RemoveBinding] = []
    for info in former:
        rows = stored_here.get((info.destination, info.routing_key), [])
        if not names.exclusive(info.destination) and (rows or not info.kept):
            removals.append(RemoveBinding(exchange.carrier, info, moves=tuple(rows)))
    return removals
