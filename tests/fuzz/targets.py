"""Functions of oxproxy that read bytes from outside, each with the exceptions that it may raise for invalid bytes.

A target takes one input. Any other exception is a defect.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from oxproxy.admin.explain import ExplainPage
from oxproxy.amqp.method_frames import Deliver, QueueBind, read_method
from oxproxy.amqp.methods import arguments
from oxproxy.amqp.properties import decode_properties, header_table, refuse_undecodable_header
from oxproxy.amqp.tables import decode_table, encode_table, too_deep, without
from oxproxy.app.shadow import uploaded_files
from oxproxy.errors import ConfigErrors, ProtocolError
from oxproxy.relay.vhost import VhostState
from oxproxy.report.files.storage import Entry
from oxproxy.report.partials import DamagedError, read_contents, texts
from oxproxy.rules.explain import as_text
from oxproxy.rules.loader import compile_rules
from oxproxy.rules.wire import owned_exchanges
from oxproxy.values import Value
from tests.client import content_header, publish, split
from tests.producer import headers

ROOT = Path(__file__).resolve().parents[2]
_EXAMPLES = sorted((ROOT / "config").glob("**/*.yaml"))

_HEADERS = headers({"a": 1, "b": ["x", {"c": Value("V", None)}], "d": b"\xff", "e": True, "f": 0.5})

_MESSAGES = (
    b"exchange: orders\nrouting_key: a.b\nheaders: {amount: 2000, type: [a, {b: null}]}\nproperties: {type: x}\n",
    b'{"exchange": "orders", "headers": {"amount": "2000"}, "at": "2026-11-21T08:00:00Z"}',
    b"address: a/b\n",
)
_RECORD = (
    b'{"ts":"2026-11-21T07:59:59.500000Z","v":1,"kind":"publish","proxy":"m","conn":"c","ch":1,"seq":1,"user":"u",'
    b'"vhost":"/","exchange":"e","rk":"k","message_id":null,"size":4,"outcome":"routed","queues":["q"],"exchanges":[],'
    b'"remotes":[],"bindings":["b"],"rule":null,"rules":"r","reason":null,"headers":{}}\n'
    b'{"ts":"2026-11-21T07:59:59.600000Z","v":1,"kind":"settle","proxy":"m","conn":"c","ch":1,"seq":1,"result":"acked",'
    b'"confirm_us":900}\n'
)


def codec(data: bytes) -> None:
    """Tables, properties and methods; a table that can be decoded and encoded again has the same values."""
    with suppress(ProtocolError):
        table = decode_table(data, 0, len(data))
        again = encode_table(table)
        assert repr(decode_table(again, 0, len(again))) == repr(table)  # NaN differs from itself
    too_deep(data)
    with suppress(ProtocolError):
        without(data, 0, len(data), frozenset((b"CC", b"a")))
    with suppress(ProtocolError):
        header_table(data, min(2, len(data)), len(data))
    with suppress(ProtocolError):
        decode_properties(data, 2, len(data), int.from_bytes(data[:2], "big"))
    with suppress(ProtocolError):
        refuse_undecodable_header(b"\x02\x00\x01" + bytes(4) + b"\x00\x3c" + bytes(10) + data + b"\xce")
    with suppress(ProtocolError):
        arguments(data)
    with suppress(ProtocolError):
        read_method(QueueBind, b"\x00\x32\x00\x14" + data)
    with suppress(ProtocolError):
        read_method(Deliver, b"\x00\x3c\x00\x3c" + data)


def rules_file(data: bytes) -> None:
    """A rules file: valid, or errors with a position; tests in it are run."""
    with suppress(ConfigErrors):
        compile_rules([("rules.yaml", data)]).failures()


def audit_reader(data: bytes) -> None:
    """A segment of the audit log, as text or compressed: partial tables, or damage that is reported."""
    for ending in ("jsonl", "jsonl.gz"):
        name = f"/a/date=2026-11-21/hour=07/audit-m-1-1.{ending}"
        with suppress(DamagedError):
            for _ in texts(Entry(name, False, len(data), 0), io.BytesIO(data)):
                pass
    for _ in read_contents(
        [("/a/date=2026-11-21/hour=07/audit-m-1-1.jsonl", 0, data)], traced=True, count=lambda _: None
    ):
        pass


@cache
def _page() -> tuple[ExplainPage, asyncio.AbstractEventLoop]:
    loaded = compile_rules([(str(path), path.read_bytes()) for path in _EXAMPLES if path.stem == "operators"])
    states = [
        VhostState(name, router, owned_exchanges(loaded.rules.vhosts[name])) for name, router in loaded.routers.items()
    ]
    return ExplainPage(lambda: loaded, lambda: states, lambda: 1.8e9), asyncio.new_event_loop()


def admin_request(data: bytes) -> None:
    """The body of a request to /explain, as JSON and as text, and of a request to /-/shadow."""
    page, loop = _page()
    with suppress(ConfigErrors):
        loop.run_until_complete(page.explain(data))
    with suppress(ConfigErrors):
        loop.run_until_complete(page.explain(data, as_text))
    with suppress(ConfigErrors):
        compile_rules(uploaded_files(data)).failures()


class Target(NamedTuple):
    """A target with valid inputs to begin with."""

    run: Callable[[bytes], None]
    seeds: tuple[bytes, ...]


def _codec_seeds() -> Iterable[bytes]:
    yield encode_table(_HEADERS)
    yield content_header(1, 4, encode_table(_HEADERS), {"content_type": b"x", "timestamp": 5})[19:-1]
    for frame in split(publish(1, b"e", b"k", _HEADERS, b"body")):
        yield frame.payload


TARGETS: Mapping[str, Target] = {
    "codec": Target(codec, tuple(_codec_seeds())),
    "rules": Target(rules_file, tuple(path.read_bytes() for path in _EXAMPLES)),
    "audit": Target(audit_reader, (_RECORD,)),
    "admin": Target(admin_request, (*_MESSAGES, *(path.read_bytes() for path in _EXAMPLES))),
}
