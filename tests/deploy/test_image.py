"""Builds the image without a registry, and runs it as an unprivileged user with a read-only root file system.

mmdebstrap creates the base image, and wheels come from a directory. buildah builds in a chroot, which requires root but
no daemon. The container is also run in a chroot.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.release.image import Buildah, build_context, build_image, missing
from deploy.release.source import ROOT, VERSION
from tests.deploy.container import inside, serve_and_route

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(900)]

IMAGE = f"localhost/oxproxy:{VERSION}"

#: Tools that build or install programs. They must not be in the image.
TOOLS = ("cc", "c++", "gcc", "g++", "clang", "ld", "as", "make", "cmake", "cargo", "go", "pip", "pip3", "git")


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Buildah:
    """buildah with the built image in its store."""
    if lacking := missing():
        pytest.skip(f"needs {lacking} (make test-matrix installs it)")
    tool = Buildah(tmp_path_factory.mktemp("buildah"))
    context = build_context(ROOT, tmp_path_factory.mktemp("image") / "context")
    build_image(tool, context, ROOT / "build" / "matrix", IMAGE)
    return tool


@pytest.fixture(scope="module")
def root(buildah: Buildah) -> Iterator[Path]:
    """The file system of a container."""
    with buildah.mounted(IMAGE) as root:
        yield root


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
    serve_and_route(root, tmp_path)
