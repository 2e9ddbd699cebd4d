"""A headless Chromium, controlled through Playwright, that records the requests and errors of a page."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest
from playwright.async_api import ConsoleMessage, Error, Page, Request, async_playwright

Scheme: TypeAlias = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
HEIGHT_PIXELS = 900
#: Timeout of each step.
TIMEOUT_SECONDS = 60.0


def program() -> str | None:
    """Return the path of Chromium, or None if it is not installed."""
    return shutil.which("chromium") or shutil.which("google-chrome")


class Tab:
    """A page, with its requests and errors.

    Args:
        page: Playwright's page, before it is loaded.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        #: URLs of all requests.
        self.requested: list[str] = []
        #: Uncaught exceptions and console messages, including failed requests and violations of the page's policy.
        self.complaints: list[str] = []
        page.set_default_timeout(TIMEOUT_SECONDS * 1000)
        page.on("request", self._add_request)
        page.on("pageerror", self._add_error)
        page.on("console", self._add_message)

    async def open(self, path: Path) -> None:
        """Load a file, and return when it is loaded."""
        await self.page.goto(path.as_uri())

    async def width(self, pixels: int) -> None:
        """Set the width of the window."""
        await self.page.set_viewport_size({"width": pixels, "height": HEIGHT_PIXELS})

    async def value(self, expression: str) -> Any:  # Any: a JavaScript value
        """Return the value of a JavaScript expression."""
        return await self.page.evaluate(expression)

    def _add_request(self, request: Request) -> None:
        self.requested.append(request.url)

    def _add_error(self, error: Error) -> None:
        self.complaints.append(str(error))

    def _add_message(self, message: ConsoleMessage) -> None:
        self.complaints.append(f"{message.type}: {message.text}")


@contextlib.asynccontextmanager
async def browser(command: str) -> AsyncIterator[Tab]:
    """Run Chromium, and yield its only tab."""
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=command, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield Tab(await chromium.new_page(viewport={"width": 1280, "height": HEIGHT_PIXELS}))
        finally:
            await chromium.close()


@contextlib.asynccontextmanager
async def required_browser() -> AsyncIterator[Tab]:
    """Run Chromium for a test. Without Chromium, the test fails in CI and is skipped elsewhere."""
    command = program()
    if command is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no Chromium (make test-matrix installs one)")
    async with browser(command) as tab:
        yield tab
