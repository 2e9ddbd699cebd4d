"""Reports errors and warnings about address tables, before the tables are used.

No error or warning contains a translation, since translations may contain passwords.

Sources: the messenger-addressing specification, Part 2 and 3.2; 3.4 for loops.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Sequence

from oxproxy.addressing.address import InvalidAddress, parse_address
from oxproxy.addressing.table import (
    MOST_VARIABLES,
    AddressRule,
    TranslationTemplate,
    fixed_domain,
    has_variable_domain,
    with_placeholders,
)
from oxproxy.addressing.targets import AddressBook
from oxproxy.errors import located
from oxproxy.rules.ruleset import Rules
from oxproxy.values import text
from oxproxy.yamlfile.document import Faults, join
from oxproxy.yamlfile.hosts import HostPort, is_loopback, is_own_address
from oxproxy.yamlfile.models import Keys

_ODD_DOLLAR = re.compile(rb"\$(?![0-9$])")
_DOLLAR = re.compile(rb"\$\$")


def check_addresses(book: AddressBook, brokers: Collection[bytes], fields: Sequence[Keys]) -> None:
    """Report errors and warnings about the rules of a table; `fields` contains the keys of each rule.

    In error messages and warnings, the rules are numbered from 0, as in explanations and audit records.
    """
    table = book.table
    shadowed = dict(table.shadowed())
    usable = []
    for index, (rule, keys) in enumerate(zip(table.rules, fields, strict=True)):
        wildcards = len(table.patterns[index].wildcards)
        if wildcards > MOST_VARIABLES:
            message = f"got {wildcards} wildcards; only the first {MOST_VARIABLES} can be used as variables"
            keys.warn("pattern", message)
        if index in shadowed:
            earlier = shadowed[index]
            place = fields[earlier].place
            keys.warn(
                "pattern",
                f"never used: the earlier rule {earlier} matches every address that this rule matches; "
                f"rule {earlier} is in {located(place.source, place.line)}",
            )
        for message in _warnings(rule, wildcards, brokers):
            keys.warn("translation", message)
        error = _error(rule)
        if error is None:
            usable.append(index)
        else:
            keys.error(*error)
    for index in usable:
        reason = book.certain_failure(index)
        if reason:
            fields[index].warn("translation", f"the translation fails for every address: {reason}")


def _error(rule: AddressRule) -> tuple[str, str] | None:
    """Return the key and the message of an error; None if the rule can be used."""
    template = TranslationTemplate(rule.translation or b"")
    if has_variable_domain(template):
        message = "missing; the host of the translation contains variables: list the permitted hosts, or * for any"
        return ("hosts", message) if rule.hosts is None else None
    try:
        address = parse_address(with_placeholders(template))
    except InvalidAddress as error:
        return "translation", str(error)
    if address.passive:
        return "translation", "~ marks an address to listen on, expected an address to send to"
    if not address.local and not address.host:
        return "translation", "scheme, credentials or port without a host"
    return None


def _warnings(rule: AddressRule, wildcards: int, brokers: Collection[bytes]) -> Iterator[str]:
    translation = rule.translation or b""
    template = TranslationTemplate(translation)
    highest = max((part for part in template.parts if isinstance(part, int)), default=0)
    if highest > wildcards:
        yield f"variables above ${wildcards} are always empty, since the pattern has no more wildcards"
    if _ODD_DOLLAR.search(_DOLLAR.sub(b"", translation)):
        yield "$ without a number means the whole original address; write $0, or $$ for a literal $"
    if _exposes_password(rule, template, brokers):
        yield "sends a password in plain text; write amqps://"
    address = fixed_domain(rule)
    if address is None:
        return
    unknown = bool(address.host) and address.host not in brokers
    if unknown and not re.search(rb"[/.:]", translation):
        yield "names a host that is not a configured broker; for a queue, write /queue/ before the name"
    elif unknown and not address.local:
        names = [broker.decode("utf-8", "replace") for broker in brokers]
        near = difflib.get_close_matches(address.host.decode("utf-8", "replace").lower(), names, 1, 0.75)
        if near:
            yield f"names a host that is not a configured broker; did you mean the broker {near[0]}?"


def _exposes_password(rule: AddressRule, template: TranslationTemplate, brokers: Collection[bytes]) -> bool:
    """Return True if the rule may send a password without TLS to another machine."""
    try:
        address = parse_address(with_placeholders(template))
    except InvalidAddress:
        return False
    if address.password is None or address.tls:
        return False
    permitted = (rule.hosts or ()) if has_variable_domain(template) else (address.host,)
    if address.scheme is None:  # a configured broker has its own settings
        permitted = tuple(host for host in permitted if host not in brokers)
    return not all(_is_local(host.decode("ascii", "replace")) for host in permitted)


def _is_local(host: str) -> bool:
    """Return True for a loopback address or localhost, with or without a port."""
    return any(is_loopback(name.strip("[]")) for name in (host, host.rpartition(":")[0]))


# -- loops -------------------------------------------------------------------------------------------------------------


def check_loops(rules: Rules, listening: Collection[HostPort], faults: Faults) -> None:
    """Report every broker, translation and permitted host that leads back to this sidecar.

    Loops that can be recognized only with DNS or from socket addresses are detected when the connection to the other
    broker is opened; the translation then fails.
    """
    for vhost in rules.vhosts.values():
        for broker in vhost.brokers:
            address = broker.settings.address
            if is_own_address(address.host, address.port, listening):
                path = join(join("brokers", broker.name.decode()), "address")
                faults.error(broker.places.get("address", broker.place), path, "leads back to this sidecar")
        names = {broker.name for broker in vhost.brokers}
        for rule, places in zip(vhost.addresses, vhost.address_places, strict=True):
            for key in _looping_keys(rule, names, listening):
                faults.error(*places[key], "leads back to this sidecar")


def _looping_keys(rule: AddressRule, brokers: Collection[bytes], listening: Collection[HostPort]) -> Iterator[str]:
    address = fixed_domain(rule)
    if address is not None and address.host and (address.host not in brokers or address.port is not None):
        if is_own_address(text(address.host), address.effective_port, listening):
            yield "translation"
    if any(_is_own(permitted, listening) for permitted in rule.hosts or ()):
        yield "hosts"


def _is_own(permitted: bytes, listening: Collection[HostPort]) -> bool:
    """Return True for a host and port of this sidecar, but not for a host alone, which also permits other addresses."""
    try:
        address = parse_address(permitted)
    except InvalidAddress:
        return False
    return address.port is not None and is_own_address(text(address.host), address.port, listening)
