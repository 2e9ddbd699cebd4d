"""How do new rules come to hold in several workers: in all of them or in none?

The files are parsed, compiled and tested here first; where they are bad no worker hears of it. Then every worker is
told to reload, and provisions and swaps by itself (see `reload`). One that can't, since the broker does not let it, is
told again until it can: until then it judges by the rules before, and `oxproxy_rules_info` shows both versions.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence

from proxy.app.attempts import Files, ReloadLoop, ReloadResult, Use
from proxy.config.settings import Changed
from proxy.net.tasks import Tasks
from proxy.relay.counters import RulesCounters
from proxy.rules.loader import LoadedRules

_OK, _UNUSABLE = 200, 422


class JointReload(ReloadLoop):
    """Replaces the rules of all workers, one attempt at a time.

    Args:
        files: lists the rules files as the configuration names them.
        loaded: the rules in force.
        check: finds what else is wrong with rules, beside the event loop; what it gives is called when they hold.
        tell: asks every worker to reload, and gives their answers: number of the worker, status, text; no status where
            it does not answer.
        counters: what is counted of it.
        tasks: runs what goes on behind it.
        files_beside: lists files that are followed as the rules files are: those of TLS.
        settings: compares the configuration with the one in use, beside the event loop.
    """

    def __init__(
        self,
        files: Files,
        loaded: LoadedRules,
        check: Callable[[LoadedRules], Use],
        tell: Callable[[], Awaitable[Sequence[tuple[int, int, bytes]]]],
        counters: RulesCounters,
        tasks: Tasks,
        files_beside: Files = tuple,
        settings: Callable[[], Changed] = Changed,
    ) -> None:
        """Take the rules as they are."""
        super().__init__(files, loaded.rules.version, counters, tasks, files_beside, settings)
        self._check = check
        self._tell = tell
        self._counters = counters

    def _prepare(self, loaded: LoadedRules) -> Use:
        return self._check(loaded)

    async def _hold(self, loaded: LoadedRules, use: Use) -> ReloadResult:
        told = await self._tell()
        wrong = [_wrong(number, status, text, loaded.rules.version) for number, status, text in told]
        errors = [error for error in wrong if error]
        if not errors:
            use()
            self._counters.version = loaded.rules.version
        return ReloadResult(errors, faulty=_UNUSABLE in {status for _, status, _ in told})


def _wrong(number: int, status: int, text: bytes, version: str) -> str:
    """Say what is wrong with the answer of a worker; nothing where all is well."""
    if not status:
        return f"worker {number}: no answer"
    try:
        said = json.loads(text)
    except ValueError:
        said = None
    if not isinstance(said, dict):  # an error page
        said = {}
    if status != _OK:
        return f"worker {number}: {'; '.join(said.get('errors', [])) or f'status {status}'}"
    if said.get("rules") != version:
        return f"worker {number}: has rules {said.get('rules')}, expected {version}: the files have changed meanwhile"
    return ""
