"""``oxproxy check``: checks configuration and rules files and runs the tests in rules files.

The keys in a file determine whether it is a configuration or a rules file. A configuration is checked together with the
rules files that it names. Other rules files are checked as one set, as a sidecar would load them.
`oxproxy.cli.check_helm` reads both from the values of the Helm chart.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Collection, Sequence
from collections.abc import Mapping as Environment
from functools import cache
from pathlib import Path
from typing import NamedTuple

from oxproxy.cli.console import (
    DEFAULT_CONFIGURATION,
    DONE,
    NO,
    WRONG,
    between,
    print_errors,
    print_json,
    print_line,
    read_bytes,
    read_input,
    required_configuration,
)
from oxproxy.cli.findings import Findings
from oxproxy.config.loader import read_settings, rules_files, tests_files
from oxproxy.config.settings import Settings
from oxproxy.errors import ConfigError, ConfigErrors
from oxproxy.rules.addresses import broker_password
from oxproxy.rules.file_tests import TestFailure
from oxproxy.rules.lint.addresses import check_loops
from oxproxy.rules.lint.bindings import lint_bindings, untested_bindings
from oxproxy.rules.lint.destinations import declared_queues, destinations, evaluated_exchanges
from oxproxy.rules.loader import LoadedRules, compile_sources
from oxproxy.rules.schema import TOP_KEYS, ParsedFile, RulesSource, read_source
from oxproxy.values import counted
from oxproxy.yamlfile.document import Faults, Mapping, Place, is_tests_file, shown_key
from oxproxy.yamlfile.hosts import HostPort
from oxproxy.yamlfile.models import key_names

#: Values of ``--format``.
FORMATS = ("text", "json", "github", "junit", "sarif")
_SETTINGS_KEYS = tuple(key_names(Settings))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        metavar="FILE",
        type=Path,
        nargs="*",
        help="configuration or rules file, or a directory with files named *.yaml; - for standard input; default: the "
        f"configuration {DEFAULT_CONFIGURATION}",
    )
    parser.add_argument(
        "-f",
        "--values",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="values of the Helm chart; checks config and rules.files; - for standard input; can be repeated",
    )
    parser.add_argument(
        "--format", choices=FORMATS, default="text", help="output format; default: text, with errors on standard error"
    )
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="same as --format json")
    parser.add_argument("--strict", action="store_true", help="exit with status 1 if there are warnings")
    parser.add_argument("--coverage", action="store_true", help="list bindings that no test matches")
    parser.add_argument(
        "--fail-under",
        metavar="N",
        type=between(0.0, 100.0, "a percentage from 0 to 100"),
        help="exit with status 1 unless tests cover at least N percent of the bindings",
    )
    parser.add_argument(
        "--broker",
        metavar="URL",
        help="also check a broker for conflicts and missing destinations: amqp(s)://USER:PASSWORD@HOST:5672 or "
        "http(s)://USER:PASSWORD@HOST:15672. With http(s), the user must be an administrator, and the command also "
        "prints what the sidecar would declare at startup and which permissions the control user lacks. TLS settings "
        "are taken from upstream.tls",
    )


def run(options: argparse.Namespace) -> int:
    """Print the findings."""
    files = _in_directories(options.files)
    if not files and not options.values:
        files = [required_configuration(None, "oxproxy check", "FILE, --values FILE")]
    findings = check_files(files, os.environ, lambda path: read_bytes(str(path)))
    if findings.uses_tls:
        _check_tls_files(findings)
    for values in options.values:
        # Imported here because most runs check no values.
        from oxproxy.cli.check_helm import check_values

        def check_rules(
            sources: Sequence[RulesSource], read: Callable[[Path], bytes], listening: Collection[HostPort]
        ) -> None:
            check_sources(sources, Faults(), read, None, listening, findings)

        check_values(values, read_input(str(values)), findings, check_rules)
    if options.broker is not None:
        _check_broker(options.broker, findings)
    findings.strict = options.strict
    if options.fail_under is not None and findings.coverage < options.fail_under:
        seen, expected = _percent(findings.coverage), _percent(options.fail_under)
        findings.coverage_fault = f"tests cover {seen} of the bindings, expected {expected} or more"
    _print(findings, options)
    if findings.errors:
        return WRONG
    return DONE if findings.good else NO


def _in_directories(paths: Sequence[Path]) -> list[Path]:
    """Replace each directory with the files in it that are named ``*.yaml``.

    Raises:
        ConfigErrors: a directory contains no such file.
    """
    files: list[Path] = []
    for path in paths:
        inside = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
        if not inside:
            raise ConfigErrors([ConfigError(str(path), 0, "", "got a directory without *.yaml, expected rules files")])
        files += inside
    return files


def _percent(number: float) -> str:
    return f"{number:.4g} %"


def _print(findings: Findings, options: argparse.Namespace) -> None:
    if options.format == "text":
        print_errors((*findings.warnings, *findings.errors))
        for failure, walk in findings.failures:
            print_errors([failure])
            print_errors(f"    {line}".rstrip() for line in walk.splitlines())
        print_errors(findings.uncovered if options.coverage else ())
        print_errors([findings.coverage_fault] if findings.coverage_fault else ())
        if findings.strict and findings.warnings:
            print_errors([f"{counted(len(findings.warnings), 'warning')}, which --strict does not allow"])
        for vhost, action in findings.plan or ():
            print_line(f"plan: vhost {vhost}: {action}")
        if findings.plan == [] and not findings.errors:
            print_line("plan: nothing to declare or bind")
        if findings.good:
            print_line(f"ok: {findings.summary}")
    elif options.format == "json":
        print_json(findings.as_json())
    else:
        print_line(_formatted(findings, options.format))


def _formatted(findings: Findings, form: str) -> str:
    # Imported here because most runs print text and do not need it.
    from importlib.metadata import version

    from oxproxy.cli.check_formats import as_github, as_junit, as_sarif

    listed = list(findings.listed())
    if form == "junit":
        return as_junit(listed, [test for loaded in findings.sets for test in loaded.tests])
    return as_github(listed) if form == "github" else as_sarif(listed, version("oxproxy"))


class _Files(NamedTuple):
    """The files being checked. Each is read once, since standard input and pipes can't be read again.

    Args:
        read: reads a file, or returns its content if it has been read before.
        parsed: files that were parsed to determine their kind, and are not in use yet.
    """

    read: Callable[[Path], bytes]
    parsed: dict[Path, RulesSource]


def _source(path: Path, files: _Files, faults: Faults) -> RulesSource | None:
    """Return a file without keeping its parsed content; if it can't be read, add an error and return None."""
    try:
        return files.parsed.pop(path, None) or read_source(str(path), files.read(path))
    except OSError as error:
        faults.error(Place(str(path), 0), "", f"can't be read: {error.strerror or error}")
        return None


