"""Builds sdist, wheels and the package of the chart."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import helm_python

from deploy.release.source import BuildError, run

#: Links without the directory of this machine's Python, which Python's own command adds as run path, and without
#: symbols.
_LINK = "cc -shared -s"
_AUDITWHEEL = (sys.executable, "-m", "auditwheel")


def build_sdist_and_wheel(source: Path, output: Path, time: int) -> None:
    """Build the sdist and, from it, the wheel that runs with every version of Python.

    Args:
        source: directory with the project's files.
        output: directory for the archives.
        time: time of the files in the archives, in seconds since 1970.
    """
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", output, source)
    run(*build, where=source, more={"SOURCE_DATE_EPOCH": str(time)})


def build_compiled_wheel(source: Path, output: Path, time: int, python: str = sys.executable) -> Path:
    """Build the wheel with the compiled publish path, for one version of Python and this platform, and return it.

    auditwheel names the oldest manylinux policy that the wheel meets. If it meets none, the wheel keeps the tag
    ``linux_x86_64``.

    Args:
        source: directory with the project's files.
        output: directory for the wheel.
        time: time of the files in the wheel, in seconds since 1970.
        python: interpreter in whose environment build, hatchling, mypy and setuptools are installed.

    Raises:
        BuildError: the modules cannot be compiled.
    """
    more = {"SOURCE_DATE_EPOCH": str(time), "HATCH_BUILD_HOOKS_ENABLE": "true", "LDSHARED": _LINK}
    with tempfile.TemporaryDirectory(prefix="oxproxy-wheel-") as place:
        build = (python, "-m", "build", "--wheel", "--no-isolation", "--outdir", place, source)
        run(*build, where=source, more=more)
        (wheel,) = Path(place).glob("*.whl")
        repaired = Path(place, "repaired")
        try:
            run(*_AUDITWHEEL, "repair", "--wheel-dir", repaired, wheel, where=Path(place), more=more)
            (wheel,) = repaired.glob("*.whl")
        except BuildError as error:
            print(f"{wheel.name} meets no manylinux policy and keeps its tag: {error}", file=sys.stderr)
        return Path(shutil.copy(wheel, output))


def make_build_environment(python: str, folder: Path, pins: Path) -> str:
    """Create an environment for `build_compiled_wheel` with another version of Python, and return its interpreter.

    Args:
        python: name or path of the other interpreter.
        folder: directory for the environment.
        pins: file with the exact versions of the tools.
    """
    run(python, "-m", "venv", folder)
    inner = folder / "bin" / "python"
    tools = ("build", "hatchling", "mypy", "setuptools")
    run(inner, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", pins, *tools)
    return str(inner)


def build_chart(source: Path, output: Path) -> Path:
    """Pack the chart, as ``helm package`` does, and return the archive. Its files keep their times of modification."""
    return Path(helm_python.package(source / "helm" / "oxproxy", destination=output))
