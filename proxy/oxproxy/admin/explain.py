"""``POST /explain``: the queues that a message would reach according to the active rules, and the reasons.

Client declarations and the known queues are included. `oxproxy.rules.explain` evaluates the message, so ``oxproxy
explain`` returns the same result for the same message, rules and queues.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC
from functools import partial

from oxproxy.admin.server import GuardedRoute, json_route, json_text
from oxproxy.relay.vhost import OwnedExchange, VhostState
from oxproxy.rules.explain import (
    AddressRequest,
    Explanation,
    Lookup,
    as_json,
    as_text,
    explain,
    explain_address,
    read_question,
)
from oxproxy.rules.loader import LoadedRules
from oxproxy.rules.ruleset import ExchangeRule, Rules, VhostRules


class ExplainPage:
    """Explains messages according to the active rules; `clock` returns seconds since the epoch."""

    def __init__(
        self,
        loaded: Callable[[], LoadedRules],
        states: Callable[[], Iterable[VhostState]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._loaded = loaded
        self._states = states
        self._clock = clock

    @property
    def route(self) -> GuardedRoute:
        return json_route("POST", "/explain", self.explain, texting=partial(self.explain, render=as_text))

    async def explain(
        self, body: bytes, render: Callable[[Explanation | Lookup], str] = lambda answer: json_text(as_json(answer))
    ) -> tuple[int, object]:
        """Explain the message in the body, as ``oxproxy explain`` does."""
        # This runs in a thread, since reading a large message takes a long time.
        question = await asyncio.to_thread(read_question, body, "message")
        if isinstance(question, AddressRequest):
            return 200, render(explain_address(self._loaded(), question))
        live = live_rules(self._loaded(), self._states())
        states = {state.name: state for state in self._states()}
        at = self._clock() if question.at is None else question.at
        # This runs in a thread, since every binding is visited.
        return 200, await asyncio.to_thread(lambda: render(explain(live, question, at, states)))


def live_rules(loaded: LoadedRules, states: Iterable[VhostState]) -> LoadedRules:
    """Return the rules including client declarations."""
    vhosts = dict(loaded.rules.vhosts)
    routers = dict(loaded.routers)
    for state in states:
        rules = vhosts.get(state.name, VhostRules(state.name))
        named = {rule.name for rule in rules.exchanges}
        declared = tuple(_rule(owned) for name, owned in state.exchanges.items() if name not in named)
        vhosts[state.name] = replace(rules, exchanges=rules.exchanges + declared)
        routers[state.name] = state.router
    return replace(loaded, rules=Rules(loaded.rules.version, vhosts), routers=routers)


def _rule(owned: OwnedExchange) -> ExchangeRule:
    """Convert an exchange declared by a client to the form used for rules files. Its bindings are in the router."""
    return ExchangeRule(
        owned.name,
        owned.type,
        owned.delivery.value,
        owned.carrier,
        owned.wanted_type.value,
        owned.unmatched_pass,
        owned.arguments,
        owned.alternate,
        (),
        UTC,
    )
