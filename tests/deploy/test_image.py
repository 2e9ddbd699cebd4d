"""Builds the image without a registry, and runs it as an unprivileged user with a read-only root file system.

mmdebstrap creates the base image, and wheels come from a directory. buildah builds in a chroot, which requires root but
no daemon. The container is also run in a chroot.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
import yaml

from tests.deploy.prometheus import ROOT
from tests.private_broker import PrivateBroker, free_port
from tests.sidecar import is_ready, pika_channel
from tests.watched import Watched

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(900)]

IMAGE = "oxproxy:0.2.0"
BASE, BUILD_BASE = "localhost/oxproxy-base:1", "localhost/oxproxy-build-base:1"

#: Distribution and packages of the base images: Python; the image for the build also has a compiler and headers.
SUITE, PACKAGES = "bookworm", "python3,python3-venv,ca-certificates"
BUILD_PACKAGES = f"{PACKAGES},python3-dev,gcc,libc6-dev"

#: Tools that build or install programs. They must not be in the image.
TOOLS = ("cc", "c++", "gcc", "g++", "clang", "ld", "as", "make", "cmake", "cargo", "go", "pip", "pip3", "git")

START_SECONDS = 30.0


class Buildah:
    """buildah with a private store."""

    def __init__(self, folder: Path) -> None:
        self._store = ["--root", str(folder / "store"), "--runroot", str(folder / "run"), "--storage-driver", "vfs"]

    def __call__(self, *arguments: str | Path, where: Path | None = None) -> str:
        command = ["buildah", *self._store, *map(str, arguments)]
        environment = os.environ | {"BUILDAH_ISOLATION": "chroot"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=where, env=environment)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout.strip()


def base_archive(name: str, packages: str) -> Path:
    """Return a minimal Debian as an archive. It is created once, in build/."""
    archive = ROOT / "build" / "matrix" / f"{name}-{SUITE}.tar"
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        half = archive.with_suffix(".half.tar")
        command = ["mmdebstrap", "--variant=minbase", f"--include={packages}", SUITE, str(half)]
        subprocess.run(command, check=True, capture_output=True)
        half.rename(archive)
    return archive


def wheels(folder: Path) -> None:
    """Download wheels of everything that the image needs into ``folder``, for the base image's version of Python."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hook = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"], *hook["dependencies"], "isal"]
    pins = ROOT / "deploy" / "local" / "requirements.txt"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--constraint", str(pins)]
    subprocess.run([*command, "--python-version", "3.11", "--dest", str(folder), *wanted], check=True)


