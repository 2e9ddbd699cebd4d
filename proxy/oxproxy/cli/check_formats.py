"""Formats the findings of ``oxproxy check`` for other programs: GitHub annotations, JUnit XML, SARIF.

Sources: workflow commands for GitHub Actions; JUnit XML as read by Jenkins and GitLab; SARIF 2.1.0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from oxproxy.cli.console import printable
from oxproxy.cli.findings import ERROR, TEST, WARNING, Finding
from oxproxy.rules.file_tests import RulesTest

_RULES = {
    ERROR: ("a sidecar would not start", "error"),
    WARNING: ("valid, but probably not intended", "warning"),
    TEST: ("a test of the rules file fails", "error"),
}
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_github(findings: Iterable[Finding]) -> str:
    """Return annotations, one line per finding."""
    return "\n".join(map(_annotation, findings))


def _annotation(finding: Finding) -> str:
    place = {"file": finding.file, "line": finding.line, "col": finding.column, "title": "oxproxy check"}
    written = ",".join(f"{name}={_property(str(value))}" for name, value in place.items() if value)
    level = ERROR if finding.fails else WARNING
    text = finding.text + (f"\n\n{finding.walk}" if finding.walk else "")
    return f"::{level} {written}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def as_junit(findings: Iterable[Finding], tests: Iterable[RulesTest]) -> str:
    """Return a suite with one case for each test in the files and for each finding that makes the check fail."""
    # Rules files of several virtual hosts may name the same test file.
    failing = {
        (finding.vhost, finding.file, finding.line, finding.column): finding
        for finding in findings
        if finding.kind == TEST
    }
    others = [finding for finding in findings if finding.kind != TEST and finding.fails]
    results = [(test, failing.get((test.vhost, *test.place))) for test in tests]
    failed = sum(finding is not None for _, finding in results)
    suites = Element("testsuites")
    counts = {"tests": len(results) + len(others), "failures": failed, "errors": len(others)}
    suite = _add(suites, "testsuite", name="oxproxy check", **counts)
    for test, finding in results:
        case = _add(suite, "testcase", classname=test.place.source, name=test.name, line=test.place.line)
        if finding is not None:
            _add(case, "failure", f"{_located(finding)}\n\n{finding.walk}", message=finding.message)
    for other in others:
        case = _add(suite, "testcase", classname=other.file, name=f"line {other.line}: {other.key or other.kind}")
        _add(case, "error", _located(other), message=other.text)
    indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(suites, "unicode")


def _add(parent: Element, tag: str, text: str = "", /, **attributes: object) -> Element:
    """Append an element. Control characters that XML does not allow are escaped."""
    element = SubElement(parent, tag, {name: printable(str(value), "\n\t") for name, value in attributes.items()})
    element.text = printable(text, "\n\t")
    return element


def _located(finding: Finding) -> str:
    return f"{finding.file}:{finding.line}:{finding.column}: {finding.text}"


def as_sarif(findings: Iterable[Finding], version: str) -> str:
    """Return a SARIF log with one run."""
    rules = [
        {"id": name, "shortDescription": {"text": text}, "defaultConfiguration": {"level": level}}
        for name, (text, level) in _RULES.items()
    ]
    driver = {"name": "oxproxy check", "version": version, "rules": rules}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": list(map(_result, findings))}
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False)


def _result(finding: Finding) -> Mapping[str, object]:
    place: dict[str, object] = {"artifactLocation": {"uri": quote(finding.file, "/,;=@!$&'()*+~")}}
    if finding.line:
        place["region"] = {"startLine": finding.line, **({"startColumn": finding.column} if finding.column else {})}
    return {
        "ruleId": finding.kind,
        "level": ERROR if finding.fails else WARNING,
        "message": {"text": finding.text + (f"\n\n{finding.walk}" if finding.walk else "")},
        "locations": [{"physicalLocation": place}],
    }
