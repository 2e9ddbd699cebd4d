"""Checks the wording of what users read: ``python -m deploy.wording``, a part of ``make check``.

Pages, examples, alerts, the chart, the console and the messages of ``proxy`` use the standard terms that `LEFT_OUT`
gives. A word in code markup is an identifier and is not checked.

Exit status: 0 nothing found, 1 something found.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: Words that are left out, and what is written instead.
LEFT_OUT = {
    r"anew": "again",
    r"beside": "alongside, in addition to, next to",
    r"behind": "after",
    r"folders?": "directory",
    r"processors?": "CPU",
    r"past the (?:rules|sidecar)": "bypass, without",
    r"whoever|nobody": "name the subject: producer, user, queue",
    r"turned away|sent away": "rejected, refused",
    r"(?:loud|silent) (?:filters?|ones?)": "rejected, dropped silently",
    r"waited for without end": "retries indefinitely",
    r"process turns": "event loop is responsive",
    r"in doubt": "unknown, unconfirmed",
    r"hurry|forgive|strays?|speakers?|portions?|spindle": "back-off, orphan, snapshot or another standard term",
    r"as ever": "as usual",
    r"leads? nowhere": "has no effect, is invalid, does not exist",
    r"as it came|as they came": "unchanged",
    r"the other one|another one": "name the noun",
    r"(?:ask|asks|asked) (?:the|a) (?:broker|sidecar)": "query",
    r"(?:messages|bytes|publishes|connections|logins|times|lines) a second": "per second",
    r"whatever (?:is|the|its)": "regardless of",
    r"that is not there|are not there|is not there": "missing, does not exist",
    r"of its own": "own, separate",
}
_LEFT_OUT = re.compile(rf"\b(?:{'|'.join(f'(?:{pattern})' for pattern in LEFT_OUT)})\b", re.IGNORECASE)
_CODE = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)]*\)|^    .*$", re.DOTALL | re.MULTILINE)
_PAGES = ("*.md", "docs/**/*.md", "helm/oxproxy/*.md")
_PLAIN = (
    "config/**/*.yaml",
    "deploy/prometheus/**/*.yaml",
    "deploy/grafana/*.py",
    "helm/oxproxy/values.yaml",
    "helm/oxproxy/templates/NOTES.txt",
    "proxy/admin/static/*",
)


def _pages() -> Iterator[tuple[Path, int, str]]:
    """Yield file, first line and text of everything that is checked."""
    for pattern in _PAGES:
        for path in sorted(ROOT.glob(pattern)):
            yield path, 1, _CODE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), path.read_text())
    for pattern in _PLAIN:
        for path in sorted(ROOT.glob(pattern)):
            yield path, 1, path.read_text()
    for path in sorted((ROOT / "proxy").rglob("*.py")):
        if "_native" not in path.name:
            yield from ((path, line, text) for line, text in _messages(ast.parse(path.read_text())))


def _messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of the string literals that are sentences; docstrings are not."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            sql = re.search(r"\b(?:SELECT|WHERE|IS NULL|DATE)\b", node.value)
            if " " in node.value and not sql:
                yield node.lineno, node.value


def findings() -> list[str]:
    """Return ``file:line: word: what is written instead`` for everything found."""
    found = []
    for path, first, text in _pages():
        for match in _LEFT_OUT.finditer(text):
            line = first + text.count("\n", 0, match.start())
            instead = next(use for pattern, use in LEFT_OUT.items() if re.fullmatch(pattern, match[0], re.IGNORECASE))
            found.append(f"{path.relative_to(ROOT)}:{line}: {match[0]!r}: {instead}")
    return found


def main() -> int:
    """Print what was found."""
    found = findings()
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
