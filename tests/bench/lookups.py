"""What does a look-up in the address table cost that nobody has made before? In this process, without a broker.

Each table has 1,000 rules, and only its last one fits: no order of trying them could be worse. Each address is new, so
that nothing remembered helps, and leads to another exchange here, which is part of what a publish pays.
"""

from __future__ import annotations

import gc
from time import perf_counter

from proxy.addressing.table import AddressRule, AddressTable
from proxy.addressing.targets import AddressBook, Target
from tests.bench.arena import Arena
from tests.bench.cases import ADDRESS_RULES, Row

LOOKUPS = 2_000
#: Ordinary patterns by kind: that of rule N, and an address that the last rule fits, of which there are many.
KINDS = {
    "a beginning": ("part.{rule}/*", "part.{rule}/{number}"),
    "an end": ("*.part{rule}", "{number}.part{rule}"),
    "a middle": ("/exchange/%/part.{rule}/*", "/exchange/e{number}/part.{rule}/key"),
    "two runs": ("*.part{rule}.*.done", "a{number}.part{rule}.b.c.done"),
    "one exchange": ("/exchange/e{rule}/*", "/exchange/e{rule}/{number}.error"),
}

MISS = Row("miss", "first look-up of an address, 1,000 rules, last one fits, worst kind", "us", 100, at_least=False)
MISS_ROWS = (MISS,)


def book(kind: str) -> AddressBook:
    """A table with rules of one kind."""
    pattern, _ = KINDS[kind]
    rules = [AddressRule(pattern.format(rule=rule).encode(), b"/exchange/to/$1") for rule in range(ADDRESS_RULES)]
    return AddressBook(AddressTable(rules))


def publishes(kind: str) -> list[tuple[bytes, bytes]]:
    """Exchange and key of publishes that have addresses of one kind, all different."""
    found = []
    for number in range(LOOKUPS):
        address = KINDS[kind][1].format(rule=ADDRESS_RULES - 1, number=number)
        exchange, _, key = address.removeprefix("/exchange/").partition("/")
        found.append((exchange.encode(), key.encode()) if address.startswith("/") else (b"", address.encode()))
    return found


def microseconds(kind: str) -> float:
    """Mean time of one look-up that nothing remembered helps."""
    table, wanted = book(kind), publishes(kind)
    gc.collect()
    begin = perf_counter()
    found = [table.look_up(exchange, key) for exchange, key in wanted]
    took = perf_counter() - begin
    assert all(isinstance(one, Target) and one.rule == ADDRESS_RULES - 1 for one in found)
    return took / LOOKUPS * 1e6


def measure_miss(_: Arena) -> list[list[float]]:
    """The value of `MISS_ROWS`: that of the kind which takes longest."""
    return [[max(map(microseconds, KINDS))]]
