"""Loads rules files, explains how messages are routed, and runs the tests in the files, for programs and tests.

This is the interface for other programs: the names that `oxproxy` exports keep their meaning in minor versions. It uses
the same code as ``oxproxy check`` and ``oxproxy explain``, and never connects to a broker. Therefore, it does not know
which queues exist: regex routes choose among the queues that the rules and the caller name.
"""

from __future__ import annotations

import glob
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

from oxproxy.config.loader import matching_files
from oxproxy.errors import ConfigError, located
from oxproxy.rules.explain import Explanation, as_json, as_text, explain, explain_test, read_request
from oxproxy.rules.file_tests import TestFailure
from oxproxy.rules.lint.bindings import lint_bindings
from oxproxy.rules.loader import LoadedRules, compile_sources
from oxproxy.rules.schema import ParsedFile, read_source
from oxproxy.yamlfile.document import Faults, Node, Place, Scalar, is_tests_file, join
from oxproxy.yamlfile.document import Mapping as MappingNode
from oxproxy.yamlfile.document import Sequence as SequenceNode

#: The value of a header. A string becomes a long string, an integer the smallest of int32 and int64, a float a double,
#: bytes a byte array, and a datetime with a time zone a timestamp in seconds.
HeaderValue: TypeAlias = (
    "bool | int | float | str | bytes | datetime | Sequence[HeaderValue] | Mapping[str, HeaderValue] | None"
)
#: Receives a title and a walk.
WalkObserver: TypeAlias = Callable[[str, str], None]
_NO_HEADERS: Mapping[str, HeaderValue] = {}
_NO_PROPERTIES: Mapping[str, str | int | datetime] = {}
_SOURCE = "message"
_PLACE = Place(_SOURCE, 0)


@dataclass(frozen=True, slots=True)
class ExplainedMessage:
    """Where the rules route a message, and why.

    Args:
        vhost: the virtual host whose rules were evaluated.
        outcome: ``routed``, ``unrouted``, ``filtered``, ``rejected``, ``translated`` or ``passed``.
        queues: names of the queues that receive the message, sorted; so are `exchanges` and `remotes`.
        exchanges: names of the exchanges on the broker that receive the message.
        remotes: names of the other brokers that receive the message.
        bindings: names or ids of the bindings that were true, in the order in which they were visited.
        violates: violated conditions of contracts, and violated filters that are only observed.
        error: text of the channel error if the message is rejected; otherwise None.
    """

    vhost: str
    outcome: str
    queues: list[str]
    exchanges: list[str]
    remotes: list[str]
    bindings: list[str]
    violates: list[str]
    error: str | None
    _explanation: Explanation = field(repr=False, compare=False)

    @property
    def walk(self) -> str:
        """Each visited binding with the compared values, as ``oxproxy explain`` prints it."""
        return as_text(self._explanation)

    def as_json(self) -> dict[str, object]:
        """Return the explanation as plain data, as ``oxproxy explain --json`` prints it."""
        return as_json(self._explanation)


@dataclass(frozen=True, slots=True)
class FailedRulesTest:
    """A test in a rules file that failed.

    Args:
        name: the test's name.
        place: file, line and column of the test.
        differences: one sentence for each difference between the actual and the expected result.
        walk: how the test's message is routed, see `ExplainedMessage.walk`.
    """

    name: str
    place: str
    differences: list[str]
    walk: str

    def __str__(self) -> str:
        return f"{self.place}: {self.name}: {'; '.join(self.differences)}\n{self.walk}"


class RuleSet:
    """Valid rules of one or more files. `load_rules` returns it.

    Args:
        warnings: definitions that are probably mistakes, as ``oxproxy check`` prints them.
    """

    def __init__(self, loaded: LoadedRules, warnings: Iterable[str] = (), observe: WalkObserver | None = None) -> None:
        self._loaded = loaded
        self._observe = observe
        self.warnings = list(warnings)

    def observed(self, observe: WalkObserver) -> RuleSet:
        """Return the same rules, which pass the walk of each explained message and failed test to `observe`."""
        return RuleSet(self._loaded, self.warnings, observe)

    @property
    def version(self) -> str:
        """Hash of the files' contents; a sidecar with the same rules reports the same version."""
        return self._loaded.rules.version

    def explain(
        self,
        exchange: str,
        routing_key: str = "",
        headers: Mapping[str, HeaderValue] = _NO_HEADERS,
        properties: Mapping[str, str | int | datetime] = _NO_PROPERTIES,
        *,
        body_size: int = 0,
        vhost: str | None = None,
        queues: Iterable[str] = (),
        at: datetime | str | None = None,
    ) -> ExplainedMessage:
        """Explain where the rules route a message.

        Args:
            exchange: the exchange to which the message is published.
            properties: properties of the message by name, such as ``message_id`` and ``priority``.
            body_size: size of the body in bytes.
            vhost: the virtual host; None to determine it from the exchange.
            queues: queues that regex routes can select, in addition to those that the rules name.
            at: time of the publish, such as ``2026-11-21T08:00:00Z``; None for now.

        Raises:
            ConfigErrors: the message is not valid, or several virtual hosts have the exchange. All errors are reported,
                each with the key, what was seen and what was expected.
        """
        given: dict[str, object] = {
            "exchange": exchange,
            "routing_key": routing_key,
            "headers": headers,
            "properties": properties,
            "body_size": body_size,
            "queues": list(queues),
        }
        given |= {} if vhost is None else {"vhost": vhost}
        given |= {} if at is None else {"at": at.isoformat() if isinstance(at, datetime) else at}
        faults = Faults()
        request = read_request(_node(given, "", faults), _SOURCE, faults)
        explained = _explained(explain(self._loaded, request, time.time() if request.at is None else request.at))
        if self._observe is not None:
            self._observe(f"message to {exchange}", explained.walk)
        return explained

    def failures(self) -> list[FailedRulesTest]:
        """Run the tests in the files; return those that fail, those of separate test files last."""
        failures = [self._failed(failure) for failure in self._loaded.failures()]
        if self._observe is not None:
            for failure in failures:
                self._observe(failure.name, failure.walk)
        return failures

    def _failed(self, failure: TestFailure) -> FailedRulesTest:
        test = failure.test
        walk = as_text(explain_test(self._loaded, test))
        return FailedRulesTest(test.name, located(*test.place), list(failure.differences), walk)


