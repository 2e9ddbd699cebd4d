"""Builds the image of deploy/docker/Dockerfile without a registry, a daemon or a container runtime.

mmdebstrap creates the base images from Debian's packages, and wheels of the dependencies come from a directory.
buildah builds in a chroot, which requires root.
"""

from __future__ import annotations

import os
import shutil
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.release.source import PINS, ROOT, run

BASE, BUILD_BASE = "localhost/oxproxy-base:1", "localhost/oxproxy-build-base:1"

#: Release of Debian, its version of Python, and packages of the base images. The image for the build also has a
#: compiler and headers. PCRE2 is named, although other packages of Debian need it.
SUITE, PYTHON_VERSION = "bookworm", "3.11"
PACKAGES = "python3,python3-venv,ca-certificates,libpcre2-8-0"
BUILD_PACKAGES = f"{PACKAGES},python3-dev,gcc,libc6-dev"

#: Files of Debian's packages that a program does not need. Licences in /usr/share/doc/*/copyright remain.
_EXCLUDED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
_INCLUDED = "/usr/share/doc/*/copyright"


class Buildah:
    """buildah with a private store.

    Args:
        folder: directory for the store.
    """

    def __init__(self, folder: Path) -> None:
        self._store = ("--root", str(folder / "store"), "--runroot", str(folder / "run"), "--storage-driver", "vfs")

    def __call__(self, *arguments: str | Path, where: Path = ROOT) -> str:
        """Run one of buildah's commands and return its output."""
        return run("buildah", *self._store, *arguments, where=where, more={"BUILDAH_ISOLATION": "chroot"}).strip()

    @contextmanager
    def mounted(self, image: str) -> Iterator[Path]:
        """Yield the file system of a container of this image, which is removed afterwards."""
        container = self("from", image)
        try:
            yield Path(self("mount", container))
        finally:
            self("umount", container)
            self("rm", container)


def missing() -> str:
    """Return what is missing to build an image; "" if nothing is missing."""
    lacking = [name for name in ("buildah", "mmdebstrap", "unshare", "chroot") if shutil.which(name) is None]
    if os.geteuid() != 0:
        lacking.insert(0, "root")
    return ", ".join(lacking)


def _base_archive(folder: Path, name: str, packages: str) -> Path:
    """Return a minimal Debian as an archive, which is created in ``folder`` unless it exists."""
    archive = folder / f"{name}-{SUITE}.tar"
    if not archive.exists():
        folder.mkdir(parents=True, exist_ok=True)
        half = archive.with_suffix(".half.tar")
        excluded = [f"--dpkgopt=path-exclude={pattern}" for pattern in _EXCLUDED]
        options = ["--variant=minbase", *excluded, f"--dpkgopt=path-include={_INCLUDED}", f"--include={packages}"]
        run("mmdebstrap", *options, SUITE, half)
        half.rename(archive)
    return archive


def build_context(source: Path, folder: Path) -> Path:
    """Return a directory with the build context of the Dockerfile, including wheels of all dependencies.

    Args:
        source: directory with the project's files.
        folder: the directory, which is created.
    """
    for line in (source / ".dockerignore").read_text().splitlines():
        origin = source / line[1:]
        if not line.startswith("!") or not origin.exists() or line == "!build/wheels":
            continue
        target = folder / line[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        if origin.is_dir():
            shutil.copytree(origin, target, ignore=shutil.ignore_patterns("__pycache__", "_native*"))
        else:
            shutil.copy(origin, target)
    shutil.copy(source / "deploy" / "docker" / "Dockerfile", folder)
    wheels = folder / "build" / "wheels"
    wheels.mkdir(parents=True)
    _download_wheels(source, wheels)
    return folder


def _download_wheels(source: Path, folder: Path) -> None:
    """Download wheels of everything that the image needs, for the base image's version of Python."""
    project = tomllib.loads((source / "pyproject.toml").read_text())
    hook = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"], *hook["dependencies"], "isal"]
    command = (sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--constraint", PINS)
    run(*command, "--python-version", PYTHON_VERSION, "--dest", folder, *wanted)


def build_image(buildah: Buildah, context: Path, bases: Path, image: str, time: int | None = None) -> None:
    """Build the image.

    Args:
        buildah: the store for the image.
        context: directory from `build_context`.
        bases: directory for the archives of the base images. Existing archives are used.
        image: name and tag of the image.
        time: None for an image in Docker's format. Otherwise, the image has the OCI format, which has no health check,
            and this is the time of all its files, in seconds since 1970.
    """
    for tag, name, packages in ((BASE, "base", PACKAGES), (BUILD_BASE, "build-base", BUILD_PACKAGES)):
        container = buildah("from", "scratch")
        buildah("add", "--quiet", container, _base_archive(bases, name, packages), "/")
        buildah("commit", "--quiet", "--rm", container, tag)
    arguments = {"BUILD_BASE": BUILD_BASE, "BASE": BASE, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/src/build/wheels"}
    options = [part for name, value in arguments.items() for part in ("--build-arg", f"{name}={value}")]
    options += ["--format", "docker"] if time is None else ["--format", "oci", "--timestamp", str(time)]
    # One layer: files that a later layer changes are not stored twice.
    options += ["--squash", "--file", "Dockerfile", "--tag", image]
    buildah("bud", *options, ".", where=context)


def write_archive(buildah: Buildah, image: str, archive: Path) -> None:
    """Write the image as an OCI archive, which podman, skopeo, buildah and Docker 25 or newer read."""
    archive.unlink(missing_ok=True)
    buildah("push", "--quiet", image, f"oci-archive:{archive}:{image.rpartition('/')[2]}")
