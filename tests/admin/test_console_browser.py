"""Does a real browser show the console of a running sidecar: every view, by keyboard, with hostile names?"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.broker.delivery.site import Site, standing
from tests.rabbitmq import Broker
from tests.report.browser import Tab, browser, program

pytestmark = pytest.mark.matrix

WIDTHS = (360, 1120, 3840)
VIEWS = ("overview", "rules", "explain", "recent")
HOSTILE = "<script>fail()</script>\u202e" + "n" * 200
RULES = f"""\
queues: [orders.all]
brokers:
  archive: {{address: "127.0.0.1:1", username: mover, password: hunter2}}
exchanges:
  - name: orders
    bindings:
      - {{queue: orders.all, name: all orders, arguments: {{"x-?hkv= kind": order}}}}
      - {{queue: nowhere, name: "{HOSTILE}", arguments: {{"x-?hkv= kind": lost}}}}
"""


@pytest.fixture(scope="module")
def site(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with standing(broker, tmp_path_factory.mktemp("console"), RULES, {"audit": {"headers": ["kind"]}}) as running:
        yield running


@pytest.fixture
async def tab(site: Site) -> AsyncIterator[Tab]:
    command = program()
    if command is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no Chromium (make test-matrix installs one)")
    async with browser(command) as tab:
        await tab.go(site.sidecar.admin + "/")
        yield tab


def publish(site: Site, kind: str, key: str = "k", secret: str = "hunter2") -> None:
    address = Broker("127.0.0.1", site.sidecar.port, "").url(site.vhost)
    with pika.BlockingConnection(pika.URLParameters(address)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("orders", key, b"body", pika.BasicProperties(headers={"kind": kind, HOSTILE: secret}))


async def shows(tab: Tab, expression: str, wanted: object = True) -> None:
    """Wait until an expression has a value."""
    async with asyncio.timeout(30):
        while await tab.value(expression) != wanted:  # noqa: ASYNC110 -- the page asks every two seconds
            await asyncio.sleep(0.05)


async def see(tab: Tab, view: str) -> None:
    await tab.value(f"location.hash = '{view}'")
    await shows(tab, f"document.getElementById('view-{view}').hidden", False)


def nothing_complained(tab: Tab) -> None:
    assert tab.named("Runtime.exceptionThrown") == []
    assert [each["entry"]["text"] for each in tab.named("Log.entryAdded")] == []


async def test_the_browser_asks_nobody_else_and_has_nothing_to_complain_of(tab: Tab, site: Site) -> None:
    for view in VIEWS:
        await see(tab, view)
    await shows(tab, "document.querySelectorAll('#facts div').length > 4")
    asked = {each["request"]["url"] for each in tab.named("Network.requestWillBeSent")}
    assert all(url.startswith((site.sidecar.admin + "/", "data:")) for url in asked)
    nothing_complained(tab)


async def test_overview_says_ready_and_counts_by_outcome(tab: Tab, site: Site) -> None:
    publish(site, "order")
    await shows(tab, "document.querySelector('#facts .good')?.textContent", "ready")
    await shows(tab, "/orders.*routed/s.test(document.getElementById('outcomes').textContent)")
    await shows(tab, "/nowhere/.test(document.getElementById('vhosts').textContent)")


async def test_rules_are_as_written_with_counts_and_without_secrets(tab: Tab, site: Site) -> None:
    publish(site, "order")
    await see(tab, "rules")
    await shows(tab, "Number(document.querySelector('[data-binding=\"all orders\"]')?.textContent) > 0")
    text = await tab.value("document.getElementById('files').textContent")
    assert "password: ***" in text
    assert "hunter2" not in text


async def test_a_failed_publish_is_shown_and_loaded_into_the_form_by_keyboard(tab: Tab, site: Site) -> None:
    await see(tab, "recent")
    await shows(tab, "document.getElementById('failed').childElementCount > 0")
    publish(site, "unheard of", key="<img src=x onerror=fail()>")
    row = "[...document.querySelectorAll('#failed tbody tr')].find(row => row.textContent.includes('<img src=x'))"
    await shows(tab, f"Boolean({row})")
    assert await tab.value(f"{row}.textContent.includes('hunter2')") is False
    assert await tab.value("document.querySelectorAll('main script, main img').length") == 0
    await tab.value(f"{row}.querySelector('button').focus()")
    await press(tab, "Enter", "\r")
    await shows(tab, "location.hash", "#explain")
    assert await tab.value("document.querySelector('[name=key]').value") == "<img src=x onerror=fail()>"
    assert "<script>" in await tab.value("document.getElementById('incomplete').textContent")
    await tab.value("document.querySelector('[name=key]').focus()")
    await press(tab, "Enter", "\r")
    await shows(tab, "/unrouted/.test(document.getElementById('answer').textContent)")
    walk: Any = await tab.value("document.getElementById('answer').textContent")
    assert 'seen "unheard of"' in walk
    nothing_complained(tab)


async def test_every_view_is_reached_by_keyboard_alone(tab: Tab) -> None:
    for view in VIEWS:
        await press(tab, "Tab")
        await press(tab, "Enter", "\r")
        await shows(tab, f"document.querySelector('nav [aria-current]').hash === '#{view}'")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("pixels", WIDTHS)
async def test_no_view_is_wider_than_the_window(tab: Tab, site: Site, pixels: int, scheme: str, tmp_path: Path) -> None:
    publish(site, "lost", key=HOSTILE)
    await tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    await tab.width(pixels)
    pictures = Path(os.environ.get("CONSOLE_PICTURES", tmp_path))
    for view in VIEWS:
        await see(tab, view)
        if view != "explain":
            await shows(tab, f"Boolean(document.querySelector('#view-{view} td'))")
        assert await tab.value("document.documentElement.scrollWidth") <= pixels, view
        broken = "[...document.querySelectorAll('th, td button')].filter(each => each.offsetHeight > 45).length"
        assert await tab.value(broken) == 0, view
        picture = await tab.call("Page.captureScreenshot", format="png")
        (pictures / f"{view}-{pixels}-{scheme}.png").write_bytes(base64.b64decode(picture["data"]))
    nothing_complained(tab)


async def press(tab: Tab, key: str, text: str = "") -> None:
    """Press a key and let it go."""
    code = {"Enter": 13, "Tab": 9}[key]
    named = {"key": key, "code": key, "windowsVirtualKeyCode": code}
    await tab.call(
        "Input.dispatchKeyEvent", type="keyDown" if text or key == "Tab" else "rawKeyDown", text=text, **named
    )
    await tab.call("Input.dispatchKeyEvent", type="keyUp", **named)