def load_rules(*files: str | os.PathLike[str]) -> RuleSet:
    """Read, check and compile rules files as one set, as a sidecar does.

    Args:
        files: names of files, or patterns such as ``rules/*.yaml``, relative to the working directory. A pattern does
            not match test files, whose names end in ``_test.yaml``; rules files name them under ``tests``.

    Raises:
        ConfigErrors: a name or pattern matches no file, or the files have errors. All errors are reported, each with
            file, line, column and key.
    """
    faults = Faults()
    paths = {path for name in files for path in _matching(os.fspath(name), faults)}
    if not files:
        faults.add(ConfigError("load_rules", 0, "", "got no file, expected names or patterns of rules files"))
    faults.check()
    warnings: list[str] = []

    def lint(parsed: Sequence[ParsedFile], loaded: LoadedRules) -> None:
        warnings.extend(map(str, (*loaded.warnings, *lint_bindings(parsed, loaded))))

    sources = [read_source(str(path), path.read_bytes()) for path in sorted(paths)]
    loaded = compile_sources(sources, faults, lint, Path.read_bytes)
    return RuleSet(loaded, warnings)


def _matching(name: str, faults: Faults) -> list[Path]:
    paths = [path for path in matching_files(Path(), name) if not is_tests_file(path.name)]
    if not paths:
        problem = "this pattern matches no rules file" if glob.has_magic(name) else "there is no such rules file"
        faults.add(ConfigError(name, 0, "", problem))
    return paths


def _explained(explanation: Explanation) -> ExplainedMessage:
    result = explanation.result
    return ExplainedMessage(
        explanation.vhost,
        result.outcome,
        sorted(result.queues),
        sorted(result.exchanges),
        sorted(result.remotes),
        [ident for _, ident in explanation.matched],
        list(result.violates),
        result.error,
        explanation,
    )


def _node(given: object, path: str, faults: Faults) -> Node:
    """Return the node that a file would have for a value, so that messages are checked like those in files."""
    if isinstance(given, Mapping):
        return MappingNode(_PLACE, [entry for item in given.items() for entry in _entry(*item, path, faults)])
    if isinstance(given, Sequence) and not isinstance(given, (str, bytes)):
        return SequenceNode(_PLACE, [_node(item, join(path, index), faults) for index, item in enumerate(given)])
    if given is None or isinstance(given, (bool, int)):
        return Scalar(_PLACE, "null" if given is None else str(given).lower(), plain=True)
    if isinstance(given, float):
        if not math.isfinite(given):
            faults.error(_PLACE, path, f"got {given}, expected a finite number")
        return Scalar(_PLACE, repr(given), plain=True)
    if isinstance(given, bytes):
        return _string(given.hex(), tag="!bytes")
    if isinstance(given, datetime):
        if given.tzinfo is None:
            faults.error(_PLACE, path, f"got {given.isoformat()} without a time zone, expected one, such as UTC")
            return _string("")
        return _string(given.replace(microsecond=0).isoformat(), tag="!timestamp")
    if not isinstance(given, str):
        expected = "None, a boolean, a number, a string, bytes, a datetime, a list or a mapping"
        faults.error(_PLACE, path, f"got an object of the type {type(given).__name__}, expected {expected}")
    return _string(str(given))


def _entry(name: object, value: object, path: str, faults: Faults) -> Iterator[tuple[Scalar, Node]]:
    if isinstance(name, str):
        yield _string(name), _node(value, join(path, name), faults)
    else:
        faults.error(_PLACE, path, f"got the key {name!r}, expected a string")


def _string(content: str, tag: str | None = None) -> Scalar:
    return Scalar(_PLACE, content, plain=False, tag=tag)
