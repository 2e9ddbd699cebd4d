"""Are these files good? What ``oxproxy check`` finds in configuration and rules files and in the tests they carry.

Files are told apart by their keys. A configuration brings the rules files that it names; those given beside it are
looked at as one set, the way a sidecar would load them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Mapping as Environment
from dataclasses import dataclass, field
from pathlib import Path

from proxy.config.keys import members
from proxy.config.settings import Settings, parse_settings, rules_files
from proxy.errors import ConfigError, ConfigErrors
from proxy.rules.brokers import password_of
from proxy.rules.file_tests import TestFailure
from proxy.rules.lint.bindings import Evaluated, NamedDestination, destinations, evaluated, examine, untouched
from proxy.rules.lint.loops import Listening, check_loops
from proxy.rules.loader import LoadedRules, compile_rules
from proxy.rules.schema import TOP_KEYS, FileDraft
from proxy.yamlfile.document import read_document
from proxy.yamlfile.nodes import ConfigWarning, Faults, Mapping, Place

_SETTINGS_KEYS = tuple(member.name for member in members(Settings))


@dataclass(slots=True)
class Findings:
    """What was found.

    Args:
        errors: faults; with any of them the sidecar would not start.
        warnings: what its author may not want.
        failures: tests that do not hold.
        files: how many files were read.
        sets: every set of rules that could be compiled.
        uncovered: bindings that no test makes true.
        destinations: what must exist on the broker.
        exchanges: what the rules evaluate.
        settings: every configuration that could be read.
    """

    errors: list[ConfigError] = field(default_factory=list)
    warnings: list[ConfigWarning] = field(default_factory=list)
    failures: list[TestFailure] = field(default_factory=list)
    files: set[Path] = field(default_factory=set)
    sets: list[LoadedRules] = field(default_factory=list)
    uncovered: list[ConfigWarning] = field(default_factory=list)
    destinations: list[NamedDestination] = field(default_factory=list)
    exchanges: list[Evaluated] = field(default_factory=list)
    settings: list[Settings] = field(default_factory=list)

    def take(self, faults: Faults) -> None:
        """Add what was found elsewhere; errors stay in the order of files and places."""
        self.warnings += faults.warnings
        self.errors += faults.errors
        self.errors.sort(key=lambda error: (error.file, error.line, error.column))

    @property
    def secured(self) -> bool:
        """Whether anything is said of TLS."""
        sections: list[object] = [one.upstream.tls for one in self.settings]
        sections += [each.tls for one in self.settings for each in one.listen]
        vhosts = [vhost for loaded in self.sets for vhost in loaded.rules.vhosts.values()]
        return any(sections) or any(broker.tls for vhost in vhosts for broker in vhost.brokers)

    @property
    def summary(self) -> str:
        """One line: what was checked."""
        vhosts = [vhost for loaded in self.sets for vhost in loaded.rules.vhosts.values()]
        exchanges = [exchange for vhost in vhosts for exchange in vhost.exchanges]
        counts = (
            _count(len(self.files), "file"),
            _count(len(exchanges), "exchange"),
            _count(sum(len(exchange.bindings) for exchange in exchanges), "binding"),
            _count(sum(len(loaded.tests) for loaded in self.sets), "test"),
        )
        versions = [loaded.rules.version for loaded in self.sets if loaded.rules.vhosts]
        return ", ".join(counts) + (f"; rules {' '.join(versions)}" if versions else "")

    def as_json(self) -> dict[str, object]:
        """Give everything as plain data; `ok` is what the exit status says."""
        return {
            "ok": not self.errors and not self.failures,
            "summary": self.summary,
            "errors": [_fault(each.file, each.line, each.column, each.key, each.message) for each in self.errors],
            "warnings": [_fault(*each.place, each.key, each.message) for each in self.warnings],
            "failures": [
                {**_fault(*each.test.place, each.test.path, "; ".join(each.differences)), "test": each.test.name}
                for each in self.failures
            ],
            "uncovered": [_fault(*each.place, each.key, each.message) for each in self.uncovered],
        }


def _fault(file: str, line: int, column: int, key: str, message: str) -> dict[str, object]:
    return {"file": file, "line": line, "column": column, "key": key, "message": message}


class _Contents:
    """Contents of files, each read once: standard input and pipes can't be read again.

    Args:
        read: reads a file.
    """

    def __init__(self, read: Callable[[Path], bytes]) -> None:
        """Start with nothing read."""
        self._read = read
        self._known: dict[Path, bytes] = {}

    def of(self, path: Path, faults: Faults) -> bytes | None:
        """Give the content of a file; None, and an error, where it can't be read."""
        if path not in self._known:
            try:
                self._known[path] = self._read(path)
            except OSError as error:
                faults.error(Place(str(path), 0), "", f"can't be read: {error.strerror or error}")
                return None
        return self._known[path]


