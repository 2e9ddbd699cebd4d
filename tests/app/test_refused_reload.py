from __future__ import annotations

import urllib.error
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tests.app.test_reload import RULES, post, rules, shared, write  # noqa: F401
from tests.broker.delivery.site import Site
from tests.producer import until
from tests.rabbitmq import quoted


@pytest.fixture
def site(shared: Site) -> Iterator[Site]:  # noqa: F811
    yield shared
    shared.tidy()


def reconnect(site: Site) -> None:
    """Close the control connections of the virtual host; the sidecar then reconnects and declares everything again."""

    def control() -> list[str]:
        return [c["name"] for c in site.broker.api("GET", "connections") if c.get("vhost") == site.vhost]

    until(control, 30)
    for name in control():
        site.broker.api("DELETE", f"connections/{quote(name, safe='')}")


def exists(site: Site, queue: str) -> bool:
    try:
        site.broker.api("GET", f"queues/{quoted(site.vhost)}/{queue}")
    except urllib.error.HTTPError:
        return False
    return True


@pytest.mark.parametrize("refused", [False, True])
def test_queues_of_the_active_rules_are_declared_again_after_a_refused_reload(site: Site, refused: bool) -> None:
    write(site, rules(site, "a"))
    assert post(site, "/-/reload")[0] == 200
    if refused:
        write(site, "vhost: zzz\n" + RULES % ("a", "b"))  # does not exist
        assert post(site, "/-/reload")[0] == 503
        write(site, rules(site, "a"))
        assert post(site, "/-/reload")[0] == 200
    site.delete_queue("a1")
    assert not exists(site, "a1")
    reconnect(site)
    until(lambda: exists(site, "a1"), 20)
