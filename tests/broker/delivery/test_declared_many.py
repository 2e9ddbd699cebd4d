"""Thousands of bindings of one client: their cost in the sidecar, and that they survive a restart.

The limits are on CPU time of the sidecar, because the time of the broker depends on the machine.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.broker.delivery.applications import Application, declared
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar

QUEUES = 100
#: CPU seconds for a thousand binds, and until a restarted sidecar is ready; measured: 0.23 and 1.2.
BIND_SECONDS = 1.0
START_SECONDS = 5.0


def used(sidecar: Sidecar) -> float:
    """CPU seconds that a sidecar has used."""
    behind_name = Path(f"/proc/{sidecar.process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(behind_name[11]) + int(behind_name[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=pytest.mark.matrix)])
def test_thousands_of_bindings_of_one_client(broker: Broker, vhost: str, count: int) -> None:
    ahead = count // 20  # binds that the client has sent without a reply
    frames = [Application.binding(f"q{n % QUEUES}", "ox", {"x-?hkv= n": n}) for n in range(count)]
    with Sidecar(broker) as sidecar, Application(sidecar.port, vhost) as app:
        app.exchange("ox")
        app.queues(*(f"q{n}" for n in range(QUEUES)))
        start = used(sidecar)
        spent = [start]
        for at in range(0, count, ahead):
            app.send(*frames[at : at + ahead])
            for _ in frames[at : at + ahead]:
                app.expect("Queue.BindOk")
            spent.append(used(sidecar))
        assert spent[-1] - start < BIND_SECONDS * count / 1000
        first, last = spent[5] - start, spent[-1] - spent[-6]
        assert last < 2 * first + 0.2  # later binds cost as much as earlier ones
        assert app.reached("ox", {"n": count - 1}, "q98", "q99") == ["q99"]
    with Sidecar(broker) as again, Application(again.port, vhost) as app:
        assert used(again) < START_SECONDS
        assert declared(again, vhost) == {"ox": count}
        assert app.reached("ox", {"n": 1711}, "q10", "q11") == ["q11"]
        app.unbind("q11", "ox", {"x-?hkv= n": 1711})
        assert app.reached("ox", {"n": 1711}, "q11") == []
