"""Takes pictures of the console: ``python -m tests.admin.screenshot [DIRECTORY]``.

Runs a private RabbitMQ, a sidecar with the rules of a shop, producers and Chromium. Without arguments, the picture is
written to docs/pictures/console.png. With a directory, all views are written there, at three widths, light and dark.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import tempfile
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pika
from playwright.async_api import FloatRect

from tests.browser import SCHEMES, Scheme, Tab, browser, program
from tests.private_broker import PrivateBroker
from tests.sidecar import Sidecar, pika_channel

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "pictures" / "console.png"
VIEWS = ("overview", "map", "rules", "explain", "recent", "shadow")
WIDTHS = (400, 1280, 2560)
#: Seconds of traffic before the picture for README.md is taken, and seconds for a page to draw received data.
TRAFFIC_SECONDS, SETTLING_SECONDS = 30.0, 2.5
#: Height of the highest picture.
MOST_PIXELS = 6000

VHOST = "shop"
RULES = """\
queues: [orders.all, orders.big, orders.express, invoices, invoices.audit, mail.welcome, mail.newsletter, returns]
brokers:
  archive: {address: "ARCHIVE", username: guest, password: guest}
exchanges:
  - name: orders                          # what the shop publishes
    arguments: {alternate-exchange: unsorted}
    bindings:
      - {queue: orders.all, name: every order, arguments: {"x-?rkta": "order.#"}}
      - {queue: orders.big, name: big orders, arguments: {"x-?hkv>= amount": 1000}}
      - {queue: orders.express, name: express, arguments: {x-match: any, "x-?hkv= delivery": [express, overnight]}}
      - {queue: orders.fraud, name: suspicious, arguments: {"x-?hkv>= risk": 0.9}}
      - {queue: returns, name: returned goods, arguments: {"x-?rkta": "return.#"}}
      - {exchange: billing, name: to be billed, arguments: {"x-?hkex": amount}}
  - name: billing
    bindings:
      - {queue: invoices, name: all invoices}
      - {queue: invoices.audit, name: audited, arguments: {x-match: any, "x-?hkv= country": [CH, US]}}
      - {queue: ledger.archive, name: to the archive, arguments: {"x-?hkv>= amount": 2500}}
  - name: unsorted
    bindings:
      - {queue: mail.welcome, name: new customers, arguments: {"x-?rkta": customer.created}}
      - {queue: mail.newsletter, name: newsletter, arguments: {"x-?rkre": '^customer\\.(opted|subscribed)'}}
