"""How a page is looked at in a Chromium without a window, over its DevTools protocol.

What it logs, asks for and refuses is kept. Source: Chrome DevTools Protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
#: Seconds for its start, and for each answer: a machine may be busy.
PATIENCE_SECONDS = 60.0


def program() -> str | None:
    """Return the path of a Chromium, None where there is none."""
    return shutil.which("chromium") or shutil.which("google-chrome")


class Tab:
    """One page in a running browser.

    Args:
        socket: to its DevTools.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = count(1)
        #: every event so far: name and parameters
        self.events: list[tuple[str, dict[str, Any]]] = []

    async def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Have a command executed, and keep the events that come meanwhile."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await self._next()
            if message.get("id") == number:
                assert "error" not in message, message
                found: dict[str, Any] = message["result"]
                return found

    async def open(self, path: Path) -> None:
        """Show a file, and return when it is loaded."""
        await self.go(path.as_uri())

    async def go(self, address: str) -> None:
        """Show a page, and return when it is loaded."""
        for domain in ("Page", "Network", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=address)
        while "Page.loadEventFired" not in [name for name, _ in self.events]:
            await self._next()

    async def width(self, pixels: int) -> None:
        """Make the window so wide."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=pixels, height=900, deviceScaleFactor=1, mobile=False
        )

    async def value(self, expression: str) -> Any:  # what JavaScript gives
        """Return what an expression gives."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def named(self, name: str) -> list[dict[str, Any]]:
        """Return the parameters of all events of a name."""
        return [parameters for seen, parameters in self.events if seen == name]

    async def _next(self) -> dict[str, Any]:
        message: dict[str, Any] = await self._socket.receive_json(timeout=PATIENCE_SECONDS)
        if "method" in message:
            self.events.append((message["method"], message["params"]))
        return message


@contextlib.asynccontextmanager
async def browser(command: str) -> AsyncIterator[Tab]:
    """Run a browser, and give its tab."""
    with tempfile.TemporaryDirectory(prefix="oxproxy-browser-", ignore_cleanup_errors=True) as folder:
        own = (f"--user-data-dir={folder}", "--remote-debugging-port=0", "about:blank")
        process = await asyncio.create_subprocess_exec(command, *OPTIONS, *own, stderr=asyncio.subprocess.PIPE)
        try:
            address = await asyncio.wait_for(_address(process), PATIENCE_SECONDS)
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://{address}/json/list") as answer:
                    (tab,) = [one for one in await answer.json() if one["type"] == "page"]
                async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    yield Tab(socket)
        finally:
            process.terminate()
            await process.communicate()


async def _address(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    async for line in process.stderr:
        found = re.search(rb"DevTools listening on ws://([^/]+)/", line)
        if found:
            return found[1].decode()
    raise AssertionError("the browser ended at its start")
