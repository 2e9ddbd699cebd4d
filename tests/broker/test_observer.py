from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.broker.declared.store import DeclarationStore
from proxy.broker.management_api import BindingInfo, ManagementApi
from proxy.broker.reconcile.desired import desired_state
from proxy.broker.reconcile.observed import ObservedState
from proxy.broker.reconcile.observer import Observer, log_missing
from proxy.relay.tokens import token
from proxy.relay.vhost import Delivery, OwnedExchange
from proxy.values import Destination, describe
from tests.broker.observed import Outside, exchanges, has, owned, queues, router, settings, state
from tests.rabbitmq import Broker, quoted


@pytest.fixture
async def management(broker: Broker) -> AsyncIterator[ManagementApi]:
    asked = ManagementApi(settings(broker), broker.management)
    yield asked
    await asked.close()


async def nothing_lacks(destinations: Iterable[Destination]) -> dict[Destination, str]:
    return {}


@pytest.fixture
def observed() -> ObservedState:
    return ObservedState()


@pytest.fixture
def observer(management: ManagementApi, vhost: str, observed: ObservedState) -> Observer:
    return Observer(DeclarationStore(state(vhost, {})), management, observed, nothing_lacks)


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
        outside.bind(carrier, name, token("queue", name.encode()).decode())


async def test_tokens_are_read_from_the_broker(observer: Observer, outside: Outside) -> None:
    outside.make_queues("a", "b")
    first, second = marked(outside, "first", "second")
    own(outside, "first", "a", "b")
    for destination in queues("gone"):
        second.tokens.bind_ok(destination)
    assert await observer.read_bindings([first, second]) == {b"first", b"second"}
    assert first.bound == queues("a", "b")
    assert second.bound == set()


async def test_after_a_listing_no_connection_relies_on_a_token_that_it_has_bound(
    observer: Observer, outside: Outside
) -> None:
    outside.make_queues("a")
    [first] = marked(outside, "first")
    own(outside, "first", "a")
    binder, destination = object(), ("queue", b"a")
    now = asyncio.get_running_loop().time()
    first.tokens.asserted(destination, b"1 pin", now, binder)
    assert first.tokens.may_rely(destination, binder, now)
    await observer.read_bindings([first])
    assert destination in first.bound
    assert not first.tokens.may_rely(destination, binder, now)


