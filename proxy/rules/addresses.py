"""The key `addresses:` of rules files: reads the address table and reports what is wrong in it, with its place.

What patterns and translations mean is defined in the package `addressing`; its findings get file and line here. No
message shows a translation, which may hold a password.

Source: the messenger-addressing specification, Part 2 and 3.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from proxy.addressing.lint import Severity, check
from proxy.addressing.table import AddressRule, AddressTable
from proxy.addressing.targets import AddressBook
from proxy.errors import located
from proxy.rules.ruleset import AddressPlaces, BrokerRule
from proxy.yamlfile.fields import Fields
from proxy.yamlfile.kinds import SECRET, UnexpectedError
from proxy.yamlfile.nodes import Faults


@dataclass(slots=True)
class ParsedAddress:
    """One rule of the address table; `fields` finds the places of its keys."""

    fields: Fields
    rule: AddressRule

    @property
    def places(self) -> AddressPlaces:
        """Where it was written."""
        fields = self.fields
        return AddressPlaces(fields.path, fields.place_of("translation"), fields.place_of("hosts"))


def read_addresses(fields: Fields) -> list[ParsedAddress]:
    """Read `addresses:` of a file."""
    found = (_address(Fields(node, path, fields.faults)) for path, node in fields.items("addresses"))
    return [parsed for parsed in found if parsed is not None]


def _address(fields: Fields) -> ParsedAddress | None:
    name = fields.text("name", "a name for explain")
    pattern = fields.text("pattern", "a pattern such as orders/*", required=True)
    translation = _quiet_text(fields, "translation", "an address such as /queue/q or amqps://broker/queue/q")
    hosts = [item.text.encode() for _, item in fields.texts("hosts", "a host, host:port, or *")]
    listed = "hosts" in fields
    fields.finish()
    if pattern is None or translation is None:
        return None
    if listed and not hosts:
        fields.error("hosts", "seen no host, expected a host, host:port, or *")
    rule = AddressRule(pattern.encode(), translation.encode(), name or "", tuple(hosts) if listed else None)
    return ParsedAddress(fields, rule)


def _quiet_text(fields: Fields, key: str, expected: str) -> str | None:
    """Read a required text that no message may show, since a password may stand in it."""
    node = fields.take(key)
    if node is None:
        fields.error(key, f"seen nothing, expected {expected}")
        return None
    try:
        return SECRET.read(node).reveal()
    except UnexpectedError:
        fields.faults.error(node.place, fields.at(key), f"seen something else than a text, expected {expected}")
        return None


def address_book(rules: Sequence[ParsedAddress], brokers: Iterable[BrokerRule], faults: Faults) -> AddressBook:
    """Compile the address table of one virtual host and report what is wrong or doubtful in it.

    Args:
        rules: of all its files, in order.
        brokers: that they may name.
        faults: takes the findings.
    """
    names = [broker.name for broker in brokers]
    table = AddressTable([parsed.rule for parsed in rules])
    findings = check(table, names)
    for finding in findings:
        fields = rules[finding.rule].fields
        report = faults.error if finding.severity is Severity.ERROR else faults.warn
        message = finding.message
        if finding.other is not None:
            place = rules[finding.other].fields.place
            message += f"; rule {finding.other} is in {located(place.source, place.line)}"
        report(fields.place_of(finding.key), fields.at(finding.key), message)
    wrong = {finding.rule for finding in findings if finding.severity is Severity.ERROR}
    book = AddressBook(table, names)
    for index, parsed in enumerate(rules):
        reason = "" if index in wrong else book.certain_failure(index)
        if reason:
            message = f"leads nowhere, whatever the address: {reason}"
            faults.warn(parsed.fields.place_of("translation"), parsed.fields.at("translation"), message)
    return book
