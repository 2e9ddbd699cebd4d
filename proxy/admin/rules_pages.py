"""``GET /api/rules`` and ``GET /api/routes``: the rules in force as they were written, and what they route where."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping

from proxy.admin.explain import live_rules
from proxy.admin.server import GuardedRoute, json_route
from proxy.relay.vhost import VhostState
from proxy.rules.loader import LoadedRules
from proxy.rules.overview import overview
from proxy.yamlfile.masking import masked

_OK = 200


class RulesPages:
    """Shows the rules in force.

    Args:
        loaded: returns the rules in force.
        states: returns the virtual hosts as the relays see them.
        missing: returns destinations that do not exist, and why, by virtual host.
    """

    def __init__(
        self,
        loaded: Callable[[], LoadedRules],
        states: Callable[[], Iterable[VhostState]],
        missing: Callable[[], Mapping[str, Mapping[str, str]]],
    ) -> None:
        self._loaded = loaded
        self._states = states
        self._missing = missing

    @property
    def routes(self) -> list[GuardedRoute]:
        return [json_route("GET", "/api/rules", self.rules), json_route("GET", "/api/routes", self.overview)]

    async def rules(self, _body: bytes) -> tuple[int, object]:
        """Return the files in force, with secrets masked."""
        loaded = self._loaded()

        def render() -> str:
            files = [{"name": name, "text": masked(data.decode())} for name, data in loaded.contents]
            return _text({"rules": loaded.rules.version, "files": files})

        # In a thread: files may have ten thousand bindings.
        return _OK, await asyncio.to_thread(render)

    async def overview(self, _body: bytes) -> tuple[int, object]:
        """Return every exchange with its bindings, those of clients too."""
        live, _ = live_rules(self._loaded(), self._states())
        missing = {vhost: dict(names) for vhost, names in self._missing().items()}
        return _OK, await asyncio.to_thread(lambda: _text({**overview(live), "missing": missing}))


def _text(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
