"""Tests the console of a running sidecar in Chromium: all views, use by keyboard, and hostile names."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from oxproxy.rules.loader import compile_rules
from tests.broker.delivery.site import Site, standing
from tests.browser import SCHEMES, Scheme, Tab, required_browser
from tests.rabbitmq import Broker
from tests.sidecar import pika_channel

pytestmark = pytest.mark.matrix

#: Views that show the full name of each exchange.
HAS_NAMES = ("overview", "rules", "recent")
WIDTHS = (360, 1280, 3840)
VIEWS = ("overview", "map", "rules", "explain", "recent", "shadow")
HOSTILE = "<script>fail()</script>\u202e" + "n" * 200
LONGEST = ("<img src=x onerror=fail()>\u202e" + "q" * 255).encode()[:255].decode()
EXCHANGE = "<script>fail()</script>\u202e" + "e" * 110
LONG_EXCHANGE = ("<img src=x onerror=fail()>" + "e" * 255)[:255]
RULES = f"""\
queues: [orders.all]
brokers:
  archive: {{address: "127.0.0.1:1", username: mover, password: hunter2}}
exchanges:
  - name: orders
    bindings:
      - {{queue: orders.all, name: all orders, arguments: {{"x-?hkv= kind": order}}}}
      - {{queue: nowhere, name: "{HOSTILE}", arguments: {{"x-?hkv= kind": lost}}}}
      - {{queue: "{LONGEST}", name: long, arguments: {{"x-?hkv= kind": long}}}}
      - {{exchange: inner, name: never, arguments: {{"x-?hkv= kind": "{HOSTILE}", "x-?hkv!= kind": "{HOSTILE}"}}}}
      - {{queue: orders.all, name: asks, arguments: {{"x-?hkexn": "{HOSTILE}"}}}}
      - {{queue: orders.all, name: both, arguments: {{"x-?hkexn": "{HOSTILE}", "x-?hkv= kind": order}}}}
  - name: inner
    bindings: [{{queue: orders.all}}]
  - {{name: "{LONG_EXCHANGE}", bindings: [{{exchange: inner}}]}}
  - name: "{EXCHANGE}"
    bindings: [{{queue: orders.all, name: "{HOSTILE}", arguments: {{"x-?hkv= {HOSTILE[:200]}": order}}}}]
