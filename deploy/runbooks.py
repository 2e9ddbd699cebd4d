"""Sets the base URL of the runbooks in all alerts: ``python -m deploy.runbooks https://wiki.example/oxproxy/``.

It rewrites the chart's default, every ``runbook_url`` in the alerts and in the series that test them, and the chart's
README. Exit status: 0 if done, 2 if there is no URL.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from deploy.chart import build

ROOT = Path(__file__).resolve().parents[1]
#: Globs for the files that name runbooks, and patterns for the text before the URL and for the URL.
_PLACES = (
    ("helm/oxproxy/files/prometheus/alerts/*.yaml", r"(runbook_url: )\S*/(?=Oxproxy)"),
    ("tests/deploy/series/*.yaml", r"(runbook_url: )\S*/(?=Oxproxy)"),
    ("helm/oxproxy/values.yaml", r"(runbookBase: )\S+"),
)


def point(base: str, root: Path = ROOT) -> None:
    """Rewrite the URL that precedes the name of each page."""
    for glob, pattern in _PLACES:
        for path in sorted(root.glob(glob)):
            path.write_text(re.sub(pattern, lambda match: match[1] + base, path.read_text()))


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not re.fullmatch(r"https?://\S+", arguments[0]):
        seen = f"got {' '.join(arguments)}" if arguments else "missing argument"
        print(f"{seen}, expected a URL such as https://wiki.example/oxproxy/")
        return 2
    point(arguments[0].rstrip("/") + "/")
    return build.main()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
