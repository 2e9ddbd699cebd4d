"""How one virtual host of the broker is kept in step with its rules, from the first look to the last.

A look: read what exists and what clients declared, declare what lacks, bind what is unbound, tell the relays through
`VhostState`. A thorough look (at the start, after a reconnect, before new rules) trusts nothing from before. What
clients do through the sidecar is taken in at once, between looks (`notices`). It must not know how declarations are
made.

When the next look at a virtual host is due: regularly, and soon after somebody said that something changed.

However often that is said, the looks it causes take a small share of the time. It must not know what a look is.

Which tokens have outlived the last binding that needed them, and must go: a token counts as use.

The relay that unbinds takes the token away itself; this is for what it could not, and for bindings that went beside
us. A token is unbound when two looks in a row found no use for it: at one alone a client may be in the middle of
binding. Source: delivery notes, "Tokens and bindings".
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

import structlog

from proxy.broker.connection import ControlConnection
from proxy.broker.declared.announcements import Announcements
from proxy.broker.declared.store import Store
from proxy.broker.management_api import ExchangeInfo, ManagementApi
from proxy.broker.reconcile.desired import Naming, Needs, WantedQueue, needs_of
from proxy.broker.reconcile.executor import Declarer, Token
from proxy.broker.reconcile.observer import Presence, Survey, log_missing
from proxy.broker.reconcile.reconciler import Repair
from proxy.broker.reconcile.relay_requests import Demand, Notices
from proxy.broker.reconcile.rules_swap import Changeover, Retirement
from proxy.broker.reconcile.token_migration import Transition
from proxy.broker.settings import ControlSettings
from proxy.broker.supervision import Supervisor
from proxy.errors import UpstreamError, UpstreamFailure
from proxy.relay.tokens import Tokens
from proxy.relay.vhost import Delivery, Destination, OwnedExchange, VhostState
from proxy.routing.router import Router

#: Shortest pause before a look that was asked for; more such words meanwhile are one look.
_PAUSE_SECONDS = 0.05
#: Such a pause is at least so many times what the last look took.
_SHARE = 9


class RefreshSchedule:
    """The rhythm of looks.

    Args:
        refresh_seconds: what changed beside us is known after that long at the latest.
        clock: monotonic seconds.
    """

    def __init__(self, refresh_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is due."""
        self._clock = clock
        self._refresh_seconds = refresh_seconds
        self._wake = asyncio.Event()
        self._names: set[bytes] = set()
        self._everything = False
        self._regular_at = 0.0
        self._hurried_at = 0.0

    def request_refresh(self, names: set[bytes] | None = None) -> None:
        """Ask for a look soon, at some exchanges or (None) at everything."""
        if names is None:
            self._everything = True
        else:
            self._names |= names
        self._wake.set()

    def take(self) -> set[bytes] | None:
        """Begin the look that is due: give the names of the exchanges to look at, None for everything."""
        regular = self._clock() >= self._regular_at
        names = None if regular or self._everything or not self._wake.is_set() else self._names
        self._names, self._everything = set(), False
        self._wake.clear()
        return names

    def looked(self, began_at: float, everything: bool) -> None:
        """Take note of the end of a look.

        Args:
            began_at: the clock's time at its beginning.
            everything: whether it was a look at everything.
        """
        now = self._clock()
        took_seconds = now - began_at
        self._hurried_at = now + max(_PAUSE_SECONDS, _SHARE * took_seconds)
        if everything:
            # What changes right behind this look is known when the next one ends.
            pause = max(self._refresh_seconds - 2 * took_seconds, self._refresh_seconds / 4)
            self._regular_at = now + pause

    async def wait(self, connection: ControlConnection) -> bool:
        """Wait until a look is due or the connection is lost; say whether it is lost."""
        if await connection.wait_lost(max(0.0, self._regular_at - self._clock()), self._wake):
            return True
        if not self._wake.is_set():
            return False
        seconds = min(self._hurried_at, self._regular_at) - self._clock()
        return await connection.wait_lost(seconds) if seconds > 0 else not connection.connected


