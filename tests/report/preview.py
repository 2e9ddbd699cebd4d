"""Takes a picture of the report's page in Chromium: ``python -m tests.report.preview``.

The page shows generated figures. The picture is written to docs/dashboards.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

from oxproxy.report.pages import Days, render
from tests.browser import browser, program
from tests.report.sample import DAY, figures

TARGET = Path(__file__).resolve().parents[2] / "docs/dashboards/oxproxy-report.png"
#: Size of the picture, which shows the upper part of the page.
WIDTH_PIXELS, HEIGHT_PIXELS = 1120, 1900


async def draw(command: str, file: Path) -> None:
    async with browser(command) as tab:
        await tab.page.set_viewport_size({"width": WIDTH_PIXELS, "height": HEIGHT_PIXELS})
        await tab.open(file)
        await tab.page.screenshot(path=TARGET)


def main() -> int:
    command = program()
    if command is None:
        print("no Chromium (apt-get install chromium)", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "report.html")
        file.write_text(render(figures(), Days.around(DAY, DAY, [DAY - timedelta(days=1)])))
        asyncio.run(draw(command, file))
    return 0


if __name__ == "__main__":
    sys.exit(main())
