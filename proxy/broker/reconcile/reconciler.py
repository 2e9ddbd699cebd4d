"""Observe, diff, execute: what a look does in one virtual host.

Tokens that a listing shows are trusted. Where nothing can be listed, a share of the tokens is bound again at each look,
which changes nothing where they exist. The relays are told by `vhost_loop`, not here.

Source: docs/explanation/architecture.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from proxy.broker.declared.store import DeclarationStore
from proxy.broker.reconcile.carrier_forms import CarrierForms
from proxy.broker.reconcile.desired import DesiredState, WantedQueue
from proxy.broker.reconcile.diff import (
    BindToken,
    DeclareCarrier,
    Observation,
    RemoveBinding,
    believed_tokens,
    diff,
    lost_bindings,
    may_bind,
    missing_destinations,
)
from proxy.broker.reconcile.executor import Executor
from proxy.broker.reconcile.observed import ObservedState
from proxy.broker.reconcile.observer import Observer
from proxy.errors import UpstreamError, UpstreamFailure
from proxy.relay.vhost import Destination
from proxy.values import QUEUE


class Reconciler:
    """Observes one virtual host, and carries out the difference to what is desired.

    Args:
        vhost: its name, for texts.
        observer: observes.
        observed: queues and exchanges that exist.
        executor: carries out.
        store: what clients declared.
        forms: types and token forms of the carriers.
    """

    def __init__(
        self,
        vhost: str,
        observer: Observer,
        observed: ObservedState,
        executor: Executor,
        store: DeclarationStore,
        forms: CarrierForms,
    ) -> None:
        self._store = store
        self._forms = forms
        self._vhost = vhost
        self._observer = observer
        self._observed = observed
        self._executor = executor
        #: Queues of the rules that have not been declared since the last thorough look.
        self._undeclared: Sequence[WantedQueue] = ()
        #: What contradicts the rules, and what to do about it.
        self.conflicts: tuple[str, ...] = ()

    async def reconcile_all(
        self, wanted: Callable[[], DesiredState], queues: Sequence[WantedQueue], *, remove_foreign: bool = False
    ) -> dict[Destination, str]:
        """Look, believe nothing from before, and declare everything that the rules need.

        Args:
            wanted: gives what is desired, again after each step that may show what clients declared.
            queues: queues that the rules ask for.
            remove_foreign: whether bindings that others made on a carrier are removed.

        Returns:
            Destinations that stay unreachable, with the reason.

        Raises:
            UpstreamError: REFUSED with every conflict, else the connection was lost.
        """
        self._executor.forget_failures()
        last, self._undeclared = self._undeclared, queues
        try:
            return await self._reconcile(wanted, remove_foreign, thorough=True)
        except UpstreamError:
            self._undeclared = last  # rules that are refused declare nothing later
            raise

    async def reconcile_changes(
        self, wanted: Callable[[], DesiredState], *, remove_foreign: bool = False
    ) -> dict[Destination, str]:
        """Look, and put right what differs.

        Args:
            wanted: gives what is desired, as above.
            remove_foreign: as above.

        Returns:
            Destinations that stay unreachable, with the reason.

        Raises:
            UpstreamError: the connection was lost.
        """
        return await self._reconcile(wanted, remove_foreign, thorough=False)

    async def _reconcile(
        self, wanted: Callable[[], DesiredState], remove_foreign: bool, *, thorough: bool
    ) -> dict[Destination, str]:
        executor, observed, observer = self._executor, self._observed, self._observer
        before = self._store.bindings()
        await observer.observe(wanted, thorough=thorough)
        desired = wanted()
        self._forms.adopt_types(desired, observed.exchanges if observed.exchanges_complete else None)
        conflicts = observer.conflicts(desired)
        self._stop_at(conflicts.values() if thorough else ())
        listed = await observer.read_bindings([one for one in desired.carriers if one.name not in conflicts])
        desired = wanted()
        for exchange in desired.carriers:
            exchange.tokens.rules_need(desired.tokens_of(exchange))
        await self._forms.change_forms(desired, observer.has_eight_words)
        actions = diff(
            desired,
            self._undeclared,
            self._observation(desired, listed, conflicts, remove_foreign, thorough),
            declare_all=thorough,
        )
        await executor.carry_out(actions, stop_at=self._stop_at if thorough else None)
        self._undeclared = [queue for queue in self._undeclared if not observed.knows((QUEUE, queue.name))]
        refused = {action: failure.why for action, failure in executor.failures.items()}
        declares = [why for action, why in refused.items() if isinstance(action, DeclareCarrier)]
        self.conflicts = (*conflicts.values(), *declares)
        lacking = await observer.ask_unlisted(desired, thorough=thorough)
        missing = missing_destinations(desired, observed, refused, lacking)
        lost = [stored for stored in lost_bindings(before, listed, missing) if self._store.binding_gone(stored)]
        if lost:
            desired = wanted()
            gone = {stored.destination for stored in lost}
            missing = {one: why for one, why in missing.items() if one not in gone or desired.names(one)}
        return missing

    def _observation(
        self,
        desired: DesiredState,
        listed: set[bytes],
        conflicts: Collection[bytes],
        remove_foreign: bool,
        thorough: bool,
    ) -> Observation:
        observer = self._observer
        believed, gone = believed_tokens(desired, listed, self._observed)
        for exchange, destination in gone:
            exchange.tokens.not_bound(destination)
        if thorough:
            # What nobody has seen and is not ours to bind again: relays ask for it.
            for exchange in desired.carriers:
                if exchange.name not in listed:
                    for extra in [one for one in exchange.bound if not may_bind(desired, BindToken(exchange, one))]:
                        exchange.tokens.not_bound(extra)
        surplus = [action for actions in observer.superfluous.values() for action in actions]
        if remove_foreign:
            surplus += [
                RemoveBinding(carrier, binding, "foreign binding removed")
                for carrier, bindings in observer.foreign.items()
                for binding in bindings
            ]
        # Messages may choose it by the rules of this sidecar, and nothing says so on the broker.
        router = self._store.state.router
        chosen = [
            BindToken(exchange, destination)
            for exchange in desired.made
            if exchange.name in router.exchanges
            for destination in exchange.tokens.handed_over()
            if destination not in exchange.receivers and router.may_choose(exchange.name, destination)
        ]
        return Observation(
            self._observed,
            {
                one.name: desired.tokens_of(one)
                - one.tokens.lacking(desired.tokens_of(one), desired.plain[one.name])
                - observer.incomplete(one)
                for one in desired.carriers
            },
            observer.verified.share(believed, whole=thorough) + chosen,
            surplus,
            conflicts,
        )

    def _stop_at(self, conflicts: Collection[str]) -> None:
        if conflicts:
            raise UpstreamError(UpstreamFailure.REFUSED, f"vhost {self._vhost!r}: " + "; ".join(conflicts))