addresses:
  - {name: what is kept, pattern: "*.archive", translation: amqp://archive/queue/$1.kept}
tests:
  - name: a big order is billed as well
    publish: {exchange: orders, routing_key: order.1, headers: {amount: 2000}}
    expect: {queues: [orders.all, orders.big, invoices]}
"""
CANDIDATE = RULES.replace('"x-?hkv>= amount": 1000', '"x-?hkv>= amount": 500')


def message() -> tuple[str, dict[str, object]]:
    """Return routing key and headers of the next message."""
    kind = random.choices(("order", "return", "customer", "stock"), (80, 6, 12, 0.6))[0]
    if kind == "customer":
        return f"customer.{random.choice(('created', 'opted', 'subscribed'))}", {"language": "de"}
    headers: dict[str, object] = {
        "amount": random.randrange(5, 3000),
        "country": random.choice(("DE", "CH", "FR", "US")),
    }
    if kind == "order" and random.random() < 0.3:
        headers["delivery"] = random.choice(("express", "overnight"))
    return f"{kind}.{random.randrange(10_000)}", headers if kind != "stock" else {"article": "A-17", "customer": "42"}


@contextlib.contextmanager
def traffic(sidecar: Sidecar, rate: float = 250.0) -> Iterator[None]:
    """Publish from three producers while the context is active."""
    over = threading.Event()

    def produce() -> None:
        with pika_channel(sidecar.port, VHOST) as channel:
            while not over.wait(random.expovariate(rate / 3)):
                key, headers = message()
                channel.basic_publish(
                    "orders", key, b"x" * random.randrange(40, 400), pika.BasicProperties(headers=headers)
                )

    threads = [threading.Thread(target=produce) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def shop(folder: Path) -> Iterator[Sidecar]:
    """Run broker, sidecar and producers."""
    with PrivateBroker() as broker:
        broker.create_vhost(VHOST)
        with pika.BlockingConnection(pika.URLParameters(broker.url(VHOST))) as connection:
            connection.channel().queue_declare("ledger.kept", durable=True, arguments={"x-max-length": 1000})
        rules = folder / "orders.yaml"
        rules.write_text(f"vhost: {VHOST}\n{RULES.replace('ARCHIVE', broker.address)}")
        with (
            Sidecar(broker, [rules], {"audit": {"headers": ["amount", "country", "article"]}}, folder) as sidecar,
            traffic(sidecar),
        ):
            yield sidecar


#: Expression that is true when a view is complete.
READY = {
    "overview": "Boolean(document.querySelector('#chart polygon') && document.querySelector('#vhosts td'))",
    "map": "document.querySelectorAll('.edge.active').length > 3",
    "rules": "[...document.querySelectorAll('.file .total')].some(each => /[1-9]/.test(each.textContent))",
    "explain": "!document.getElementById('view-explain').hidden",
    "recent": "Boolean(document.querySelector('#failed td'))",
    "shadow": "!document.getElementById('view-shadow').hidden",
}


async def until(tab: Tab, expression: str) -> None:
    async with asyncio.timeout(30):
        while not await tab.value(expression):  # noqa: ASYNC110 -- the sidecar sends every two seconds
            await asyncio.sleep(0.2)


async def look(tab: Tab, view: str, pixels: int, scheme: Scheme) -> bytes:
    """Take a picture of a view at its full height."""
    await tab.page.emulate_media(color_scheme=scheme)
    await tab.width(pixels)
    await tab.value(f"location.hash = '{view}'")
    await until(tab, READY[view])
    await asyncio.sleep(SETTLING_SECONDS)
    height = await tab.value("document.querySelector('main').getBoundingClientRect().bottom + scrollY")
    clip: FloatRect = {"x": 0, "y": 0, "width": pixels, "height": min(height, MOST_PIXELS)}
    return await tab.page.screenshot(clip=clip, full_page=True)


async def explained(tab: Tab) -> None:
    """Load a failed message into the form and explain it."""
    await tab.value("location.hash = 'recent'")
    await until(tab, READY["recent"])
    await tab.value("document.querySelector('#failed button').click()")
    await tab.value("document.querySelector('#message button.main').click()")
    await until(tab, "Boolean(document.querySelector('.walk'))")


def compare(sidecar: Sidecar) -> None:
    """Start the comparison with other rules."""
    text = f"vhost: {VHOST}\n{CANDIDATE.replace('ARCHIVE', 'archive.example:5672')}"
    request = urllib.request.Request(f"{sidecar.admin}/-/shadow", text.encode(), method="POST")
    with urllib.request.urlopen(request, timeout=20) as answer:
        json.load(answer)


async def picture(sidecar: Sidecar) -> dict[str, bytes]:
    """Return the picture for README.md."""
    async with browser(program() or "chromium") as tab:
        await tab.page.goto(sidecar.admin + "/")
        await asyncio.sleep(TRAFFIC_SECONDS)
        return {PICTURE.name: await look(tab, "map", 1280, "light")}


async def gallery(sidecar: Sidecar, views: Sequence[str]) -> dict[str, bytes]:
    """Return pictures of all views, by file name."""
    async with browser(program() or "chromium") as tab:
        await tab.page.goto(sidecar.admin + "/")
        await asyncio.sleep(SETTLING_SECONDS)
        compare(sidecar)
        await explained(tab)
        pictures = {
            f"{view}-{pixels}-{scheme}.png": await look(tab, view, pixels, scheme)
            for view in views
            for pixels in WIDTHS
            for scheme in SCHEMES
        }
        for complaint in tab.complaints:
            print(complaint)
        return pictures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.admin.screenshot", description=__doc__)
    parser.add_argument("directory", type=Path, nargs="?", help="for pictures of every view")
    parser.add_argument("--view", choices=VIEWS, action="append", help="only this; may be repeated")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="oxproxy-console-") as folder, shop(Path(folder)) as sidecar:
        pictures = asyncio.run(gallery(sidecar, options.view or VIEWS) if options.directory else picture(sidecar))
    directory = options.directory or PICTURE.parent
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in pictures.items():
        (directory / name).write_bytes(content)
        print(directory / name)


if __name__ == "__main__":
    main()
