"""Runs the tests that use RabbitMQ on each supported release of it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.other_rabbitmq import FOLDER, RELEASES, ROOT_VARIABLE, file_system, inside, obstacle
from tests.private_broker import PrivateBroker
from tests.rabbitmq import URL_VARIABLE

#: Tests of the protocol, permissions and faults.
TESTS = ("tests/broker", "tests/faults", "tests/net", "tests/deploy/test_permissions.py")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    """A release of Debian whose RabbitMQ can be run here."""
    if reason := obstacle():
        pytest.skip(reason)
    return str(request.param)


def test_the_command_for_a_chroot_mounts_the_temporary_directory(tmp_path: Path) -> None:
    command = inside(tmp_path, "rabbitmq-server", "--version")
    assert command[:4] == ["unshare", "--mount", "sh", "-ec"]
    assert command[5] == str(tmp_path)
    assert command[6] == str(Path(tempfile.gettempdir()).resolve())
    assert command[7:] == ["rabbitmq-server", "--version"]


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_a_private_broker_in_a_chroot_runs_and_leaves_nothing(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root = file_system(release)
    monkeypatch.setenv(ROOT_VARIABLE, str(root))
    with PrivateBroker() as broker:
        assert broker.version[:2] == RELEASES[release]
        assert "running_nodes" in broker.rabbitmqctl("cluster_status", "--formatter", "json")
        folder = broker.folder
    assert not folder.exists()
    assert not list((root / "proc").iterdir())


@pytest.mark.matrix
@pytest.mark.timeout(3600)
def test_protocol_tests_pass_with_each_rabbitmq(release: str) -> None:
    environment = os.environ | {ROOT_VARIABLE: str(file_system(release))}
    environment.pop(URL_VARIABLE, None)
    workers = ("--numprocesses=3", "--dist=loadfile", "--no-loadscope-reorder")
    # `python -m deploy.evidence --tests` adds these results to docs/explanation/evidence.md.
    suite = f"junit_suite_name=RabbitMQ {'.'.join(map(str, RELEASES[release]))}"
    result = ("-o", suite, f"--junitxml={FOLDER}/tests-{release}.xml")
    # Includes the tests of client libraries in other languages.
    selected = ("-m", "not matrix", *TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *workers, *result, *selected]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
