"""Fault campaign: ``make faults``.

    make faults FAULTS=40 SECONDS=500
    make faults FAULTS=1000 RELEASE=forky RESULT=docs/evidence/faults.json

Two sidecars with strict audit logs run on one broker. Publishers use confirms, transactions, the mandatory flag, split
publishes and client declarations, while random faults happen one after the other. Afterwards, each message is matched
with its copies and its audit records. Each piece of at most 50 faults has its own broker, and is added to the result
file. Exit status: 0 no violation in this run, 1 violations, 2 the run was not possible.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests import pieces
from tests.bench.report import aligned
from tests.campaign.run import Piece, run
from tests.other_rabbitmq import RELEASES, ROOT_VARIABLE, file_system, obstacle
from tests.private_broker import BrokerMissing, PrivateBroker

#: Faults for each broker. A piece ends earlier if its time is over.
FAULTS_PER_PIECE = 50

#: Violations that are described in the result file, for each piece.
_EXAMPLES = 10


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaign", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=20, metavar="N", help="number of faults (default: 20)")
    parser.add_argument("--seconds", type=float, default=3600, metavar="S", help="no fault begins after this time")
    parser.add_argument("--seed", type=int, help="seed of the first piece (default: random)")
    parser.add_argument("--release", choices=RELEASES, help="RabbitMQ of this Debian release (default: installed)")
    parser.add_argument("--result", type=Path, default=pieces.ROOT / "build" / "faults.json", metavar="FILE")
    options = parser.parse_args(arguments)
    if options.release and not os.environ.get(ROOT_VARIABLE):
        if reason := obstacle():
            print(reason, file=sys.stderr)
            return 2
        os.environ[ROOT_VARIABLE] = str(file_system(options.release))
    try:
        added = _pieces(options)
    except BrokerMissing as missing:
        print(missing, file=sys.stderr)
        return 2
    print(f"\nthis run:\n\n{table(added)}\n\nall of {options.result}:\n\n{table(pieces.read(options.result))}")
    return 1 if any(sum(piece["violations"].values()) for piece in added) else 0


def _pieces(options: argparse.Namespace) -> list[pieces.Piece]:
    ends = time.monotonic() + options.seconds
    left, added = options.faults, list[pieces.Piece]()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 31)
    while left > 0 and time.monotonic() < ends:
        with PrivateBroker() as broker:
            version = ".".join(map(str, broker.version))
            print(f"RabbitMQ {version}, seed {seed}", flush=True)
            result = run(broker, "/", seed, min(left, FAULTS_PER_PIECE), ends - time.monotonic())
        piece = as_json(result, version, seed)
        pieces.add(options.result, piece)
        added.append(piece)
        for example in piece.get("examples", ()):
            print(f"  violation: {example}")
        left -= sum(piece["faults"].values())
        seed += 1
    return added


def as_json(result: Piece, broker: str, seed: int) -> pieces.Piece:
    """Return a piece of the result file."""
    violations = result.verdict.violations
    piece = pieces.origin() | {
        "broker": broker,
        "seed": seed,
        "seconds": round(result.seconds),
        "faults": dict(sorted(result.faults.items())),
        "counts": {key: number for key, number in sorted(result.verdict.counts.items()) if number},
        "violations": result.verdict.by_kind(),
    }
    if violations:
        piece["examples"] = [f"{violation.kind}: {violation.text[:1500]}" for violation in violations[:_EXAMPLES]]
    return piece


def table(added: Sequence[pieces.Piece]) -> str:
    """Return the sums of pieces by broker."""
    head = ("RabbitMQ", "pieces", "faults", "minutes", "messages", "acked", "returned", "copies", "redelivered")
    lines: list[Sequence[str]] = [(*head, "lost", "duplicated", "misrouted", "changed", "unrecorded", "failed")]
    for broker, those in pieces.by(added, "broker").items():
        counts, violations = pieces.total(those, "counts"), pieces.total(those, "violations")
        numbers = (
            len(those),
            sum(pieces.total(those, "faults").values()),
            sum(piece["seconds"] for piece in those) // 60,
            *(counts[name] for name in ("messages", "acked", "returned", "copies", "redelivered")),
            *(violations[name] for name in ("lost", "duplicated", "misrouted", "changed", "unrecorded", "failed")),
        )
        lines.append((broker, *(f"{number:,}" for number in numbers)))
    return aligned(lines)


if __name__ == "__main__":
    sys.exit(main())
