"""Runs the examples of the pages on the library and on pytest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
LIBRARY = (DOCS / "reference" / "library.md").read_text()
PYTEST = (DOCS / "how-to" / "test-rules.md").read_text()


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def put_rules(directory: Path, page: str) -> None:
    (rules,) = blocks(page, "yaml")
    (directory / "rules").mkdir()
    (directory / "rules" / "orders.yaml").write_text(rules)


@pytest.mark.parametrize("example", blocks(LIBRARY, "python"), ids=range(len(blocks(LIBRARY, "python"))))
def test_an_example_of_the_library(example: str, tmp_path: Path) -> None:
    put_rules(tmp_path, LIBRARY)
    done = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_tests_of_the_page_on_pytest_have_the_stated_results(tmp_path: Path) -> None:
    put_rules(tmp_path, PYTEST)
    (tmp_path / "pyproject.toml").write_text(blocks(PYTEST, "toml")[0])
    (tmp_path / "test_orders.py").write_text(blocks(PYTEST, "python")[0])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "1 failed, 4 passed" in done.stdout
    (shown,) = re.findall(r"^    -+ oxproxy: .*?\n((?:    .*\n)+)", PYTEST, re.MULTILINE)
    missing = [line for line in shown.splitlines() if line.strip() != "[...]" and line[4:] not in done.stdout]
    assert missing == []
