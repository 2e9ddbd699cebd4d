from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from oxproxy.broker.declared.store import DeclarationStore
from oxproxy.broker.management_api import BindingInfo, ManagementApi
from oxproxy.broker.reconcile.observed import ObservedState
from oxproxy.broker.reconcile.observer import Observer
from oxproxy.relay.vhost import OwnedExchange
from oxproxy.values import Destination
from tests.broker.observed import Outside, exchanges, owned, queues, settings, state
from tests.rabbitmq import Broker, quoted
from tests.relay.wire import token


@pytest.fixture
async def management(broker: Broker) -> AsyncIterator[ManagementApi]:
    asked = ManagementApi(settings(broker), broker.management)
    yield asked
    await asked.close()


async def nothing_lacks(destinations: Iterable[Destination]) -> dict[Destination, str]:
    return {}


async def none_exists(destinations: Iterable[Destination]) -> set[Destination]:
    return set()


@pytest.fixture
def observed() -> ObservedState:
    return ObservedState()


@pytest.fixture
def observer(management: ManagementApi, vhost: str, observed: ObservedState) -> Observer:
    return Observer(DeclarationStore(state(vhost, {})), management, observed, nothing_lacks, none_exists)


async def observe(observer: Observer, observed: ObservedState) -> None:
    await observer.list_names()
    assert observed.queues_complete
    assert observed.exchanges_complete


def marked(outside: Outside, *names: str) -> list[OwnedExchange]:
    for name in names:
        outside.make_exchange(name, "direct", x_open_exchange=True)
    return [owned(name) for name in names]


def own(outside: Outside, carrier: str, *names: str) -> None:
    for name in names:
        outside.bind(carrier, name, token("queue", name.encode(), outside.vhost).decode())


async def test_exchanges_may_be_open_if_the_last_list_did_not_contain_them(
    observer: Observer, management: ManagementApi, outside: Outside
) -> None:
    known = observer._store.state
    names = (b"", b"amq.topic", b"plain", b"elsewhere", b"missing")
    assert not any(map(known.may_be_open, names))  # nothing has been listed yet
    outside.make_exchange("plain")
    outside.make_exchange("elsewhere", x_open_exchange=True, x_oxproxy="not readable")
    await observer.list_names()
    assert [known.may_be_open(name) for name in names] == [False, False, False, True, True]
    management._base = "http://127.0.0.1:1"
    await observer.list_names()
    assert not any(map(known.may_be_open, names))


STRANGE_NAMES = ("plain", "a/b", "%2F", "?x=1#y", "spa ce", "ümläut", "queue", "...")


def many_bindings(outside: Outside) -> OwnedExchange:
    """A carrier with bindings to queues and to an exchange whose names must be quoted."""
    outside.make_queues(*STRANGE_NAMES)
    outside.make_exchange("after/wards", "fanout")
    [carrier] = marked(outside, "c")
    own(outside, "c", *STRANGE_NAMES)
    for name in STRANGE_NAMES:
        outside.bind("c", name, "by hand")
    path = f"bindings/{quoted(outside.vhost)}/e/c/e/{quoted('after/wards')}"
    outside.broker.api("POST", path, {"routing_key": "by hand", "arguments": {}})
    return carrier


async def test_a_list_by_destination_equals_the_whole_list(
    management: ManagementApi, outside: Outside, vhost: str
) -> None:
    many_bindings(outside)
    destinations = [*sorted(queues(*STRANGE_NAMES)), *exchanges("after/wards", "amq.direct"), ("queue", b"absent")]
    ahead: list[BindingInfo] = []

    async def read_ahead(part: list[BindingInfo]) -> None:
        ahead.extend(part)

    whole = await management.bindings(vhost, b"c")
    listed = await management.changed_bindings(vhost, b"c", b"", destinations, read_ahead)
    assert listed is not None
    digest, bindings = listed
    assert len(bindings) == 2 * len(STRANGE_NAMES) + 1
    assert sorted(bindings) == sorted(ahead) == sorted(whole)
    assert await management.changed_bindings(vhost, b"c", digest, destinations[:-1]) is None
    with outside.channel() as channel:
        channel.queue_unbind("ümläut", "c", "by hand")
    changed = await management.changed_bindings(vhost, b"c", digest, destinations)
    assert changed is not None
    assert sorted(changed[1]) == sorted(await management.bindings(vhost, b"c"))


async def test_with_few_possible_destinations_first_lists_and_long_lists_are_requested_by_destination(
    management: ManagementApi,
    observer: Observer,
    observed: ObservedState,
    outside: Outside,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    carrier = many_bindings(outside)
    listing, asked = management.changed_bindings, list[set[Destination] | None]()

    async def noted(*given: Any) -> Any:
        asked.append(None if given[3] is None else set(given[3]))
        return await listing(*given)

    monkeypatch.setattr(management, "changed_bindings", noted)
    await observe(observer, observed)
    created_since = ("queue", b"created since")
    carrier.tokens.bind_ok(created_since)
    outside.make_queues("created since")
    own(outside, "c", "created since")
    await observer.read_bindings([carrier], names_listed=True)
    assert carrier.tokens.bound.keys() == queues(*STRANGE_NAMES, "created since")
    assert len(observer.foreign[b"c"]) == len(STRANGE_NAMES) + 1
    await observer.read_bindings([carrier], names_listed=True)  # the list is known to be short
    await observer.read_bindings([carrier])
    monkeypatch.setattr("oxproxy.broker.reconcile.observer._MANY_BINDINGS", 10)
    await observer.read_bindings([carrier], names_listed=True)
    [first, *others, last] = asked
    assert first is not None
    assert first >= {*queues(*STRANGE_NAMES), *exchanges("after/wards", "amq.topic"), created_since}
    assert others == [None, None]
    assert last == first


@pytest.mark.parametrize("others", [[f"more {number}" for number in range(60)], ["not UTF-8 \ufffd"], ["."], [".."]])
async def test_many_destinations_or_names_that_urls_cannot_contain_are_not_requested_one_by_one(
    management: ManagementApi,
    observer: Observer,
    observed: ObservedState,
    outside: Outside,
    monkeypatch: pytest.MonkeyPatch,
    others: list[str],
) -> None:
    carrier = many_bindings(outside)
    outside.make_queues(*others)
    listing = management.changed_bindings

    async def whole_only(*given: Any) -> Any:
        assert given[3] is None
        return await listing(*given)

    monkeypatch.setattr(management, "changed_bindings", whole_only)
    await observe(observer, observed)
    await observer.read_bindings([carrier], names_listed=True)
    assert carrier.tokens.bound.keys() == queues(*STRANGE_NAMES)
