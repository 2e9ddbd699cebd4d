"""Tests that a test that is skipped because of a missing service is a failure in CI, and only there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

MODULE = """
import pytest

@pytest.mark.broker
def test_that_lacks_its_service():
    pytest.skip("no broker here")

def test_that_skips_for_another_reason():
    pytest.skip("not on this system")
"""


@pytest.mark.parametrize(("ci", "outcome"), [("", "2 skipped"), ("true", "1 failed, 1 skipped")])
def test_a_missing_service_is_a_failure_only_in_ci(tmp_path: Path, ci: str, outcome: str) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_services.py").write_text(MODULE)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", ROOT / "pyproject.toml", tmp_path],
        env=os.environ | {"CI": ci, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome in done.stdout
