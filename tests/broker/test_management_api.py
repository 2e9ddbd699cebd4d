from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from oxproxy.broker.connection import ControlSettings, TlsSettings
from oxproxy.broker.management_api import BindingInfo, ExchangeInfo, ManagementApi, QueueInfo
from oxproxy.broker.reconcile.diff import RemoveBinding
from oxproxy.errors import UpstreamError, UpstreamFailure
from tests.broker.observed import Outside, answering, settings
from tests.certificates import Authority
from tests.private_broker import free_port
from tests.rabbitmq import Broker

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Served = Callable[[Handler], Awaitable[ManagementApi]]


@pytest.fixture
async def management(broker: Broker) -> AsyncIterator[ManagementApi]:
    asked = ManagementApi(settings(broker), broker.management)
    yield asked
    await asked.close()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """An inventory whose management API is a handler of the test."""
    closing: list[Callable[[], Awaitable[None]]] = []

    async def serve(handler: Handler) -> ManagementApi:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", handler)
        server = TestServer(application)
        await server.start_server()
        limits = ControlSettings(hosts=(), username="control", password="hush", deadline_seconds=5, listing_bytes=1000)
        asked = ManagementApi(limits, f"http://somebody:secret@127.0.0.1:{server.port}/")
        closing[:] = [asked.close, server.close]
        return asked

    yield serve
    for close in closing:
        await close()


async def failure(asked: Awaitable[object]) -> UpstreamError:
    with pytest.raises(UpstreamError) as caught:
        await asked
    for secret in ("hush", "secret", "guest:"):
        assert secret not in str(caught.value)
    return caught.value


#: Set in each declaration, because RabbitMQ 4.0 lists it even if it was not set.
CLASSIC: dict[str, object] = {"x-queue-type": "classic"}


async def test_queues_are_listed_with_their_arguments(management: ManagementApi, broker: Broker, vhost: str) -> None:
    outside = Outside(broker, vhost)
    outside.make_queue("Käse ~(1)", x_max_length=1, x_queue_type="classic")
    with outside.channel() as channel:
        channel.queue_declare("mine", exclusive=True, arguments=CLASSIC)
        listed = await management.queues(vhost)
    assert listed == {
        "Käse ~(1)".encode(): QueueInfo("Käse ~(1)".encode(), False, CLASSIC | {"x-max-length": 1}),
        b"mine": QueueInfo(b"mine", True, CLASSIC),
    }


async def test_exchanges_are_listed_with_their_type_and_arguments(
    management: ManagementApi, broker: Broker, vhost: str
) -> None:
    Outside(broker, vhost).make_exchange("inner", "fanout", internal=True, x_open_exchange=True)
    listed = await management.exchanges(vhost)
    assert listed[b"inner"] == ExchangeInfo(b"inner", "fanout", True, {"x-open-exchange": True})
    assert listed[b"amq.topic"] == ExchangeInfo(b"amq.topic", "topic")


async def test_one_queue_or_exchange_is_found_by_name(management: ManagementApi, broker: Broker, vhost: str) -> None:
    outside = Outside(broker, vhost)
    for name in ("a/b", "%2F", "Käse ~(1)?#&=+", "a%252Fb"):
        outside.make_queue(name, x_queue_type="classic")
        assert await management.find(vhost, "queue", name.encode()) == QueueInfo(name.encode(), False, CLASSIC)
    assert await management.find(vhost, "exchange", b"amq.fanout") == ExchangeInfo(b"amq.fanout", "fanout")
    assert await management.find(vhost, "queue", b"b") is None
    assert await management.find(vhost, "exchange", b"b") is None


async def test_bindings_of_one_exchange_are_listed_where_listing_all_would_fail(
    management: ManagementApi, broker: Broker, vhost: str
) -> None:
    # On 3.10.8, a key with ~ together with arguments breaks every listing that contains it.
    outside = Outside(broker, vhost)
    outside.make_queue("q")
    with outside.channel() as channel:
        channel.queue_bind("q", "amq.topic", "odd~key", {"argument": 1})
    outside.bind("amq.direct", "q", "key")
    [binding] = await management.bindings(vhost, b"amq.direct")
    assert (binding.destination, binding.routing_key) == (("queue", b"q"), b"key")


