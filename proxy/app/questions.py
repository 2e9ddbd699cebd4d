"""What can an operator ask of, and tell, the rules of a running sidecar over the admin port?

``POST /-/reload`` loads the files; ``POST /explain`` says why a message would go where it goes, by the rules in force
with what clients declared, and with the queues that are known to exist. It must not know HTTP beyond a status.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC

from proxy.app.reload import Reload
from proxy.errors import ConfigErrors
from proxy.relay.vhost import OwnedExchange, VhostState
from proxy.rules.explain import Explanation, as_json, as_text, explain, read_question
from proxy.rules.loader import LoadedRules
from proxy.rules.ruleset import ExchangeRule, Rules, VhostRules

_OK, _UNUSABLE, _UNAVAILABLE = 200, 422, 503


class Questions:
    """Answers by the rules in force.

    Args:
        reload: replaces them.
        states: gives the virtual hosts as the relays see them.
        clock: seconds since the epoch.
    """

    def __init__(
        self, reload: Reload, states: Callable[[], Iterable[VhostState]], clock: Callable[[], float] = time.time
    ) -> None:
        """Remember whom to ask."""
        self._reload = reload
        self._states = states
        self._clock = clock

    async def reload(self, _body: bytes) -> tuple[int, object]:
        """Load the files now: 200, 422 where they are not good, 503 where the broker can't be brought in step."""
        answer = await self._reload.reload("request")
        status = _OK if not answer.errors else _UNUSABLE if answer.faulty else _UNAVAILABLE
        return status, answer.as_json()

    async def explain(self, body: bytes) -> tuple[int, object]:
        """Explain the message that the body describes, as ``oxproxy explain --json`` does."""
        return await self._explain(body, lambda found: json.dumps(as_json(found), indent=2, ensure_ascii=False))

    async def explain_text(self, body: bytes) -> tuple[int, object]:
        """Explain the message that the body describes, as ``oxproxy explain`` does."""
        return await self._explain(body, as_text)

    async def _explain(self, body: bytes, write: Callable[[Explanation], str]) -> tuple[int, object]:
        try:
            question = read_question(body, "message")
            live, queues = self._live()
            known = replace(question, queues=question.queues | queues.get(question.vhost or "", frozenset()))
            if question.vhost is None:
                known = replace(question, queues=question.queues.union(*queues.values()))
            states = {state.name: state for state in self._states()}
            # Beside the event loop: the walk visits every binding.
            return _OK, await asyncio.to_thread(lambda: write(explain(live, known, self._clock(), states)))
        except ConfigErrors as errors:
            return _UNUSABLE, {"errors": [str(error) for error in errors.errors]}

    def _live(self) -> tuple[LoadedRules, dict[str, frozenset[bytes]]]:
        """Give the rules in force together with what clients declared, and the queues that exist."""
        loaded = self._reload.loaded
        vhosts = dict(loaded.rules.vhosts)
        routers = dict(loaded.routers)
        queues = {}
        for state in self._states():
            rules = vhosts.get(state.name, VhostRules(state.name))
            named = {rule.name for rule in rules.exchanges}
            declared = tuple(_rule(owned) for name, owned in state.exchanges.items() if name not in named)
            vhosts[state.name] = replace(rules, exchanges=rules.exchanges + declared)
            routers[state.name] = state.router
            queues[state.name] = frozenset(state.queues.names)
        return replace(loaded, rules=Rules(loaded.rules.version, vhosts), routers=routers), queues


def _rule(owned: OwnedExchange) -> ExchangeRule:
    """Give an exchange that a client declared as a rules file would; its bindings are the router's."""
    return ExchangeRule(
        owned.name,
        owned.type,
        owned.delivery.value,
        owned.carrier,
        owned.unmatched_pass,
        owned.arguments,
        owned.alternate,
        (),
        UTC,
    )
