"""Errors and warnings about an address table, reported before the table is used.

Findings are plain data, to which the loader adds file and line. A table with an error is not loaded. No finding quotes
a translation, which may contain a password. Source: the messenger-addressing specification, Part 2 and 3.2.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum

from proxy.addressing.address import Address, InvalidAddress, parse_address
from proxy.addressing.table import (
    MOST_VARIABLES,
    AddressRule,
    AddressTable,
    TranslationTemplate,
    has_variable_domain,
    with_placeholders,
)
from proxy.yamlfile.hosts import is_loopback

_ODD_DOLLAR = re.compile(rb"\$(?![0-9$])")
_DOLLAR = re.compile(rb"\$\$")


class Severity(Enum):
    """An ERROR prevents the table from being loaded, a WARNING does not."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class AddressFinding:
    """An error or a warning about one rule.

    Args:
        rule: index of the rule.
        key: the key that the finding is about: pattern, translation or hosts.
        message: what was seen and what was expected. Rules are numbered from 0, as in explanations and audit records.
        other: index of the other rule that the message names.
    """

    rule: int
    severity: Severity
    key: str
    message: str
    other: int | None = None


def check(table: AddressTable, brokers: Collection[bytes] = ()) -> list[AddressFinding]:
    """Return all errors and warnings about a table, in the order of its rules."""
    shadowed = dict(table.shadowed())
    findings: list[AddressFinding] = []
    for index, rule in enumerate(table.rules):
        wildcards = len(table.patterns[index].wildcards)
        if wildcards > MOST_VARIABLES:
            message = f"seen {wildcards} wildcards; only the first {MOST_VARIABLES} can be used as variables"
            findings.append(AddressFinding(index, Severity.WARNING, "pattern", message))
        if index in shadowed:
            message = f"never used: the earlier rule {shadowed[index]} matches every address that this rule matches"
            findings.append(AddressFinding(index, Severity.WARNING, "pattern", message, shadowed[index]))
        findings += [
            AddressFinding(index, severity, key, message) for severity, key, message in _check(rule, wildcards, brokers)
        ]
    return findings


def _check(rule: AddressRule, wildcards: int, brokers: Collection[bytes]) -> Iterator[tuple[Severity, str, str]]:
    if rule.translation is None:
        yield Severity.ERROR, "translation", "missing; expected an address"
        return
    template = TranslationTemplate(rule.translation)
    highest = max((part for part in template.parts if isinstance(part, int)), default=0)
    if highest > wildcards:
        message = f"variables above ${wildcards} are always empty: the pattern has no more wildcards"
        yield Severity.WARNING, "translation", message
    if _ODD_DOLLAR.search(_DOLLAR.sub(b"", rule.translation)):
        yield (
            Severity.WARNING,
            "translation",
            "$ without a number means the whole original address; write $0, or $$ for a literal $",
        )
    if has_variable_domain(template):
        if rule.hosts is None:
            message = (
                "missing; the domain of the translation contains variables: list the permitted hosts, or * for any"
            )
            yield Severity.ERROR, "hosts", message
        return
    try:
        address = parse_address(with_placeholders(template))
    except InvalidAddress as error:
        yield Severity.ERROR, "translation", str(error)
        return
    yield from _check_domain(address, rule.translation, brokers)


def _check_domain(
    address: Address, translation: bytes, brokers: Collection[bytes]
) -> Iterator[tuple[Severity, str, str]]:
    if address.passive:
        yield Severity.ERROR, "translation", "~ marks an address to listen on, expected an address to send to"
    elif not address.local and not address.host:
        yield Severity.ERROR, "translation", "scheme, credentials or port without a host"
    if address.host and address.host not in brokers and not re.search(rb"[/.:]", translation):
        message = "names a host that is not a configured broker; for a queue, write /queue/ before the name"
        yield Severity.WARNING, "translation", message
    elif address.host and address.host not in brokers and not address.local:
        names = [broker.decode("utf-8", "replace") for broker in brokers]
        near = difflib.get_close_matches(address.host.decode("utf-8", "replace").lower(), names, 1, 0.75)
        if near:
            message = f"names a host that is not a configured broker; did you mean the broker {near[0]}?"
            yield Severity.WARNING, "translation", message
    if address.password is not None and not address.tls and not is_loopback(address.host.decode("ascii", "replace")):
        if address.scheme is not None or address.host not in brokers:
            yield Severity.WARNING, "translation", "sends a password in plain text; write amqps://"
