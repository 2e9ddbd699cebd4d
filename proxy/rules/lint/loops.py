"""Finds addresses in the rules that lead back to this sidecar.

Some loops can be recognized only by DNS or socket addresses. Such loops are detected when the link is opened; the
translation then fails.

Source: the messenger-addressing specification, 3.4 "Loops".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from proxy.addressing.address import InvalidAddress, parse_address
from proxy.addressing.table import AddressRule, fixed_domain
from proxy.rules.loader import LoadedRules
from proxy.rules.message import text
from proxy.yamlfile.document import Faults, join
from proxy.yamlfile.hosts import is_own_address

#: our listening addresses as (host, port)
Listening = Collection[tuple[str, int]]


def check_loops(loaded: LoadedRules, listening: Listening, faults: Faults) -> None:
    """Report every broker, translation and permitted host that refers to this proxy's own address."""
    for vhost, rules in loaded.rules.vhosts.items():
        for broker in rules.brokers:
            if is_own_address(broker.host, broker.port, listening):
                path = join(join("brokers", broker.name.decode()), "address")
                faults.error(broker.places.get("address", broker.place), path, "leads back to this proxy")
        names = {broker.name for broker in rules.brokers}
        book = loaded.books.get(vhost)
        for rule, places in zip(book.table.rules if book else (), rules.address_places, strict=True):
            for key in _looping_keys(rule, names, listening):
                place = places.hosts if key == "hosts" else places.translation
                faults.error(place, f"{places.path}.{key}", "leads back to this proxy")


def _looping_keys(rule: AddressRule, brokers: Collection[bytes], listening: Listening) -> Iterator[str]:
    address = fixed_domain(rule)
    if address is not None and address.host and (address.host not in brokers or address.port is not None):
        if is_own_address(text(address.host), address.effective_port, listening):
            yield "translation"
    if any(_is_own(permitted, listening) for permitted in rule.hosts or ()):
        yield "hosts"


def _is_own(permitted: bytes, listening: Listening) -> bool:
    """Return True for a host and port of this proxy, but not for a host alone, which also permits other addresses."""
    try:
        address = parse_address(permitted)
    except InvalidAddress:
        return False
    return address.port is not None and is_own_address(text(address.host), address.port, listening)
