from __future__ import annotations

import pytest

from oxproxy.broker import methods


@pytest.mark.parametrize("name", [b"q", b"orders~2 (old)", "Käse".encode(), b"a" * 255])
def test_names_that_the_broker_accepts_are_usable(name: bytes) -> None:
    assert methods.unnameable(name) is None


@pytest.mark.parametrize(
    ("name", "cause"),
    [(b"", "empty"), (b"a" * 256, "255"), (b"\xff", "UTF-8"), ("ä".encode() * 71, "ASCII")],
)
def test_an_unusable_name_has_a_reason(name: bytes, cause: str) -> None:
    assert cause in (methods.unnameable(name) or "")


@pytest.mark.parametrize(
    ("code", "text", "kind", "reason"),
    [
        (404, "NOT_FOUND - no queue 'q' in vhost '/'", "queue", "does not exist"),
        (404, "NOT_FOUND - no exchange 'c' in vhost '/'", "queue", "carrier exchange does not exist"),
        (404, "NOT_FOUND - no exchange 'x' in vhost '/'", "exchange", "does not exist"),
        (405, "RESOURCE_LOCKED", "queue", "exclusive queue of another connection"),
        (403, "ACCESS_REFUSED", "exchange", "write permission on this exchange"),
        (406, "PRECONDITION_FAILED", "queue", "406 PRECONDITION_FAILED"),
    ],
)
def test_a_refusal_becomes_a_reason_for_operators(code: int, text: str, kind: str, reason: str) -> None:
    assert reason in methods.Refusal(code, text).reason(kind)
