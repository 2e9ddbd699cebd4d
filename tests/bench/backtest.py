"""Measures a back-test: ``python -m tests.bench.backtest DIR [LINES [FACTS]]``.

The log in DIR, which is generated if it does not exist, has 10 million publishes with 50,000 distinct facts by default.
The first run creates the tables; the other runs use them. CPU times include all processes.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

from oxproxy.audit.segments import compress_segment
from tests.bench.report_day import family, used
from tests.sidecar import PROGRAM

QUEUES = 400
SEGMENT_LINES = 350_000


def rules(limit: int) -> str:
    """Return rules with one binding per queue, and one binding for large amounts."""
    bindings = [f"      - {{queue: q{number}, when: {{kind: k{number}}}}}" for number in range(QUEUES)]
    large = f'      - {{queue: large, when: {{"amount >=": {limit}}}}}'
    return "\n".join(["exchanges:", "  - name: orders", "    bindings:", *bindings, large, ""])


#: A binding that adds a queue during a minute of each hour.
CLOCK = '      - {queue: often, arguments: {"x-?dture": " ..07"}}\n'


def write_log(folder: Path, count: int, distinct: int) -> None:
    chance = random.Random(1)
    facts = [(f"k{number % QUEUES}", number) for number in range(distinct)]
    for first in range(0, count, SEGMENT_LINES):
        hour = first // SEGMENT_LINES * 24 // (count // SEGMENT_LINES + 1)
        path = (
            folder / "date=2026-11-20" / f"hour={hour:02d}" / f"_audit-bench-20261120T000000000000Z-{first:09d}.jsonl"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        ts = f"2026-11-20T{hour:02d}"
        known: set[int] = set()
        with path.open("w") as file:
            for number in range(first, min(count, first + SEGMENT_LINES)):
                fact = chance.randrange(distinct)
                kind, amount = facts[fact]
                begin = f'{{"ts":"{ts}:{number // 60 % 60:02d}:{number % 60:02d}.000000Z","v":1,"kind":'
                if fact not in known:
                    known.add(fact)
                    headers = json.dumps([["kind", "S", kind], ["amount", "I", amount]])
                    file.write(
                        f'{begin}"facts","proxy":"p","facts":{fact},"names":["amount","kind"],"headers":{headers},'
                        '"property_names":[],"properties":{}}\n'
                    )
                queues = f'["{"q" + kind[1:]}"]' if amount < distinct // 2 else f'["large","{"q" + kind[1:]}"]'
                file.write(
                    f'{begin}"publish","proxy":"p","conn":"c{number % 50}","user":"u","vhost":"/",'
                    f'"ch":1,"seq":{number + 1},'
                    f'"rk":"order.{number % 1000}","message_id":"m{number}","size":{number % 5000},"exchange":"orders",'
                    f'"outcome":"routed","queues":{queues},"exchanges":[],"remotes":[],"bindings":["{kind}"],"rule":null,'
                    f'"rules":"ab12","reason":null,"headers":{{}},"facts":{fact}}}\n'
                )
        compress_segment(path)


def main() -> int:
    folder = Path(sys.argv[1])
    count, distinct = (
        int(sys.argv[place]) if len(sys.argv) > place else most for place, most in ((2, 10**7), (3, 50_000))
    )
    log, output = folder / "log", folder / "out"
    if not log.exists():
        write_log(log, count, distinct)
    shutil.rmtree(output, ignore_errors=True)
    candidate = folder / "next.yaml"
    for title, limit in (
        ("tables and rules in force", distinct // 2),
        ("rules in force", distinct // 2),
        ("changed", 100),
        ("clock condition", distinct // 2),
    ):
        candidate.write_text(rules(limit) + (CLOCK if title == "clock condition" else ""))
        command = [str(PROGRAM), "backtest", str(candidate), "--input", str(log), "--output", str(output), "--json"]
        began, spent = time.monotonic(), dict[int, float]()
        with (folder / "result.json").open("w") as target, subprocess.Popen(command, stdout=target) as process:
            while process.poll() is None:
                for pid in family(process.pid):
                    with contextlib.suppress(OSError):  # the process has ended
                        spent[pid] = used(pid)[1]
                time.sleep(0.05)
        seconds = time.monotonic() - began
        result = json.loads((folder / "result.json").read_text())
        numbers = ", ".join(f"{name} {result[name]:,}" for name in ("equal", "different", "not_judged", "evaluations"))
        print(f"{title:28} {seconds:6.1f} s, CPU {sum(spent.values()):6.1f} s, {numbers}", flush=True)
    size = sum(path.stat().st_size for path in output.rglob("*.parquet"))
    print(f"tables: {size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
