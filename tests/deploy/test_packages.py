"""Tests the contents of sdist and wheel, and runs the wheel in a separate environment."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest
import yaml

from deploy.chart.readme import CHART
from deploy.native import NO_COMPILER
from deploy.release import source
from deploy.release.packages import build_chart, build_sdist_and_wheel
from deploy.release.source import ROOT, VERSION, BuildError, commit_time, copy_tracked
from tests.deploy.helm.rendering import CONTROL, rendered, variant

RULES = ROOT / "config" / "rules" / "documents.yaml"


def run(*command: str | Path, where: Path, **more: str) -> str:
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"} | more
    arguments = list(map(str, command))
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=where, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built(folder: Path) -> Path:
    """Build the sdist, the wheel that is built from the sdist, and the chart, and return the directory."""
    time = commit_time()
    source = copy_tracked(folder / "source", time)
    build_sdist_and_wheel(source, folder, time)
    build_chart(source, folder)
    return folder


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="module")
def clean(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin directory of an environment in which the wheel and its dependencies are installed."""
    return installed(next(packages.glob("*.whl")), tmp_path_factory.mktemp("clean"))


def installed(wheel: Path, folder: Path) -> Path:
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-index", "--no-deps", wheel, where=folder)
    # Dependencies are added with a path file. Path files inside the added directory, such as that of the editable
    # installation, are ignored.
    inner = next(folder.glob("lib/python*/site-packages"))
    (inner / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder / "bin"


def members(packages: Path) -> Iterator[str]:
    with tarfile.open(next(packages.glob("*.tar.gz"))) as archive:
        for name in archive.getnames():
            yield name.partition("/")[2]


def test_two_builds_of_a_commit_are_equal(packages: Path, tmp_path: Path) -> None:
    contents = [
        {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        for folder in (packages, built(tmp_path))
    ]
    assert set(contents[0]) == {
        f"oxproxy-{VERSION}.tar.gz",
        f"oxproxy-{VERSION}-py3-none-any.whl",
        f"oxproxy-{chart_version()}.tgz",
    }
    differing = [name for name, content in contents[0].items() if contents[1][name] != content]
    assert differing == []


def chart_version() -> str:
    version: str = yaml.safe_load((ROOT / "helm" / "oxproxy" / "Chart.yaml").read_text())["version"]
    return version


def test_the_packed_chart_renders_as_the_directory(packages: Path) -> None:
    values = CONTROL | variant("gateway")
    results = [rendered(values, chart) for chart in (packages / f"oxproxy-{chart_version()}.tgz", CHART)]
    for templates in results:
        assert templates.pop("oxproxy/templates/secret-declared.yaml")  # contains a random secret
    assert results[0] == results[1]


def test_a_build_command_that_fails_shows_its_output() -> None:
    with pytest.raises(BuildError, match="status 3\nout\nerror"):
        source.run("sh", "-c", "echo out; echo error >&2; exit 3")
    with pytest.raises(BuildError, match="no-such-program: No such file"):
        source.run("no-such-program")


def test_the_wheel_contains_only_the_package(packages: Path) -> None:
    with zipfile.ZipFile(next(packages.glob("*.whl"))) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
        names = set(archive.namelist())
    data = f"oxproxy-{VERSION}.data"
    assert tops == {"oxproxy", f"oxproxy-{VERSION}.dist-info", data}
    assert {name for name in names if name.startswith(data)} == {f"{data}/data/share/man/man1/oxproxy.1"}
    assert any(name.endswith("/LICENSE") for name in names)


def test_the_wheel_requires_spark_only_for_the_report(packages: Path) -> None:
    with zipfile.ZipFile(next(packages.glob("*.whl"))) as archive:
        metadata = Parser().parsestr(archive.read(f"oxproxy-{VERSION}.dist-info/METADATA").decode())
    spark = [line for line in metadata.get_all("Requires-Dist", []) if line.startswith("pyspark")]
    assert len(spark) == 1
    assert "extra == 'report'" in spark[0].replace('"', "'")


def test_the_sdist_contains_tests_and_documentation_but_no_build_output(packages: Path) -> None:
    tops = {name.partition("/")[0] for name in members(packages)}
    assert {"proxy", "tests", "config", "deploy", "docs", "helm", "Makefile", "CHANGELOG.md"} <= tops
    assert tops & {".venv", "build", "dist", ".git"} == set()


def test_the_installed_program_prints_its_version(clean: Path) -> None:
    assert run(clean / "oxproxy", "--version", where=clean).startswith(f"oxproxy {VERSION} (interpreted, ")


def test_the_installed_program_imports_the_package_of_the_wheel(clean: Path) -> None:
    location = run(clean / "python", "-c", "import oxproxy; print(oxproxy.__file__)", where=clean)
    assert Path(location.strip()).is_relative_to(clean.parent)


def test_the_installed_program_checks_rules(clean: Path) -> None:
    assert run(clean / "oxproxy", "check", RULES, where=clean).startswith("ok")


@pytest.mark.timeout(300)  # includes the compilation
def test_a_wheel_with_compiled_modules_runs_them_unless_disabled_or_edited(tmp_path: Path) -> None:
    compiles = subprocess.run([sys.executable, "-m", "deploy.native"], cwd=ROOT, capture_output=True, check=False)
    if compiles.returncode == NO_COMPILER and not os.environ.get("CI"):
        pytest.skip(compiles.stdout.decode())
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT)
    run(*build, where=tmp_path, HATCH_BUILD_HOOKS_ENABLE="true")
    (wheel,) = tmp_path.glob("*.whl")
    assert not wheel.stem.endswith("-none-any")
    programs = installed(wheel, tmp_path / "environment")
    assert run(programs / "oxproxy", "--version", where=tmp_path).startswith(f"oxproxy {VERSION} (compiled, ")
    assert run(programs / "oxproxy", "check", RULES, where=tmp_path).startswith("ok")
    interpreted = run(programs / "oxproxy", "--version", where=tmp_path, PURE_PYTHON="1")
    assert interpreted.startswith(f"oxproxy {VERSION} (interpreted, ")
    engine = next(tmp_path.glob("environment/lib/python*/site-packages/oxproxy/routing/engine.py"))
    engine.write_text(engine.read_text() + "# edited\n")
    assert run(programs / "oxproxy", "--version", where=tmp_path).startswith(f"oxproxy {VERSION} (interpreted, ")