def context(folder: Path) -> Path:
    """Return a directory with the build context of the Dockerfile, including wheels."""
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        source = ROOT / line[1:]
        if not line.startswith("!") or not source.exists() or line == "!build/wheels":
            continue
        target = folder / line[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    shutil.copy(ROOT / "deploy" / "docker" / "Dockerfile", folder)
    (folder / "build" / "wheels").mkdir(parents=True)
    wheels(folder / "build" / "wheels")
    return folder


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Buildah:
    """buildah with the built image in its store."""
    missing = [name for name in ("buildah", "mmdebstrap", "unshare", "chroot") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and {', '.join(missing) or 'nothing else'} (make test-matrix installs it)")
    tool = Buildah(tmp_path_factory.mktemp("buildah"))
    for tag, name, packages in ((BASE, "base", PACKAGES), (BUILD_BASE, "build-base", BUILD_PACKAGES)):
        container = tool("from", "scratch")
        tool("add", "--quiet", container, base_archive(name, packages), "/")
        tool("commit", "--quiet", "--rm", container, tag)
    arguments = {"BUILD_BASE": BUILD_BASE, "BASE": BASE, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/src/build/wheels"}
    options = [part for name, value in arguments.items() for part in ("--build-arg", f"{name}={value}")]
    folder = context(tmp_path_factory.mktemp("context"))
    tool("bud", "--format", "docker", *options, "--file", "Dockerfile", "--tag", IMAGE, ".", where=folder)
    return tool


@pytest.fixture(scope="module")
def root(buildah: Buildah) -> Iterator[Path]:
    """The file system of a container."""
    container = buildah("from", IMAGE)
    yield Path(buildah("mount", container))
    buildah("umount", container)
    buildah("rm", container)


def inside(root: Path, *command: str) -> list[str]:
    """Return the command that runs ``command`` in the container, as the image's user on a read-only root."""
    user = "--userspec=10001:10001"
    script = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec chroot ' + user + ' "$0" "$@"'
    return ["unshare", "--mount", "sh", "-c", script, str(root), *command]


def configuration(buildah: Buildah) -> dict[str, Any]:
    inspected = json.loads(buildah("inspect", "--type", "image", IMAGE))
    config: dict[str, Any] = inspected["Docker"]["config"]
    return config


def test_the_image_runs_the_sidecar_as_an_unprivileged_user(buildah: Buildah) -> None:
    config = configuration(buildah)
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"] + config["Cmd"] == ["oxproxy", "serve", "--config", "/etc/oxproxy/oxproxy.yaml"]
    assert config["StopSignal"] == "SIGTERM"


def test_the_image_has_a_health_check_that_needs_no_shell(buildah: Buildah) -> None:
    assert configuration(buildah)["Healthcheck"]["Test"][0] == "CMD"


def test_the_image_contains_no_build_tools(root: Path) -> None:
    folders = [root / name for name in ("usr/bin", "usr/local/bin", "bin", "usr/sbin", "opt/oxproxy/bin")]
    tools = [str(folder / name) for folder in folders for name in TOOLS if (folder / name).exists()]
    assert tools == []


def test_the_publish_path_is_compiled(root: Path) -> None:
    version = subprocess.run(inside(root, "/opt/oxproxy/bin/oxproxy", "--version"), capture_output=True, check=True)
    assert b"(compiled, " in version.stdout


def test_no_file_has_the_setuid_or_setgid_bit(root: Path) -> None:
    modes = [path.lstat() for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    assert [mode for mode in modes if mode.st_mode & 0o6000] == []


def test_neither_java_nor_spark_are_in_the_sidecars_image(root: Path) -> None:
    assert not list((root / "opt/oxproxy").glob("lib/python*/site-packages/pyspark*"))
    assert not (root / "usr/bin/java").exists()


def test_the_container_routes_messages_and_drains_with_a_read_only_root(root: Path, tmp_path: Path) -> None:
    (root / "etc/oxproxy/rules").mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "config" / "rules" / "documents.yaml", root / "etc/oxproxy/rules")
    port, admin = free_port(), free_port()
    with PrivateBroker() as broker:
        settings = {
            "listen": [{"address": f"127.0.0.1:{port}"}],
            "upstream": {"address": broker.address, "management": broker.management},
            "rules": ["rules/*.yaml"],
            "admin": {"address": f"0.0.0.0:{admin}"},
        }
        (root / "etc/oxproxy/oxproxy.yaml").write_text(yaml.safe_dump(settings))
        serve = inside(root, "/opt/oxproxy/bin/oxproxy", "serve", "--config", "/etc/oxproxy/oxproxy.yaml")
        container = Watched(tmp_path, [serve], {"PATH": os.environ["PATH"]}, tmp_path / "log", 15.0)
        deadline = time.monotonic() + START_SECONDS
        while not is_ready(f"http://127.0.0.1:{admin}/readyz"):
            assert container.running, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.1)
        check = inside(root, "/opt/oxproxy/bin/python", "/opt/oxproxy/healthcheck.py")
        assert subprocess.run(check, check=False).returncode == 0
        with pika_channel(port) as channel:
            properties = pika.BasicProperties(headers={"document.type": "public"})
            channel.basic_publish("documents", "a.b", b"body", properties, mandatory=True)
            assert channel.basic_get("documents.public", auto_ack=True)[2] == b"body"
        assert container.end(), "it did not end with 0 after SIGTERM"
