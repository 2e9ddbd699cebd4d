"""The findings of ``oxproxy check`` in files and, with ``--broker``, on a broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from oxproxy.config.settings import Settings
from oxproxy.errors import ConfigError
from oxproxy.rules.file_tests import TestFailure
from oxproxy.rules.lint.destinations import EvaluatedExchange, NamedDestination
from oxproxy.rules.loader import LoadedRules
from oxproxy.rules.ruleset import VhostRules
from oxproxy.rules.schema import ParsedBinding
from oxproxy.values import counted
from oxproxy.yamlfile.document import ConfigWarning, Faults

ERROR, WARNING, TEST = "error", "warning", "test"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    Args:
        kind: ERROR, WARNING or TEST.
        file: file that contains the problem.
        line: line, counting from 1; 0 if unknown.
        column: column, counting from 1; 0 if unknown.
        key: dotted path of the key; empty if there is none.
        message: what was found and what was expected.
        vhost: for a failed test, the virtual host whose rules are tested.
        walk: for a failed test, the evaluation of the test's message.
        fails: whether the finding makes the check fail.
    """

    kind: str
    file: str
    line: int
    column: int
    key: str
    message: str
    vhost: str = ""
    walk: str = ""
    fails: bool = True

    @property
    def text(self) -> str:
        return f"{self.key}: {self.message}" if self.key else self.message


@dataclass(slots=True)
class Findings:
    """The results of a check.

    Args:
        errors: errors, each of which would prevent the sidecar from starting.
        warnings: valid definitions that are probably not intended.
        failures: failed tests, each with the explanation of its message.
        files: the checked files.
        sets: sets of rules that were compiled without errors.
        untested: bindings that no test makes true.
        destinations: destinations that must exist on the broker.
        queues: queues declared by the rules.
        exchanges: exchanges evaluated by the rules.
        settings: configurations that could be read.
        strict: whether warnings make the check fail.
        coverage_fault: description of insufficient coverage, or empty.
        plan: actions that a sidecar would perform at startup, each with its virtual host; None if no broker is checked.
    """

    errors: list[ConfigError] = field(default_factory=list)
    warnings: list[ConfigWarning] = field(default_factory=list)
    failures: list[tuple[TestFailure, str]] = field(default_factory=list)
    files: set[Path] = field(default_factory=set)
    sets: list[LoadedRules] = field(default_factory=list)
    untested: list[ParsedBinding] = field(default_factory=list)
    destinations: list[NamedDestination] = field(default_factory=list)
    queues: list[NamedDestination] = field(default_factory=list)
    exchanges: list[EvaluatedExchange] = field(default_factory=list)
    settings: list[Settings] = field(default_factory=list)
    strict: bool = False
    coverage_fault: str = ""
    plan: list[tuple[str, str]] | None = None

    @property
    def good(self) -> bool:
        """True if the exit status is 0."""
        return not (self.errors or self.failures or self.coverage_fault or (self.strict and self.warnings))

    @property
    def coverage(self) -> float:
        """Percentage of the bindings that at least one test makes true; 100 if there are no bindings."""
        bindings = self._bindings
        return 100.0 if not bindings else 100.0 * (bindings - len(self.untested)) / bindings

    @property
    def uncovered(self) -> Iterator[ConfigWarning]:
        """A warning about each untested binding. The warnings are not stored, since few runs list them."""
        for parsed in self.untested:
            yield ConfigWarning(parsed.place, parsed.path, "no test makes this binding true")

    @property
    def vhosts(self) -> list[VhostRules]:
        """The virtual hosts in all sets of rules."""
        return [vhost for loaded in self.sets for vhost in loaded.rules.vhosts.values()]

    @property
    def _bindings(self) -> int:
        return sum(len(exchange.bindings) for vhost in self.vhosts for exchange in vhost.exchanges)

    def listed(self) -> Iterator[Finding]:
        """Yield every error, warning and failed test, for other programs."""
        for error in self.errors:
            yield Finding(ERROR, error.file, error.line, error.column, error.key, error.message)
        for warning in self.warnings:
            yield Finding(WARNING, *warning.place, warning.key, warning.message, fails=self.strict)
        for failure, walk in self.failures:
            message = f"{failure.test.name}: {'; '.join(failure.differences)}"
            yield Finding(TEST, *failure.test.place, failure.test.path, message, failure.test.vhost, walk)
        if self.coverage_fault:
            first = min(map(str, self.files), default="")
            yield Finding(WARNING, first, 0, 0, "", self.coverage_fault)

    def add(self, faults: Faults) -> None:
        """Add errors and warnings, and sort the errors by file and position."""
        self.warnings += faults.warnings
        self.errors += faults.errors
        self.errors.sort(key=lambda error: (error.file, error.line, error.column))

    @property
    def uses_tls(self) -> bool:
        """True if any listener, the upstream or another broker uses TLS."""
        sections: list[object] = [settings.upstream.tls for settings in self.settings]
        sections += [listener.tls for settings in self.settings for listener in settings.listen]
        return any(sections) or any(broker.tls for vhost in self.vhosts for broker in vhost.brokers)

    @property
    def summary(self) -> str:
        """The numbers of checked files, exchanges, bindings and tests, as one line."""
        counts = (
            counted(len(self.files), "file"),
            counted(sum(len(vhost.exchanges) for vhost in self.vhosts), "exchange"),
            counted(self._bindings, "binding"),
            counted(sum(len(loaded.tests) for loaded in self.sets), "test"),
        )
        versions = [loaded.rules.version for loaded in self.sets if loaded.rules.vhosts]
        return ", ".join(counts) + (f"; rules {' '.join(versions)}" if versions else "")

    def as_json(self) -> dict[str, object]:
        """Return all results as plain data; `ok` is true if the exit status is 0."""
        return {
            "ok": self.good,
            "summary": self.summary,
            "errors": [_fault(error.file, error.line, error.column, error.key, error.message) for error in self.errors],
            "warnings": [_fault(*warning.place, warning.key, warning.message) for warning in self.warnings],
            "failures": [
                {
                    **_fault(*failure.test.place, failure.test.path, "; ".join(failure.differences)),
                    "test": failure.test.name,
                    "walk": walk,
                }
                for failure, walk in self.failures
            ],
            "uncovered": [_fault(*warning.place, warning.key, warning.message) for warning in self.uncovered],
            "coverage": round(self.coverage, 2),
            "plan": None if self.plan is None else [{"vhost": vhost, "action": action} for vhost, action in self.plan],
        }


def _fault(file: str, line: int, column: int, key: str, message: str) -> dict[str, object]:
    return {"file": file, "line": line, "column": column, "key": key, "message": message}
