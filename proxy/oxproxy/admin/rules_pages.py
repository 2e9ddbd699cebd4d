"""Shows the active rules: their files, routes, notes about lines of the files, and differences from the files on disk.

Secrets in files are masked.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from oxproxy.admin.explain import live_rules
from oxproxy.admin.server import GuardedRoute, json_route, json_text
from oxproxy.relay.vhost import VhostState
from oxproxy.rules.lint.bindings import lint_bindings
from oxproxy.rules.loader import LoadedRules, compile_rules, rules_version
from oxproxy.rules.overview import overview
from oxproxy.rules.schema import ParsedFile
from oxproxy.values import text
from oxproxy.yamlfile.document import ConfigWarning
from oxproxy.yamlfile.masking import masked

#: Runs, in a thread, a function that compiles rules.
Compiling: TypeAlias = Callable[[Callable[[], str]], Awaitable[str]]


class RulesPages:
    """Shows the active rules.

    Args:
        files: lists the rules files of the configuration.
    """

    def __init__(
        self,
        loaded: Callable[[], LoadedRules],
        states: Callable[[], Iterable[VhostState]],
        files: Callable[[], Sequence[Path]],
        compiling: Compiling,
    ) -> None:
        self._loaded = loaded
        self._states = states
        self._files = files
        self._compiling = compiling
        #: version of the rules, and the notes about them, which are cached because computing them requires a
        #: compilation
        self._noted = ("", "")

    @property
    def routes(self) -> list[GuardedRoute]:
        return [
            json_route("GET", "/api/rules", self.rules),
            json_route("GET", "/api/rules/notes", self.notes),
            json_route("GET", "/api/rules/changes", self.changes),
            json_route("GET", "/api/routes", self.overview),
        ]

    async def rules(self, _body: bytes) -> tuple[int, object]:
        """Return the active files, with secrets masked."""
        loaded = self._loaded()

        def render() -> str:
            files = [{"name": name, "text": masked(data.decode())} for name, data in loaded.contents]
            return json_text({"rules": loaded.rules.version, "files": files})

        # This runs in a thread, since files may have ten thousand bindings.
        return 200, await asyncio.to_thread(render)

    async def notes(self, _body: bytes) -> tuple[int, object]:
        """Return the file and line of each binding, and the warnings of ``oxproxy check``."""
        loaded = self._loaded()
        version, notes = self._noted
        if version != loaded.rules.version:
            notes = await self._compiling(lambda: _notes(loaded))
            self._noted = (loaded.rules.version, notes)
        return 200, notes

    async def changes(self, _body: bytes) -> tuple[int, object]:
        """Return the differences between the files on disk and the active files, with secrets masked."""
        loaded = self._loaded()
        try:
            return 200, await asyncio.to_thread(lambda: _changes(loaded, self._files()))
        except OSError as error:
            return 422, {"errors": [f"{error.filename}: can't be read: {error.strerror}"]}

    async def overview(self, _body: bytes) -> tuple[int, object]:
        """Return every exchange with its bindings, including client bindings."""
        live = live_rules(self._loaded(), self._states())
        missing = {state.name: state.missing() for state in self._states()}
        return 200, await asyncio.to_thread(lambda: json_text({**overview(live), "missing": missing}))


def _notes(loaded: LoadedRules) -> str:
    bindings: list[dict[str, object]] = []
    warnings: list[ConfigWarning] = [*loaded.warnings]

    def note(files: Sequence[ParsedFile], compiled: LoadedRules) -> None:
        warnings.extend(lint_bindings(files, compiled))
        for file in files:
            for exchange in file.exchanges:
                place = {"file": file.source, "vhost": file.vhost, "exchange": text(exchange.rule.name)}
                for binding in exchange.bindings:
                    bindings.append({**place, "line": binding.place.line, "binding": binding.binding.id})

    compile_rules(loaded.contents, on_compiled=note)
    listed = [
        {"file": warning.place.source, "line": warning.place.line, "key": warning.key, "message": warning.message}
        for warning in warnings
    ]
    return json_text({"rules": loaded.rules.version, "bindings": bindings, "warnings": listed})


def _changes(loaded: LoadedRules, paths: Sequence[Path]) -> str:
    contents = [(str(path), path.read_bytes()) for path in paths]
    in_force = {name: masked(data.decode()) for name, data in loaded.contents}
    on_disk = {name: masked(data.decode(errors="replace")) for name, data in contents}
    differences = []
    for name in {**in_force, **on_disk}:
        old, new = in_force.get(name, "").splitlines(), on_disk.get(name, "").splitlines()
        lines = list(difflib.unified_diff(old, new, "active", "on disk", lineterm=""))
        if lines or (name in in_force) != (name in on_disk):
            differences.append({"file": name, "diff": lines})
    same = rules_version(contents) == loaded.rules.version
    return json_text({"rules": loaded.rules.version, "same": same, "differences": differences})
