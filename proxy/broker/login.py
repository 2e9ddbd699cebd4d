"""How a connection of the control user is opened, and what a broker that does not let us in means.

It must not know what the connection is for. Sources: AMQP 0-9-1 spec, 2.2.4 (opening a connection); RabbitMQ's guide on
authentication failures (the broker closes with 403 where a client can understand it).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Any
from urllib.parse import quote

import aiormq
from aiormq.exceptions import AMQPError, ConnectionClosed, InvalidFrameError, ProbableAuthenticationError

from proxy.broker.settings import ControlSettings
from proxy.errors import UpstreamError, UpstreamFailure

# Whatever it warns of reaches us as an exception as well, and is logged with its virtual host by whoever handles it.
logging.getLogger("aiormq").setLevel(logging.CRITICAL)


class LoggedIn(aiormq.Connection):
    """An open connection to one virtual host."""

    # aiormq drops its Channel.CloseOk when the queue of frames to write is full, and the broker then refuses the
    # channel's number for ever. Each of our channels has at most one frame in it.
    FRAME_BUFFER_SIZE = 1024


async def log_in(settings: ControlSettings, vhost: str, host: str, port: int) -> LoggedIn:
    """Open a connection to one host.

    Args:
        settings: as whom, how, and the deadline.
        vhost: which virtual host to open.
        host: name or address, resolved now.
        port: its port.

    Raises:
        UpstreamError: REFUSED where the broker refused the user or the virtual host, TIMEOUT at the deadline,
            else UNAVAILABLE.
    """
    place = f"{host}:{port}"
    connection = _prepared(settings, vhost, host, port)
    try:
        async with asyncio.timeout(settings.deadline_seconds):
            await connection.connect()
    except TimeoutError as error:
        text = f"{place} did not answer within {settings.deadline_seconds:g} s"
        raise UpstreamError(UpstreamFailure.TIMEOUT, text) from error
    except (ProbableAuthenticationError, ConnectionClosed) as error:
        text = f"{place} refused user {settings.username!r} in vhost {vhost!r}: {error.args[-1]}"
        raise UpstreamError(UpstreamFailure.REFUSED, text) from error
    except InvalidFrameError as error:
        # aiormq does not show the Connection.Close that answers Connection.Open, only that it was one.
        text = f"{place} refused vhost {vhost!r}: it does not exist, or user {settings.username!r} may not use it"
        raise UpstreamError(UpstreamFailure.REFUSED, text) from error
    except (AMQPError, OSError) as error:
        if settings.tls is not None and isinstance(error.__cause__, ssl.SSLError):
            raise UpstreamError(
                UpstreamFailure.UNAVAILABLE, f"{place}: {settings.tls.words(error.__cause__)}"
            ) from error
        raise UpstreamError(UpstreamFailure.UNAVAILABLE, f"{place}: {cause_of(error)}") from error
    return connection


def cause_of(error: BaseException) -> str:
    """Say in a few words what an exception of aiormq or of a socket means."""
    text = str(error.args[-1]) if error.args else ""
    return text or type(error).__name__


def _prepared(settings: ControlSettings, vhost: str, host: str, port: int) -> LoggedIn:
    scheme = "amqp" if settings.tls is None else "amqps"
    user, password = quote(settings.username, safe=""), quote(settings.password, safe="")
    name = f"[{host}]" if ":" in host else host
    # Any: handed on to asyncio.open_connection, whose other arguments have other types.
    tls: dict[str, Any] = (
        {"server_hostname": settings.tls.server_name} if settings.tls and settings.tls.server_name else {}
    )
    connection = LoggedIn(
        f"{scheme}://{user}:{password}@{name}:{port}/?heartbeat={settings.heartbeat_seconds}",
        context=settings.tls.context() if settings.tls is not None else None,
        client_properties={"connection_name": settings.connection_name, "product": "oxproxy"},
        **tls,
    )
    connection.vhost = vhost
    return connection
