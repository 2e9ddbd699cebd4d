"""Generates one day of audit logs for several busy sidecars, with any number of records and a fixed random seed.

The lines are not created by `oxproxy.audit`, so that the report is tested independently. The log contains cases that
the report detects: gaps, repeated message ids, messages that pass through two sidecars, returns, torn and foreign
lines.
`python -m tests.report.generator DIRECTORY RECORDS` writes a log.
"""

from __future__ import annotations

import gzip
import itertools
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

DAY = date(2026, 11, 20)
PROXIES = ("edge-a", "edge-b", "edge-c")
HOURS = 24
RULES = ("5f0c2a9d11", "77aa01bc22")
#: Relative number of publishes in each hour.
RHYTHM = (1, 1, 1, 1, 1, 2, 3, 5, 8, 9, 9, 8, 7, 8, 9, 9, 8, 6, 5, 4, 3, 2, 2, 1)
CONNECTIONS = 40
DECISIONS = 120
#: Share of publishes to the most used exchange.
HOT_SHARE = 0.7


@dataclass
class Day:
    """The log to write.

    Args:
        records: number of publish records.
        day: date of the records.
        seed: seed of the random numbers.
        dirty: whether to include torn and foreign lines, gaps and repeated ids.
        packed: if True, all segments are compressed; otherwise, every second one.
    """

    records: int
    day: date = DAY
    seed: int = 1
    dirty: bool = True
    packed: bool = True
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def write(self, folder: Path) -> None:
        """Write the segments of the day."""
        shares = [weight / sum(RHYTHM) / len(PROXIES) for weight in RHYTHM]
        decisions, weights = self._decisions()
        channels = {proxy: self._channels(proxy) for proxy in PROXIES}
        written = 0
        for hour, proxy in itertools.product(range(HOURS), PROXIES):
            last = hour == HOURS - 1 and proxy == PROXIES[-1]
            count = self.records - written if last else int(self.records * shares[hour])
            written += count
            path = folder / f"date={self.day}" / f"hour={hour:02d}" / f"audit-{proxy}-start-{hour:06d}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = self._hour(hour, proxy, count, channels[proxy], decisions, weights)
            self._save(path, "".join(lines).encode(), hour)

    def _save(self, path: Path, text: bytes, hour: int) -> None:
        if self.packed or hour % 2:
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(text, 1, mtime=0))
        else:
            path.write_bytes(text)

    def _decisions(self) -> tuple[list[tuple[str, str, str]], list[float]]:
        """Return constant parts of lines (exchange, other fields, outcome) and their weights."""
        parts: list[tuple[str, str, str]] = []
        weights = []
        for number in range(DECISIONS):
            hot = number < 20
            exchange = "orders" if hot else f"exchange.{number % 15}"
            outcome = "routed" if hot or number % 10 else ("unrouted", "filtered", "passed")[number // 10 % 3]
            routed = outcome == "routed"
            queues = [f"queue.{number % 30 + step}" for step in range(number % 4 + 1)] if routed else []
            constant = {
                "exchange": exchange,
                "outcome": outcome,
                "queues": queues,
                "exchanges": ["archive"] if routed and number % 7 == 0 else [],
                "remotes": ["archive:/queue/far"] if routed and number % 31 == 0 else [],
                "bindings": [f"binding {number % 50 + step}" for step in range(number % 3 + 1)] if routed else [],
                "rule": None,
                "rules": RULES[number % 2],
                "reason": "no destination" if outcome == "unrouted" else None,
                "headers": {"type": f"t{number % 5}"},
            }
            parts.append((exchange, json.dumps(constant, separators=(",", ":"))[1:-1], outcome))
            weights.append(HOT_SHARE / 20 if hot else (1 - HOT_SHARE) / (DECISIONS - 20))
        return parts, weights

    def _channels(self, proxy: str) -> list[Channel]:
        return [
            Channel(proxy, f"{proxy}-{number}", f"user{number % 7}", ("/", "shop")[number % 2], number % 3 + 1)
            for number in range(CONNECTIONS)
        ]

    def _hour(
        self,
        hour: int,
        proxy: str,
        count: int,
        channels: list[Channel],
        decisions: list[tuple[str, str, str]],
        weights: list[float],
    ) -> Iterator[str]:
        rnd = self.random
        begin = datetime(self.day.year, self.day.month, self.day.day, hour, tzinfo=UTC)
        sizes = [min(5_000_000, int(rnd.lognormvariate(6, 1.5))) for _ in range(997)]
        times = [rnd.lognormvariate(2.5, 0.8) for _ in range(1009)]
        chosen = rnd.choices(decisions, weights, k=count)
        senders = rnd.choices(channels, k=count)
        texts = [(begin + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%S") for second in range(3600)]
        step = 3_600_000_000 / max(count, 1)
        for number in range(count):
            second, micros = divmod(int(number * step), 1_000_000)
            ts = f"{texts[second]}.{micros:06d}Z"
            channel = senders[number]
            channel.seq += 1
            exchange, constant, outcome = chosen[number]
            name = f"{exchange}-{proxy}-{hour:02d}-{number:08x}"
            if self.dirty:
                yield from self._dirt(number, ts, channel)
                name = self._name(name, number, hour)
            identity = "null" if number % 97 == 0 else f'"{name}"'
            timed = f',"decide_us":{times[number % 1009]:.1f}' if number % 50 == 0 else ""
            rk = f"a.{number % 11}.key{number % 5}"
            yield (
                f'{{"ts":"{ts}{channel.origin}{channel.seq},"rk":"{rk}"'
                f',"message_id":{identity},"size":{sizes[number % 997]},{constant}{timed}}}\n'
            )
            if number % 40 == 0:
                sent = f'"exchange":"{exchange}","rk":"{rk}","message_id":{identity},"outcome":"{outcome}"'
                yield self._settle(number, ts, channel, sent, times[number % 1009])

    @staticmethod
    def _settle(number: int, ts: str, channel: Channel, sent: str, time: float) -> str:
        result = ("acked", "acked", "returned", "acked", "nacked")[number // 40 % 5]
        timed = f',"confirm_us":{time * 100:.1f}' if result == "acked" else ""
        if result == "returned":
            timed = f',"reply_code":312,"vhost":"{channel.vhost}",{sent}'
        return (
            f'{{"ts":"{ts}","v":1,"kind":"settle","proxy":"{channel.proxy}","conn":"{channel.conn}"'
            f',"ch":{channel.ch},"seq":{channel.seq},"result":"{result}"{timed}}}\n'
        )

    @staticmethod
    def _name(name: str, number: int, hour: int) -> str:
        if number % 5003 == 17:
            return f"again-{hour}"
        if number % 4001 == 23:
            return f"way-{hour}-{number}"  # equal for all sidecars
        return name

    @staticmethod
    def _dirt(number: int, ts: str, channel: Channel) -> Iterator[str]:
        if number % 3001 == 5:
            channel.seq += 3  # publishes without a line
        if number % 7001 == 11:
            yield f'{{"ts":"{ts}","v":1,"kind":"publish","proxy":"{channel.proxy}","conn":"torn\n'
        if number % 9001 == 13:
            yield "this is not a record\n"
        if number % 11003 == 29:
            yield (
                f'{{"ts":"{ts}","v":1,"kind":"gap","proxy":"{channel.proxy}","dropped":7,"from":"{ts}","to":"{ts}"}}\n'
            )


@dataclass
class Channel:
    """One channel of a producer."""

    proxy: str
    conn: str
    user: str
    vhost: str
    ch: int
    seq: int = 0
    origin: str = ""

    def __post_init__(self) -> None:
        self.origin = (
            f'","v":1,"kind":"publish","proxy":"{self.proxy}","conn":"{self.conn}"'
            f',"user":"{self.user}","vhost":"{self.vhost}","ch":{self.ch},"seq":'
        )


if __name__ == "__main__":
    Day(int(sys.argv[2])).write(Path(sys.argv[1]))
