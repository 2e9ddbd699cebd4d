from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from proxy.audit.policy import AuditMode, AuditPolicy
from proxy.audit.record import HASHABLE

DOCS = (Path(__file__).parents[2] / "docs" / "reference" / "audit.md").read_text()


def test_the_documentation_lists_every_mode() -> None:
    assert re.findall(r"^\| `(\w+)` \|", DOCS.split("## Modes")[1].split("\n## ")[0], re.MULTILINE) == [
        mode.value for mode in AuditMode
    ]


def test_the_documentation_lists_the_fields_that_can_be_hashed() -> None:
    listed = re.search(r"`audit\.hash` \((.*?)\)", DOCS)
    assert listed is not None
    assert set(re.findall(r"`(\w+)`", listed[1])) == HASHABLE


def test_the_defaults_are_documented() -> None:
    default = {field.name: field.default for field in fields(AuditPolicy)}
    assert default["mode"] is AuditMode.BEST_EFFORT
    assert default["buffer_bytes"] == 32 << 20
    assert "32 MiB" in DOCS
    assert default["segment_bytes"] == 128 << 20
    assert "128 MiB" in DOCS
