"""Tests Dockerfiles, Compose file and health check without running a container.

``test_image`` (``make test-matrix``) builds and runs the image.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.docker.healthcheck import main as healthcheck
from tests.deploy.prometheus import ROOT
from tests.private_broker import free_port
from tests.sidecar import answering, oxproxy

FOLDER = ROOT / "deploy" / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]


def mounts() -> Iterator[tuple[str, str, list[str]]]:
    for name, service in SERVICES.items():
        for volume in service.get("volumes", ()):
            source, target, *options = volume.split(":")
            yield source, f"{name}:{target}", options


def compose_client() -> list[str]:
    """Return an installed Compose client. Reading a file needs no daemon."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]):
            done = subprocess.run([*command, "version"], capture_output=True, check=False)
            if done.returncode == 0:
                return command
    pytest.skip("no compose client is installed (make test-matrix installs one)")


@pytest.mark.parametrize("name", ["Dockerfile", "report.Dockerfile"])
def test_hadolint_reports_nothing(name: str) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([str(hadolint), str(FOLDER / name)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_files_that_the_wheel_includes_are_in_the_build_context() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    wanted = {*wheel["force-include"], wheel["hooks"]["custom"]["path"]}
    assert sorted(wanted - {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines()}) == []


@pytest.mark.parametrize("name", ["Dockerfile", "report.Dockerfile"])
def test_an_image_does_not_run_as_root(name: str) -> None:
    last_stage = (FOLDER / name).read_text().rsplit("\nFROM ", 1)[1]
    assert "\nUSER 10001:10001\n" in last_stage


def test_the_build_context_contains_only_existing_files_of_the_package() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert "*" in (ROOT / ".dockerignore").read_text().splitlines()
    assert {"proxy", "pyproject.toml", "README.md", "deploy/docker/healthcheck.py"} <= set(allowed)
    assert all((ROOT / name).exists() for name in allowed if not name.startswith("build/"))


def test_every_mounted_file_exists_and_is_read_only() -> None:
    for source, _, options in mounts():
        if source.startswith("."):
            assert (FOLDER / source).exists(), source
            assert options == ["ro"], source
        else:
            assert source in COMPOSE["volumes"], source


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_published_on_loopback_only(name: str) -> None:
    assert all(str(port).startswith("127.0.0.1:") for port in SERVICES[name].get("ports", ()))


def test_the_image_tag_is_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert SERVICES["oxproxy"]["image"] == f"oxproxy:{version}"


def test_the_sidecar_is_restricted_and_has_time_to_drain() -> None:
    service = SERVICES["oxproxy"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert int(service["stop_grace_period"].removesuffix("s")) > 25 + 5
    assert service["ulimits"]["nofile"] > 2 * 10_000


def test_the_configuration_of_compose_is_valid(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "oxproxy.yaml", tmp_path)
    shutil.copytree(ROOT / "config" / "rules", tmp_path / "rules")
    done = oxproxy("check", tmp_path / "oxproxy.yaml", env={"RABBITMQ_PASSWORD": "demo"})
    assert done.returncode == 0, done.stderr


def test_prometheus_scrapes_the_services_of_compose() -> None:
    jobs = yaml.safe_load((ROOT / "helm/oxproxy/files/prometheus/prometheus.yaml").read_text())["scrape_configs"]
    targets = {target for job in jobs for config in job["static_configs"] for target in config["targets"]}
    assert targets == {"oxproxy:15693", "rabbitmq:15692"}
    assert "rabbitmq_prometheus" in (FOLDER / "enabled_plugins").read_text()


def test_a_compose_client_accepts_the_file() -> None:
    command = [*compose_client(), "-f", str(FOLDER / "compose.yaml"), "config", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def configured(folder: Path, address: str) -> Path:
    path = folder / "oxproxy.yaml"
    path.write_text(f"admin: {{address: {address}}}\n")
    return path


@pytest.mark.parametrize(("status", "expected"), [(200, 0), (500, 1)])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_health_check_returns_the_result_of_livez(tmp_path: Path, host: str, status: int, expected: int) -> None:
    with answering(lambda path, _: (status if path == "/livez" else 404, "text/plain", b"")) as port:
        assert healthcheck(configured(tmp_path, f"{host}:{port}")) == expected


def test_a_closed_admin_port_is_unhealthy(tmp_path: Path) -> None:
    assert healthcheck(configured(tmp_path, f"127.0.0.1:{free_port()}")) == 1


def test_without_an_admin_address_the_container_is_healthy(tmp_path: Path) -> None:
    assert healthcheck(configured(tmp_path, "null")) == 0


def test_an_invalid_configuration_is_unhealthy(tmp_path: Path) -> None:
    assert healthcheck(configured(tmp_path, "nowhere")) == 1
