"""Workers that are killed or cannot be started."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.producer import until
from tests.served import RULES, WORKERS, Pair, alive, gone

BAD_RULES = RULES.replace("queue: a", "quee: a")


def test_a_killed_worker_is_restarted_and_the_other_continues(pair: Pair) -> None:
    producers = pair.producers(12)
    for producer in producers:
        assert producer.send_settled("letters", "k") == (True, [])
    assert pair.published() == 12
    killed, surviving = pair.processes()
    os.kill(killed, signal.SIGKILL)
    until(lambda: not alive(killed))
    left = [producer for producer in producers if not gone(producer)]
    assert 0 < len(left) < 12
    for producer in left:
        assert producer.send_settled("letters", "k") == (True, [])
    until(lambda: all(pair.processes()) and pair.running.ready())
    assert pair.processes()[1] == surviving
    assert pair.metrics("worker_restarts_total") == [1, 0]
    more = pair.producers(12)
    for producer in more:
        assert producer.send_settled("letters", "k") == (True, [])
    assert pair.connected() == 12 + len(left)
    assert "worker exited unexpectedly" in pair.running.log.read_text()
    for producer in (*producers, *more):
        producer.disconnect()


def test_workers_do_not_outlive_their_supervisor(pair: Pair) -> None:
    ids = pair.processes()
    pair.running.process.kill()
    pair.running.process.wait(30)
    until(lambda: not any(map(alive, ids)))


def test_a_signal_to_the_whole_process_group_drains(pair: Pair) -> None:
    """systemd signals all processes; the supervisor then forwards a signal that its workers already have."""
    producers = pair.producers(6)
    for process in (*pair.processes(), pair.running.process.pid):
        os.kill(process, signal.SIGTERM)
    for producer in producers:
        assert producer.closed(0).code == 320
        producer.disconnect()
    assert pair.running.process.wait(30) == 0


def test_a_worker_that_fails_to_start_is_started_again(faulty: Pair, tmp_path: Path) -> None:
    faulty.running.await_log("Resource temporarily unavailable")
    faulty.running.await_ready()
    (tmp_path / "fork").touch()
    os.kill(faulty.processes()[1], signal.SIGKILL)
    until(lambda: not (tmp_path / "fork").exists())
    until(lambda: all(faulty.processes()) and faulty.running.ready())
    assert faulty.metrics("worker_restarts_total") == [0, 1]
    assert len(set(faulty.processes())) == WORKERS


def test_no_worker_starts_with_invalid_files_and_a_hangup_starts_it_with_valid_ones(pair: Pair) -> None:
    (before,) = pair.rules_in_force()
    killed, surviving = pair.processes()
    pair.write_rules(BAD_RULES)
    os.kill(killed, signal.SIGKILL)
    pair.running.await_log("worker can't be started: files are invalid")
    assert pair.processes() == [0, surviving]
    assert pair.status(1)["rules"] == before
    for producer in pair.producers(4):
        assert producer.send_settled("letters", "k") == (True, [])
    pair.write_rules(RULES)
    pair.running.process.send_signal(signal.SIGHUP)
    until(lambda: all(pair.processes()) and pair.running.ready())
    assert pair.rules_in_force() == {before}