async def test_changes_by_relays_during_a_listing_take_precedence(
    management: ManagementApi, observer: Observer, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside.make_queues("listed", "dropped")
    [carrier] = marked(outside, "c")
    own(outside, "c", "listed", "dropped")
    for destination in queues("listed", "dropped"):
        carrier.tokens.bind_ok(destination)
    bindings = management.changed_bindings

    async def meanwhile(*asked: Any) -> object:
        listed = await bindings(*asked)
        carrier.tokens.not_bound(("queue", b"dropped"))
        carrier.tokens.bind_ok(("queue", b"added"))
        return listed

    monkeypatch.setattr(management, "changed_bindings", meanwhile)
    await observer.read_bindings([carrier])
    assert carrier.bound == queues("listed", "added")


async def test_a_foreign_binding_is_reported_once(observer: Observer, outside: Outside) -> None:
    outside.make_queues("a", "b")
    [carrier] = marked(outside, "c")
    own(outside, "c", "a")
    outside.bind("c", "a", "by hand")
    with capture_logs() as events:
        await observer.read_bindings([carrier])
        await observer.read_bindings([carrier])
    [event] = has(events, "foreign bindings bypass the rules")
    assert event["bindings"] == ["queue a with key 'by hand'"]
    outside.bind("c", "b", "by hand")
    with capture_logs() as events:
        await observer.read_bindings([carrier])
    [event] = has(events, "foreign bindings bypass the rules")
    assert event["bindings"] == ["queue b with key 'by hand'"]
    assert event["count"] == 2
    assert {item.destination for item in observer.foreign[b"c"]} == queues("a", "b")


async def test_a_removed_foreign_binding_is_no_longer_reported(observer: Observer, outside: Outside) -> None:
    outside.make_queue("a")
    [carrier] = marked(outside, "c")
    outside.bind("c", "a", "by hand")
    await observer.read_bindings([carrier])
    outside.delete_queue("a")
    await observer.read_bindings([carrier])
    assert observer.foreign == {}


def pattern_setting(outside: Outside) -> None:
    outside.make_queue("a")
    outside.make_exchange("near", "fanout")
    outside.make_exchange("far", "topic")
    with outside.channel() as channel:
        channel.exchange_bind("far", "near", "")
        channel.exchange_bind("near", "far", "loop")
    outside.bind("far", "a", "#.q.*")
    outside.bind("far", "a", "harmless.#")


async def test_downstream_patterns_that_match_tokens_cause_one_warning(
    observer: Observer, observed: ObservedState, outside: Outside
) -> None:
    pattern_setting(outside)
    desired = desired_state({b"c": owned("c")}, router({"c": exchanges("near")}))
    await observe(observer, observed)
    with capture_logs() as events:
        await observer.warn(desired)
        await observer.warn(desired)
    [event] = has(events, "state of the broker conflicts with the rules")
    assert "#.q.*" in event["what"]


async def test_patterns_not_reached_from_a_carrier_cause_no_warning(
    observer: Observer, observed: ObservedState, outside: Outside
) -> None:
    pattern_setting(outside)
    await observe(observer, observed)
    with capture_logs() as events:
        await observer.warn(desired_state({b"c": owned("c")}, router({"c": queues("a")})))
    assert events == []


async def test_dead_lettering_without_a_key_causes_a_warning_in_queue_delivery_only(
    observer: Observer, observed: ObservedState, outside: Outside
) -> None:
    outside.make_queue("a", x_dead_letter_exchange="")
    await observe(observer, observed)

    carried, queued = (desired_state({b"c": owned("c", delivery)}, router({"c": queues("a")})) for delivery in Delivery)
    with capture_logs() as events:
        await observer.warn(carried)
    assert events == []
    with capture_logs() as events:
        await observer.warn(queued)
    [event] = has(events, "state of the broker conflicts with the rules")
    assert "queue a dead-letters" in event["what"]


async def test_failures_and_recoveries_are_logged_once(
    observer: Observer, management: ManagementApi, broker: Broker
) -> None:
    base, management._base = management._base, "http://127.0.0.1:1"
    with capture_logs() as events:
        for _ in range(2):
            await observer.list_names()
            observer.finish()
    assert len(has(events, "inventory not complete")) == 2  # queues and exchanges
    assert len(observer.failures) == 2
    management._base = base
    with capture_logs() as events:
        for _ in range(2):
            await observer.list_names()
            observer.finish()
    assert [entry["event"] for entry in events] == ["inventory complete again"]
    assert not observer.failures


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


async def test_without_the_management_api_nothing_is_observed(vhost: str) -> None:
    observed = ObservedState()
    observer = Observer(DeclarationStore(state(vhost, {})), None, observed, nothing_lacks)
    await observer.list_names()
    assert (observed.queues_complete, observed.exchanges_complete) == (False, False)
    assert await observer.read_bindings([owned("c")]) == set()


def test_many_missing_destinations_are_one_short_line() -> None:
    missing = dict.fromkeys(sorted(queues(*map(str, range(1000)))), "does not exist")
    with capture_logs() as events:
        log_missing("/", (), missing, describe)
    [event] = events
    assert event["count"] == 1000
    assert len(event["destinations"]) == 20


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
    assert carrier.bound == queues(*STRANGE_NAMES, "created since")
    assert len(observer.foreign[b"c"]) == len(STRANGE_NAMES) + 1
    await observer.read_bindings([carrier], names_listed=True)  # the list is known to be short
    await observer.read_bindings([carrier])
    monkeypatch.setattr("proxy.broker.reconcile.observer._MANY_BINDINGS", 10)
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
    assert carrier.bound == queues(*STRANGE_NAMES)
