"""Tests the source tree: packages, names, imports of libraries, and strings that no tracked file may contain."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROXY = ROOT / "proxy/oxproxy"

#: Module names that do not describe their content.
EMPTY_NAMES = {"util", "utils", "helper", "helpers", "common", "manager", "base", "misc"}

#: The packages that may import a library.
OWNERS = {
    "aio_pika": {"broker"},
    "aiohttp": {"admin", "broker"},
    "aiormq": {"broker"},
    "argparse": {"cli"},
    "ctypes": {"routing"},
    "duckdb": {"report"},
    "jinja2": {"report"},
    "pamqp": {"amqp"},
    # admin uses it only to negotiate the content type, and cli to read the page
    "prometheus_client": {"observe", "admin", "cli"},
    "py4j": {"report"},
    "pydantic": {"cli", "config", "rules", "yamlfile"},
    "pydantic_core": {"cli", "yamlfile"},
    "pyspark": {"report"},
    "isal": {"audit"},
    "rich": {"cli"},
    "uvloop": {"app"},
    "yaml": {"yamlfile"},
}

#: Largest number of modules in a directory, without `__init__`. The directory of commands is exempt.
MOST_MODULES = 16
OF_COMMANDS = "proxy/oxproxy/cli"

#: Strings that no tracked file may contain. They are split, so that this file can be searched too.
FORBIDDEN = {
    "an absolute path of one machine": re.compile(r"/(?:work|root|home|Users)" + r"/\w"),
    "a path outside the project": re.compile(r"\.\./" + "shared"),
    "a package registry": re.compile("|".join(("pypi" + r"\.org", "files" + r"\.pythonhosted", "index" + "-url"))),
    "unfinished work": re.compile(r"\b(?:TO" + "DO|FIX" + r"ME)\b"),
}

TEXT_ENDINGS = {"", ".md", ".py", ".toml", ".txt", ".yaml", ".yml", ".json", ".cfg", ".sh"}


def modules(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def package(path: Path) -> str:
    return path.relative_to(PROXY).parts[0].removesuffix(".py")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the modules that a module imports, with the imported name."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, f"{named(path)}:{node.lineno}: a relative import"
            yield from ((node.module, alias.name) for alias in node.names)


def tracked_texts() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git work tree")
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    return [path for path in paths if path.suffix in TEXT_ENDINGS and path.is_file()]


@pytest.mark.parametrize("path", sorted(PROXY.rglob("__init__.py")), ids=named)
def test_a_package_docstring_names_all_modules_of_the_package(path: Path) -> None:
    body = parsed(path).body
    # The root also chooses between compiled modules and sources, and exports the library.
    assert path.parent == PROXY or len(body) == 1
    text = ast.get_docstring(ast.Module(body, []))
    assert text is not None
    missing = [
        child.stem
        for child in path.parent.iterdir()
        if (child.suffix == ".py" and child != path) or (child / "__init__.py").exists()
        if path.parent != PROXY and not re.search(rf"\b{child.stem}\b", text)
    ]
    assert missing == [], "the docstring of a package describes each of its modules"


def test_no_init_has_a_docstring() -> None:
    """Arguments are documented in the docstring of the class, which help() and editors show."""
    documented = [
        f"{named(path)}:{node.lineno}"
        for path in modules(PROXY)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef) and node.name == "__init__" and ast.get_docstring(node)
    ]
    assert documented == []


def test_no_directory_has_too_many_modules() -> None:
    held = Counter(named(path.parent) for path in modules(PROXY) if path.stem != "__init__")
    crowded = {directory: count for directory, count in held.items() if count > MOST_MODULES}
    assert crowded.keys() <= {OF_COMMANDS}


def test_no_module_has_a_name_without_meaning() -> None:
    assert [named(path) for path in modules(PROXY) if path.stem in EMPTY_NAMES] == []


def test_no_public_class_has_the_name_of_another() -> None:
    places: dict[str, list[str]] = {}
    for path in modules(PROXY):
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(named(path))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_packages_import_downwards() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_library_is_imported_only_by_its_packages() -> None:
    violations = [
        f"{named(path)}: {module}"
        for path in modules(PROXY)
        for module, _ in imported(path)
        if (library := module.split(".")[0]) in OWNERS and package(path) not in OWNERS[library]
    ]
    assert violations == []


def test_modules_import_without_cycles() -> None:
    """Imports under TYPE_CHECKING are included, because compiled modules crash on cycles."""
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in modules(PROXY)}
    graph = {
        name: {f"{module}.{member}" if f"{module}.{member}" in paths else module for module, member in imported(path)}
        & paths.keys()
        for name, path in paths.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_tracked_file_contains(what: str) -> None:
    matches = [
        f"{named(path)}:{number}: {line.strip()[:80]}"
        for path in tracked_texts()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if FORBIDDEN[what].search(line)
    ]
    assert matches == []


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = [line for lines in project["project"]["optional-dependencies"].values() for line in lines]
    requirements = [*project["project"]["dependencies"], *extras, *project["dependency-groups"]["dev"]]
    pins = (ROOT / "deploy/local/requirements.txt").read_text().splitlines()
    pinned = {normal(line.split("==")[0]) for line in pins if "==" in line}
    assert {normal(re.split(r"[^\w.-]", line)[0]) for line in requirements} - pinned == set()


def normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def test_every_make_target_has_a_description() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: help (.*)$", makefile, re.MULTILINE)
    assert targets is not None
    explained = re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE)
    assert sorted(targets[1].split()) == sorted(explained)
