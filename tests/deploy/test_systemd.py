"""Tests the systemd units with ``systemd-analyze``."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from oxproxy.config.loader import load_settings
from tests.deploy.prometheus import ROOT

UNIT = ROOT / "deploy" / "systemd" / "oxproxy.service"
#: The template for several instances, and one of them.
TEMPLATE, INSTANCE = UNIT.with_name("oxproxy@.service"), "oxproxy@15693.service"
PROGRAM = "/opt/oxproxy/bin/oxproxy"

#: Threshold for systemd's exposure level of 0 to 10, times 10; a service without restrictions has 9.6.
EXPOSURE = "15"


def settings(unit: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def service() -> dict[str, list[str]]:
    return settings(UNIT)


@pytest.fixture(params=[UNIT.name, INSTANCE])
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A unit with the path of an installed program, since systemd checks that it exists."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed (make test-matrix installs it)")
    source = UNIT if request.param == UNIT.name else TEMPLATE
    copy: Path = tmp_path / request.param
    copy.write_text(source.read_text().replace(PROGRAM, str(Path(sys.executable).with_name("oxproxy"))))
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


def test_the_template_differs_from_the_unit_only_in_what_its_instances_do_not_share() -> None:
    template, single = settings(TEMPLATE), settings(UNIT)
    own = template.pop("Environment")
    assert template.pop("User") == ["oxproxy"]  # with DynamicUser, each instance would have its own user
    assert own[: len(single["Environment"])] == single.pop("Environment")
    assert template.pop("Description") == [f"{single.pop('Description')[0]}, with admin port %i"]
    assert template == single


def test_the_instances_of_the_template_have_their_own_admin_address_and_audit_log(tmp_path: Path) -> None:
    assignments = " ".join(settings(TEMPLATE)["Environment"]).split()
    (tmp_path / "control-password").write_text("secret")
    (tmp_path / "oxproxy.yaml").write_text("audit: {directory: audit}\nupstream: {control: {username: oxproxy}}\n")
    for instance in ("15693", "15694"):
        values = {"%i": instance, "%H": "host", "%d": str(tmp_path)}
        environ = {}
        for assignment in assignments:
            for specifier, value in values.items():
                assignment = assignment.replace(specifier, value)
            name, _, environ_value = assignment.partition("=")
            environ[name] = environ_value
        loaded, _ = load_settings(tmp_path / "oxproxy.yaml", environ)
        assert str(loaded.admin.address) == f"127.0.0.1:{instance}"
        assert loaded.audit.instance == f"host-{instance}"
        assert loaded.upstream.control.password.get_secret_value() == "secret"
