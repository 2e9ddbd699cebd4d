"""Does what holds on the RabbitMQ that is installed hold on a newer one?"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.other_rabbitmq import ROOT_VARIABLE, VERSION, file_system, inside, obstacle
from tests.private_broker import PrivateBroker
from tests.rabbitmq import URL_VARIABLE

#: whose tests are about what goes over the wire
FOLDERS = ("tests/broker", "tests/faults", "tests/net")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def other() -> Path:
    """The root file system of another RabbitMQ."""
    if reason := obstacle():
        pytest.skip(reason)
    return file_system()


def test_a_program_of_another_root_is_given_that_root_and_our_folder_for_temporary_files(tmp_path: Path) -> None:
    command = inside(tmp_path, "rabbitmq-server", "--version")
    assert command[:4] == ["unshare", "--mount", "sh", "-ec"]
    assert command[5] == str(tmp_path)
    assert command[6] == str(Path(tempfile.gettempdir()).resolve())
    assert command[7:] == ["rabbitmq-server", "--version"]


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_a_private_broker_of_another_root_is_that_version_and_leaves_nothing(
    other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ROOT_VARIABLE, str(other))
    with PrivateBroker() as broker:
        assert broker.version[:2] == VERSION
        assert "running_nodes" in broker.rabbitmqctl("cluster_status", "--formatter", "json")
        folder = broker.folder
    assert not folder.exists()
    assert not list((other / "proc").iterdir())


@pytest.mark.matrix
@pytest.mark.timeout(1800)
def test_whatever_speaks_to_a_broker_does_so_on_a_newer_one(other: Path) -> None:
    environment = os.environ | {ROOT_VARIABLE: str(other)}
    environment.pop(URL_VARIABLE, None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *FOLDERS]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
