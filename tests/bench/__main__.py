"""Run the benchmark against a private broker: `python -m tests.bench`; `--help` lists the options.

Prints the table and writes the JSON file. The exit status does not depend on the results.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench import report
from tests.bench.arena import Arena, Terms
from tests.bench.processes import ROOT
from tests.bench.session import EXTRA, STANDARD, Session
from tests.private_broker import BrokerMissing, PrivateBroker

QUICK_ROUNDS, QUICK_SECONDS = 1, 1.0


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4, help="interleaved rounds (default 4)")
    parser.add_argument("--seconds", type=float, default=1.2, help="measured seconds per case in each round")
    parser.add_argument("--producers", type=int, default=1, help="producer processes of each case")
    parser.add_argument(
        "--cases", default="", help=f"comma-separated names: {','.join(STANDARD)}; also {','.join(EXTRA)}"
    )
    parser.add_argument("--quick", action="store_true", help="one short round, to check that the benchmark runs")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench.json")
    options = parser.parse_args(given)
    if options.quick:
        options.rounds, options.seconds = QUICK_ROUNDS, QUICK_SECONDS
    options.names = options.cases.split(",") if options.cases else list(STANDARD)
    if unknown := set(options.names) - {*STANDARD, *EXTRA}:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    return options


def measure(session: Session, rounds: int) -> None:
    start = time.monotonic()
    session.prepare()
    for number, measured in enumerate([session.pings() for _ in range(rounds)], 1):
        print(f"round {number} of {rounds}, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
        session.run(measured)
    session.singles()
    print(f"measured in {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)


def main() -> int:
    options = arguments()
    # An exit on SIGTERM also ends the child processes, as a KeyboardInterrupt does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    terms = Terms(seconds=options.seconds, producers=options.producers)
    command = shlex.join(["python", "-m", "tests.bench", *sys.argv[1:]])
    try:
        with tempfile.TemporaryDirectory(prefix="oxproxy-bench-") as folder, PrivateBroker() as broker:
            version = f"RabbitMQ {broker.api('GET', 'overview')['rabbitmq_version']}"
            with Arena(broker, Path(folder), terms) as arena:
                session = Session(arena, options.names)
                measure(session, options.rounds)
    except BrokerMissing as missing:
        print(missing, file=sys.stderr)
        return 2
    outcomes = session.outcomes()
    print(report.table(outcomes), report.rates(session.rounds), sep="\n\n")
    report.write_json(options.json, command, version, outcomes, session.rounds)
    print(f"\n{options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
