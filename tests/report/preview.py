"""A picture of the report's page as a browser shows it: ``python -m tests.report.preview``, with Chromium installed.

It shows made-up figures and is written to docs/dashboards. The browser may reach nothing but the file.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

from proxy.report.page import Days, render
from tests.browser import OPTIONS, program
from tests.report.sample import DAY, figures

TARGET = Path(__file__).resolve().parents[2] / "docs/dashboards/oxproxy-report.png"
#: The upper part: tiles, charts over time, the beginning of the lists.
SIZE = "1120,1900"


def main() -> int:
    """Draw it."""
    browser = program()
    if browser is None:
        print("no Chromium (apt-get install chromium)", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        page.write_text(render(figures(), Days.around(DAY, DAY, [DAY - timedelta(days=1)])))
        command = [browser, *OPTIONS, f"--user-data-dir={folder}/profile", f"--window-size={SIZE}"]
        subprocess.run([*command, f"--screenshot={TARGET}", page.as_uri()], check=True, capture_output=True, timeout=60)
    return 0


if __name__ == "__main__":
    sys.exit(main())
