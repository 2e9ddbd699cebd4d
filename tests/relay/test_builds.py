"""Tests that compiled modules and their sources behave the same for the same bytes, including malformed ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.native import NO_COMPILER
from oxproxy.amqp.tables import encode_table
from oxproxy.routing.bindings.binding import Binding
from oxproxy.values import Table, Value
from tests.builds import ROOT, RULES, Build
from tests.relay.contents import properties, tables
from tests.relay.wire import ack, nack, publish
from tests.routing.random_rules import BINDINGS

pytestmark = pytest.mark.timeout(600)  # compiles the modules if they are not compiled yet

Builds = tuple[Build, Build]


@pytest.fixture(scope="module")
def builds() -> Iterator[Builds]:
    """The compiled and the interpreted build."""
    done = subprocess.run(
        [sys.executable, "-m", "deploy.native"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode == NO_COMPILER and not os.environ.get("CI"):
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    with Build(interpreted=False) as compiled, Build(interpreted=True) as interpreted:
        assert (compiled.run("build"), interpreted.run("build")) == ("compiled", "interpreted")
        yield compiled, interpreted


def same(builds: Builds, name: str, *pieces: bytes) -> str:
    compiled, interpreted = (build.run(name, *pieces) for build in builds)
    assert compiled == interpreted
    return compiled


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """The bytes, possibly with ranges removed, replaced or inserted."""
    data = whole
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(max_size=4)) + data[at + draw(st.integers(0, 4)) :]
    return data


@st.composite
def damaged_tables(draw: st.DrawFn) -> bytes:
    return draw(damaged(encode_table(draw(tables()))))


#: Headers that the rules use, and other headers.
_mentioned: st.SearchStrategy[Table] = st.lists(
    st.tuples(
        st.sampled_from((b"type", b"amount", b"id", b"trace", b"only", b"other", b"BCC", b"CC")),
        st.sampled_from(
            (
                Value("S", b"report"),
                Value("I", 1),
                Value("l", 2**60),
                Value("d", 499.5),
                Value("S", b"abc"),
                Value("V", None),
            )
        ),
    ),
    max_size=5,
).map(tuple)


@st.composite
def publishes(draw: st.DrawFn) -> bytes:
    return publish(
        draw(st.sampled_from(("", "order.1", "key.12", "key.x", "a"))),
        draw(st.none() | _mentioned | tables()),
        draw(st.binary(max_size=20)),
        draw(st.sampled_from((1, 1, 1, 2))),
        draw(st.sampled_from(("xo", "xo", "xo", "other", ""))),
        mandatory=draw(st.booleans()),
        **draw(properties()),  # type: ignore[arg-type]
    )


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    """Reads from both sides. The producer's bytes are cut into reads at arbitrary positions."""
    data = draw(damaged(b"".join(draw(st.lists(publishes(), min_size=1, max_size=6)))))
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=3)))
    pieces = [b"\0" + data[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    replies = draw(st.lists(st.sampled_from((ack(1), ack(3, multiple=True), nack(2))), max_size=2))
    return pieces + [b"\1" + reply for reply in replies]


@settings(max_examples=100)
@given(data=damaged_tables() | st.binary(max_size=60))
def test_both_builds_decode_bytes_equally(builds: Builds, data: bytes) -> None:
    same(builds, "codec", data)


@pytest.mark.parametrize("depth", [1, 127, 128, 129, 5000])
@pytest.mark.parametrize("letter", [b"F", b"A"])
def test_both_builds_refuse_deep_tables(builds: Builds, depth: int, letter: bytes) -> None:
    data = b""
    for _ in range(depth):
        data = letter + len(data).to_bytes(4, "big") + data
        data = b"\1k" + data if letter == b"F" else data
    same(builds, "codec", data if letter == b"F" else b"\1k" + data)


@settings(max_examples=60)
@given(
    key=st.sampled_from((b"", b"a", b"a.b", b"q1", b"\xff")),
    headers=tables() | _mentioned,
    app_id=st.sampled_from((b"", b"1", b"x")),
    bindings=BINDINGS["x-open"],
)
def test_both_builds_decide_equally(
    builds: Builds, key: bytes, headers: Table, app_id: bytes, bindings: list[Binding]
) -> None:
    arguments = [encode_table(binding.arguments) for binding in bindings]
    same(builds, "decide", key, encode_table(headers), app_id, *arguments, *map(encode_table, RULES))


@settings(max_examples=60)
@given(pieces=conversations())
def test_both_builds_relay_equally(builds: Builds, pieces: list[bytes]) -> None:
    same(builds, "relay", *pieces)


def test_the_rules_of_these_tests_route_a_message(builds: Builds) -> None:
    result = same(builds, "relay", b"\0" + publish("order.1", ((b"amount", Value("I", 900)),)), b"\1" + ack(1))
    assert "x.o.p.e.n.x." in result
