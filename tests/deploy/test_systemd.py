"""Tests the systemd unit with ``systemd-analyze``."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.prometheus import ROOT

UNIT = ROOT / "deploy" / "systemd" / "oxproxy.service"
PROGRAM = "/opt/oxproxy/bin/oxproxy"

#: Threshold for systemd's exposure level of 0 to 10, times 10; a service without restrictions has 9.6.
EXPOSURE = "15"


def service() -> dict[str, list[str]]:
    settings: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            settings.setdefault(name, []).append(value)
    return settings


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with the path of an installed program, since systemd checks that it exists."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed (make test-matrix installs it)")
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace(PROGRAM, str(Path(sys.executable).with_name("oxproxy"))))
    return copy


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["systemd-analyze", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_systemd_reports_nothing_about_the_unit(unit: Path) -> None:
    done = analyze("verify", "--man=no", unit)
    assert (done.returncode, done.stderr) == (0, "")


def test_verify_reports_an_invalid_setting(unit: Path) -> None:
    unit.write_text(unit.read_text().replace("Type=exec", "Type=exce"))
    assert "exce" in analyze("verify", "--man=no", unit).stderr


def test_the_exposure_level_is_low(unit: Path) -> None:
    done = analyze("security", "--offline=yes", f"--threshold={EXPOSURE}", unit)
    assert done.returncode == 0, done.stdout[-2000:]


def test_the_stop_timeout_exceeds_the_drain() -> None:
    seconds = int(service()["TimeoutStopSec"][0].removesuffix("s"))
    assert seconds > 25 + 5


def test_the_limit_of_file_descriptors_allows_two_per_producer() -> None:
    assert int(service()["LimitNOFILE"][0]) > 2 * 10_000


def test_a_reload_checks_the_files_first() -> None:
    check, hang_up = service()["ExecReload"]
    assert check == f"{PROGRAM} check /etc/oxproxy/oxproxy.yaml"
    assert hang_up == "/bin/kill -HUP $MAINPID"


def test_an_invalid_configuration_causes_no_restart() -> None:
    assert service()["Restart"] == ["on-failure"]
    assert service()["RestartPreventExitStatus"] == ["2"]


def test_the_unit_creates_the_audit_directory() -> None:
    assert "oxproxy/audit" in service()["StateDirectory"][0].split()
