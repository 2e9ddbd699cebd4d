"""Fuzzing: ``make fuzz``.

    make fuzz FRAMES=100000 SECONDS=120
    make fuzz FRAMES=10000000 SECONDS=36000 RESULT=docs/evidence/fuzz.json

First, mutated frames are passed to relays, from the producer's side and from the broker's (``wire``). Then atheris runs
each target (``targets``) for a share of the time, guided by coverage, on the Python sources. The inputs that it finds
useful are kept in build/fuzz and used by later runs. Without atheris, mutated inputs are used without guidance.

Each part adds a piece to the result file. Exit status: 0 no defect in this run, 1 defects.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from tests import pieces
from tests.bench.report import aligned
from tests.fuzz import wire
from tests.fuzz.targets import TARGETS, Target

#: Inputs are at most this long.
INPUT_BYTES = 4096

#: Mutated frames of a piece, so that an interrupted run loses little.
FRAMES_PER_PIECE = 500_000

#: Seconds for one input, after which the target counts as hanging.
_INPUT_SECONDS = 20

_CORPUS = pieces.ROOT / "build" / "fuzz"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=int, default=100_000, metavar="N", help="mutated frames (default: 100,000)")
    parser.add_argument("--seconds", type=float, default=120, metavar="S", help="time for everything (default: 120)")
    parser.add_argument("--targets-only", action="store_true", help="no mutated frames")
    parser.add_argument("--seed", type=int, help="seed (default: random)")
    parser.add_argument("--result", type=Path, default=pieces.ROOT / "build" / "fuzz.json", metavar="FILE")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 31)
    began, added = time.monotonic(), list[pieces.Piece]()
    if not options.targets_only:
        # Half of the time for the frames, or less if they are done earlier.
        added += _frames(options.frames, began + options.seconds / 2, seed, options.result)
    share = (began + options.seconds - time.monotonic()) / len(TARGETS)
    for name, target in TARGETS.items():
        added.append(_fuzzed(name, target, max(share, 1.0), seed, options.result))
    print(f"\nthis run:\n\n{table(added)}\n\nall of {options.result}:\n\n{table(pieces.read(options.result))}")
    return 1 if any(piece["defects"] for piece in added) else 0


def _frames(frames: int, stop: float, seed: int, result: Path) -> list[pieces.Piece]:
    added = []
    while frames > 0 and time.monotonic() < stop:
        began = time.monotonic()
        counts, defects = wire.run(seed, min(frames, FRAMES_PER_PIECE), stop, time.monotonic)
        piece = _piece("frames", "mutations", seed, began, counts["mutated frames"], defects) | {"counts": counts}
        added.append(_add(piece, result))
        frames -= counts["mutated frames"]
        seed += counts["conversations"]
    return added


def _fuzzed(name: str, target: Target, seconds: float, seed: int, result: Path) -> pieces.Piece:
    began = time.monotonic()
    if find_spec("atheris") is not None:
        inputs, defects = _with_atheris(name, target, seconds, seed)
        return _add(_piece(name, "atheris", seed, began, inputs, defects), result)
    inputs, defects = own_loop(target, seconds, seed)
    return _add(_piece(name, "mutations", seed, began, inputs, defects), result)


def _piece(target: str, method: str, seed: int, began: float, inputs: int, defects: Sequence[str]) -> pieces.Piece:
    seconds = round(time.monotonic() - began)
    own = {"target": target, "method": method, "seed": seed, "seconds": seconds, "inputs": inputs}
    return pieces.origin() | own | {"defects": len(defects), "examples": [text[:1500] for text in defects[:5]]}


def _add(piece: pieces.Piece, result: Path) -> pieces.Piece:
    pieces.add(result, piece)
    print(f"{piece['target']:8} {piece['inputs']:10,} inputs in {piece['seconds']} s, {piece['defects']} defects")
    for example in piece["examples"]:
        print(f"  {example}")
    sys.stdout.flush()
    return piece


def _with_atheris(name: str, target: Target, seconds: float, seed: int) -> tuple[int, list[str]]:
    """Run a target in a process; return the number of inputs and the defects found, of which there is at most one."""
    corpus, found = _CORPUS / name, _CORPUS / f"{name}-defects"
    for folder in (corpus, found):
        folder.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(content[:INPUT_BYTES])
    options = {
        "max_total_time": max(round(seconds), 1),
        "seed": seed % (1 << 31) or 1,
        "max_len": INPUT_BYTES,
        "timeout": _INPUT_SECONDS,
        "rss_limit_mb": 4096,
        "print_final_stats": 1,
        "artifact_prefix": f"{found}/",
    }
    command = [
        sys.executable,
        "-m",
        "tests.fuzz.coverage",
        name,
        *(f"-{key}={value}" for key, value in options.items()),
    ]
    done = subprocess.run(
        [*command, str(corpus)],
        cwd=pieces.ROOT,
        env=os.environ | {"PURE_PYTHON": "1"},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    executed = re.search(r"stat::number_of_executed_units:\s*(\d+)", done.stderr)
    defects = [] if done.returncode == 0 else [f"exit status {done.returncode}: {done.stderr[-3000:]}"]
    return int(executed[1]) if executed else 0, defects


def own_loop(target: Target, seconds: float, seed: int) -> tuple[int, list[str]]:
    """Run a target with mutated inputs, without guidance; stop at the first defect."""
    draw, ends, inputs = random.Random(seed), time.monotonic() + seconds, 0
    while time.monotonic() < ends:
        data = bytearray(draw.choice(target.seeds)[:INPUT_BYTES])
        for _ in range(draw.choice((1, 2, 8))):
            at = draw.randrange(len(data) + 1)
            data[at : at + draw.choice((0, 1, 1, 4))] = draw.randbytes(draw.choice((0, 1, 1, 4)))
        inputs += 1
        try:
            target.run(bytes(data))
        except Exception:  # noqa: BLE001 - every exception is a defect
            return inputs, [f"input {bytes(data)!r}: {traceback.format_exc()[-1200:]}"]
    return inputs, []


def table(added: Sequence[pieces.Piece]) -> str:
    """Return the sums of pieces by target."""
    lines: list[Sequence[str]] = [("target", "method", "pieces", "inputs", "minutes", "defects")]
    for target, those in pieces.by(added, "target").items():
        for method, same in pieces.by(those, "method").items():
            inputs, seconds, defects = (sum(piece[key] for piece in same) for key in ("inputs", "seconds", "defects"))
            lines.append((target, method, str(len(same)), f"{inputs:,}", f"{seconds / 60:.1f}", str(defects)))
    return aligned(lines)


if __name__ == "__main__":
    sys.exit(main())