class OrphanTokens:
    """The tokens of one virtual host that nothing needs any more.

    Args:
        state: what the relays see; `bound` is written here.
        declarer: unbinds.
        naming: what gives a right to a token.
    """

    def __init__(self, state: VhostState, declarer: Declarer, naming: Naming) -> None:
        """Know no stray yet."""
        self._state = state
        self._declarer = declarer
        self._naming = naming
        self._seen: set[Token] = set()
        self._received: dict[OwnedExchange, set[Destination]] = {}
        self._left: dict[OwnedExchange, set[Destination]] = {}

    def note(self, exchange: OwnedExchange) -> None:
        """Take note that an exchange has just lost its last binding: the next look need not be sure first."""
        self._seen |= {(exchange, destination) for destination in exchange.bound}

    async def unbind(self, needs: Needs) -> bool:
        """Unbind what is due, at the end of a look.

        Returns:
            Whether there was something: an auto-delete exchange may have gone with it.

        Raises:
            UpstreamError: the connection was lost.
        """
        found = {(exchange, one) for exchange in needs.carriers for one in self._of(exchange, needs)}
        self._received = {exchange: set(exchange.receivers) for exchange in needs.carriers}
        self._left = {exchange: left for exchange, left in self._left.items() if exchange in self._received}
        due = sorted(found & self._seen, key=_order)
        self._seen = found.difference(due)
        if not due:
            return False
        for exchange, destination in due:
            exchange.mark_unconfirmed(destination)
        self._state.changed()
        await self._declarer.unbind(due, self._needed)
        # Whoever bound meanwhile was answered before our unbind or behind it: nobody knows.
        for exchange, destination in due:
            exchange.taken(destination)
        await self._declarer.bind([token for token in due if self._needed(token)])
        return True

    def _of(self, exchange: OwnedExchange, needs: Needs) -> set[Destination]:
        left = self._left.setdefault(exchange, set())
        left |= self._received.get(exchange, set()) - exchange.receivers.keys()
        if exchange.declared is not None and not exchange.clients:
            left |= exchange.bound
        left &= exchange.bound - needs.of(exchange)
        rules = self._state.router.exchanges.get(exchange.name)
        return set() if rules is None else {one for one in left if not rules.uses(one)}

    def _needed(self, token: Token) -> bool:
        exchange, destination = token
        rules = self._state.router.exchanges.get(exchange.name)
        if rules is None or self._state.exchanges.get(exchange.name) is not exchange:
            return False
        return self._naming.names(exchange, rules, destination)


def _order(token: Token) -> tuple[bytes, Destination]:
    return token[0].name, token[1]


#: Refusals in a row after which it is asked whether the virtual host is gone: a producer may be logging in to it.
_SURE_REFUSALS = 3

log = structlog.get_logger(__name__)


async def _never() -> bool:
    return False


