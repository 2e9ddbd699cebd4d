"""Plays the vectors through a running sidecar to a real broker, and compares what arrives.

``python -m tests.conformance.end_to_end [FILE...] [--every N] [--delivery carrier|direct|topic|queue]`` declares, binds
and publishes each vector as a client would, prints the first faults as id, expected, got, and as its last line
``N passed, M deviations, F failed``; exit 1 if any failed. Vectors of other exchange types are the broker's own to
answer: they show that the sidecar leaves them alone.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from tests.conformance import open_exchange
from tests.conformance.deviations import Difference, Run, accounting_for
from tests.conformance.files import OWN_VECTORS, vectors
from tests.conformance.stage import Place, Stage
from tests.conformance.typed import Json
from tests.private_broker import some_broker
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar

#: Vectors of the open exchange; those of the address table have their own runner.
FILES = [path for path in OWN_VECTORS if path.parent.name == "open-exchange"]

#: Vectors played in one virtual host, so that hosts are worked on side by side.
_PER_HOST = 150
_HOSTS_AT_ONCE = 4
_SHOWN = 20


class Verdict(NamedTuple):
    """What became of one vector.

    Args:
        vector: the vector.
        expected: the result that counts.
        got: the result.
        deviation: name of the documented deviation that accounts for the difference, "" for none.
    """

    vector: Json
    expected: Json
    got: Json
    deviation: str

    @property
    def passed(self) -> bool:
        """Whether it came as it should."""
        return bool(self.expected == self.got)


def expectation(vector: Json) -> Json:
    """The result that counts, in the form of results."""
    if "extra_exchanges" in vector and "seed_differs" not in vector:
        # Nobody computed for chains what the specification makes of them where it wins over the plugin.
        observed = open_exchange.normal(vector["expected"])
        if open_exchange.plugin_result(vector) == observed:
            return open_exchange.result(vector)
        return observed
    return open_exchange.normal(open_exchange.recommended(vector))


def run_on(broker: Broker, delivery: str) -> Run:
    """Say what vectors are played on: a broker and ``queue``, ``carrier``, or the type of carrier to ask for."""
    if delivery in ("direct", "topic"):
        return Run("carrier", broker.version, delivery)
    return Run(delivery, broker.version)


def every_vector() -> list[Json]:
    """All vectors of the open exchange, in a fixed order."""
    return [vector for path in FILES for vector in vectors(path)]


def verdicts(broker: Broker, chosen: Iterable[Json], run: Run) -> Iterator[Verdict]:
    """Play vectors, several virtual hosts at a time; verdicts come as they are reached.

    Args:
        broker: a RabbitMQ on which virtual hosts may be made.
        chosen: the vectors.
        run: on that broker, from `run_on`.
    """
    parts = list(_parts(chosen))
    hosts = [f"conformance-{secrets.token_hex(6)}" for _ in parts]
    settings = {"declared": {"unbind": "broker", "delivery": run.delivery}, "log": {"level": "warning"}}
    with ExitStack() as stack:
        for host in hosts:
            broker.create_vhost(host)
            stack.callback(broker.delete_vhost, host)
        sidecar = stack.enter_context(Sidecar(broker, [], settings))
        pool = stack.enter_context(ThreadPoolExecutor(_HOSTS_AT_ONCE))
        played = [
            pool.submit(_play, broker, sidecar.port, host, part, run) for host, part in zip(hosts, parts, strict=True)
        ]
        for each in as_completed(played):
            yield from each.result()


def _parts(chosen: Iterable[Json]) -> Iterator[list[Json]]:
    """Vectors that can be played in one virtual host one after another."""
    for _, alike in groupby(sorted(chosen, key=Place.of), Place.of):
        of_place = list(alike)
        for at in range(0, len(of_place), _PER_HOST):
            yield of_place[at : at + _PER_HOST]


def _play(broker: Broker, port: int, host: str, part: Sequence[Json], run: Run) -> list[Verdict]:
    stage = Stage(broker, port, host, Place.of(part[0]), run.carrier_type)
    try:
        return [_verdict(vector, stage, run) for vector in part]
    finally:
        stage.leave()


def _verdict(vector: Json, stage: Stage, run: Run) -> Verdict:
    expected = expectation(vector)
    got = _alike(stage.play(vector), expected)
    if got == expected:
        return Verdict(vector, expected, got, "")
    beside = _alike(stage.play_beside(vector), expected) if "exchange_type" in vector else None
    return Verdict(vector, expected, got, accounting_for(Difference(vector, expected, got, beside), run))


def _alike(got: Json, expected: Json) -> Json:
    """Leave out of a result what the vector says nothing of."""
    error = got.get("bind_error")
    if error is not None and "binding" not in expected.get("bind_error", ()):
        del error["binding"]
    if "exchanges" not in expected and not got.get("exchanges"):
        got.pop("exchanges", None)
    return got


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.end_to_end")
    parser.add_argument("files", metavar="FILE", nargs="*", type=Path, default=FILES)
    parser.add_argument("--every", metavar="N", type=int, default=1, help="only one vector in N")
    parser.add_argument(
        "--delivery", choices=("carrier", "direct", "topic", "queue"), default="carrier", help="of the open exchanges"
    )
    given = parser.parse_args(arguments)
    chosen = [vector for path in given.files for vector in vectors(path)][:: given.every]
    passed = accounted = failed = 0
    with some_broker() as broker:
        for verdict in verdicts(broker, chosen, run_on(broker, given.delivery)):
            passed += verdict.passed
            accounted += bool(verdict.deviation)
            if verdict.passed or verdict.deviation:
                continue
            failed += 1
            if failed <= _SHOWN:
                print(f"{verdict.vector['id']}\n  expected {verdict.expected}\n  got      {verdict.got}")
    print(f"{passed} passed, {accounted} deviations, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
