"""Runs the archive for spark-submit in a Python without installed packages."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

from deploy.spark import archive

ROOT = Path(__file__).resolve().parents[2]

#: Runs the report from the archive without installed packages, and prints the path of the imported package.
ALONE = """
import sys
sys.path[:0] = sys.argv[1:2]
import oxproxy, runpy
print(oxproxy.__file__)
sys.argv = ["report.py", *sys.argv[3:]]
runpy.run_path({program!r}, run_name="__main__")
"""


def run(packed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = ALONE.format(program=str(ROOT / "deploy/spark/report.py"))
    command = [sys.executable, "-I", "-S", "-c", program, str(packed), "--", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_archive_requires_only_duckdb_and_for_rules_files_pydantic(tmp_path: Path) -> None:
    packed = tmp_path / "packed.zip"
    archive.write(packed)
    rules = ROOT / "config/rules/documents.yaml"
    for more, message in (((), "needs duckdb"), (("--rules", str(rules)), "needs pydantic")):
        done = run(packed, "--input", str(tmp_path), "--output", str(tmp_path / "out"), *more)
        assert done.stdout.startswith(str(packed))
        assert done.returncode == 2, done.stderr
        assert message in done.stderr


def test_the_archive_is_reproducible_and_contains_no_compiled_files(tmp_path: Path) -> None:
    packed = [tmp_path / name for name in ("one.zip", "folder/two.zip")]
    for path in packed:
        archive.write(path)
    assert packed[0].read_bytes() == packed[1].read_bytes()
    names = zipfile.ZipFile(packed[0]).namelist()
    assert {Path(name).suffix for name in names if ".dist-info/" not in name} == {".py", ".html", ".css", ".sql"}
    assert {"oxproxy", "yaml", "pamqp", "jinja2", "markupsafe"} < {name.partition("/")[0] for name in names}


def test_the_archive_and_the_packages_of_spark_suffice_to_render_a_page(tmp_path: Path) -> None:
    packed, installed = tmp_path / "packed.zip", tmp_path / "installed"
    archive.write(packed)
    installed.mkdir()
    for name in ("duckdb", "pyspark", "py4j"):
        for path in Path(sysconfig.get_path("platlib")).glob(f"*{name}*"):
            (installed / path.name).symlink_to(path)
    program = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from datetime import datetime\n"
        "from oxproxy.report.figures import Figures\n"
        "from oxproxy.report.pages import render\n"
        "print(render(Figures((), datetime(2026, 11, 20))))"
    )
    command = [sys.executable, "-I", "-S", "-c", program, str(packed), str(installed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Nothing was published" in done.stdout, done.stderr
    assert "prefers-color-scheme" in done.stdout
