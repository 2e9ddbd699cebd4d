"""Figures of a generated day, for tests of the page without Spark."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

from oxproxy.report.figures import Figures, Row

DAY = date(2026, 11, 20)
#: A long generated name.
LONG = "service-account-of-a-shop.with.parts.in.production.eu-central-1"
BEGIN = datetime(2026, 11, 20, tzinfo=UTC)

#: Publishes by hour of the day.
DAYTIME = {hour: 100 * (12 - abs(12 - hour)) for hour in range(6, 23)}


def row(*columns: str) -> Callable[..., Row]:
    return lambda *values: dict(zip(columns, values, strict=True))


Step = row("begin", "outcomes", "bytes")
Named = row("name", "publishes", "bytes")
Sent = row("vhost", "destination", "kind", "publishes", "first_seen", "last_seen")
Matched = row("vhost", "exchange", "binding", "matches")
Lost = row(
    *("vhost", "exchange", "rk_pattern", "outcome", "reason", "publishes", "returned", "example_rk"),
    *("example_message_id", "first_seen"),
)
Timed = row("begin", "what", "p50_us", "p95_us", "p99_us", "samples")
Sender = row("user", "vhost", "publishes", "bytes", "p95_size", "peak_per_second", "connections", "count")
Connection = row("publishes", "proxy", "conn", "bytes", "peak")
User = row("user", "vhost", "publishes", "bytes", "deliveries", "sent", "hours")
Queue = row("vhost", "destination", "kind", "publishes", "users", "exchanges", "hours")
Reason = row("vhost", "exchange", "outcome", "reason", "publishes", "users", "rules")
Version = row("vhost", "exchange", "rules", "publishes", "lost", "destinations", "begin", "last")
Response = row("begin", "publishes", "acked", "nacked", "lost", "returned")
Compared = row("vhost", "exchange", "today", "before", "change")
Frequent = row("hour", "what", "name", "n")
Finding = row("begin", "what", "subject", "seen", "expected", "score", "example")
Stop = row("ts", "proxy", "exchange", "rk", "outcome", "queues")


def at(hour: int, minute: int = 0) -> datetime:
    return BEGIN + timedelta(hours=hour, minutes=minute)


def wave(number: int) -> float:
    return 1.2 + math.sin((number - 40) / 144 * 2 * math.pi)


def figures() -> Figures:
    steps = [
        Step(
            at(0, 10 * number),
            {
                "routed": int(9000 * wave(number)),
                "passed": int(1400 * wave(number)),
                "translated": int(300 * wave(number)),
                "unrouted": 400 if number == 70 else 20,
                "filtered": 35,
                "rejected": 3,
            },
            int(5.3e6 * wave(number)),
        )
        for number in range(144)
    ]
    return Figures(
        days=(DAY,),
        made=datetime(2026, 11, 21, 2, 5, tzinfo=UTC),
        segments=864,
        step_minutes=10,
        steps=steps,
        exchanges=[Named(f"exchange.{number} in /", 900_000 // (number + 1), 10**8) for number in range(9)],
        proxies=[Named(f"edge-{letter}", 500_000, 10**8) for letter in "abc"],
        rules=["5f0c2a9d11", "77aa01bc22"],
        destinations=[
            Sent("/", f"queue.{number}", "queue", 800_000 // (number + 1), at(0), at(23, 59)) for number in range(18)
        ],
        hot=[Matched("/", "orders", f"orders above {number}", 700_000 // (number + 1)) for number in range(12)],
        dead=[Matched("/", "orders", "orders of nobody", 0)],
        bindings_known=True,
        unroutable=[
            Lost("/", "orders", "a.*.key", "unrouted", "unmatched", 2870, 0, "a.17.key", "orders-17", at(11, 43)),
            Lost("/", "", "*", "returned", "312", 3, 12, "9f", None, at(2)),
            Lost(
                "shop",
                LONG,
                f"{LONG}.*",
                "rejected",
                "max-payload-size",
                2,
                0,
                f"{LONG}.17",
                "3f0a7c9e-1111-4222-8333-444455556666",
                at(3),
            ),
        ],
        latency=[
            Timed(at(hour), what, size, 3.2 * size, 9.7 * size, 4000)
            for hour in range(24)
            for what, size in (("decide", 11.0 + hour % 5), ("confirm", 1800.0 + 90 * (hour % 7)))
        ],
        producers=[
            *(
                Sender(
                    *(f"user{n}", "/", 90_000 // (n + 1), 10**7, 2300.0, 310),
                    *([Connection(-90_000, "edge-a", f"edge-a-{n}", 10**7, 310)], 1),
                )
                for n in range(12)
            ),
            Sender(
                *(LONG, "shop", 7000, 10**6, 2300.0, 31),
                *([Connection(-7000, "edge-frankfurt-01", "edge-frankfurt-01/10.42.17.233:51234-77", 10**6, 31)], 25),
            ),
        ],
        users=[
            *(User(f"user{n}", "/", 90_000 // (n + 1), 10**7, 120_000, 10**8, DAYTIME) for n in range(9)),
            User(LONG, "shop", 7000, 10**6, 7000, 10**7, DAYTIME),
        ],
        queues=[
            *(
                Queue("/", f"queue.{n}", "queue", 800_000 // (n + 1), ["user0", "user3"], ["orders"], DAYTIME)
                for n in range(5)
            ),
            Queue("shop", LONG, "exchange", 17, [LONG], ["", LONG], {9: 17}),
        ],
        reasons=[
            Reason("/", "orders", "unrouted", "unmatched", 2870, ["user0", "user3"], "5f0c2a9d11, 77aa01bc22"),
            Reason("shop", LONG, "rejected", "max-payload-size", 2, [LONG], "77aa01bc22"),
        ],
        versions=[
            Version("/", "orders", "5f0c2a9d11", 600_000, 2800, 9, at(0), at(11)),
            Version("/", "orders", "77aa01bc22", 580_000, 70, 11, at(11), at(23)),
        ],
        confirms=[Response(at(hour), 60_000, 500, 9 * (hour == 11), 0, hour % 3) for hour in range(24)],
        compared=[Compared("/", "orders", 1_180_000, 1_020_000, 160_000), Compared("shop", LONG, 0, 70, -70)],
        hours=[
            Frequent(hour, what, f"{name}.{number}", 5000 // number)
            for hour in range(24)
            for what, name in (("exchanges", "exchange"), ("destinations", "queue"), ("users", "user"))
            for number in range(1, 4)
        ],
        sizes=[(100, 120_000), (1000, 900_000), (10_000, 460_000), (100_000, 21_000), (1_000_000, 90), (None, 2)],
        anomalies=[
            Finding(at(11), "unrouted publishes", "all", 520.0, 120.0, 11.2, "more than usual"),
            Finding(at(14), "seq gap", "edge-b connection edge-b-3 channel 1", 9000.0, 9003.0, 3.0, "after number 771"),
        ],
        ways=[
            (
                "order-4711",
                [
                    Stop(at(9), "edge-a", "orders", "a.b", "routed", ["far"]),
                    Stop(at(9, 1), "edge-b", "incoming", "a.b", "routed", ["billing", "stock"]),
                ],
            )
        ],
        results={"acked": 12_000, "nacked": 3, "returned": 12},
        rejected={"torn": 2, "foreign": 1},
        found={"proxies": 3, "anomalies": 2, "destinations": 19, "hot": 12, "dead": 1},
    )
