"""Measures how many producers per second can connect, publish one message with its confirm, and disconnect.

One client runs the cycles in sequence: through sidecars with and without `upstream.reuse`, and directly to the broker,
each over TCP and over TLS. A separate broker is used, since the broker for the other rows has no TLS.
"""

from __future__ import annotations

import contextlib
import shutil
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pamqp import commands

from tests.bench.arena import Arena
from tests.bench.cases import Row
from tests.bench.processes import ChildError
from tests.certificates import Authority
from tests.private_broker import PrivateBroker, free_port
from tests.producer import Producer
from tests.sidecar import Sidecar

#: Number and duration of the parts of a measurement. The paths alternate, so that a change in the machine's speed
#: affects all of them.
PARTS, PART_SECONDS = 4, 1.0
RULES = "vhost: /\nqueues: [cycles]\nexchanges:\n  - name: bench.cycles\n    bindings: [{queue: cycles}]\n"


def row(label: str) -> Row:
    return Row("reuse", label, "/s", None)


CYCLE_ROWS = (
    row("connect-publish-close per second, kept connections"),
    row("the same without upstream.reuse"),
    row("the same without the sidecar"),
    row("connect-publish-close per second over TLS, kept connections"),
    row("the same over TLS without upstream.reuse"),
    row("the same over TLS without the sidecar"),
)


def measure_cycles(arena: Arena) -> list[list[float]]:
    """Return the values of `CYCLE_ROWS`: cycles per second in each part."""
    if shutil.which("openssl") is None:
        raise ChildError("openssl is not installed")
    folder = arena.folder / "cycles"
    authority = Authority(folder)
    files = authority.certificate("localhost")
    secure_port = free_port()
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(PrivateBroker(secured(authority, files, secure_port)))
        rules = folder / "rules.yaml"
        rules.write_text(RULES)

        def sidecar(settings: dict[str, object]) -> int:
            return stack.enter_context(Sidecar(broker, [rules], settings)).port

        def secure(reuse: str | None) -> int:
            port = free_port()
            tls = {"certificate": str(files[0]), "key": str(files[1])}
            upstream = {"address": f"localhost:{secure_port}", "tls": {"ca": str(authority.ca)}, "reuse": reuse}
            sidecar({"listen": [{"address": f"127.0.0.1:{port}", "tls": tls}], "upstream": upstream})
            return port

        context = authority.client()
        ways: list[tuple[int, ssl.SSLContext | None]] = [
            (sidecar({"upstream": {"reuse": "30s"}}), None),
            (sidecar({}), None),
            (broker.port, None),
            (secure("30s"), context),
            (secure(None), context),
            (secure_port, context),
        ]
        values: list[list[float]] = [[] for _ in ways]
        for port, tls in ways:
            cycle(port, tls)
        for _ in range(PARTS):
            for (port, tls), found in zip(ways, values, strict=True):
                found.append(per_second(lambda port=port, tls=tls: cycle(port, tls)))  # type: ignore[misc]
        return values


def secured(authority: Authority, files: tuple[Path, Path], port: int) -> list[str]:
    return [
        f"listeners.ssl.one = 127.0.0.1:{port}",
        f"ssl_options.cacertfile = {authority.ca}",
        f"ssl_options.certfile = {files[0]}",
        f"ssl_options.keyfile = {files[1]}",
        "ssl_options.verify = verify_none",
    ]


def cycle(
    port: int,
    tls: ssl.SSLContext | None = None,
    exchange: str = "bench.cycles",
    key: str = "",
    headers: Mapping[str, object] | None = None,
) -> None:
    producer = Producer(port, tls=tls).open(confirm=True)
    producer.publish(exchange, key, headers)
    producer.settle()
    producer.ask(commands.Channel.Close(200, "", 0, 0))
    producer.close()


def per_second(work: Callable[[], None]) -> float:
    """Return how many times per second a function can be called."""
    count, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < PART_SECONDS:
        work()
        count += 1
    return count / spent
