"""Draws the packages of ``oxproxy`` and their imports as docs/pictures/packages.svg: ``python -m deploy.package_map``.

An arrow points from a package to a package that it imports. Arrows implied by other arrows are omitted (transitive
reduction), as are arrows to the bottom row, which any package may import.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "pictures" / "packages.svg"
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
#: The link to the picture in the page, which has the alternative text and then the file.
SHOWN = re.compile(r"!\[([^\]]*)\](\(\.\./pictures/packages\.svg\))")


class Place(NamedTuple):
    """Position of a package in the picture, and its caption.

    Args:
        column: column of the package's centre; 0 is the middle.
        row: row from the top; arrows point downwards.
        caption: purpose of the package.
    """

    column: float
    row: int
    caption: str


PLACES = {
    "cli": Place(0.0, 0, "commands"),
    "app": Place(0.0, 1, "running process"),
    "report": Place(1.6, 1, "report on the audit log"),
    "admin": Place(-1.3, 2, "HTTP pages"),
    "net": Place(-0.5, 3, "sockets"),
    "library": Place(1.2, 3, "rules for programs"),
    "broker": Place(-2.0, 4, "control plane"),
    "rules": Place(-1.0, 4, "rules files"),
    "config": Place(0.0, 4, "configuration"),
    "audit": Place(1.0, 4, "audit log"),
    "observe": Place(2.0, 4, "metrics and logs"),
    "relay": Place(-0.7, 5, "producer connection"),
    "amqp": Place(-1.3, 6, "codec"),
    "routing": Place(0.2, 6, "decision"),
    "addressing": Place(0.2, 7, "address table"),
    "yamlfile": Place(-2.0, 8, "YAML with positions"),
    "values": Place(-1.0, 8, "field values"),
    "errors": Place(0.0, 8, "error families"),
    "garbage": Place(1.0, 8, "garbage collector"),
    "native": Place(2.0, 8, "compiled or sources"),
}
#: Modules that any package may import, to which no arrows are drawn.
FOUNDATION = frozenset(("yamlfile", "values", "errors", "garbage", "native"))

_WIDTH, _BOX_WIDTH, _BOX_HEIGHT, _COLUMN_WIDTH, _ROW_HEIGHT = 960, 160, 46, 190, 96
_MARGIN, _CAPTION_DROP, _BEND = 20, 10, 32
#: Pixels between two arrows at the edge of a box.
_SPREAD = 18
_STYLE = """
  text { font: 600 14px system-ui, sans-serif; fill: #1b1f24; text-anchor: middle; dominant-baseline: central; }
  .caption { font-weight: 400; font-size: 12px; fill: #57606a; }
  rect { fill: #eef2f7; stroke: #57606a; }
  .foundation { stroke-dasharray: 4 3; }
  .import { fill: none; stroke: #57606a; stroke-width: 1.4; marker-end: url(#head); }
  #head path { fill: #57606a; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .caption { fill: #9da7b3; } rect { fill: #21262d; stroke: #8b949e; }
    .import { stroke: #8b949e; } #head path { fill: #8b949e; }
  }
"""


@cache
def imports() -> dict[str, set[str]]:
    """Return which packages each package imports; a module directly in ``oxproxy`` counts as a package."""
    proxy = ROOT / "proxy/oxproxy"
    names = {path.parent.name for path in proxy.glob("*/__init__.py")}
    names |= {path.stem for path in proxy.glob("*.py") if path.stem != "__init__"}
    graph: dict[str, set[str]] = {name: set() for name in names}
    for path in proxy.rglob("*.py"):
        package = path.relative_to(proxy).parts[0].removesuffix(".py")
        if package in names:
            graph[package] |= names.intersection(_imported(ast.parse(path.read_text()))) - {package}
    return graph


def _imported(tree: ast.AST) -> Iterator[str]:
    """Yield the first name after ``oxproxy`` of each import."""
    for node in ast.walk(tree):
        modules: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        for module in modules:
            top, _, rest = module.partition(".")
            if top == "oxproxy":
                yield rest.partition(".")[0]


def reduced(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the graph without the edges that other edges imply."""
    return {
        name: {target for target in targets if not any(target in _reached(graph, via) for via in targets - {target})}
        for name, targets in graph.items()
    }


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    reached: set[str] = set()
    pending = [start]
    while pending:
        new = graph[pending.pop()] - reached
        reached |= new
        pending += new
    return reached


def arrows() -> dict[str, list[str]]:
    """Return the arrows of the picture by importing package, in the order of the picture."""
    graph = reduced({name: targets - FOUNDATION for name, targets in imports().items() if name not in FOUNDATION})
    return {name: sorted(graph[name], key=list(PLACES).index) for name in PLACES if graph.get(name)}


def description() -> str:
    """Return the alternative text of the picture."""
    importers: dict[tuple[str, ...], list[str]] = {}
    for name, targets in arrows().items():
        importers.setdefault(tuple(targets), []).append(name)
    sentences = [
        f"{_listed(names)} {'imports' if len(names) == 1 else 'import'} {_listed(targets)}"
        for targets, names in importers.items()
    ]
    return "; ".join([*sentences, f"the bottom row contains {_listed(name for name in PLACES if name in FOUNDATION)}"])


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def picture() -> str:
    """Return the picture as SVG text."""
    edges = [(name, target) for name, targets in arrows().items() for target in targets]
    height = max(map(_top, PLACES)) + _BOX_HEIGHT + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:g}" role="img">',
        "<title>The packages of oxproxy and their imports</title>",
        f"<desc>{escape(description())}</desc>",
        f"<style>{_STYLE}</style>",
        '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
        '<path d="M0 0 8 4 0 8z"/></marker></defs>',
    ]
    parts += [_arrow(edge, edges) for edge in edges]
    parts += [_box(name) for name in PLACES]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _box(name: str) -> str:
    left, top, centre = _centre(name) - _BOX_WIDTH / 2, _top(name), _centre(name)
    middle, caption = top + _BOX_HEIGHT / 2, escape(PLACES[name].caption)
    dashed = ' class="foundation"' if name in FOUNDATION else ""
    return "\n".join(
        (
            f'<rect x="{left:g}" y="{top:g}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="6"{dashed}/>',
            f'<text x="{centre:g}" y="{middle - _CAPTION_DROP:g}">{escape(name)}</text>',
            f'<text class="caption" x="{centre:g}" y="{middle + _CAPTION_DROP:g}">{caption}</text>',
        )
    )


def _arrow(edge: tuple[str, str], edges: list[tuple[str, str]]) -> str:
    source, target = edge
    from_x = _centre(source) + _shift(target, [to for name, to in edges if name == source])
    to_x = _centre(target) + _shift(source, [name for name, to in edges if to == target])
    from_y, to_y = _top(source) + _BOX_HEIGHT, _top(target)
    bends = f"{from_x:g} {from_y + _BEND:g} {to_x:g} {to_y - _BEND:g}"
    return f'<path class="import" d="M{from_x:g} {from_y:g} C{bends} {to_x:g} {to_y:g}"/>'


def _shift(name: str, neighbours: list[str]) -> float:
    """Return the offset of the arrow from or to `name` from the middle of a box, so that arrows do not overlap."""
    ordered = sorted(neighbours, key=_centre)
    return (ordered.index(name) - (len(ordered) - 1) / 2) * _SPREAD


def _centre(name: str) -> float:
    return _WIDTH / 2 + PLACES[name].column * _COLUMN_WIDTH


def _top(name: str) -> float:
    return _MARGIN + PLACES[name].row * _ROW_HEIGHT


def main() -> int:
    """Write the picture, and its alternative text to the page that shows it."""
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture())
    PAGE.write_text(SHOWN.sub(rf"![The packages of oxproxy and their imports: {description()}.]\2", PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
