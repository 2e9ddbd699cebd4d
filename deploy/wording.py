"""Checks the wording of texts: ``python -m deploy.wording``, a part of ``make check``.

Pages, examples, alerts, the chart and the console must not contain the words in `LEFT_OUT` and `PAGE_HABITS`; messages,
docstrings and comments in ``proxy`` must not contain those in `LEFT_OUT` and `CODE_HABITS`. Words in code markup are
identifiers and are not checked.

Exit status: 0 no findings, 1 findings.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: Words to avoid, and the terms to use instead.
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
    r"(?:ask|asks|asked) (?:the|a) (?:broker|sidecar)": "query",
    r"(?:messages|bytes|publishes|connections|logins|times|lines) a second": "per second",
    r"that is not there|are not there|is not there": "missing, does not exist",
    r"(?:seen|got) (?:none|nothing)": "missing, not set, empty",
    r"seen [^,]+, expected": "got",
}
#: Further words to avoid in pages, examples, alerts, the chart and the console.
PAGE_HABITS = {
    r"the other one|another one": "name the noun",
    r"whatever (?:is|the|its)": "regardless of",
    r"of its own": "own, separate",
}
#: Further words to avoid in docstrings, comments and messages in the code.
CODE_HABITS = {
    r"(?:any|every|some)body": "name the subject: producer, user, queue",
    r"leads? nowhere": "has no target, fails",
    r"as (?:it|they) came": "unchanged",
    r"(?:bytes|messages|publishes|units) a (?:minute|second)": "per second",
    r"goes on|went on": "continues",
    r"(?:is|are|was|were|be|been) told": "is notified, gets",
    r"tells|said": "reports, states, returns",
    r"at (?:each|every|its next|one|the last|the next) look": "in a reconcile pass",
    r"(?:many|so|two) looks": "passes",
    r"faults?(?= (?:of|in|that)\b)": "error",
}


def _any_of(patterns: Mapping[str, str]) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w)(?:{'|'.join(f'(?:{pattern})' for pattern in patterns)})\b", re.IGNORECASE)


_MARKUP = r"```.*?```|`[^`\n]*`"
#: Code in a page, which includes targets of links, and indented lines.
_PAGE_CODE = re.compile(rf"{_MARKUP}|\]\([^)]*\)|^    [^\n]*$", re.DOTALL | re.MULTILINE)
#: Code in a docstring, comment or message. Indented lines are text, since sections of docstrings are indented.
_TEXT_CODE = re.compile(_MARKUP, re.DOTALL)
#: First words of function docstrings that are clauses instead of sentences.
_CLAUSES = ("Whether", "Where", "Who", "What", "How")
_PAGES = ("*.md", "docs/**/*.md", "helm/oxproxy/*.md")
_PLAIN = (
    "config/**/*.yaml",
    "helm/oxproxy/files/prometheus/**/*.yaml",
    "deploy/grafana/*.py",
    "helm/oxproxy/values.yaml",
    "helm/oxproxy/templates/NOTES.txt",
    "proxy/oxproxy/admin/static/*",
)


def _pages() -> Iterator[tuple[Path, int, str, Mapping[str, str]]]:
    """Yield file, first line, text and words to avoid for everything that is checked."""
    for pattern in _PAGES:
        for path in sorted(ROOT.glob(pattern)):
            yield path, 1, _without_code(path.read_text(), _PAGE_CODE), LEFT_OUT | PAGE_HABITS
    for pattern in _PLAIN:
        for path in sorted(ROOT.glob(pattern)):
            yield path, 1, path.read_text(), LEFT_OUT | PAGE_HABITS
    for path in sorted((ROOT / "proxy/oxproxy").rglob("*.py")):
        if "_native" not in path.parts:
            source = path.read_text()
            for line, text in (*_strings(ast.parse(source)), *_comments(source)):
                yield path, line, _without_code(text, _TEXT_CODE), LEFT_OUT | CODE_HABITS


def _without_code(text: str, code: re.Pattern[str]) -> str:
    """Replace code with spaces."""
    return code.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of the string literals that contain a space, including docstrings but not SQL."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            if not re.search(r"\b(?:SELECT|WHERE|IS NULL|DATE)\b", node.value):
                yield node.lineno, node.value


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of the comments."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(("# noqa", "# type:", "#!")):
            yield token.start[0], token.string.lstrip("#: ")


def findings() -> list[str]:
    """Return ``file:line: word: term to use instead`` for all findings."""
    messages = []
    compiled = {len(words): _any_of(words) for words in (LEFT_OUT | PAGE_HABITS, LEFT_OUT | CODE_HABITS)}
    for path, first, text, words in _pages():
        for match in compiled[len(words)].finditer(text):
            line = first + text.count("\n", 0, match.start())
            instead = next(
                use for pattern, use in words.items() if re.match(pattern, text[match.start() :], re.IGNORECASE)
            )
            messages.append(f"{path.relative_to(ROOT)}:{line}: {match[0]!r}: {instead}")
    for path in sorted((ROOT / "proxy/oxproxy").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                word = (ast.get_docstring(node) or "").partition(" ")[0]
                if word in _CLAUSES:
                    messages.append(
                        f"{path.relative_to(ROOT)}:{node.lineno}: {word!r}: a sentence: Return True if, Return"
                    )
    return messages


def main() -> int:
    messages = findings()
    print("\n".join(messages), end="\n" if messages else "")
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main())