@pytest.mark.parametrize("path", ["/api", "/api/", "/"])
async def test_the_address_may_end_with_the_path_of_the_api(broker: Broker, vhost: str, path: str) -> None:
    asked = ManagementApi(settings(broker), broker.management + path)
    assert b"amq.direct" in await asked.exchanges(vhost)
    await asked.close()


async def test_a_missing_exchange_has_no_bindings(management: ManagementApi, vhost: str) -> None:
    assert await management.bindings(vhost, b"nowhere") == []


async def test_a_binding_is_removed_whatever_its_arguments(
    management: ManagementApi, broker: Broker, vhost: str
) -> None:
    outside = Outside(broker, vhost)
    outside.make_queue("q")
    outside.bind("amq.direct", "q", "key", argument=1)
    [binding] = await management.bindings(vhost, b"amq.direct")
    await management.remove_binding(vhost, b"amq.direct", binding)
    assert outside.bindings("amq.direct") == set()


async def test_ten_thousand_queues_are_one_answer(served: Served) -> None:
    async def handler(request: web.Request) -> web.Response:
        assert request.query["columns"] == "name,exclusive,arguments"
        assert request.query["disable_stats"] == "true"
        assert "page" not in request.query
        return web.json_response([])

    assert await (await served(handler)).queues("/") == {}


#: A row of each list.
ROW = json.dumps(
    {"name": "x", "type": "direct", "source": "x", "destination_type": "queue", "destination": "q", "routing_key": "k",
     "properties_key": "p"}
)  # fmt: skip
WRONG_ARGUMENTS = '[{"name": "x", "type": "direct", "arguments": [1]}]'


@pytest.mark.parametrize(
    "content",
    ["", "ROW", '""', "null", "0", '{"items": []}', "[0]", "[", "[ROW", "[ROW]]", "[ROW ROW]", "[ROW,]", "[,ROW]",
     "[] x", '[{"name": 0}]', WRONG_ARGUMENTS],
)  # fmt: skip
async def test_an_answer_other_than_a_list_of_objects_is_an_error_and_not_an_empty_list(
    served: Served, content: str
) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(text=content.replace("ROW", ROW), content_type="application/json")

    asked = await served(handler)
    listings: list[Callable[[], Awaitable[object]]] = [
        lambda: asked.queues("/"),
        lambda: asked.exchanges("/"),
        lambda: asked.sources("/", b"x"),
        lambda: asked.bindings("/", b"x"),
    ]
    for listing in listings:
        assert (await failure(listing())).failure is UpstreamFailure.REFUSED


async def test_bindings_may_be_listed_with_blanks(served: Served) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(text=f" [ {ROW} ,\n {ROW} ]\n", content_type="application/json")

    assert await (await served(handler)).bindings("/", b"x") == [BindingInfo(("queue", b"q"), b"k", "p")] * 2


async def test_a_wrong_password_is_refused_with_the_permission_that_is_needed(broker: Broker, vhost: str) -> None:
    asked = ManagementApi(settings(broker, password="hush"), broker.management)
    error = await failure(asked.queues(vhost))
    await asked.close()
    assert error.failure is UpstreamFailure.REFUSED
    assert "401" in error.message
    assert "monitoring" in error.message


async def test_a_missing_virtual_host_is_refused(management: ManagementApi) -> None:
    error = await failure(management.queues("nowhere"))
    assert error.failure is UpstreamFailure.REFUSED
    assert "404" in error.message


async def test_an_unreachable_server_is_unavailable(broker: Broker) -> None:
    asked = ManagementApi(settings(broker), f"http://127.0.0.1:{free_port()}")
    error = await failure(asked.queues("/"))
    await asked.close()
    assert error.failure is UpstreamFailure.UNAVAILABLE
    assert error.message.endswith("/api/queues/%2F: Connection refused")


@pytest.mark.parametrize("tls", [None, TlsSettings(ssl.create_default_context)], ids=["default", "configured"])
async def test_an_https_url_on_an_http_port_is_named_as_the_cause(broker: Broker, tls: TlsSettings | None) -> None:
    url = broker.management.replace("http:", "https:")
    asked = ManagementApi(replace(settings(broker), management_tls=tls), url)
    error = await failure(asked.queues("/"))
    await asked.close()
    assert error.failure is UpstreamFailure.UNAVAILABLE
    expected = "the server does not use TLS on this port; expected a URL with http, or the port for https"
    assert error.message == f"management API {url}/api/queues/%2F: {expected}"


