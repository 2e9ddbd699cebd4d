"""Workers that are killed, can't be started, or answer with errors."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.producer import until
from tests.served import RULES, WORKERS, Pair, alive, gone

OTHER_RULES = RULES.replace("all letters", "every letter")


def test_a_worker_that_is_killed_comes_back_and_the_other_goes_on_and_no_sum_goes_down(pair: Pair) -> None:
    producers = pair.producers(12)
    for producer in producers:
        assert producer.send_settled("letters", "k") == (True, [])
    assert pair.published() == 12
    killed, other = pair.processes()
    os.kill(killed, signal.SIGKILL)
    until(lambda: killed not in pair.processes())
    alive = [producer for producer in producers if not gone(producer)]
    assert 0 < len(alive) < 12
    for producer in alive:
        assert producer.send_settled("letters", "k") == (True, [])
    until(lambda: pair.running.get("/readyz")[0] == 200 and 0 not in pair.processes())
    assert other in pair.processes()
    assert pair.published() == 12 + len(alive)
    assert pair.metric("worker_restarts_total") == 1
    more = pair.producers(12)
    for producer in more:
        assert producer.send_settled("letters", "k") == (True, [])
    assert pair.published() == 24 + len(alive)
    assert pair.connected() == 12 + len(alive)
    assert "worker ended by itself" in pair.running.log.read_text()
    for producer in (*producers, *more):
        producer.vanish()


def test_workers_do_not_outlive_who_started_them(pair: Pair) -> None:
    ids = pair.processes()
    pair.running.process.kill()
    pair.running.process.wait(30)
    until(lambda: not any(map(alive, ids)))


def test_a_worker_that_can_not_be_started_once_is_started_again(faulty: Pair, tmp_path: Path) -> None:
    (tmp_path / "odd").unlink()
    faulty.running.await_log("Resource temporarily unavailable")
    faulty.running.await_ready()
    assert all(faulty.processes())
    (tmp_path / "fork").touch()
    os.kill(faulty.processes()[1], signal.SIGKILL)
    until(lambda: not (tmp_path / "fork").exists())
    until(lambda: all(faulty.processes()) and faulty.running.ready())
    assert faulty.metric("worker_restarts_total") == 1
    assert faulty.metric("workers") == WORKERS


def test_rules_are_followed_though_readyz_has_answered_oddly(faulty: Pair, tmp_path: Path) -> None:
    running = faulty.running
    until(lambda: "answers with status 500" in running.get("/readyz")[1])
    (tmp_path / "odd").unlink()
    running.await_log(f"workers={WORKERS} rules=")
    faulty.write_rules(OTHER_RULES)
    running.await_log("event=reloaded reason=file")
    (tmp_path / "odd").touch()
    assert running.get("/readyz")[0] == 503
    assert running.get("/status")[0] == 200
    assert running.get("/metrics")[0] == 200
    (tmp_path / "odd").unlink()
    running.await_ready()
    faulty.write_rules(RULES)
    until(lambda: running.log.read_text().count("event=reloaded reason=file") == 2)
