from __future__ import annotations

import pytest

from proxy.relay.channel import Channel, PendingPublish
from proxy.relay.counters import Traffic
from proxy.relay.publish import known_heads
from proxy.relay.publish.known_heads import Head, KnownHeads

TALLY = Traffic().tally("/", b"xo", "routed", (), ())
PUBLISH = PendingPublish(b"method", None, b"xo", b"", Channel(1), False)


def head(came: bytes, leaves: bytes = b"") -> Head:
    return Head(came, leaves, TALLY, "", PUBLISH, b"", 0, 0)


def test_what_is_kept_is_found_until_it_is_forgotten() -> None:
    known = KnownHeads()
    kept = head(b"came")
    known.keep(kept)
    assert known.get(b"came") is kept
    known.forget()
    assert known.get(b"came") is None


def test_heads_that_were_of_no_use_are_not_asked_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_heads, "REMEMBERED", 2)
    monkeypatch.setattr(known_heads, "UNASKED", 3)
    known = KnownHeads()
    for number in range(3):
        assert known.asks()
        known.keep(head(b"%d" % number))
    assert not known
    assert [known.asks() for _ in range(4)] == [False, False, False, True]


def test_heads_that_were_of_use_are_asked_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_heads, "REMEMBERED", 2)
    known = KnownHeads()
    for number in range(2):
        known.keep(head(b"%d" % number))
    known.found = 2
    known.keep(head(b"one too many"))
    assert not known
    assert known.asks()


def test_large_ones_are_kept_in_smaller_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_heads, "REMEMBERED_BYTES", 100)
    known = KnownHeads()
    known.keep(head(bytes(40), bytes(40)))
    assert len(known) == 1
    known.keep(head(b"x" * 40))
    assert not known


def test_one_that_is_not_remembered_holds_until_the_next() -> None:
    known = KnownHeads()
    first = known.once(b"leaves", TALLY, "", PUBLISH, 4)
    assert (first.came, first.leaves, first.body_size, first.successor) == (b"", b"leaves", 4, None)
    second = known.once(b"other", TALLY, "line", PUBLISH, 5)
    assert (second.came, second.leaves, second.ending, second.body_size) == (b"", b"other", "line", 5)
    assert not known
