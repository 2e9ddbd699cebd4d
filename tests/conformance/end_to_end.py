"""Runs the vectors through a running sidecar against a real broker, and compares the results.

``python -m tests.conformance.end_to_end [FILE...] [--every N] [--carrier-type direct|topic]`` declares, binds
and publishes each vector as a client would. It prints the first failures as id, expected and actual result, then
``N passed, M deviations, F failed``; the exit status is 1 if a vector failed. The broker itself evaluates exchanges of
other types; their vectors show that the sidecar does not change them.
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

#: Vectors of the open exchange; those of the address table have a different runner.
FILES = [path for path in OWN_VECTORS if path.parent.name == "open-exchange"]

#: Vectors per virtual host; several virtual hosts are used in parallel.
_PER_HOST = 150
_HOSTS_AT_ONCE = 4
_SHOWN = 20


class Verdict(NamedTuple):
    """The result of a vector.

    Args:
        vector: the vector.
        expected: the expected result.
        got: the actual result.
        deviation: name of the documented deviation that accounts for the difference; empty for none.
    """

    vector: Json
    expected: Json
    got: Json
    deviation: str

    @property
    def passed(self) -> bool:
        """Whether the result is the expected one."""
        return bool(self.expected == self.got)


def expectation(vector: Json) -> Json:
    """The expected result, in the form in which actual results are compared."""
    if "extra_exchanges" in vector and "seed_differs" not in vector:
        # For chains, vectors contain only the plugin's result, even if the specification requires another result.
        observed = open_exchange.normal(vector["expected"])
        if open_exchange.plugin_result(vector) == observed:
            return open_exchange.result(vector)
        return observed
    return open_exchange.normal(open_exchange.recommended(vector))


def run_on(broker: Broker, carrier_type: str) -> Run:
    """The conditions of a run on a broker, with the carrier type to request; empty for none."""
    return Run(broker.version, carrier_type)


def every_vector() -> list[Json]:
    """All vectors of the open exchange, in a fixed order."""
    return [vector for path in FILES for vector in vectors(path)]


def verdicts(broker: Broker, chosen: Iterable[Json], run: Run) -> Iterator[Verdict]:
    """Run vectors in several virtual hosts at a time; yield their results in the order of completion.

    Args:
        broker: a RabbitMQ on which virtual hosts may be created.
        chosen: the vectors.
        run: conditions on that broker, from `run_on`.
    """
    parts = list(_parts(chosen))
    hosts = [f"conformance-{secrets.token_hex(6)}" for _ in parts]
    settings = {"declared": {"unbind": "broker", "client_routes": "any"}, "log": {"level": "warning"}}
    with ExitStack() as stack:
        for host in hosts:
            broker.create_vhost(host)
            stack.callback(broker.delete_vhost, host)
        sidecar = stack.enter_context(Sidecar(broker, [], settings))
        pool = stack.enter_context(ThreadPoolExecutor(_HOSTS_AT_ONCE))
        played = [
            pool.submit(_play, broker, sidecar.port, host, part, run) for host, part in zip(hosts, parts, strict=True)
        ]
        for future in as_completed(played):
            yield from future.result()


def _parts(chosen: Iterable[Json]) -> Iterator[list[Json]]:
    """Groups of vectors that can be run in sequence in one virtual host."""
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
    got = _comparable(stage.play(vector), expected)
    if got == expected:
        return Verdict(vector, expected, got, "")
    broker_result = _comparable(stage.play_on_broker(vector), expected) if "exchange_type" in vector else None
    return Verdict(vector, expected, got, accounting_for(Difference(vector, expected, got, broker_result), run))


def _comparable(got: Json, expected: Json) -> Json:
    """Remove the parts of a result that the vector does not specify."""
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
    parser.add_argument("--carrier-type", choices=("direct", "topic"), default="", help="of the open exchanges")
    given = parser.parse_args(arguments)
    chosen = [vector for path in given.files for vector in vectors(path)][:: given.every]
    passed = accounted = failed = 0
    with some_broker() as broker:
        for verdict in verdicts(broker, chosen, run_on(broker, given.carrier_type)):
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
