"""The pytest plugin, in a run of pytest of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

RULES = """\
exchanges:
  - name: orders
    bindings: [{queue: all, name: all orders}, {queue: large, name: large orders, when: {amount >=: 1000}}]
tests: [{name: every order, publish: {exchange: orders}, expect: {queues: [large]}}]
"""
OPTION = "[pytest]\noxproxy_rules = rules/*.yaml\n"


def run_pytest(directory: Path, tests: str, rules: str = RULES, option: str = OPTION) -> tuple[int, str]:
    """Run tests in a directory; return the exit status and the output."""
    (directory / "rules").mkdir()
    (directory / "rules" / "orders.yaml").write_text(rules)
    (directory / "pytest.ini").write_text(option)
    (directory / "test_orders.py").write_text(tests)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(directory)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_plugin_is_an_entry_point() -> None:
    (plugin,) = [point for point in entry_points(group="pytest11") if point.name == "oxproxy"]
    assert plugin.value == "oxproxy.library.pytest_plugin"


def test_a_test_that_passes_prints_nothing_about_the_rules(tmp_path: Path) -> None:
    status, out = run_pytest(
        tmp_path,
        "def test_one(oxproxy_rules):\n"
        "    assert oxproxy_rules.explain('orders', headers={'amount': 1000}).queues == ['all', 'large']\n",
    )
    assert (status, "oxproxy: " in out) == (0, False)


def test_the_report_of_a_failed_test_contains_the_walks_of_this_test(tmp_path: Path) -> None:
    status, out = run_pytest(
        tmp_path,
        "def test_passes(oxproxy_rules):\n"
        "    oxproxy_rules.explain('orders', headers={'amount': 1})\n"
        "def test_fails(oxproxy_rules):\n"
        "    oxproxy_rules.explain('orders', headers={'amount': 2})\n"
        "    assert 'large' in oxproxy_rules.explain('orders', headers={'amount': '3'}).queues\n",
    )
    assert status == 1
    assert re.findall(r"amount >=: 1000, got (.*)", out) == ["2", '"3"']
    assert len(re.findall(r"^-+ oxproxy: message to orders -+$", out, re.MULTILINE)) == 2


def test_the_report_contains_the_walks_of_failed_tests_of_rules_files(tmp_path: Path) -> None:
    status, out = run_pytest(tmp_path, "def test_files(oxproxy_rules):\n    assert oxproxy_rules.failures() == []\n")
    assert status == 1
    assert re.search(r"^-+ oxproxy: every order -+$", out, re.MULTILINE)
    assert "absent    amount >=: 1000" in out


def test_invalid_rules_are_reported_without_a_traceback(tmp_path: Path) -> None:
    status, out = run_pytest(
        tmp_path, "def test_one(oxproxy_rules):\n    pass\n", rules="exchanges: [{name: a, binding: []}]"
    )
    assert status == 1
    assert "orders.yaml:1:23: exchanges[0].binding: unknown key; did you mean bindings?" in out
    assert "Traceback" not in out
    assert "load_rules(" not in out


def test_rules_that_no_option_names_are_an_error(tmp_path: Path) -> None:
    status, out = run_pytest(tmp_path, "def test_one(oxproxy_rules):\n    pass\n", option="[pytest]\n")
    assert status == 1
    assert "got no rules files, expected oxproxy_rules = rules/*.yaml in pytest's configuration file" in out


def test_a_run_without_the_fixture_does_not_import_the_rules(tmp_path: Path) -> None:
    status, _ = run_pytest(
        tmp_path, "import sys\ndef test_one():\n    assert 'oxproxy.rules' not in sys.modules\n", option="[pytest]\n"
    )
    assert status == 0
