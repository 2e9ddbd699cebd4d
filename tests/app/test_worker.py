from __future__ import annotations

import socket
from pathlib import Path

from proxy.app.worker import Worker, WorkerSlot
from proxy.config.settings import AuditSection, DeclaredSection, ListenSection, Settings
from proxy.yamlfile.kinds import HostPort

PLACE = WorkerSlot(2, (5673, 5674), 7)


def test_a_place_is_read_as_it_was_written() -> None:
    assert WorkerSlot.read(PLACE.write()) == PLACE


def test_a_worker_has_the_shared_ports_and_names_of_its_own() -> None:
    settings = Settings(
        listen=(ListenSection(HostPort("127.0.0.1", 0)), ListenSection(HostPort("::1", 0))),
        audit=AuditSection(instance="here"),
        declared=DeclaredSection(snapshot="state.json"),
    )
    own = PLACE.settings(settings)
    assert [(one.address.host, one.address.port) for one in own.listen] == [("127.0.0.1", 5673), ("::1", 5674)]
    assert own.audit.instance == "here-2"
    assert own.declared.snapshot == "state.json.2"


def test_where_nothing_is_named_the_host_names_the_worker() -> None:
    own = PLACE._replace(ports=(5673,)).settings(Settings())
    assert own.audit.instance == f"{socket.gethostname()}-2"
    assert own.declared.snapshot is None


async def test_a_worker_that_was_not_started_answers_nothing_and_can_be_told_to_end() -> None:
    worker = Worker(1, Path("none.yaml"), [5673])
    assert (worker.running, worker.process_id) == (False, None)
    assert await worker.ask("GET", "/livez") is None
    worker.stop()
    worker.kill()
    worker.close()


async def test_a_worker_ends_with_2_where_there_is_no_configuration(tmp_path: Path) -> None:
    worker = Worker(1, tmp_path / "none.yaml", [5673])
    await worker.start()
    assert await worker.ended() == 2
    assert not worker.running
    worker.close()
