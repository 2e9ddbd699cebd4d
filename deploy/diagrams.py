"""Draws the diagrams of docs/pictures: ``python -m deploy.diagrams`` writes NAME.svg for each NAME.yaml.

A diagram has a title, boxes on a grid and arrows between them:

    title: subject of the diagram
    grid: {columns: 4, width: 210, height: 90}      # width and height of a cell in pixels
    boxes:
      producer: {at: [0, 1], caption: any client}   # column and row of the centre; halves are allowed
    arrows:
      - {from: producer, to: sidecar, text: 1 publish}
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path
from typing import Any

import yaml

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"

_BOX_WIDTH, _BOX_HEIGHT, _MARGIN, _LINE, _TEXT_ABOVE = 180, 52, 12, 10, 12
#: Pixels between two arrows that join the same boxes in both directions.
_APART = 14
_STYLE = """
  text { font: 600 14px system-ui, sans-serif; fill: #1b1f24; text-anchor: middle; dominant-baseline: central; }
  .caption, .label { font-weight: 400; font-size: 12px; fill: #57606a; }
  .label { paint-order: stroke; stroke: #ffffff; stroke-width: 5px; }
  rect { fill: #eef2f7; stroke: #57606a; }
  .ours { fill: #ddf4ff; stroke: #0969da; }
  .arrow { fill: none; stroke: #57606a; stroke-width: 1.4; marker-end: url(#head); }
  #head path { fill: #57606a; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .caption, .label { fill: #9da7b3; } .label { stroke: #0d1117; }
    rect { fill: #21262d; stroke: #8b949e; } .ours { fill: #0c2d6b; stroke: #58a6ff; }
    .arrow { stroke: #8b949e; } #head path { fill: #8b949e; }
  }
"""


class Diagram:
    """A diagram, read from its YAML text."""

    def __init__(self, text: str) -> None:
        source: dict[str, Any] = yaml.safe_load(text)
        self.title: str = source["title"]
        self._grid: dict[str, float] = source["grid"]
        self._boxes: dict[str, dict[str, Any]] = source["boxes"]
        self._arrows: list[dict[str, str]] = source["arrows"]

    def svg(self) -> str:
        width = self._grid["columns"] * self._grid["width"]
        height = max(self._centre(name)[1] for name in self._boxes) + _BOX_HEIGHT / 2 + _MARGIN
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">',
            f"<title>{escape(self.title)}</title>",
            f"<style>{_STYLE}</style>",
            '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
            '<path d="M0 0 8 4 0 8z"/></marker></defs>',
            *map(self._arrow, self._arrows),
            *map(self._box, self._boxes),
            *map(self._label, self._arrows),
        ]
        return "\n".join(part for part in parts if part) + "\n</svg>\n"

    def _centre(self, name: str) -> tuple[float, float]:
        column, row = self._boxes[name]["at"]
        return (column + 0.5) * self._grid["width"], row * self._grid["height"] + _BOX_HEIGHT / 2 + _MARGIN

    def _box(self, name: str) -> str:
        x, y = self._centre(name)
        box = self._boxes[name]
        caption = box.get("caption", "")
        ours = ' class="ours"' if box.get("ours") else ""
        raised = _LINE if caption else 0
        rows = [
            f'<rect x="{x - _BOX_WIDTH / 2:g}" y="{y - _BOX_HEIGHT / 2:g}" width="{_BOX_WIDTH}" '
            f'height="{_BOX_HEIGHT}" rx="6"{ours}/>',
            f'<text x="{x:g}" y="{y - raised:g}">{escape(box.get("text", name))}</text>',
        ]
        if caption:
            rows.append(f'<text class="caption" x="{x:g}" y="{y + _LINE:g}">{escape(caption)}</text>')
        return "\n".join(rows)

    def _ends(self, arrow: dict[str, str]) -> tuple[float, float, float, float]:
        """Return both ends of an arrow: at the top and bottom of boxes in the same column, otherwise at their sides."""
        (from_x, from_y), (to_x, to_y) = self._centre(arrow["from"]), self._centre(arrow["to"])
        back = any(other["from"] == arrow["to"] and other["to"] == arrow["from"] for other in self._arrows)
        aside = (_APART if from_x < to_x or from_y < to_y else -_APART) if back else 0
        if from_x == to_x:
            sign = 1 if to_y > from_y else -1
            return from_x + aside, from_y + sign * _BOX_HEIGHT / 2, to_x + aside, to_y - sign * _BOX_HEIGHT / 2
        sign = 1 if to_x > from_x else -1
        return from_x + sign * _BOX_WIDTH / 2, from_y - aside, to_x - sign * _BOX_WIDTH / 2, to_y - aside

    def _arrow(self, arrow: dict[str, str]) -> str:
        from_x, from_y, to_x, to_y = self._ends(arrow)
        middle = (from_x + to_x) / 2
        bend = f"C{middle:g} {from_y:g} {middle:g} {to_y:g} " if from_x != to_x and from_y != to_y else "L"
        return f'<path class="arrow" d="M{from_x:g} {from_y:g} {bend}{to_x:g} {to_y:g}"/>'

    def _label(self, arrow: dict[str, str]) -> str:
        if "text" not in arrow:
            return ""
        from_x, from_y, to_x, to_y = self._ends(arrow)
        x, y = (from_x + to_x) / 2, (from_y + to_y) / 2
        if from_y == to_y:
            y += _TEXT_ABOVE if from_x > to_x else -_TEXT_ABOVE
        return f'<text class="label" x="{x:g}" y="{y:g}">{escape(arrow["text"])}</text>'


def pictures() -> dict[Path, str]:
    """Return each picture's file and its expected content."""
    return {path.with_suffix(".svg"): Diagram(path.read_text()).svg() for path in sorted(PICTURES.glob("*.yaml"))}


def main() -> int:
    for path, text in pictures().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
