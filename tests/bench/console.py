"""Compares publishing with and without many clients that request the console's events.

The clients would slow down all other cases, so they are started after the rounds.
"""

from __future__ import annotations

import time

from tests.bench.arena import Arena
from tests.bench.cases import CASES, Row, Way
from tests.bench.followers import AGAIN_SECONDS

ROUNDS = 4
CONSOLE_ROWS = (
    Row("console", "1,000 clients ask for event streams / none", "", 0.95),
    Row("console", "CPU per message with these clients / without", "x", None, at_least=False),
)


def measure_console(arena: Arena) -> list[list[float]]:
    """Return the values of `CONSOLE_ROWS` for each round."""
    rates: list[float] = []
    costs: list[float] = []
    arena.producers(CASES["flooded"])  # also starts the clients
    time.sleep(AGAIN_SECONDS)
    for _ in range(ROUNDS):
        without, asked = arena.run(CASES["real-all"]), arena.run(CASES["flooded"])
        rates.append(asked.per_second / without.per_second)
        costs.append(asked.cpu_us[Way.FLOODED] / without.cpu_us[Way.RULES])
    return [rates, costs]
