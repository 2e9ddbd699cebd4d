"""The listings of a management API that is not that of the broker are not used."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from oxproxy.broker.connection import ControlConnection
from oxproxy.broker.declared.store import DeclarationStore
from oxproxy.broker.management_api import ManagementApi
from oxproxy.broker.reconcile.observed import ObservedState
from oxproxy.broker.reconcile.observer import Observer
from tests.broker.observed import Outside, owned, settings, state
from tests.rabbitmq import Broker


@pytest.fixture
async def connection(broker: Broker, vhost: str) -> AsyncIterator[ControlConnection]:
    opened = ControlConnection(settings(broker), vhost)
    await opened.connect()
    yield opened
    await opened.close()


class EmptyAtTimes(ManagementApi):
    """The broker's management API, or that of a node without any object of the virtual host."""

    is_empty = False

    async def _get(self, path: str) -> list[object]:
        listing: list[object] = await super()._get(path)
        return [] if self.is_empty else listing


@pytest.fixture
async def management(broker: Broker) -> AsyncIterator[EmptyAtTimes]:
    asked = EmptyAtTimes(settings(broker), broker.management)
    yield asked
    await asked.close()


async def test_listings_that_lack_existing_objects_are_not_used_until_they_are_complete_again(
    connection: ControlConnection, management: EmptyAtTimes, outside: Outside, vhost: str
) -> None:
    observed = ObservedState()
    find, find_existing = connection.find_missing, connection.find_existing
    observer = Observer(DeclarationStore(state(vhost, {})), management, observed, find, find_existing)
    outside.make_queues("a", "b")
    outside.make_exchange("e")

    async def look() -> tuple[bool, bool]:
        await observer.list_names()
        observer.finish()
        return observed.queues_complete, observed.exchanges_complete

    assert await look() == (True, True)
    management.is_empty = True
    assert await look() == (False, False)
    assert set(observed.queues) == {b"a", b"b"}
    assert await observer.read_bindings([owned("e")]) == set()
    [failure] = observer.failures
    assert failure.startswith("the management API is not that of the broker: it does not list exchange ")
    management.is_empty = False
    outside.delete_queue("a")
    assert await look() == (True, True)
    assert (set(observed.queues), observer.failures) == ({b"b"}, ())


async def test_a_refused_lookup_shows_nothing(broker: Broker, outside: Outside, vhost: str) -> None:
    outside.make_queues("a")
    with broker.temporary_user() as user:
        broker.grant(user, vhost, "^$", "^$", "^$")
        connection = ControlConnection(settings(broker, username=user, password=user), vhost)
        await connection.connect()
        try:
            found = await connection.find_existing([("queue", b"a"), ("queue", b"nowhere")])
        finally:
            await connection.close()
    assert found == (set() if broker.version >= (4, 3) else {("queue", b"a")})