"""
MANY = "exchanges:\n" + "".join(
    f"  - name: exchange{exchange}\n    bindings:\n"
    + "".join(
        f'      - {{queue: "team{number % 40}.queue{number}", arguments: {{"x-?hkv= number": {number}}}}}\n'
        for number in range(exchange * 250, exchange * 250 + 250)
    )
    for exchange in range(4)
)


@pytest.fixture(scope="module")
def site(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with standing(broker, tmp_path_factory.mktemp("console"), RULES, {"audit": {"headers": ["kind"]}}) as running:
        yield running


@pytest.fixture
async def tab(site: Site) -> AsyncIterator[Tab]:
    async with console(site) as tab:
        yield tab


@contextlib.asynccontextmanager
async def console(site: Site) -> AsyncIterator[Tab]:
    async with required_browser() as tab:
        await tab.page.goto(site.sidecar.admin + "/")
        yield tab


def publish(site: Site, kind: str, key: str = "k", secret: str = "hunter2", exchange: str = "orders") -> None:
    with pika_channel(site.sidecar.port, site.vhost) as channel:
        channel.basic_publish(exchange, key, b"body", pika.BasicProperties(headers={"kind": kind, HOSTILE: secret}))


async def shows(tab: Tab, expression: str, wanted: object = True) -> None:
    """Wait until an expression has a value."""
    async with asyncio.timeout(40):
        while await tab.value(expression) != wanted:  # noqa: ASYNC110 -- the sidecar sends every two seconds
            await asyncio.sleep(0.05)


async def see(tab: Tab, view: str) -> None:
    await tab.value(f"location.hash = '{view}'")
    await shows(tab, f"document.getElementById('view-{view}').hidden", False)
    await shows(tab, COMPLETE[view])


#: Expression that is true when a view is complete.
COMPLETE = {
    "overview": "Boolean(document.querySelector('#tiles dd') && document.querySelector('#vhosts td'))",
    "map": "Boolean(document.querySelector('#graph .node') && document.querySelector('#map-detail h3'))",
    "rules": "Boolean(document.querySelector('#files .total'))",
    "explain": "true",
    "recent": "document.getElementById('failed').childElementCount > 0",
    "shadow": "true",
}


def assert_no_errors(tab: Tab) -> None:
    assert tab.complaints == []


async def test_the_console_requests_only_the_sidecar_and_causes_no_errors(tab: Tab, site: Site) -> None:
    for view in VIEWS:
        await see(tab, view)
    assert all(url.startswith((site.sidecar.admin + "/", "data:")) for url in tab.requested)
    assert_no_errors(tab)


# -- what the views show -----------------------------------------------------------------------------------------------


async def test_the_overview_shows_readiness_and_the_rate_by_outcome(tab: Tab, site: Site) -> None:
    await shows(tab, "document.querySelector('#tiles .bad dd')?.textContent", "2 destinations missing")
    await shows(tab, "document.getElementById('state').textContent", "2 destinations missing")
    assert "missing queue nowhere" in await tab.value("document.getElementById('alerts').textContent")
    await shows(tab, "/missing queue nowhere/.test(document.getElementById('vhosts').textContent)")
    version = ".".join(map(str, site.broker.version))
    await shows(tab, "document.querySelector('#vhosts td[data-name=broker]').textContent", f"RabbitMQ {version}")
    publish(site, "order")
    await shows(tab, "/orders.*routed/s.test(document.getElementById('outcomes').textContent)")
    await shows(tab, "Boolean(document.querySelector('#chart polygon.routed'))")
    for key in ("ArrowLeft", "ArrowLeft"):
        await tab.value("document.getElementById('chart').focus()")
        await tab.page.keyboard.press(key)
    await shows(tab, "/^at \\d\\d:\\d\\d/.test(document.getElementById('chart-time').textContent)")


async def test_the_map_shows_conditions_and_rates_of_the_focused_line(tab: Tab, site: Site) -> None:
    await see(tab, "map")
    publish(site, "order")
    edge = "[...document.querySelectorAll('.edge')].find(edge => /orders to orders\\.all/.test(edge.ariaLabel))"
    await tab.value(f"{edge}.focus()")
    await shows(tab, "/orders → orders\\.all/.test(document.querySelector('#map-detail h3').textContent)")
    await shows(tab, "/x-\\?hkv= kind: \"order\"/.test(document.getElementById('map-detail').textContent)")
    await shows(tab, f"/active|idle/.test({edge}.getAttribute('class'))")
    await shows(tab, "/all orders.*\\/s, \\d+ in total/.test(document.getElementById('map-detail').textContent)")
    unused = "[...document.querySelectorAll('.edge.unused')].map(edge => edge.ariaLabel).join()"
    assert "orders to inner" in await tab.value(unused)
    assert await tab.value("document.querySelectorAll('.node.missing').length") == 2
    assert_no_errors(tab)


async def test_the_map_shows_conditions_and_rates_under_the_pointer(tab: Tab, site: Site) -> None:
    await tab.width(1280)
    await see(tab, "map")
    publish(site, "order")
    for part, heading, shown in (
        (".node[aria-label*=' inner']", "inner", "orders"),
        (".node.missing[aria-label*=' nowhere']", "nowhere", "missing"),
        (".edge[aria-label^='orders to orders.all']", "orders → orders.all", 'x-?hkv= kind: "order"'),
    ):
        await tab.page.locator(part).hover()
        await shows(tab, "document.querySelector('#map-detail h3').textContent", heading)
        assert shown in await tab.value("document.getElementById('map-detail').textContent")
    detail = "document.getElementById('map-detail').textContent"
    await shows(tab, f"/matches now, [1-9]\\d* in total, 3 bindings/.test({detail})")


async def test_rules_are_shown_as_written_with_counts_and_without_secrets(tab: Tab, site: Site) -> None:
    publish(site, "order")
    await see(tab, "rules")
    total = "document.querySelectorAll('.file li')[7].querySelector('.total').textContent"
    await shows(tab, f"Number({total}) > 0")
    text = await tab.value("document.getElementById('files').textContent")
    assert "password: ***" in text
    assert "hunter2" not in text
    warnings = "[...document.querySelectorAll('.file .warning')].map(line => line.textContent).join()"
    assert "never matches" in await tab.value(warnings)


async def test_counts_in_the_rules_leave_most_of_a_narrow_screen_to_the_lines(tab: Tab, site: Site) -> None:
    publish(site, "order")
    await tab.width(390)
    await see(tab, "rules")
    line = "document.querySelectorAll('.file li')[7]"
    await shows(tab, f"Number({line}.querySelector('.total').textContent) > 0")
    left = "getBoundingClientRect().left"
    indent = await tab.value(f"{line}.querySelector('code').{left} - document.querySelector('.file').{left}")
    assert indent <= 50
    counts = await tab.value(f"{line}.querySelector('.total').getBoundingClientRect().top")
    assert counts >= await tab.value(f"{line}.querySelector('code').getBoundingClientRect().bottom")


async def test_differences_to_the_files_are_shown(tab: Tab, site: Site) -> None:
    (file,) = [Path(entry["name"]) for entry in json.loads(site.sidecar.get("/api/rules"))["files"]]
    written = file.read_text()
    try:
        file.write_text(written + "nonsense: password\n")  # not reloaded
        await see(tab, "rules")
        await shows(tab, "/^\\+nonsense: password$/m.test(document.querySelector('.diff')?.textContent)")
    finally:
        file.write_text(written)


async def test_rules_follow_the_files_on_disk(tab: Tab, site: Site) -> None:
    (file,) = [Path(entry["name"]) for entry in json.loads(site.sidecar.get("/api/rules"))["files"]]
    written = file.read_text()
    await see(tab, "rules")
    try:
        file.write_text(written + "nonsense: 1\n")  # the reload is refused
        await shows(tab, "/^\\+nonsense: 1$/m.test(document.querySelector('.diff')?.textContent)")
    finally:
        file.write_text(written)
    await shows(tab, "document.querySelector('.diff')", None)


async def test_below_480_pixels_the_map_is_a_list(tab: Tab, site: Site) -> None:
    await tab.width(400)
    await see(tab, "map")
    assert await tab.value("document.querySelectorAll('#graph svg').length") == 0
    texts = "[...document.querySelectorAll('.map-list > li')].map(each => each.textContent).join('\\n')"
    publish(site, "order")
    await shows(tab, f"/^orders .*→ orders\\.all .*\\/s.*→ nowhere .*missing/m.test({texts})")
    await tab.page.locator(".map-list .edge").first.focus()
    await shows(tab, "/→/.test(document.querySelector('#map-detail h3').textContent)")
    await tab.width(1280)
    await shows(tab, "document.querySelectorAll('#graph svg').length", 1)
    assert_no_errors(tab)


async def test_explain_offers_known_names_and_hides_bindings_that_are_not_nearly_true(tab: Tab, site: Site) -> None:
    await see(tab, "explain")
    offered = "[...document.querySelectorAll('#known-{} option')].map(each => each.value).includes('{}')"
    for kind, text in (("vhosts", site.vhost), ("exchanges", "inner"), ("headers", "kind")):
        await shows(tab, offered.format(kind, text))
    for field, text in {"exchange": "orders", "header": "kind"}.items():
        await tab.value(f"document.querySelector('#message [name={field}]').value = {json.dumps(text)}")
    await tab.value("document.querySelector('#headers [name=value]').value = 'order'")
    await tab.value("document.querySelector('#message button.main').click()")
    seen = "[...document.querySelectorAll('.walk > li')].filter(each => each.checkVisibility()).length"
    await shows(tab, seen, 6)
    await tab.page.locator("#answer .head input[type=checkbox]").check()
    await shows(tab, f"{seen} < 6")
    assert "all orders" in await tab.value("document.querySelector('.walk').innerText")
    assert "both" in await tab.value("document.querySelector('.walk').innerText")  # only one of two conditions is false
    assert_no_errors(tab)


async def test_shadow_names_exchanges_that_the_candidate_does_not_contain(tab: Tab, site: Site) -> None:
    await see(tab, "shadow")
    rules = f"vhost: {site.vhost}\nexchanges: [{{name: orders, bindings: [{{queue: orders.all}}]}}]\n"
    await tab.value(f"document.querySelector('#candidate textarea').value = {json.dumps(rules)}")
    await tab.value("document.querySelector('#candidate button').click()")
    await shows(tab, "/does not contain.*inner/.test(document.querySelector('#comparison .warn')?.textContent)")
    await tab.value("document.getElementById('stop').click()")
    await shows(tab, "document.getElementById('candidate').hidden", False)


async def test_the_header_is_aligned_with_the_content_of_a_wide_screen(tab: Tab) -> None:
    await tab.width(2560)
    await see(tab, "overview")
    left = "document.querySelector('{}').getBoundingClientRect().left"
    assert await tab.value(left.format("h1")) == pytest.approx(await tab.value(left.format("#tiles")), abs=1)


async def test_a_failed_publish_is_shown_and_loaded_into_the_form_by_keyboard(tab: Tab, site: Site) -> None:
    await see(tab, "recent")
    publish(site, "unheard of", key="<img src=x onerror=fail()>")
    row = "[...document.querySelectorAll('#failed tbody tr')].find(row => row.textContent.includes('<img src=x'))"
    await shows(tab, f"Boolean({row})")
    assert await tab.value(f"{row}.querySelector('time').getClientRects().length") == 1  # on one line
    assert await tab.value(f"{row}.textContent.includes('hunter2')") is False
    assert await tab.value("document.querySelectorAll('main script, main img').length") == 0
    await tab.value(f"{row}.querySelector('button').focus()")
    await tab.page.keyboard.press("Enter")
    await shows(tab, "location.hash", "#explain")
    assert await tab.value("document.querySelector('[name=key]').value") == "<img src=x onerror=fail()>"
    assert "<script>" in await tab.value("document.getElementById('incomplete').textContent")
    await tab.value("document.querySelector('[name=key]').focus()")
    await tab.page.keyboard.press("Enter")
    await shows(tab, "/unrouted/.test(document.getElementById('answer').textContent)")
    walk: Any = await tab.value("document.getElementById('answer').textContent")
    assert '"unheard of"' in walk
    assert "Decided without headers whose values are unknown: <script>" in walk
    summaries = "[...document.querySelectorAll('.walk summary')].map(each => each.textContent).join('\\n')"
    assert "? not known asks" in await tab.value(summaries)
    assert "✗ false both" in await tab.value(summaries)  # its kind is known and differs
    assert_no_errors(tab)


PARKING = """\
queues: [orders.large, it's parked]
exchanges:
  - name: orders
    arguments: {alternate-exchange: rest, max-payload-size: 1}
    bindings: [{queue: orders.large, when: {amount >=: 1000}}]
  - {name: rest, type: fanout, bindings: [{queue: it's parked}, {exchange: others}]}
  - {name: others, arguments: {alternate-exchange: unknown, max-payload-size: 1}, bindings: [{queue: orders.large}]}
"""


async def test_recent_shows_the_commands_for_the_exchanges_of_the_listed_publishes(
    broker: Broker, tmp_path: Path
) -> None:
    with standing(broker, tmp_path, PARKING) as site:
        async with console(site) as tab:
            await see(tab, "recent")
            command = f"oxproxy replay --queue 'it'\\''s parked' --vhost {site.vhost} --dry-run"
            await shows(tab, "document.querySelector('#parked li')?.textContent", f"orders: {command}")
            for exchange, items in (("others", 0), ("orders", 1)):
                with contextlib.suppress(pika.exceptions.AMQPError):
                    publish(site, "too large", exchange=exchange)
                row = f"[...document.querySelectorAll('#failed td')].some(cell => cell.textContent === '{exchange}')"
                await shows(tab, row)
                await shows(tab, "document.querySelectorAll('#parked li').length", items)
            assert_no_errors(tab)


async def test_an_explanation_contains_a_test_that_passes(tab: Tab, site: Site) -> None:
    await see(tab, "explain")
    fill = {"exchange": "orders", "key": "a.b", "header": "kind", "size": "7", "at": "2026-11-21T08:00:00Z"}
    for field, text in fill.items():
        await tab.value(f"document.querySelector('#message [name={field}]').value = {json.dumps(text)}")
    await tab.value("document.querySelector('#headers [name=value]').value = 'order'")
    await tab.value("document.querySelector('#message button.main').click()")
    await shows(tab, "Boolean(document.getElementById('test'))")
    assert "✓ true" in await tab.value("document.querySelector('.walk').textContent")
    test = await tab.value("document.getElementById('test').value")
    copied = "(document.activeElement.value ?? '').slice(document.activeElement.selectionStart)"
    await tab.value(
        "[...document.querySelectorAll('#answer button')].find(each => each.textContent === 'Copy').click()"
    )
    assert await tab.value(copied) == test  # selected, even if the browser denies copying
    loaded = compile_rules([("rules.yaml", f"vhost: /\n{RULES}tests:\n{test}\n".encode())])
    assert [test.message.facts.body_size_bytes for test in loaded.tests] == [7]
    assert loaded.failures() == []


async def test_a_misspelled_exchange_is_explained(tab: Tab, site: Site) -> None:
    await see(tab, "explain")
    await tab.value("document.querySelector('#message [name=exchange]').value = 'order'")
    await tab.value("document.querySelector('#message button.main').click()")
    note = "no rules file names order: the message is passed to the broker unchanged; did you mean orders?"
    await shows(tab, "document.querySelector('#answer .note')?.textContent", note)
    assert await tab.value("document.getElementById('test')") is None  # `oxproxy check` would refuse such a test
    assert_no_errors(tab)


async def compare_and_stop(tab: Tab, site: Site) -> None:
    """Start the comparison, publish a message whose destination differs, check the result, and stop."""
    await tab.value("document.querySelector('#candidate button').click()")
    await shows(tab, "document.getElementById('candidate').hidden")
    publish(site, "lost")
    await shows(tab, "document.querySelector('#comparison tbody td')?.textContent", "1")
    assert "queue orders.all" in await tab.value("document.querySelector('#comparison tbody').textContent")
    await tab.value("document.getElementById('stop').click()")
    await shows(tab, "document.getElementById('candidate').hidden", False)


async def test_a_candidate_is_compared_and_stopped(tab: Tab, site: Site) -> None:
    await see(tab, "shadow")
    await tab.value("document.querySelector('#candidate textarea').value = 'nonsense: 1'")
    await tab.value("document.querySelector('#candidate button').click()")
    await shows(tab, "/nonsense/.test(document.querySelector('#comparison .bad')?.textContent)")
    rules = f"vhost: {site.vhost}\n{RULES.replace('queue: nowhere', 'queue: orders.all')}"
    await tab.value(f"document.querySelector('#candidate textarea').value = {json.dumps(rules)}")
    await compare_and_stop(tab, site)
    assert json.loads(site.sidecar.get("/status"))["shadow"] is None


async def test_rules_files_are_uploaded_as_one_candidate(tab: Tab, site: Site, tmp_path: Path) -> None:
    files = {
        "orders.yaml": RULES,
        "more.yaml": "queues: [more]\nexchanges: [{name: more, bindings: [{queue: more}]}]\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(f"vhost: {site.vhost}\n{text.replace('queue: nowhere', 'queue: orders.all')}")
    await see(tab, "shadow")
    await tab.page.locator("[name=files]").set_input_files([tmp_path / name for name in files])
    await compare_and_stop(tab, site)
    assert_no_errors(tab)


async def test_a_thousand_bindings_are_grouped_and_a_group_opens(
    broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with standing(broker, tmp_path_factory.mktemp("many"), MANY) as site:
        async with console(site) as tab:
            await tab.width(1280)
            await see(tab, "map")
            assert await tab.value("document.querySelectorAll('#graph .node').length") <= 4 + 24
            assert await tab.value("document.documentElement.scrollWidth") <= 1280
            await tab.value("document.querySelector('#graph .node.group').focus()")
            before = await tab.value("document.querySelectorAll('#graph .node').length")
            await tab.page.keyboard.press("Enter")
            await shows(tab, f"document.querySelectorAll('#graph .node').length > {before}")
            await tab.value("document.getElementById('map-filter').value = 'queue777'")
            await tab.value("document.getElementById('map-filter').dispatchEvent(new Event('input'))")
            await shows(tab, "document.querySelectorAll('#graph .edge').length", 1)
            await see(tab, "rules")
            await shows(tab, "document.querySelectorAll('.file li').length > 1000")
            assert_no_errors(tab)


async def test_a_lost_broker_and_a_stopped_sidecar_are_shown(
    broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with standing(broker, tmp_path_factory.mktemp("away"), RULES) as site:
        async with console(site) as tab:
            await see(tab, "overview")
            site.tap.refuse()
            await shows(tab, "/not connected/.test(document.getElementById('links').textContent)")
            site.tap.accept()
            await shows(tab, "/not connected/.test(document.getElementById('links').textContent)", False)
            site.sidecar.stop()
            await shows(tab, "/does not respond/.test(document.getElementById('fault').textContent)")
            site.sidecar.start()
            await shows(tab, "document.getElementById('fault').hidden")
            await shows(tab, "document.getElementById('state').textContent !== 'no response'")


async def test_a_virtual_host_whose_rules_were_not_reloaded_is_named(
    broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, other = tmp_path_factory.mktemp("outdated"), "console-outdated"
    broker.create_vhost(other)
    second = folder / "second.yaml"
    second.write_text(f"vhost: {other}\nqueues: [q]\n")
    rules = {"rules": [str(folder / "rules.yaml"), str(second)]}
    try:
        with standing(broker, folder, RULES, rules) as site:
            async with console(site) as tab:
                second.write_text(f"vhost: {other}\nqueus: [q]\n")
                await see(tab, "overview")
                tile = "document.querySelector('#tiles dt + dd').textContent"
                await shows(tab, f"{tile}.includes('reload refused for {other}')")
                alerts = await tab.value("document.getElementById('alerts').textContent")
                assert "queus: unknown key; did you mean queues?" in alerts
                await see(tab, "rules")
                note = "document.getElementById('outdated').textContent"
                await shows(tab, f"{note}.includes('The previous rules are active for 1 virtual host: {other}')")
                second.write_text(f"vhost: {other}\nqueues: [q]\n")
                await shows(tab, f"{note} === ''")
                assert_no_errors(tab)
    finally:
        broker.delete_vhost(other)


async def test_the_console_asks_once_for_a_token_and_never_puts_it_into_a_url(
    broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("tokens")
    (folder / "token").write_text("v" * 40)
    tokens = [{"name": "vera", "role": "view", "token_file": "token"}]
    with standing(broker, folder, RULES, {"admin": {"tokens": tokens}}) as site:
        async with console(site) as tab:
            await shows(tab, "document.getElementById('login').hidden", False)
            assert await tab.value("document.querySelector('main').checkVisibility()") is False
            assert await tab.value("document.getElementById('login-fault').hidden") is True
            await tab.page.keyboard.type("wrong")
            await tab.page.keyboard.press("Enter")
            await shows(tab, "document.getElementById('login-fault').textContent.trim()", "the token is not valid")
            assert await tab.value("document.querySelector('[name=token]').value") == ""
            await tab.page.keyboard.type("tökén")  # can't be sent in a header
            await tab.page.keyboard.press("Enter")
            assert await tab.value("document.querySelector('[name=token]').matches(':invalid')") is True
            assert await tab.value("document.getElementById('login').hidden") is False
            await tab.page.locator("[name=token]").fill("")
            await tab.page.keyboard.type("v" * 40)
            await tab.page.keyboard.press("Enter")
            await see(tab, "overview")
            assert await tab.value("document.getElementById('login').hidden") is True
            await tab.page.reload()
            for view in VIEWS:
                await see(tab, view)
            await tab.value("document.querySelector('#candidate textarea').value = 'queues: [a]'")
            await tab.value("document.querySelector('#candidate button').click()")
            await shows(
                tab, "/role view, expected operate/.test(document.querySelector('#comparison .bad')?.textContent)"
            )
            assert "v" * 40 not in "".join(tab.requested)
            assert await tab.value("localStorage.length + document.cookie.length") == 0
            (folder / "token").write_text("n" * 40)  # the stream ends, and the token is not valid any more
            await shows(tab, "document.getElementById('login').hidden", False)


# -- layout and keyboard -----------------------------------------------------------------------------------------------


async def test_every_view_is_reachable_by_keyboard(tab: Tab) -> None:
    for view in VIEWS:
        await tab.page.keyboard.press("Tab")
        await tab.page.keyboard.press("Enter")
        await shows(tab, f"document.querySelector('nav [aria-current]').hash === '#{view}'")


@pytest.mark.parametrize("view", VIEWS)
async def test_every_control_of_a_view_is_reachable_by_tab_and_shows_its_focus(tab: Tab, site: Site, view: str) -> None:
    publish(site, "lost")
    await see(tab, view)
    controls = "a[href], button, input, select, textarea, summary, [tabindex='0']"
    visible = f"[...document.querySelectorAll(`{controls}`)].filter(each => each.checkVisibility())"
    await tab.value("document.activeElement.blur()")
    reached = []
    for _ in range(await tab.value(f"{visible}.length")):
        await tab.page.keyboard.press("Tab")
        reached.append(await tab.value(f"{visible}.indexOf(document.activeElement)"))
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        colored = "document.activeElement.matches('.edge')"  # lines of the map change their colour instead
        assert await tab.value(f"{outline} !== 'none' || {colored}"), reached
    assert sorted(reached) == list(range(len(reached)))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("pixels", WIDTHS)
async def test_no_view_overflows_the_window(tab: Tab, site: Site, pixels: int, scheme: Scheme, tmp_path: Path) -> None:
    publish(site, "lost", key=HOSTILE)
    publish(site, "order", exchange=LONG_EXCHANGE)
    await tab.page.emulate_media(color_scheme=scheme)
    await tab.width(pixels)
    pictures = Path(os.environ.get("CONSOLE_PICTURES", tmp_path))
    for view in VIEWS:
        await see(tab, view)
        assert await tab.value("document.documentElement.scrollWidth") <= pixels, view
        broken = "[...document.querySelectorAll('th, td button, .badge')].filter(each => each.offsetHeight > 45).length"
        assert await tab.value(broken) == 0, view
        assert await tab.value("document.querySelectorAll('main script, main img').length") == 0
        if view in HAS_NAMES:
            publish(site, "lost", key=HOSTILE, exchange=EXCHANGE)
            named = json.dumps("<script>fail()</script>\\u{202e}e")
            await shows(tab, f"document.getElementById('view-{view}').textContent.includes({named})")
        await tab.page.screenshot(path=pictures / f"{view}-{pixels}-{scheme}.png")
    assert_no_errors(tab)
