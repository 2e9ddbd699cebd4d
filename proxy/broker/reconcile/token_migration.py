"""Moves a virtual host from old destination tokens to current ones, and removes the old ones.

Tokens of version 0.1 are unkeyed, and a secret is replaced while sidecars that know only the old one still run: until
the operator declares that none does, tokens of every kind are bound and published under (`relay.tokens.Tokens`). The
operator's statement is kept on the broker, as an exchange whose name is a hash under the current secret. A virtual host
that has never had a carrier needs no unkeyed tokens, unless another one of the same broker still has some.

Invariant: a token is removed only where the current token of the same destination was seen on the same carrier.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from proxy.broker.management_api import BindingInfo, ManagementApi
from proxy.broker.reconcile.checks import carrier_tokens
from proxy.broker.reconcile.diff import KeptRow, RemoveBinding
from proxy.broker.reconcile.executor import Executor
from proxy.broker.reconcile.observed import ObservedState
from proxy.errors import UpstreamError, UpstreamFailure
from proxy.relay.declare.storage import kept_rows
from proxy.relay.tokens import UNKEYED, TokenForm, Tokens
from proxy.relay.vhost import OwnedExchange, VhostState
from proxy.values import Destination

#: How often a management API that does not answer is asked whether the broker is new.
_ATTEMPTS = 3

log = structlog.get_logger(__name__)


class TokenMigration:
    """The tokens of one virtual host."""

    def __init__(
        self, state: VhostState, observed: ObservedState, executor: Executor, management: ManagementApi | None
    ) -> None:
        self._state = state
        self._observed = observed
        self._executor = executor
        self._management = management
        self._looked = False
        #: Keys whose tokens are no longer bound, and the markers of ours that say so.
        self._ended: set[bytes] = set()
        self._declared: set[bytes] = set()
        self._refused: set[bytes] = set()

    async def look(self) -> None:
        """Find which tokens are no longer bound; call it when the exchanges have been listed.

        Raises:
            UpstreamError: the connection was lost.
        """
        tokens = self._state.tokens
        markers = tokens.markers()
        there = await self._existing(list(markers))
        ended = {key for name, (_, key) in markers.items() if name in there}
        if await self._is_new():
            ended.add(UNKEYED)
        self._looked = True
        self._declared |= there
        for key in sorted(ended):
            self._state.set_tokens(self._state.tokens.without(key))
            kind = "unkeyed" if key == UNKEYED else "previous secret"
            log.info("destination tokens retired", vhost=self._state.name, tokens=kind)
        self._ended |= ended
        if self._state.carried():  # without carriers nothing is declared
            await self._keep(tokens)

    @property
    def unkept(self) -> bool:
        """Whether it is not kept on the broker yet which tokens are retired, though carriers need it."""
        return len(self._declared | self._refused) < len(self._ended) and bool(self._state.carried())

    async def _keep(self, tokens: Tokens) -> None:
        for key in sorted(self._ended):
            # Under the current secret: the one that it was said under may be the next to go.
            marker = tokens.marker(tokens.keys[0], key)
            gone = self._observed.exchanges_complete and marker not in self._observed.exchanges
            if marker in self._declared and not gone:
                continue
            refusal = await self._executor.declare_marker(marker)
            if refusal is None:
                self._declared.add(marker)
            elif marker not in self._refused:
                self._refused.add(marker)
                log.warning("can't keep which tokens are retired", vhost=self._state.name, error=refusal)

    async def _existing(self, markers: Sequence[bytes]) -> set[bytes]:
        if self._observed.exchanges_complete:
            return {name for name in markers if name in self._observed.exchanges}
        lacking = await self._executor.find_missing([("exchange", name) for name in markers])
        return {name for name in markers if ("exchange", name) not in lacking}

    async def _is_new(self) -> bool:
        """Whether no sidecar of version 0.1 can rely on tokens here, seen before anything of ours is declared."""
        if self._looked or self._management is None or not self._observed.exchanges_complete:
            return False
        if len(self._state.tokens.keys) < 2 or any(info.marked for info in self._observed.exchanges.values()):
            return False
        secrets = [key for key in self._state.tokens.keys if key != UNKEYED]
        # Now or never: with the first carrier of ours a new virtual host looks like an old one.
        for attempts_left in reversed(range(_ATTEMPTS)):
            try:
                return not await self._management.in_transition(secrets)
            except UpstreamError as error:
                if error.failure is UpstreamFailure.REFUSED or not attempts_left:
                    log.warning("not known whether the broker is new", vhost=self._state.name, error=str(error))
                    return False
        return False


def former_bindings(
    exchange: OwnedExchange, former: Sequence[BindingInfo], names: ObservedState
) -> list[RemoveBinding]:
    """Find bindings of a carrier to remove because their tokens are no longer used.

    What clients stored there is stored under its storage key first. An exclusive queue's own connection alone can
    unbind it: such a binding goes with the queue.

    Args:
        former: bindings under such tokens, each of a destination whose current token is bound.
        names: queues that exist.
    """
    stored_here: dict[tuple[Destination, bytes], list[KeptRow]] = {}
    for stored in exchange.clients.values() if any(info.kept for info in former) else ():
        for copy in stored.copies:
            elsewhere = stored._replace(copies=(copy._replace(key=stored.key),))
            rows = [(stored.destination, *row) for row in kept_rows(elsewhere)]
            stored_here.setdefault((stored.destination, copy.key), []).extend(rows)
    found: list[RemoveBinding] = []
    for info in former:
        destination = (info.destination_type, info.destination)
        rows = stored_here.get((destination, info.routing_key), [])
        if not names.exclusive(destination) and (rows or not info.kept):
            found.append(RemoveBinding(exchange.carrier, info, moves=tuple(rows)))
    return found


async def lacking_tokens(management: ManagementApi, tokens: Tokens) -> list[tuple[bytes, Destination]]:
    """Find carriers and destinations that old tokens alone lead to: if these were retired, messages would be lost.

    Raises:
        UpstreamError: the management API can't be asked.
    """
    lacking: list[tuple[bytes, Destination]] = []
    for carrier, (there, rows) in (await _carriers(management, tokens)).items():
        bound = carrier_tokens(rows, there)
        current = {
            (row.destination_type, row.destination)
            for row in rows
            if row.routing_key in there.of(row.destination_type, row.destination)[:: len(there.keys)]
        }
        lacking += [(carrier, destination) for destination in sorted(bound.bound - current)]
    return lacking


async def retire_tokens(management: ManagementApi, tokens: Tokens) -> int:
    """Say on the broker that of the tokens of a virtual host the current ones alone are bound from now on.

    Sidecars see it at their next look, publish under the current tokens alone and take the others away. Before, all
    of them must know the current secret, and none may be of version 0.1; `lacking_tokens` must be empty.

    Returns:
        How many bindings under other tokens are left.

    Raises:
        UpstreamError: the management API can't be asked, or refused.
    """
    for key in tokens.keys[1:]:
        await management.declare_marker(tokens.vhost, tokens.marker(tokens.keys[0], key))
    counted = [carrier_tokens(rows, there) for there, rows in (await _carriers(management, tokens)).values()]
    return sum(each.unkeyed + each.previous for each in counted)


async def _carriers(management: ManagementApi, tokens: Tokens) -> dict[bytes, tuple[Tokens, list[BindingInfo]]]:
    """List the bindings of each carrier, with the tokens as they may be written there."""
    exchanges = await management.exchanges(tokens.vhost)
    return {
        name: (
            tokens.in_form(TokenForm.CHANGING if info.type == "topic" else TokenForm.DIRECT),
            await management.bindings(tokens.vhost, name),
        )
        for name, info in sorted(exchanges.items())
        if info.marked
    }
