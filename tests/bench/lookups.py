"""Measures the first look-up of an address in the address table, in this process and without a broker.

Each table has 1,000 rules, of which only the last one matches: the worst case for any order of evaluation. Each address
is new, so caches do not help. The result includes the translation to another exchange on the same broker.
"""

from __future__ import annotations

import gc
from time import perf_counter

from proxy.addressing.table import AddressRule, AddressTable
from proxy.addressing.targets import AddressBook, Target
from tests.bench.arena import Arena
from tests.bench.cases import ADDRESS_RULES, Row

LOOKUPS = 2_000
#: By kind, the pattern of rule N, and the form of the addresses that match the last rule.
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
    pattern, _ = KINDS[kind]
    rules = [AddressRule(pattern.format(rule=rule).encode(), b"/exchange/to/$1") for rule in range(ADDRESS_RULES)]
    return AddressBook(AddressTable(rules))


def publishes(kind: str) -> list[tuple[bytes, bytes]]:
    """Return the exchanges and keys of publishes whose addresses are of one kind and all different."""
    found = []
    for number in range(LOOKUPS):
        address = KINDS[kind][1].format(rule=ADDRESS_RULES - 1, number=number)
        exchange, _, key = address.removeprefix("/exchange/").partition("/")
        found.append((exchange.encode(), key.encode()) if address.startswith("/") else (b"", address.encode()))
    return found


def microseconds(kind: str) -> float:
    """Return the mean time of a look-up that is not cached."""
    table, wanted = book(kind), publishes(kind)
    gc.collect()
    begin = perf_counter()
    found = [table.look_up(exchange, key) for exchange, key in wanted]
    took = perf_counter() - begin
    assert all(isinstance(one, Target) and one.rule == ADDRESS_RULES - 1 for one in found)
    return took / LOOKUPS * 1e6


def measure_miss(_: Arena) -> list[list[float]]:
    """Return the value of `MISS_ROWS`, for the slowest kind."""
    return [[max(map(microseconds, KINDS))]]
