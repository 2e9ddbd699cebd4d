"""Runs the compiled modules and their sources, in one process each, on the same bytes.

The processes return results and errors as strings, which tests compare.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Self

from oxproxy.amqp.frames import FrameBuffer, PartialFrame
from oxproxy.amqp.properties import decode_properties, header_table
from oxproxy.amqp.tables import (
    decode_table,
    decode_value,
    encode_table,
    encode_value,
    pick,
    refuse_undecodable,
    too_deep,
    without,
)
from oxproxy.errors import ProtocolError
from oxproxy.native import BUILD
from oxproxy.routing.bindings.binding import Binding
from oxproxy.routing.decision import Decision, Facts, QueueNames, Trace
from oxproxy.routing.exchange import Exchange
from oxproxy.routing.router import Router
from oxproxy.values import QUEUE, Table, Value
from tests.relay.wire import Wire, owned, state
from tests.routing.building import NOW

ROOT = Path(__file__).resolve().parents[1]
QUEUES = QueueNames((b"q1", b"q2", b"a.b", b"other"), 1)
_NAMES = frozenset((b"type", b"amount", b"BCC", b"", b"n" * 255))


class Build:
    """One of the two processes.

    Args:
        interpreted: whether the process runs the sources.
    """

    def __init__(self, interpreted: bool) -> None:
        environment = os.environ | {"PURE_PYTHON": "1" if interpreted else ""}
        command = [sys.executable, "-m", "tests.builds"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(self, name: str, *pieces: bytes) -> str:
        """Return the result of one of the functions in `WORK` on these bytes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump((name, pieces), self._process.stdin)
        self._process.stdin.flush()
        result: str = pickle.load(self._process.stdout)
        return result


def build() -> str:
    return BUILD


def codec(data: bytes) -> str:
    """Call every function that decodes bytes, at several offsets, and encode the decoded values again."""
    buffer, partial = FrameBuffer(4096), PartialFrame()
    buffer.feed(data)
    partial.keep(data[:9])
    flags = int.from_bytes(data[:2], "big")
    calls: list[Callable[[], object]] = [
        lambda: pick(data, 0, len(data), _NAMES),
        lambda: pick(data, 2, len(data) + 1, _NAMES),
        lambda: without(data, 0, len(data), _NAMES),
        lambda: too_deep(data),
        lambda: refuse_undecodable(data, 0, len(data)),
        lambda: decode_value(data),
        lambda: encode_value(decode_value(data)),
        lambda: decode_table(data, 0, len(data)),
        lambda: encode_table(decode_table(data, 0, len(data))),
        lambda: header_table(data, 2, len(data)),
        lambda: decode_properties(data, 2, len(data), flags),
        lambda: [buffer.next_frame() for _ in range(3)],
        lambda: partial.join(data[9:]),
    ]
    return "\n".join(map(outcome, calls))


def decide(key: bytes, headers: bytes, app_id: bytes, *bindings: bytes) -> str:
    """Return the decision, without and with a trace. Bindings are tables of arguments; rejected ones are listed."""
    exchange = Exchange(b"xo", "x-open")
    results = []
    for number, arguments in enumerate(bindings):
        binding = Binding(b"xo", QUEUE, b"q%d" % number, b"", decode_table(arguments, 0, len(arguments)))
        results.append(outcome(lambda binding=binding: exchange.bind(binding)))  # type: ignore[misc]
    facts = Facts(key, decode_table(headers, 0, len(headers)), {"app_id": app_id, "priority": len(key)}, len(headers))
    router, trace = Router([exchange]), Trace()
    results.append(outcome(lambda: shown(router.decide(b"xo", facts, NOW, QUEUES, lambda count: count - 1))))
    results.append(outcome(lambda: shown(router.decide(b"xo", facts, NOW, QUEUES, lambda count: count - 1, trace))))
    results += [
        repr((step.id, step.true, step.operators, step.added)) for walk in trace.exchanges for step in walk.visits
    ]
    return "\n".join(results)


def relay(*pieces: bytes) -> str:
    """Return everything that a connection sends. The first byte of each piece specifies the sender."""
    exchange = Exchange(b"xo", "x-open")
    for number, arguments in enumerate(RULES):
        exchange.bind(Binding(b"xo", QUEUE, b"q%d" % number, b"", arguments))
    wire = Wire(state((exchange, owned(exchange)))).open(confirm=True)
    results = []
    for piece in pieces:
        send = wire.answer if piece[:1] == b"\1" else wire.produce
        results.append(outcome(lambda send=send, piece=piece: send(piece[1:])))  # type: ignore[misc]
        results.append(repr((wire.upstream(), wire.producer())))
        if "Error" in results[-2]:
            break
    return "\n".join(results)


RULES: tuple[Table, ...] = (
    ((b"x-?hkv= type", Value("S", b"report")),),
    ((b"x-?hkv>= amount", Value("I", 500)),),
    ((b"x-?hkvre id", Value("S", b"^[a-f0-9]+$")),),
    ((b"x-?rkta", Value("S", b"order.*")),),
    ((b"x-?rkre", Value("S", rb"^key\.\d+$")),),
    ((b"x-?hkex", Value("S", b"trace")), (b"x-?hkv!= type", Value("S", b"report"))),
    ((b"x-match", Value("S", b"eq")), (b"x-?hkv= only", Value("I", 1))),
)
WORK: dict[str, Callable[..., str]] = {"build": build, "codec": codec, "decide": decide, "relay": relay}


def outcome(call: Callable[[], object]) -> str:
    """Return the result or the error: the text of an error about the peer's bytes, or the type of any other error."""
    try:
        return repr(call())
    except ProtocolError as error:
        return f"ProtocolError {error!r}"
    except Exception as error:  # noqa: BLE001 -- any difference counts
        return f"{type(error).__name__}"


def shown(decision: Decision) -> dict[str, object]:
    return {field.name: getattr(decision, field.name) for field in fields(decision) if field.name != "trace"}


def main() -> None:
    while True:
        try:
            name, pieces = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(WORK[name](*pieces), sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
