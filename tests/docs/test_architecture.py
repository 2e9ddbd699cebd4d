"""Tests docs/explanation/architecture.md against the source tree: picture, paths, classes, threads and bounds."""

from __future__ import annotations

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest

from deploy.package_map import FOUNDATION, PICTURE, PLACES, SHOWN, description, imports, picture

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
CODE = re.findall(r"`([^`\n]+)`", PAGE)


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(title: str) -> list[str]:
    """Return the rows of the table in a section, without its header."""
    return [line for line in section(title).splitlines() if line.startswith("| ")][1:]


def test_the_picture_is_up_to_date() -> None:
    assert PICTURE.read_text() == picture(), "run python -m deploy.package_map"


def test_the_alternative_text_of_the_picture_is_up_to_date() -> None:
    link = SHOWN.search(PAGE)
    assert link is not None
    assert description() in link[1], "run python -m deploy.package_map"


def test_every_package_is_in_the_picture() -> None:
    assert imports().keys() == PLACES.keys()


def test_every_arrow_of_the_picture_points_downwards() -> None:
    upwards = [
        (name, target)
        for name, targets in imports().items()
        for target in targets - FOUNDATION
        if PLACES[target].row <= PLACES[name].row
    ]
    assert upwards == []


def test_every_package_has_a_row_on_the_page() -> None:
    cells = [line.split("|")[1] for line in rows("The packages")]
    described = {name for cell in cells for name in re.findall(r"`proxy/oxproxy/(\w+)", cell)}
    assert described == PLACES.keys()


@pytest.mark.parametrize(
    "page",
    [*sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "tests").rglob("*.md")), *sorted(ROOT.glob("*.md"))],
    ids=lambda page: page.stem,
)
def test_every_path_in_a_page_exists(page: Path) -> None:
    named = re.findall(r"`((?:proxy|tests|deploy|docs|config|helm)/[\w./-]*)`", page.read_text())
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def test_every_section_referenced_in_code_exists() -> None:
    headings = set(re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE))
    cited = {
        title
        for path in (ROOT / "proxy/oxproxy").rglob("*.py")
        for titles in re.findall(r'architecture(?:\.md)?,?((?:(?: and)? "[^"]+")+)', path.read_text())
        for title in re.findall(r'"([^"]+)"', titles)
    }
    assert cited
    assert cited - headings == set()


@cache
def trees() -> list[ast.Module]:
    return [ast.parse(path.read_text()) for path in (ROOT / "proxy/oxproxy").rglob("*.py")]


def members(kind: ast.ClassDef) -> set[str]:
    """Return the methods of a class, and the attributes that are assigned anywhere in its body."""
    names = {node.name for node in kind.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for node in ast.walk(kind):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def test_every_class_and_member_on_the_page_exists() -> None:
    classes: dict[str, set[str]] = {}
    for node in (node for tree in trees() for node in ast.walk(tree)):
        if isinstance(node, ast.ClassDef):
            classes.setdefault(node.name, set()).update(members(node))
    named = [text.partition(".")[::2] for text in CODE if re.fullmatch(r"(?:[A-Z][a-z]+)+(?:\.\w+)?", text)]
    assert len(named) > 50
    assert [name for name, _ in named if name not in classes] == []
    assert [f"{name}.{member}" for name, member in named if member and member not in classes[name]] == []


def test_every_constant_on_the_page_exists() -> None:
    stored = {
        node.id
        for tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    named = {text for text in CODE if re.fullmatch(r"_?[A-Z]+(?:_[A-Z]+)*", text)} - {"BCC", "CC"}
    assert named
    assert sorted(named - stored) == []


def test_the_threads_on_the_page_are_those_that_are_started() -> None:
    started = {
        keyword.value.value
        for tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "threading.Thread"
        for keyword in node.keywords
        if keyword.arg == "name" and isinstance(keyword.value, ast.Constant)
    }
    named = {name for line in rows("Threads and tasks") for name in re.findall(r"^\| `([\w-]+)` \|", line)}
    assert named == started


@pytest.mark.parametrize("row", rows("Caches"))
def test_the_bounds_of_caches_equal_those_in_the_code(row: str) -> None:
    path = re.search(r"`proxy/oxproxy/([\w/]+)\.py`", row)
    assert path is not None
    module = importlib.import_module(f"oxproxy.{path[1].replace('/', '.')}")
    bounds = re.findall(r"([\d,]+)(?: \w+)? \(`(\w+)`\)", row)
    assert bounds
    for number, name in bounds:
        bound = getattr(module, name)
        if hasattr(bound, "cache_parameters"):
            bound = bound.cache_parameters()["maxsize"]
        assert bound == int(number.replace(",", "")), name
