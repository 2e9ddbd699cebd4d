"""Runs vectors of the open exchange on the decision core, without a broker.

The runner acts as the broker: it knows which queues and exchanges exist, ignores other destinations, applies the
alternate exchange, and refuses messages that a broker refuses before routing. Every vector is decided in three ways,
which must agree: through the index, with a trace and therefore without the index, and from only the facts of interest.
"""

from __future__ import annotations

import atexit
import os
import pickle
import re
import subprocess
import sys
from datetime import UTC
from functools import cache
from pathlib import Path

from oxproxy.errors import ProtocolError
from oxproxy.native import BUILD
from oxproxy.routing.decision import Decision, ExchangeStep, Facts, Interest, Outcome, QueueNames, Trace
from oxproxy.routing.engine import apply_result
from oxproxy.routing.error_texts import encode_error_text
from oxproxy.routing.exchange import Exchange
from oxproxy.routing.message import Message
from oxproxy.routing.router import Router
from oxproxy.values import Destination, Table
from tests.conformance.broker import refusal
from tests.conformance.typed import Json, binding_of, facts_of, table_of

ROOT = Path(__file__).parents[2]
_TESTED = b"xo"
_ALTERNATE = b"alternate-exchange"
_OPENING = "PRECONDITION_FAILED - "
_REASON = re.compile(rb"(Invalid regex '.*'): (?:empty pattern|.* at offset \d+|.*\.\.\.)\Z", re.DOTALL)
#: An arbitrary time, since the clock patterns of the vectors match always or never.
_NOW = 1_795_248_000.0


class PluginExchange(Exchange):
    """An exchange that routes like the plugin where row 1 of section 12 of the specification differs from the plugin.

    The plugin evaluates a *plain* binding even after a stop or a jump, and that binding cancels the jump for later
    bindings. Vectors of single exchanges contain both results. Vectors of exchange chains contain only the observed
    result; this class makes it possible to distinguish an error in the sidecar from this difference.
    """

    __slots__ = ()

    def route(
        self, message: Message, matched: list[tuple[bytes, str]], step: ExchangeStep | None = None
    ) -> set[Destination] | bytes:
        routed: set[Destination] = set()
        floor = 0
        for compiled in self.entries:
            plain = compiled.on_true is None and compiled.on_false is None
            if floor > compiled.order and not plain:
                continue
            jump = apply_result(compiled, compiled.truth(message), routed, message)
            if jump is None:
                return message.producer.error
            floor = jump
        return routed


def run(vector: Json) -> tuple[bool, object, object]:
    """Return whether the result is correct, the expected result, and the actual result."""
    expected = recommended(vector)
    got = result(vector)
    right = got == normal(expected)
    if not right and "extra_exchanges" in vector and "seed_differs" not in vector:
        # For chains, vectors contain only the plugin's result, even if the specification requires another result.
        right = plugin_result(vector) == normal(expected)
    return right, expected, got


def recommended(vector: Json) -> Json:
    """The expected result: that of the specification if it differs from the observed one."""
    if "recommended" in vector:
        return vector["recommended"]
    return vector["seed_expected"] if vector.get("seed_differs") else vector["expected"]


def normal(expected: Json) -> Json:
    """The expected result in the form of `result`, with error texts as bytes."""
    for kind in ("declare_error", "bind_error", "publish_error"):
        if kind in expected:
            error = expected[kind]
            encoding = error.get("text_encoding", "utf-8")
            normal = {"code": error["code"], "text": error["text"].encode(encoding)}
            return {kind: normal | {key: error[key] for key in ("binding",) if key in error}}
    return expected


def result(vector: Json, made_of: type[Exchange] = Exchange, modes_are_checked: bool = True) -> Json:
    """The result of a vector on a broker. See `refusal` for ``modes_are_checked``."""
    facts = facts_of(vector["message"])
    kind = vector.get("exchange_type", "x-open")
    try:
        exchanges = [_exchange(made_of, _TESTED, kind, vector["exchange_arguments"])]
        exchanges += [
            _exchange(made_of, extra["name"].encode(), extra["type"], extra["arguments"])
            for extra in vector.get("extra_exchanges", ())
        ]
    except ProtocolError as error:
        return {"declare_error": _error(error.text)}
    refused = _bind(vector, exchanges)
    if refused is not None:
        return {"bind_error": refused}
    text = refusal(facts, modes_are_checked)
    if text is not None:
        return {"publish_error": _error(encode_error_text(text))}
    return _published(vector, Router(exchanges), facts)


