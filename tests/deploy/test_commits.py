"""Tests the check of commit subjects."""

from __future__ import annotations

import pytest

from deploy.commits import fault


@pytest.mark.parametrize(
    "subject", ["relay: park publishes in the channel", "docs, cli: name PCRE2", "tests/broker: wait for `ready`"]
)
def test_a_subject_that_follows_the_convention_is_accepted(subject: str) -> None:
    assert fault(subject) is None


@pytest.mark.parametrize(
    ("subject", "reason"),
    [
        ("Fix things", "expected 'area: what changes'"),
        ("relay: Park publishes", "expected 'area: what changes'"),
        ("relay: park publishes.", "expected 'area: what changes'"),
        ("relay: " + "x" * 66, "73 characters, expected at most 72"),
    ],
)
def test_any_other_subject_is_rejected_with_the_reason(subject: str, reason: str) -> None:
    assert str(fault(subject)).startswith(reason)
