"""Generates the chart's README from its values, their comments and its templates.

Each key in values.yaml with a comment ``# -- TEXT`` above it becomes a row of a table. The examples are files that
tests render, and output of the Helm engine.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import helm_python
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "oxproxy"
PARENT = ROOT / "tests" / "deploy" / "helm" / "parent"

_COMMENT = re.compile(r"^( *)# -- (.*)$")
_MORE = re.compile(r"^ *# (.*)$")
_KEY = re.compile(r"^( *)([\w.-]+):")
_INDENT = 2


class Value(NamedTuple):
    """One row of the table."""

    key: str
    default: str
    about: str


def documented(text: str) -> Iterator[tuple[str, str]]:
    """Yield the dotted path and the comment of every documented key in a values file."""
    path: list[str] = []
    about: list[str] = []
    for line in text.splitlines():
        begins, more, key = _COMMENT.match(line), _MORE.match(line), _KEY.match(line)
        if begins:
            about = [begins[2]]
        elif about and more:
            about.append(more[1])
        elif key:
            path = [*path[: len(key[1]) // _INDENT], key[2]]
            if about:
                yield ".".join(path), " ".join(about)
            about = []


def values() -> list[Value]:
    text = (CHART / "values.yaml").read_text()
    tree = yaml.safe_load(text)
    return [Value(key, json.dumps(at(tree, key)), about) for key, about in documented(text)]


def at(tree: Any, key: str) -> Any:  # YAML of any shape
    """Return the value of a key given by its dotted path."""
    for name in key.split("."):
        tree = tree[name]
    return tree


def table() -> str:
    rows = [f"| `{value.key}` | `{value.default}` | {value.about} |" for value in values()]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows])


def snippet() -> str:
    """Return the part of a pod that a sidecar needs, from the chart's notes."""
    given = yaml.safe_load((CHART / "ci" / "sidecar-values.yaml").read_text())
    with helm_python.Chart.load(CHART) as chart:
        notes = chart.render(values=given, name="router", namespace="default")["oxproxy/templates/NOTES.txt"]
    # The hashes apply only to this example and are not needed in a container that is written by hand.
    lines = [line for line in notes[notes.index("metadata:\n") :].splitlines() if "checksum/" not in line]
    return "\n".join(lines).replace("  annotations:\n", "")


def without_heading_comment(path: Path) -> str:
    """Return a file without the comment at its top."""
    return re.sub(r"\A(#.*\n)+", "", path.read_text()).rstrip()


def readme() -> str:
    parts = {
        "gateway": without_heading_comment(CHART / "ci" / "gateway-values.yaml"),
        "sidecar": snippet(),
        "parent": (PARENT / "templates" / "deployment.yaml").read_text().rstrip(),
        "values": table(),
    }
    text = (CHART / "README.in.md").read_text()
    for name, part in parts.items():
        text = text.replace(f"@@{name}@@", part)
    return "<!-- Made by `python -m deploy.chart.build` from README.in.md and values.yaml. -->\n\n" + text


def packaged(folder: Path) -> Path:
    """Pack the chart into ``folder`` and return the archive."""
    return Path(helm_python.package(CHART, destination=folder))


def parent_with_dependency(folder: Path) -> Path:
    """Copy a parent chart into ``folder``, with this chart as its dependency."""
    (folder / "charts").mkdir(parents=True)
    for source in PARENT.rglob("*.yaml"):
        target = folder / source.relative_to(PARENT)
        target.parent.mkdir(exist_ok=True)
        target.write_text(source.read_text())
    with tempfile.TemporaryDirectory() as place:
        archive = packaged(Path(place))
        (folder / "charts" / archive.name).write_bytes(archive.read_bytes())
    return folder
