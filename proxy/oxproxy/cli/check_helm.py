"""Checks the configuration and the rules files in the values of the Helm chart, for ``oxproxy check --values``.

Positions in messages about rules files are those in the values. A literal block (``|``) is therefore parsed as it is
indented there, after as many empty lines as precede it. The chart adds parts of the configuration, and the files that
the configuration names exist only in the pods, so missing files and passwords are not reported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeAlias

from oxproxy.cli.findings import Findings
from oxproxy.config.keys import override
from oxproxy.config.loader import read_settings
from oxproxy.errors import ConfigErrors
from oxproxy.rules.schema import RulesSource, read_source
from oxproxy.yamlfile.document import Faults, Mapping, Node, Place, Scalar, describe, is_tests_file, read_document
from oxproxy.yamlfile.hosts import HostPort

#: Checks rules files as one set. Its arguments are the files, a function that reads test files, and the addresses on
#: which the sidecar listens.
CheckRules: TypeAlias = Callable[[Sequence[RulesSource], Callable[[Path], bytes], Collection[HostPort]], None]

#: The chart's name, under which the values of a parent chart contain its values.
_CHART = "oxproxy"
#: Endings of the names of rules files.
_RULES_ENDINGS = (".yaml", ".yml")
#: Parts of the configuration that the chart adds if the values do not contain them, as environment variables.
_ADDED = {
    ("declared", "secrets"): ("OXPROXY_DECLARED__SECRETS", "[{file: secret}]"),
    ("upstream", "control", "password"): ("OXPROXY_UPSTREAM__CONTROL__PASSWORD_FILE", "password"),
}


def check_values(path: Path, data: bytes, findings: Findings, check_rules: CheckRules) -> None:
    """Check a file with values, and add the results to the findings."""
    findings.files.add(path)
    faults = Faults(secrets_required=None)
    root: Node | None = read_document(data, str(path), faults)
    own = _child(root, _CHART)
    root = own if isinstance(own, Mapping) else root
    config, files = _child(root, "config"), _child(_child(root, "rules"), "files")
    if not faults.errors and config is None and files is None:
        place = Place(str(path), 1) if root is None else root.place
        faults.error(place, "", "got neither config nor rules.files, expected values of the Helm chart")
    listening: Collection[HostPort] = ()
    if isinstance(config, Mapping):
        listening = _check_config(config, path, faults, findings)
    if isinstance(files, Mapping):
        sources, read = _sources(files, path, data, faults)
        if sources:
            check_rules(sources, read, listening)
    rules = _child(root, "rules")
    for key, _ in rules.entries if isinstance(rules, Mapping) else ():
        if key.text.endswith(_RULES_ENDINGS):
            faults.error(
                key.place, f"rules.{key.text}", f"got a rules file here, expected it as rules.files.{key.text}"
            )
    for name, node in (("config", config), ("rules.files", files)):
        if node is not None and not isinstance(node, Mapping):
            faults.error(node.place, name, f"got {describe(node)}, expected a mapping")
    findings.add(faults)


def _child(node: Node | None, key: str) -> Node | None:
    entry = node.entry(key) if isinstance(node, Mapping) else None
    return entry[1] if entry else None


def _check_config(config: Mapping, path: Path, faults: Faults, findings: Findings) -> Collection[HostPort]:
    """Check the configuration; return the addresses on which the sidecar listens."""
    # The chart ignores sections without a value.
    config.entries = [
        (key, node) for key, node in config.entries if not (isinstance(node, Scalar) and node.value is None)
    ]
    chart = {}
    for keys, (name, text) in _ADDED.items():
        node: Node | None = config
        for key in keys:
            node = _child(node, key)
        if node is None:
            chart[name] = text
    found = Faults(secrets_required=None)
    try:
        settings = read_settings(override(config, chart, found), path, {}, found)
    except ConfigErrors as errors:
        faults.extend(found if found.errors else Faults([*errors.errors]))
        return ()
    faults.warnings += found.warnings
    return settings.listen_addresses


def _sources(
    files: Mapping, path: Path, data: bytes, faults: Faults
) -> tuple[list[RulesSource], Callable[[Path], bytes]]:
    """Return the rules files, and a function that reads their test files."""
    lines = data.decode(errors="replace").splitlines(keepends=True)
    texts = {}
    for key, node in files.entries:
        if isinstance(node, Scalar) and isinstance(node.value, str):
            # Messages about a test file have its name, and therefore its own lines.
            as_file = node.value.encode(errors="replace")
            texts[key.text] = as_file if is_tests_file(key.text) else _text(node, node.value, lines)
        else:
            faults.error(node.place, f"rules.files.{key.text}", f"got {describe(node)}, expected a string")
    sources = [read_source(str(path), text) for name, text in texts.items() if not is_tests_file(name)]
    return sources, _reader(texts)


def _text(node: Scalar, value: str, lines: list[str]) -> bytes:
    """Return a string of the values, at its position in the file if it is a literal block."""
    place: Place = node.place
    first = lines[place.line - 1][place.column - 1 :] if place.line <= len(lines) else ""
    if not first.startswith("|"):
        return ("\n" * (place.line - 1) + value).encode(errors="replace")
    return ("\n" * place.line + "".join(lines[place.line : place.line + len(value.splitlines())])).encode(
        errors="replace"
    )


def _reader(texts: dict[str, bytes]) -> Callable[[Path], bytes]:
    """Return a function that reads test files, which are also in the values."""

    def read(file: Path) -> bytes:
        if file.name not in texts:
            raise FileNotFoundError(2, "is not in rules.files")
        return texts[file.name]

    return read