def check_files(
    paths: Sequence[Path], environ: Environment[str, str], read: Callable[[Path], bytes] = Path.read_bytes
) -> Findings:
    """Check configuration and rules files.

    Args:
        environ: environment variables; a missing password is only a warning.
        read: reads a file; called once for each file.
    """
    rules = [path for path in paths if not is_tests_file(path.name)]
    findings = Findings(files=set(rules))
    files = _Files(cache(read), {})
    faults = Faults()
    kinds = {path: _kind(path, files, faults) for path in dict.fromkeys(rules)}
    findings.add(faults)
    configured = [path for path, kind in kinds.items() if kind == "settings"]
    named = [rules for path in configured for rules in _settings(path, files, environ, findings)]
    covered = {path.resolve() for path in named}
    alone = [path for path, kind in kinds.items() if kind == "rules" and path.resolve() not in covered]
    _rules(alone, files, environ, (), findings)
    _warn_of_unused_tests([path for path in paths if path not in kinds], findings)
    # Several configurations may name the same rules file.
    findings.errors = list({str(error): error for error in findings.errors}.values())
    findings.warnings = list(dict.fromkeys(findings.warnings))
    findings.failures = list({str(failure): failure for failure in findings.failures}.values())
    return findings


def _kind(path: Path, files: _Files, faults: Faults) -> str | None:
    """Determine from its keys whether a file is a configuration or a rules file. Any other file is an error."""
    source = _source(path, files, faults)
    if source is None:
        return None
    files.parsed[path] = source
    root = source.root
    if not isinstance(root, Mapping):
        message = "got neither a configuration nor a rules file, expected a mapping with the keys of one of them"
        place = Place(str(path), 1, 1) if root is None else root.place
        if not source.faults.errors:
            faults.error(place, "", message)
        faults.extend(source.faults)
        return None
    keys = [key.text for key, _ in root.entries]
    if _is_values(root):
        faults.error(root.place, "", "got values of the Helm chart, expected a configuration or rules; use --values")
        return None
    kinds = [name for name, known in (("settings", _SETTINGS_KEYS), ("rules", TOP_KEYS)) if set(keys) & set(known)]
    if len(kinds) == 1:
        return kinds[0]
    seen = (
        "keys of both a configuration and a rules file"
        if kinds
        else f"the keys {', '.join(map(shown_key, keys)) or '(none)'}"
    )
    expected = f"a configuration ({', '.join(_SETTINGS_KEYS)}) or rules ({', '.join(TOP_KEYS)})"
    faults.error(root.place, "", f"got {seen}, expected those of {expected}")
    return None


