"""Measures how long the event loop is blocked while the control plane handles 100,000 bindings that clients created.

``python -m tests.bench.passes``. The broker is replaced by an object that returns prepared listings, so that only the
work of this process is measured: the longest CPU time of the process between two iterations of the event loop. A
listing is applied for the first time, then with one more row, then with 100 rows less; a reload changes one binding of
a rules file, and another one the type of the exchange.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import cast

import uvloop

from oxproxy.amqp.tables import encode_table
from oxproxy.app.reload import Reload
from oxproxy.broker.declared.store import DeclarationStore
from oxproxy.broker.management_api import BindingInfo, ManagementApi
from oxproxy.broker.methods import DeclareQueue
from oxproxy.broker.reconcile.observed import ObservedState
from oxproxy.broker.reconcile.observer import Observer
from oxproxy.broker.reconcile.reconciler import PreparedRules
from oxproxy.broker.steps import compile_again
from oxproxy.broker.topology import Topology
from oxproxy.native import BUILD
from oxproxy.net.tasks import Tasks
from oxproxy.relay.counters import Counters
from oxproxy.relay.declare.storage import identity_key, pack, signed_copy
from oxproxy.relay.vhost import OwnedExchange, StoredBinding, VhostState
from oxproxy.routing.bindings.binding import Binding
from oxproxy.routing.router import Router
from oxproxy.rules.loader import load_rules
from oxproxy.rules.wire import owned_exchanges
from oxproxy.values import QUEUE, Destination
from tests.routing.building import arguments

BINDINGS, QUEUES, RELOADS = 100_000, 10, 3
#: Most CPU time in ms for which one step may block the event loop.
TARGET_MS = 20.0
NAME = b"bench.clients"
RULES = "exchanges: [{name: bench.clients, type: x-open, bindings: [{queue: q0, when: {kind: %s}}]}]\n"
OTHER_TYPE = "exchanges: [{name: bench.clients, type: direct, bindings: [{queue: q0}]}]\n"


def client_binding(state: VhostState, number: int) -> StoredBinding:
    headers = arguments({"x-?hkv= kind": f"kind.{number:06}", "x-?hkv>= amount": number % 1_000})
    queue = b"q%d" % (number % QUEUES)
    binding = Binding(NAME, QUEUE, queue, b"", headers, sequence=number + 1, extensions=True)
    copy = signed_copy(state, NAME, binding, encode_table(headers), "user")
    return StoredBinding(binding, identity_key(binding.identity), (copy,))


class Listings:
    """The part of the management API that reads bindings; it returns prepared listings."""

    def __init__(self) -> None:
        self.rows: list[BindingInfo] = []

    async def changed_bindings(
        self,
        _vhost: str,
        _exchange: bytes,
        _digest: bytes,
        _destinations: Iterable[Destination] | None = None,
        read_ahead: Callable[[list[BindingInfo]], Awaitable[None]] | None = None,
    ) -> tuple[bytes, list[BindingInfo]]:
        """Return the rows, as if they had changed."""
        if read_ahead is not None:
            await read_ahead(self.rows)
        return b"digest", self.rows


async def nothing_found(_destinations: Iterable[Destination]) -> dict[Destination, str]:
    return {}


async def nothing_exists(_destinations: Iterable[Destination]) -> set[Destination]:
    return set()


class Broker:
    """The parts of `Topology`, `VhostTopology` and `Reconciler` that a reload calls, without a broker."""

    def __init__(self, state: VhostState) -> None:
        self._state = state
        self.reconciler = self

    def follows(self, _vhost: str) -> bool:
        return True

    def managed(self, _vhost: str) -> Broker:
        return self

    async def prepare(
        self, exchanges: dict[bytes, OwnedExchange], router: Router, queues: Sequence[DeclareQueue], _book: object
    ) -> PreparedRules:
        await compile_again(self._state, exchanges, router)
        self._state.overlay(exchanges, router)
        return PreparedRules(exchanges, router, tuple(queues))

    def swap(self, new: PreparedRules) -> None:
        self._state.swap(new.exchanges, new.router)


async def longest_ms(work: Callable[[], Awaitable[object]]) -> float:
    """Return the longest CPU time between two iterations of the event loop while `work` runs."""
    running = asyncio.ensure_future(work())
    longest, before = 0.0, time.process_time()
    while not running.done() or len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0.0002)
        now = time.process_time()
        longest, before = max(longest, now - before), now
    await running
    return longest * 1e3


async def measure(folder: Path) -> dict[str, float]:
    path = folder / "rules.yaml"
    path.write_text(RULES % "a")
    loaded = load_rules([path])
    state = VhostState("/", loaded.routers["/"], owned_exchanges(loaded.rules.vhosts["/"]))
    made = [client_binding(state, number) for number in range(BINDINGS)]
    rows = [
        BindingInfo(
            stored.destination,
            stored.key,
            "",
            pack(stored.copies[0].sequence, stored.copies[0].entries, b"", "user").decode(),
            stored.copies[0].signature.decode(),
        )
        for stored in made
    ]
    del made
    management = Listings()
    store = DeclarationStore(state)
    observer = Observer(store, cast("ManagementApi", management), ObservedState(), nothing_found, nothing_exists)
    gc.collect()
    gc.freeze()
    found = {}
    for name, listed in (("first listing", rows[:-1]), ("one row more", rows), ("100 rows less", rows[100:])):
        management.rows = listed
        found[f"{name}, ms"] = await longest_ms(lambda: observer.read_bindings([state.exchanges[NAME]]))
    tasks = Tasks()
    broker = cast("Topology", Broker(state))
    reload = Reload(
        lambda: [path], loaded, lambda _: state, broker, Counters(), tasks, lambda _: {}, lambda _: lambda _: None
    )
    del loaded
    longest = 0.0
    for number in range(RELOADS):
        path.write_text(RULES % f"b{number}")
        longest = max(longest, await longest_ms(lambda: reload.reload("bench")))
    found["reload that changes one binding, ms"] = longest
    path.write_text(OTHER_TYPE)
    found["reload that changes the type, ms"] = await longest_ms(lambda: reload.reload("bench"))
    assert len(state.router.exchanges[NAME].clients) == BINDINGS - 100
    return found


def main() -> int:
    print(f"CPU ms for which the event loop is blocked, {BINDINGS} bindings of clients, {BUILD} (target {TARGET_MS:g})")
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for name, value in runner.run(measure(Path(folder))).items():
            print(f"{name:50}{value:8.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