def plugin_result(vector: Json) -> Json:
    """Return the result of a vector with the plugin's goto and stop.

    This requires a subclass of `Exchange`, which is impossible if the module is compiled. In this case, another process
    runs the sources.
    """
    if BUILD == "interpreted":
        return result(vector, PluginExchange)
    process = _interpreter()
    assert process.stdin is not None
    assert process.stdout is not None
    pickle.dump(vector, process.stdin)
    process.stdin.flush()
    return pickle.load(process.stdout)


@cache
def _interpreter() -> subprocess.Popen[bytes]:
    """Start a process that runs the sources, and ends at the end of its input."""
    command = [sys.executable, "-m", "tests.conformance.open_exchange"]
    environment = {**os.environ, "PURE_PYTHON": "1"}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd=ROOT)
    atexit.register(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.communicate()


def _exchange(made_of: type[Exchange], name: bytes, kind: str, declared: Json) -> Exchange:
    arguments = table_of(declared)
    alternate = dict(arguments).get(_ALTERNATE)
    name_of_alternate = alternate.value if alternate is not None else None
    assert name_of_alternate is None or isinstance(name_of_alternate, bytes)
    return made_of(name, kind, arguments, UTC, name_of_alternate)


def _bind(vector: Json, exchanges: list[Exchange]) -> Json | None:
    """Create all bindings; return the first refusal, with its index if the vector specifies one."""
    declared = [vector, *vector.get("extra_exchanges", ())]
    for exchange, source in reversed(list(zip(exchanges, declared, strict=True))):
        for at, binding in enumerate(source["bindings"]):
            try:
                exchange.bind(binding_of(exchange.name, binding, at))
            except ProtocolError as error:
                expected = recommended(vector).get("bind_error", {})
                return _error(error.text) | ({"binding": at} if "binding" in expected else {})
        for binding in source.get("unbind", ()):
            exchange.unbind(binding_of(exchange.name, binding))
    return None


def _error(text: bytes) -> Json:
    return {"code": 406, "text": without_reason(_OPENING.encode() + text)}


def without_reason(text: bytes) -> bytes:
    """Remove PCRE2's reason from the error of a regular expression, since the plugin's error does not contain it."""
    return _REASON.sub(rb"\1", text)


def _published(vector: Json, router: Router, facts: Facts) -> Json:
    queues = QueueNames(tuple(name.encode() for name in vector["queues"]), 1)
    decision = router.decide(_TESTED, facts, _NOW, queues, _first)
    traced = router.decide(_TESTED, facts, _NOW, queues, _first, Trace())
    reduced = router.decide(_TESTED, reduced_to(router.interest(_TESTED), facts), _NOW, queues, _first)
    results = [_delivered(vector, router, outcome) for outcome in (decision, traced, reduced)]
    if results[1] != results[0] or results[2] != results[0]:
        return dict(zip(("indexed", "traced", "reduced"), results, strict=True))
    return results[0]


def _first(_count: int) -> int:
    return 0


def _delivered(vector: Json, router: Router, decision: Decision) -> Json:
    if decision.outcome is Outcome.REJECTED:
        return {"publish_error": _error(decision.error)}
    chosen = set(decision.exchanges)
    alternate = router.exchanges[_TESTED].alternate
    if decision.alternate and alternate is not None:
        chosen.add(alternate)
    existing = {name.encode() for name in vector["exchanges"]}
    delivered: Json = {"queues": _names(set(decision.queues), {name.encode() for name in vector["queues"]})}
    if "exchanges" in recommended(vector):
        delivered["exchanges"] = _names(chosen, existing)
    return delivered


def _names(chosen: set[bytes], existing: set[bytes]) -> list[str]:
    return sorted(name.decode() for name in chosen & existing)


def reduced_to(interest: Interest, facts: Facts) -> Facts:
    """The message with only the facts of interest."""
    headers: Table = facts.headers
    if interest.headers is not None:
        headers = tuple(entry for entry in headers if entry[0] in interest.headers)
    size = facts.body_size_bytes
    below = [cut for cut in interest.body_sizes if cut <= size]
    return Facts(
        facts.routing_key if interest.routing_key else b"\xffanother key",
        headers,
        {name: value for name, value in facts.properties.items() if name in interest.properties},
        max(below, default=0),
    )


if __name__ == "__main__":
    while True:
        try:
            vector = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        pickle.dump(result(vector, PluginExchange), sys.stdout.buffer)
        sys.stdout.buffer.flush()
