"""Writes an archive with everything that the report needs in addition to Spark:
``python -m deploy.spark.archive FILE``.

spark-submit distributes the archive with ``--py-files``. The archive contains this package, PyYAML and pamqp for
reading rules files, and Jinja for writing pages. All of these consist only of Python and text, so the archive works on
every machine. Executors use the archive to convert and merge segments. Reading rules files also requires pydantic,
which is compiled and has to be installed: on the machine of the driver, and for back-tests on those of the executors.
"""

from __future__ import annotations

import sys
import tomllib
import zipfile
from pathlib import Path

import jinja2
import markupsafe
import pamqp
import yaml

ROOT = Path(__file__).resolve().parents[2]
#: The earliest possible date in zip archives, used so that equal content results in equal archives.
_NO_DATE = (1980, 1, 1, 0, 0, 0)


def write(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        libraries = [Path(str(module.__file__)).parent for module in (yaml, pamqp, jinja2, markupsafe)]
        for package in (ROOT / "proxy/oxproxy", *libraries):
            for path in sorted([*package.rglob("*.py"), *package.rglob("templates/*"), *package.rglob("sql/*.sql")]):
                _add(archive, path.relative_to(package.parent).as_posix(), path.read_bytes())
        # The command reads its own version from the metadata.
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        name, version = project["name"], project["version"]
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        _add(archive, f"{name.replace('-', '_')}-{version}.dist-info/METADATA", metadata.encode())


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _NO_DATE)
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, content)


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m deploy.spark.archive FILE", file=sys.stderr)
        return 2
    write(Path(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