def inspect(
    paths: Sequence[Path], environ: Environment[str, str], read: Callable[[Path], bytes] = Path.read_bytes
) -> Findings:
    """Check files.

    Args:
        paths: configuration and rules files.
        environ: the environment; passwords that are not there are warnings here.
        read: reads a file; none is read twice.
    """
    findings = Findings(files=set(paths))
    contents = _Contents(read)
    faults = Faults()
    kinds = {path: _kind(path, contents, faults) for path in dict.fromkeys(paths)}
    findings.take(faults)
    configured = [path for path, kind in kinds.items() if kind == "settings"]
    named = [each for path in configured for each in _settings(path, contents, environ, findings)]
    covered = {path.resolve() for path in named}
    alone = [path for path, kind in kinds.items() if kind == "rules" and path.resolve() not in covered]
    _rules(alone, contents, environ, (), findings)
    return findings


def _kind(path: Path, contents: _Contents, faults: Faults) -> str | None:
    """Tell a configuration from a rules file by its keys; a file that can't be read as either is a fault."""
    data = contents.of(path, faults)
    if data is None:
        return None
    own = Faults()
    root = read_document(data, str(path), own)
    if not isinstance(root, Mapping):
        message = "seen neither a configuration nor a rules file, expected a mapping of the keys of one"
        place = Place(str(path), 1, 1) if root is None else root.place
        if not own.errors:
            own.error(place, "", message)
        faults.errors += own.errors
        return None
    keys = [key.text for key, _ in root.entries]
    found = [name for name, known in (("settings", _SETTINGS_KEYS), ("rules", TOP_KEYS)) if set(keys) & set(known)]
    if len(found) == 1:
        return found[0]
    seen = "keys of both a configuration and a rules file" if found else f"the keys {', '.join(keys) or '(none)'}"
    expected = f"a configuration ({', '.join(_SETTINGS_KEYS)}) or rules ({', '.join(TOP_KEYS)})"
    faults.error(root.place, "", f"seen {seen}, expected those of {expected}")
    return None


def _settings(path: Path, contents: _Contents, environ: Environment[str, str], findings: Findings) -> list[Path]:
    """Check a configuration and the rules files that it names; give those."""
    faults = Faults()
    data = contents.of(path, faults)
    try:
        settings = parse_settings(data or b"", path, environ, faults, secrets_required=False)
        findings.warnings += faults.warnings
        findings.settings.append(settings)
        named = rules_files(settings)
    except ConfigErrors as error:
        findings.take(Faults([*error.errors]))
        return []
    listening = [(each.address.host, each.address.port) for each in settings.listen]
    _rules(named, contents, environ, listening, findings)
    return named


def _rules(
    paths: Sequence[Path], contents: _Contents, environ: Environment[str, str], listening: Listening, findings: Findings
) -> None:
    if not paths:
        return
    findings.files.update(paths)

    def look(files: Sequence[FileDraft], loaded: LoadedRules) -> None:
        findings.warnings += [*loaded.warnings, *examine(files, loaded)]
        findings.uncovered += untouched(files, loaded)
        findings.destinations += destinations(files, loaded)
        findings.exchanges += evaluated(files, loaded)

    faults = Faults()
    texts = [(str(path), data) for path in paths if (data := contents.of(path, faults)) is not None]
    try:
        loaded = compile_rules(texts, faults, look)
    except ConfigErrors as error:
        findings.take(Faults([*error.errors]))
        return
    findings.failures += loaded.failures()
    findings.sets.append(loaded)
    here = Faults()
    check_loops(loaded, listening, here)
    for vhost in loaded.rules.vhosts.values():
        for broker in vhost.brokers:
            password_of(broker, environ, here, required=False)
    findings.take(here)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def check_tls_files(findings: Findings) -> None:
    """Add what is wrong with files of TLS to what `oxproxy check` has found in configurations and rules files."""
    # Imported here: it brings ssl and the sockets, which most files do not ask for.
    from proxy.net.tls_config import broker_tls, check_settings

    faults = Faults()
    for settings in findings.settings:
        check_settings(settings, faults)
    for loaded in findings.sets:
        for vhost in loaded.rules.vhosts.values():
            for broker in vhost.brokers:
                broker_tls(broker, faults, required=False)
    findings.take(faults)
