"""Ten thousand bindings of one client: what they cost the sidecar, and that a restart has them all.

Judged is the sidecar's own processor time: how long the broker takes for its part is the machine's affair.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.broker.delivery.applications import Application, declared
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar

BINDINGS = 10_000
QUEUES = 100
#: Binds that the client has sent without an answer.
AHEAD = 500
#: Seconds of processor time for all binds, and until a restarted sidecar is ready; measured: 2.3 and 1.2.
BIND_SECONDS = 10.0
START_SECONDS = 5.0


def used(sidecar: Sidecar) -> float:
    """Seconds of processor time that a sidecar has used."""
    behind_name = Path(f"/proc/{sidecar.process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(behind_name[11]) + int(behind_name[12])) / os.sysconf("SC_CLK_TCK")


def test_ten_thousand_bindings_of_one_client(broker: Broker, vhost: str) -> None:
    frames = [Application.binding(f"q{n % QUEUES}", "ox", {"x-?hkv= n": n}) for n in range(BINDINGS)]
    with Sidecar(broker) as sidecar, Application(sidecar.port, vhost) as app:
        app.exchange("ox")
        app.queues(*(f"q{n}" for n in range(QUEUES)))
        start = used(sidecar)
        spent = [start]
        for at in range(0, BINDINGS, AHEAD):
            app.send(*frames[at : at + AHEAD])
            for _ in frames[at : at + AHEAD]:
                app.expect("Queue.BindOk")
            spent.append(used(sidecar))
        assert spent[-1] - start < BIND_SECONDS
        first, last = spent[5] - start, spent[-1] - spent[-6]
        assert last < 2 * first + 0.2  # later binds cost what earlier ones did
        assert app.reached("ox", {"n": BINDINGS - 1}, "q98", "q99") == ["q99"]
    with Sidecar(broker) as again, Application(again.port, vhost) as app:
        assert used(again) < START_SECONDS
        assert declared(again, vhost) == {"ox": BINDINGS}
        assert app.reached("ox", {"n": 4711}, "q10", "q11") == ["q11"]
        app.unbind("q11", "ox", {"x-?hkv= n": 4711})
        assert app.reached("ox", {"n": 4711}, "q11") == []