async def test_a_certificate_that_is_not_trusted_is_named_as_the_cause(broker: Broker, tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).certificate("localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        asked = ManagementApi(settings(broker), f"https://localhost:{server.sockets[0].getsockname()[1]}")
        error = await failure(asked.queues("/"))
        await asked.close()
    assert "/api/queues/%2F: certificate rejected: " in error.message


async def test_an_unknown_host_is_named_as_the_cause(broker: Broker) -> None:
    asked = ManagementApi(settings(broker), "http://nowhere.invalid:15672")
    error = await failure(asked.queues("/"))
    await asked.close()
    assert error.failure is UpstreamFailure.UNAVAILABLE
    with pytest.raises(socket.gaierror) as unresolved:
        socket.getaddrinfo("nowhere.invalid", 15672)
    assert error.message.endswith(f"/api/queues/%2F: {unresolved.value.strerror}")


@pytest.mark.parametrize("content", [b"AMQP\x00\x00\x09\x01", b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n["])
async def test_a_server_without_http_is_reported_as_the_wrong_address(broker: Broker, content: bytes) -> None:
    async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(content)

    async with answering(odd) as port:
        asked = ManagementApi(settings(broker), f"http://127.0.0.1:{port}")
        error = await failure(asked.queues("/"))
        await asked.close()
    assert error.failure is UpstreamFailure.UNAVAILABLE
    expected = "the response is not HTTP or is incomplete; check that this is the address of the management API"
    assert error.message.endswith(f"/api/queues/%2F: {expected}")


async def test_a_server_that_does_not_answer_is_abandoned_at_the_deadline(broker: Broker) -> None:
    came, done = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        await done.wait()

    async with answering(silent) as port:
        asked = ManagementApi(settings(broker, deadline_seconds=0.05), f"http://127.0.0.1:{port}")
        error = await failure(asked.queues("/"))
        await asked.close()
        await came.wait()
        done.set()
    assert error.failure is UpstreamFailure.TIMEOUT


async def test_a_list_of_bindings_may_take_longer_than_other_answers(broker: Broker) -> None:
    queries: list[bytes] = []

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        queries.append(await reader.readline())
        await asyncio.sleep(0.3)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]")
        await writer.drain()

    async with answering(slow) as port:
        patient = ManagementApi(settings(broker, deadline_seconds=0.1, listing_seconds=5.0), f"http://127.0.0.1:{port}")
        assert await patient.bindings("/", b"ox") == []
        assert (await failure(patient.queues("/"))).failure is UpstreamFailure.TIMEOUT
        # The API is now known not to respond, so the list gets no more time than other requests.
        assert (await failure(patient.bindings("/", b"ox"))).failure is UpstreamFailure.TIMEOUT
        await patient.close()
    assert len(queries) == 3


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (500, "internal", UpstreamFailure.UNAVAILABLE),
        (200, "<html>", UpstreamFailure.REFUSED),
        (200, '[{"durable": true}]', UpstreamFailure.REFUSED),
        (200, '{"items": []}', UpstreamFailure.REFUSED),
        (200, "[" + "1," * 1000 + "1]", UpstreamFailure.REFUSED),
        (302, "", UpstreamFailure.REFUSED),
    ],
)
async def test_an_unusable_answer_is_an_error(
    served: Served, status: int, body: str, expected: UpstreamFailure
) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=status, text=body, headers={"Location": "/elsewhere"})

    error = await failure((await served(handler)).queues("/"))
    assert error.failure is expected


async def test_credentials_in_the_address_are_left_out_of_the_request(served: Served) -> None:
    seen: list[str | None] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.json_response([])

    await (await served(handler)).bindings("/", b"x")
    assert seen == ["Basic Y29udHJvbDpodXNo"]


def test_a_binding_is_shown_by_destination_and_key() -> None:
    binding = BindingInfo(("queue", b"q"), b"k\xff", "")
    assert str(binding) == "queue q with key 'k\ufffd'"
    assert str(RemoveBinding(b"x", binding)) == "remove binding of exchange x to queue q with key 'k\ufffd'"
