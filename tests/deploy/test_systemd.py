"""Does systemd accept the unit, and how much does the unit leave open?"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.prometheus import ROOT

UNIT = ROOT / "deploy" / "systemd" / "oxproxy.service"
PROGRAM = "/opt/oxproxy/bin/oxproxy"

#: systemd's own measure, 0 (nothing) to 10; a service without any of this has 9.6.
EXPOSURE = "15"


def service() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a program that is installed here: systemd looks whether it is there."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed (make test-matrix installs it)")
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace(PROGRAM, str(Path(sys.executable).with_name("oxproxy"))))
    return copy


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_systemd_verifies_the_unit_without_a_word(unit: Path) -> None:
    done = analyze("verify", "--man=no", unit)
    assert (done.returncode, done.stderr) == (0, "")


def test_verify_would_find_a_wrong_setting(unit: Path) -> None:
    unit.write_text(unit.read_text().replace("Type=exec", "Type=exce"))
    assert "exce" in analyze("verify", "--man=no", unit).stderr


def test_the_unit_leaves_little_open(unit: Path) -> None:
    done = analyze("security", "--offline=yes", f"--threshold={EXPOSURE}", unit)
    assert done.returncode == 0, done.stdout[-2000:]


def test_stopping_takes_longer_than_the_drain_may() -> None:
    seconds = int(service()["TimeoutStopSec"][0].removesuffix("s"))
    assert seconds > 25 + 5


def test_descriptors_are_enough_for_two_a_producer() -> None:
    assert int(service()["LimitNOFILE"][0]) > 2 * 10_000


def test_a_reload_checks_the_files_before_it_asks_for_it() -> None:
    check, hang_up = service()["ExecReload"]
    assert check == f"{PROGRAM} check /etc/oxproxy/oxproxy.yaml"
    assert hang_up == "/bin/kill -HUP $MAINPID"


def test_a_wrong_configuration_is_not_tried_again() -> None:
    assert service()["Restart"] == ["on-failure"]
    assert service()["RestartPreventExitStatus"] == ["2"]


def test_the_audit_directory_of_the_documentation_is_made_by_the_unit() -> None:
    assert "oxproxy/audit" in service()["StateDirectory"][0].split()
