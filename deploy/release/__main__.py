"""Builds all files of a release: ``python -m deploy.release``. `make dist` installs what it needs first.

Exit status: 0 if all files were built, 1 if a build command failed, 2 if a requirement is missing.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

from deploy.release import image, inventory, packages
from deploy.release.source import PINS, ROOT, VERSION, BuildError, commit_time, copy_tracked, run, uncommitted

_COMPLETIONS = {"bash": "oxproxy.bash", "zsh": "_oxproxy", "fish": "oxproxy.fish"}


def build_python_files(source: Path, output: Path, time: int, others: Sequence[str], work: Path) -> None:
    """Build sdist, wheels and chart, and everything that is derived from the wheel.

    Args:
        source: directory with the project's files.
        output: directory for the files.
        time: time of the commit, in seconds since 1970.
        others: further interpreters for which the publish path is compiled.
        work: directory for temporary files.
    """
    packages.build_sdist_and_wheel(source, output, time)
    packages.build_compiled_wheel(source, output, time)
    for number, other in enumerate(others):
        tools = packages.make_build_environment(other, work / f"python-{number}", PINS)
        packages.build_compiled_wheel(source, output, time, tools)
    packages.build_chart(source, output)
    shutil.copy(source / "docs" / "oxproxy.1", output)
    programs = install(output, work / "environment")
    for shell, name in _COMPLETIONS.items():
        (output / name).write_text(run(programs / "oxproxy", "completion", shell))
    python = programs / "python"
    (output / f"oxproxy-{VERSION}.cdx.json").write_text(inventory.bill_of_environment(python, time))
    (output / f"oxproxy-{VERSION}-licences.md").write_text(inventory.licences(python))


def install(wheels: Path, folder: Path) -> Path:
    """Install oxproxy from a directory with wheels, with its dependencies, and return the directory of programs."""
    venv.create(folder)
    programs = folder / "bin"
    pip = (sys.executable, "-m", "pip", "--python", programs / "python", "--disable-pip-version-check")
    wheel = wheels / f"oxproxy-{VERSION}-py3-none-any.whl"
    run(*pip, "install", "--quiet", "--only-binary", ":all:", "--constraint", PINS, f"{wheel}[fast]")
    return programs


def build_image_files(source: Path, output: Path, time: int, work: Path) -> None:
    """Build the image and its SBOM.

    Args:
        source: directory with the project's files.
        output: directory for the files.
        time: time of the commit, in seconds since 1970.
        work: directory for temporary files.
    """
    name = f"localhost/oxproxy:{VERSION}"
    buildah = image.Buildah(work / "buildah")
    # New base images contain Debian's current security updates.
    image.build_image(buildah, image.build_context(source, work / "context"), work, name, time)
    image.write_archive(buildah, name, output / f"oxproxy-{VERSION}-image.oci.tar")
    with buildah.mounted(name) as root:
        (output / f"oxproxy-{VERSION}-image.cdx.json").write_text(inventory.bill_of_image(root, time))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.release", description="Builds all files of a release.")
    parser.add_argument("--output", metavar="DIR", type=Path, default=ROOT / "dist", help="directory, emptied first")
    parser.add_argument(
        "--python", metavar="PROGRAM", action="append", default=[], help="also compile for this Python; repeatable"
    )
    options = parser.parse_args()
    if lacking := image.missing():
        print(f"The image needs {lacking}.", file=sys.stderr)
        return 2
    if changed := uncommitted():
        print(f"The release contains uncommitted changes: {', '.join(changed)}", file=sys.stderr)
    output = options.output.resolve()
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    try:
        with tempfile.TemporaryDirectory(prefix="oxproxy-release-") as place:
            work, time = Path(place), commit_time()
            source = copy_tracked(work / "source", time)
            build_python_files(source, output, time, options.python, work)
            build_image_files(source, output, time, work)
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    (output / "SHA256SUMS").write_text(inventory.checksums(output))
    for path in sorted(output.iterdir()):
        print(f"{path.stat().st_size:>12,}  {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