class VhostTopology:
    """One virtual host.

    Args:
        settings: limits.
        state: what the relays see; written here.
        queues: queues that the rules ask for.
        inventory: the management API, None where there is none.
        record: called when what clients declared has changed.
        supervisor: takes note of what goes wrong beyond what is expected; None: its own.
    """

    def __init__(
        self,
        settings: ControlSettings,
        state: VhostState,
        queues: Sequence[WantedQueue],
        inventory: ManagementApi | None,
        record: Callable[[], None] = lambda: None,
        supervisor: Supervisor | None = None,
    ) -> None:
        """Prepare; nothing is asked or declared yet."""
        self._supervisor = supervisor = supervisor or Supervisor()
        self.state = state
        self.presence = presence = Presence()
        self.store = store = Store(state, settings.declared.local_time)
        self.survey = Survey(state.name, inventory, presence, settings.remove_foreign, store)
        self.connection = ControlConnection(settings, state.name)
        self.ready = False
        self.refreshed_at: float | None = None
        #: Why the last attempt to connect and look failed; empty where it did not.
        self.fault = ""
        #: Whether the broker itself refused that attempt: it won't be otherwise soon.
        self.refused = False
        #: Set when it has been looked over, or could not be, for the first time.
        self.settled = asyncio.Event()
        self._settings = settings
        self._queues = tuple(queues)
        self._inventory = inventory
        self._record = record
        self._naming = Naming(settings.declared.own_routes)
        state.own_routes, state.secrets = settings.declared.own_routes, settings.declared.secrets
        state.set_tokens(Tokens(state.name, state.secrets.token_keys))
        self._naming.learn(state.exchanges, state.router)
        self._declarer = Declarer(self.connection, presence, settings.username, state)
        self._transition = Transition(state, presence, self._declarer, inventory)
        self.survey.looked = self._transition.look
        self._repair = Repair(state.name, self.survey, presence, self._declarer, store, settings.retries_per_look)
        self._strays = OrphanTokens(state, self._declarer, self._naming)
        self._connected = asyncio.Event()
        self._demand = Demand(settings, state, presence, inventory, self._declarer, self._connected, supervisor)
        self.notices = Notices(state, store, presence, self._demand, self._naming, self._declarer, self._deserted)
        self._demand.needed = self.notices.named
        self._changeover = Changeover(state, self.survey, self._repair, self._declarer, self._naming)
        self._pace = RefreshSchedule(settings.refresh_seconds)
        self._announcements = Announcements(self.connection, state.name, self._pace.request_refresh, supervisor)
        self._needs: Needs | None = None
        self._look = asyncio.Lock()
        self._missing: dict[Destination, str] = {}

    @property
    def needs(self) -> Needs:
        """What the rules need, computed when it is asked for and not known."""
        if self._needs is None:
            self._needs = needs_of(self.state.exchanges, self.state.router, self._naming, self.state.addresses)
        return self._needs

    @property
    def missing(self) -> Mapping[Destination, str]:
        """Destinations that rules name and that could not be reached at the last look, with the reason."""
        return self._missing

    @property
    def conflicts(self) -> tuple[str, ...]:
        """What on the broker contradicts the rules, and what to do about it."""
        return self._repair.conflicts

    @property
    def connected(self) -> bool:
        """Whether the connection stands and has been looked over."""
        return self._connected.is_set()

    # -- looks -------------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Connect and look thoroughly.

        Raises:
            UpstreamError: what can't be reached or was refused; REFUSED names every conflict.
        """
        try:
            await self.connection.connect()
            if self._settings.declared.announce:
                await self._announcements.subscribe()
            await self._refresh(thorough=True)
        except UpstreamError as error:
            self.fault, self.refused = str(error), error.failure is UpstreamFailure.REFUSED
            await self.disconnect()
            raise
        except Exception as error:
            self.fault, self.refused = f"failed with {type(error).__name__}", False
            await self.disconnect()
            raise
        finally:
            self.settled.set()
        self.fault, self.refused = "", False
        self.ready = True
        log.info("control connection established", vhost=self.state.name)

    async def disconnect(self) -> None:
        """Give the connection up; on-demand work waits until `connect` succeeds."""
        self._connected.clear()
        await self.connection.close()

    async def refresh(self) -> None:
        """Look at the broker and put right what has changed.

        Raises:
            UpstreamError: the connection was lost meanwhile.
        """
        await self._refresh(thorough=False)

    @property
    def has_rules(self) -> bool:
        """Whether a rules file says something of it."""
        return bool(self._queues) or any(owned.declared is None for owned in self.state.exchanges.values())

    async def run(self, is_gone: Callable[[], Awaitable[bool]] = _never) -> None:
        """Stay connected and look again and again; returns by cancellation, or once the virtual host is gone.

        What it raises beyond `UpstreamError` is for the supervisor, which runs it again: the connection stays, so that
        publishes still get the destinations that they ask for.

        Args:
            is_gone: says whether a virtual host that refuses us need not be followed any more.
        """
        settings = self._settings
        pause_seconds = settings.retry_seconds
        said = ""
        refusals = 0
        while True:
            try:
                await (self._turn() if self.connected else self.connect())
            except UpstreamError as error:
                await self.disconnect()
                refusals = refusals + 1 if error.failure is UpstreamFailure.REFUSED else 0
                if refusals >= _SURE_REFUSALS and await is_gone():
                    return
                if str(error) != said:
                    said = str(error)
                    log.error("control connection failed", vhost=self.state.name, error=said)
                # Jitter, so that sidecars don't come back to a restarted broker all at once.
                await asyncio.sleep(pause_seconds * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
                pause_seconds = min(2 * pause_seconds, settings.retry_limit_seconds)
                continue
            self._supervisor.recovered("vhost", self.state.name)
            said = ""
            refusals = 0
            pause_seconds = settings.retry_seconds
            if await self._pace.wait(self.connection):
                await self.disconnect()
                log.warning("control connection lost", vhost=self.state.name)

    async def _turn(self) -> None:
        names = self._pace.take()
        if names is None:
            await self.refresh()
        else:
            began_at = time.monotonic()
            await self._look_at(names)
            self._pace.looked(began_at, everything=False)

    async def _refresh(self, thorough: bool) -> None:
        began_at = time.monotonic()
        async with self._look:
            before = {name: set(exchange.bound) for name, exchange in self.state.exchanges.items()}
            conflicts, changes = self.conflicts, self.store.changes
            if thorough:
                missing = await self._repair.thorough(self._wanted, self._queues)
                await self.survey.warn(self.needs)
            else:
                missing = await self._repair.usual(self._wanted)
            needs = self.needs
            unbound = await self._strays.unbind(needs)
            await self._retire(needs)
            self.survey.note_bypasses(needs)
            self.survey.finish()
            self._tell(needs, missing, before)
            for text in set(self.conflicts).difference(conflicts):
                log.error("rules and broker contradict each other", vhost=self.state.name, what=text)
            # Not before: on-demand work would meet carriers that do not exist yet.
            self._connected.set()
            self.refreshed_at = time.time()
        self._pace.looked(began_at, everything=True)
        if unbound:
            self._pace.request_refresh()
        self._noticed(changes)

    async def _retire(self, needs: Needs) -> None:
        """Take away what stands under tokens that are bound no more."""
        for exchange in needs.carriers:
            former = self.survey.standing(exchange).former
            try:
                await self._transition.retire(exchange, former)
            except UpstreamError as error:
                if not self.connection.connected:
                    raise
                self.survey.failed(error)

    async def _look_at(self, names: Collection[bytes]) -> None:
        """Look at some exchanges alone, since somebody said that they changed."""
        if self._inventory is None:
            return
        changes = self.store.changes
        async with self._look:
            for name in sorted(names):
                try:
                    await self._find(self._inventory, name)
                except UpstreamError as error:
                    log.warning("announced change not seen yet", vhost=self.state.name, error=str(error))
        self._noticed(changes)

    async def _find(self, inventory: ManagementApi, name: bytes) -> ExchangeInfo | None:
        """Look at one exchange and its bindings, and take them in where a client declared it or bound to it."""
        before = self.store.exchanges_before()
        known = self.state.exchanges.get(name)
        info = None
        if known is None or known.declared is not None:
            found = await inventory.find(self.state.name, "exchange", name)
            info = found if isinstance(found, ExchangeInfo) else None
            self.store.exchange_found(before, name, info)
        owned = self.state.exchanges.get(name)
        if owned is not None and owned.delivery is Delivery.CARRIER:
            await self.survey.read_bindings([owned])
            self.state.changed()
        self._needs = None
        return info

    def _noticed(self, changes: int) -> None:
        """Go on after a look that may have found something new."""
        if self.store.changes != changes:
            self._needs = None
            self._record()
        if self.store.unsettled and not self.survey.failures:
            self._pace.request_refresh()

    def _wanted(self) -> Needs:
        self._needs = None
        self._naming.learn(self.state.exchanges, self.state.router)
        return self.needs

    def _tell(self, needs: Needs, missing: dict[Destination, str], before: Mapping[bytes, set[Destination]]) -> None:
        """Let the relays and the log see what a look found."""
        state = self.state
        names = self.presence.names(state.queues)
        self._demand.bound_count = sum(len(item.bound - needs.of(item)) for item in needs.made)
        log_missing(state.name, self._missing, missing)
        everything = {**self._demand.missing(), **missing}
        changed = (
            (needs.regex and names is not state.queues)
            or everything != state.missing
            or any(item.bound != before.get(name) for name, item in state.exchanges.items())
        )
        self._missing = missing
        state.clear_refusals()
        state.queues = names
        state.missing = everything
        if changed:
            state.changed()

    # -- what relays ask and say ---------------------------------------------------------------------------------

    def recompute(self) -> None:
        """Read anew what the rules need, after rules have changed."""
        self._naming.learn(self.state.exchanges, self.state.router)
        self._needs = None

    def changed(self, exchange: bytes) -> None:
        """A client has declared, deleted, bound or unbound an exchange through us."""
        self._needs = None
        if exchange not in self.state.exchanges:
            self.notices.exchange_deleted(exchange)
        self._record()
        if self._transition.unkept:
            self._pace.request_refresh()
        if self._settings.declared.announce:
            self._announcements.announce(exchange)

    def queue_deleted(self, queue: bytes) -> None:
        """Take note of a queue that is gone, and with it its bindings."""
        changes = self.store.changes
        self.notices.queue_deleted(queue)
        self._noticed(changes)

    async def ensure_queue(self, queue: bytes, exclusive: bool = False) -> None:
        """Bind the tokens of a queue that has just been declared; returns when bound, refused, or out of time."""
        await self.notices.ensure_queue(queue, exclusive, self._connected, self._settings.deadline_seconds)

    async def bind(self, exchange: bytes, destinations: Iterable[Destination]) -> set[Destination]:
        """Bind destinations on demand; see `Demand.bind`."""
        owned = self.state.exchanges.get(exchange)
        if owned is None:
            return set()
        if owned.delivery is not Delivery.CARRIER:
            return await self._demand.look_for(owned, destinations)
        return await self._demand.bind(owned, destinations)

    async def lookup_exchange(self, name: bytes) -> str | None:
        """Look for an exchange now.

        Returns:
            Its type where it is not one that a client declared. None where it is, and then it is in the state; where
            there is none; where nobody can say, since there is no management API: then the broker compares types.

        Raises:
            UpstreamError: the management API did not answer.
        """
        if self._inventory is None:
            return None
        changes = self.store.changes
        info = await self._find(self._inventory, name)
        self._noticed(changes)
        if info is None or name in self.state.exchanges:
            return None
        return info.type

    def _deserted(self, exchange: OwnedExchange) -> None:
        """An exchange has lost its last binding by something's end: its tokens count as use until they go."""
        self._strays.note(exchange)
        self._pace.request_refresh()

    # -- new rules ---------------------------------------------------------------------------------------------

    async def prepare(
        self, exchanges: dict[bytes, OwnedExchange], router: Router, queues: Sequence[WantedQueue]
    ) -> Retirement:
        """Declare and bind what new rules need, before they are swapped in.

        Args:
            exchanges: the new exchanges; `bound` of each is filled here, what clients declared is put beside them.
            router: the new rules; likewise.
            queues: queues that the new rules ask for.

        Returns:
            What to hand to `retire` after the swap.

        Raises:
            UpstreamError: REFUSED for conflicts, else the broker can't be reached. Nothing is swapped then.
        """
        async with self._look:
            retirement = await self._changeover.prepare(self._wanted(), exchanges, router, queues)
            self._queues = tuple(queues)
        return retirement

    def swap(self, exchanges: dict[bytes, OwnedExchange], router: Router) -> None:
        """Put prepared rules in the place of the old ones; call `retire` next.

        Args:
            exchanges: as given to `prepare`.
            router: as given to `prepare`.
        """
        self._changeover.swap(exchanges, router)
        self.recompute()

    async def retire(self, retirement: Retirement) -> None:
        """Unbind what the rules before the last swap needed, once publishes decided by them have gone."""
        self.release(retirement)
        await asyncio.sleep(self._settings.grace_seconds)
        await self.unbind(retirement)

    def release(self, retirement: Retirement) -> None:
        """Begin to retire: relays ask again before they use these tokens."""
        self.recompute()
        self._changeover.release(retirement, self.needs)

    async def unbind(self, retirement: Retirement) -> None:
        """End what `release` began; a token that was asked for meanwhile stays."""
        # Not while new rules are prepared: what they have just bound could be what goes.
        async with self._look:
            await self._changeover.unbind(retirement, self.needs)

    async def close(self) -> None:
        """End everything; what is declared stays."""
        await self._announcements.close()
        await self._demand.close()
        await self.connection.close()
