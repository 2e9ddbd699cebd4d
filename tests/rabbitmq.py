"""Address and management API of a running RabbitMQ, for tests, the demo and benchmarks.

Source: RabbitMQ's management HTTP API reference.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote, urlsplit

#: Timeout of a management request in seconds; deleting a vhost with thousands of bindings can take half of it.
REQUEST_SECONDS = 60.0

#: Environment variable with the URL of a running broker to use instead of a private one.
URL_VARIABLE = "RABBITMQ_URL"

#: Environment variable with the URL of that broker's management API, if it is not port 15672 of the same host.
MANAGEMENT_VARIABLE = "RABBITMQ_MANAGEMENT_URL"


@dataclass
class Broker:
    """A running RabbitMQ.

    Args:
        host: name or address of the AMQP listener.
        port: its port, without TLS.
        management: base URL of the management API, without a trailing slash.
        username: a user with the tag administrator.
        password: that user's password.
    """

    host: str
    port: int
    management: str
    username: str = "guest"
    password: str = "guest"

    @property
    def address(self) -> str:
        """``host:port``, as in configuration files."""
        return f"{self.host}:{self.port}"

    def url(self, vhost: str = "/", username: str | None = None, password: str | None = None) -> str:
        """Return an AMQP URL for ``vhost``."""
        user = quote(username if username is not None else self.username, safe="")
        secret = quote(password if password is not None else self.password, safe="")
        return f"amqp://{user}:{secret}@{self.address}/{quote(vhost, safe='')}"

    @property
    def upstream(self) -> dict[str, object]:
        """The section ``upstream`` of a configuration for this broker."""
        control = {"username": self.username, "password": self.password}
        return {"address": self.address, "control": control, "management": self.management}

    def api(self, method: str, path: str, body: object = None) -> Any:  # Any: JSON
        """Send a request to the management API and return the decoded response; None if it has no body.

        Args:
            method: GET, PUT, POST or DELETE.
            path: path after ``/api/``, with percent-encoded names (see ``quoted``).
            body: sent as JSON, unless None.

        Raises:
            urllib.error.HTTPError: the status is 400 or higher.
        """
        request = urllib.request.Request(
            f"{self.management}/api/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": self._authorization()},
        )
        with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def _authorization(self) -> str:
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()

    @property
    def version(self) -> tuple[int, ...]:
        """Version of RabbitMQ, e.g. ``(3, 10, 8)``."""
        return tuple(int(part) for part in self.api("GET", "overview")["rabbitmq_version"].split(".")[:3])

    def create_vhost(self, name: str) -> None:
        """Create a virtual host in which this broker's own user has all permissions."""
        self.api("PUT", f"vhosts/{quoted(name)}", {})
        self.grant(self.username, name)

    def delete_vhost(self, name: str) -> None:
        """Delete a virtual host; the broker closes its connections."""
        self.api("DELETE", f"vhosts/{quoted(name)}")

    def create_user(self, name: str, password: str, tags: str = "") -> None:
        """Create a user without permissions; ``tags`` is a comma-separated list, e.g. ``monitoring``."""
        self.api("PUT", f"users/{quoted(name)}", {"password": password, "tags": tags})

    def delete_user(self, name: str) -> None:
        self.api("DELETE", f"users/{quoted(name)}")

    @contextmanager
    def temporary_user(self, tags: str = "") -> Iterator[str]:
        """A user without permissions, for the duration of the context; its password is its name."""
        name = f"user-{secrets.token_hex(4)}"
        self.create_user(name, name, tags)
        try:
            yield name
        finally:
            self.delete_user(name)

    def grant(self, user: str, vhost: str, configure: str = ".*", write: str = ".*", read: str = ".*") -> None:
        """Set a user's permissions in a virtual host, as regular expressions."""
        permissions = {"configure": configure, "write": write, "read": read}
        self.api("PUT", f"permissions/{quoted(vhost)}/{quoted(user)}", permissions)

    def create_queue(self, vhost: str, name: str, durable: bool = True, **arguments: object) -> None:
        """Declare a queue. Arguments are keywords with ``_`` in place of ``-``, e.g. ``x_max_length=1``."""
        table = {key.replace("_", "-"): value for key, value in arguments.items()}
        body = {"durable": durable, "auto_delete": False, "arguments": table}
        self.api("PUT", f"queues/{quoted(vhost)}/{quoted(name)}", body)


def quoted(name: str) -> str:
    """Return ``name`` percent-encoded as one segment of a management path."""
    return quote(name, safe="")


def broker_of_environment() -> Broker | None:
    """Return the broker in ``RABBITMQ_URL``; None if the variable is unset or empty.

    Raises:
        ValueError: the URL is not ``amqp://[user:password@]host[:port]``.
    """
    text = os.environ.get(URL_VARIABLE, "")
    if not text:
        return None
    url = urlsplit(text)
    if url.scheme != "amqp" or not url.hostname:
        raise ValueError(f"{URL_VARIABLE}: expected amqp://[user:password@]host[:port]")
    management = os.environ.get(MANAGEMENT_VARIABLE) or f"http://{_bracketed(url.hostname)}:15672"
    return Broker(
        _bracketed(url.hostname),
        url.port or 5672,
        management.rstrip("/"),
        unquote(url.username or "guest"),
        unquote(url.password or "guest"),
    )


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