def _is_values(root: Mapping) -> bool:
    """Return True for values of the Helm chart, which have a section `config` or `rules.files`."""
    sections = {key.text: value for key, value in root.entries if isinstance(value, Mapping)}
    return "config" in sections or ("rules" in sections and sections["rules"].entry("files") is not None)


def _settings(path: Path, files: _Files, environ: Environment[str, str], findings: Findings) -> list[Path]:
    """Check a configuration and the rules files that it names; return the paths of the rules files."""
    faults = Faults(secrets_required=False)
    source = _source(path, files, faults)
    if source is None:
        return []
    faults.extend(source.faults)
    try:
        settings = read_settings(source.root, path, environ, faults)
        findings.warnings += faults.warnings
        findings.settings.append(settings)
        named = rules_files(settings)
    except ConfigErrors as error:
        findings.add(Faults([*error.errors]))
        return []
    _rules(named, files, environ, settings.listen_addresses, findings)
    return named


def _rules(
    paths: Sequence[Path],
    files: _Files,
    environ: Environment[str, str],
    listening: Collection[HostPort],
    findings: Findings,
) -> None:
    if not paths:
        return
    findings.files.update(paths)
    faults = Faults()
    sources = [source for path in paths if (source := _source(path, files, faults)) is not None]
    check_sources(sources, faults, files.read, environ, listening, findings)


def check_sources(
    sources: Sequence[RulesSource],
    faults: Faults,
    read: Callable[[Path], bytes],
    environ: Environment[str, str] | None,
    listening: Collection[HostPort],
    findings: Findings,
) -> None:
    """Check rules files as one set.

    Args:
        faults: errors found so far.
        read: reads test files.
        environ: environment variables, for passwords of brokers; None if passwords can't be read here.
        listening: addresses on which the sidecar listens.
    """

    def lint(parsed: Sequence[ParsedFile], loaded: LoadedRules) -> None:
        findings.warnings += [*loaded.warnings, *lint_bindings(parsed, loaded)]
        findings.untested += untested_bindings(parsed, loaded)
        findings.destinations += destinations(parsed, loaded)
        findings.queues += declared_queues(parsed)
        findings.exchanges += evaluated_exchanges(parsed, loaded)
        findings.files.update(file.tests_file.path for file in parsed if file.tests_file is not None)

    try:
        loaded = compile_sources(sources, faults, lint, read)
    except ConfigErrors as error:
        findings.add(Faults([*error.errors]))
        return
    findings.failures += [(failure, _walk(loaded, failure)) for failure in loaded.failures()]
    findings.sets.append(loaded)
    faults = Faults(secrets_required=None if environ is None else False)
    check_loops(loaded.rules, listening, faults)
    for vhost in loaded.rules.vhosts.values():
        for broker in vhost.brokers:
            broker_password(broker, environ or {}, faults)
    findings.add(faults)


def _warn_of_unused_tests(given: Sequence[Path], findings: Findings) -> None:
    """Report test files that are not named in any of the checked rules files."""
    faults = Faults()
    if not findings.files:
        for path in given:
            faults.error(Place(str(path), 0), "", "got a test file, expected the rules file that names it")
    elif not findings.errors:  # if there are errors, it is unknown which rules files name which test files
        configured = (path for settings in findings.settings for path in tests_files(settings))
        read = {path.resolve() for path in findings.files}
        for path in dict.fromkeys((*given, *configured)):
            if path.resolve() not in read:
                faults.warn(Place(str(path), 0), "", "this test file is not run: no rules file names it under tests")
    findings.add(faults)


def _walk(loaded: LoadedRules, failure: TestFailure) -> str:
    # Imported here because only failed tests need an explanation.
    from oxproxy.rules.explain import as_text, explain_test

    return as_text(explain_test(loaded, failure.test))


def _check_tls_files(findings: Findings) -> None:
    # Imported here because it loads ssl and socket modules, which are not needed for most files.
    from oxproxy.net.tls_config import broker_tls, check_settings

    faults = Faults(secrets_required=False)
    for settings in findings.settings:
        check_settings(settings, faults)
    for vhost in findings.vhosts:
        for broker in vhost.brokers:
            broker_tls(broker, faults)
    findings.add(faults)


def _check_broker(url: str, findings: Findings) -> None:
    # Imported here because it loads the network libraries.
    from oxproxy.cli.check_broker import ask_broker

    try:
        ask_broker(url, findings)
    except ConfigErrors as errors:
        findings.errors += errors.errors
