"""Errors in four families, and what each must state.

``ProtocolError``: a peer broke AMQP 0-9-1 or a rule that is answered in its terms; it becomes a Channel.Close or
a Connection.Close. ``LocalProtocolError``: our own code asked for something the protocol forbids (a bug).
``ConfigError``: a file given by the operator is wrong, with the place. ``UpstreamError``: RabbitMQ can't be
reached or refused us. What normal traffic produces (no route, nack, return) is a value, never an exception.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Self


class ProxyError(Exception):
    """Root of everything this package raises on purpose."""


class Scope(Enum):
    """How much of the peer's world a protocol error ends."""

    CHANNEL = "channel"
    CONNECTION = "connection"


class ProtocolError(ProxyError):
    """A peer's fault, answered with a close method.

    Args:
        reply_code: AMQP 0-9-1 reply code (spec, 1.2 "Constants").
        text: reply text without the code's name, e.g. ``Max size payload hit.``; text or ready bytes.
        scope: what is closed.
        class_id: class of the offending method, 0 if none is known.
        method_id: method id of the offending method, 0 if none is known.
    """

    def __init__(
        self,
        reply_code: int,
        text: str | bytes,
        scope: Scope = Scope.CONNECTION,
        class_id: int = 0,
        method_id: int = 0,
    ) -> None:
        super().__init__(reply_code, text)
        self.reply_code = reply_code
        self.text = text if isinstance(text, bytes) else text.encode()
        self.scope = scope
        self.class_id = class_id
        self.method_id = method_id

    def about(self, method: int) -> Self:
        """Name the offending method (class id << 16 | method id), unless one is named already."""
        if not self.class_id:
            self.class_id, self.method_id = divmod(method, 1 << 16)
        return self

    def __str__(self) -> str:
        return f"{self.reply_code} {self.text.decode(errors='replace')}"


class LocalProtocolError(ProxyError):
    """A bug of ours: a state that the protocol does not have."""


def located(file: str, line: int, column: int = 0) -> str:
    """Return a place as ``file:line:column``, as far as it is known: a line or column of 0 is not."""
    numbers = [line, column] if line and column else [line] if line else []
    return ":".join((file, *map(str, numbers)))


class ConfigError(ProxyError):
    """One fault in an operator's file.

    Args:
        file: the file's path as the operator wrote it, or the name of an environment variable.
        line: line number from 1, 0 if the whole file is meant.
        key: dotted path of the key, e.g. ``exchanges[0].bindings[2].arguments``.
        message: what was seen and what was expected. Never a secret's value.
        column: column number from 1, 0 if unknown.
    """

    def __init__(self, file: str, line: int, key: str, message: str, column: int = 0) -> None:
        super().__init__(file, line, key, message)
        self.file = file
        self.line = line
        self.key = key
        self.message = message
        self.column = column

    def __str__(self) -> str:
        """``file:line:column: key: message``, the form promised to operators."""
        place = located(self.file, self.line, self.column)
        return f"{place}: {self.key}: {self.message}" if self.key else f"{place}: {self.message}"


class ConfigErrors(ProxyError):  # noqa: N818 -- a plural of ConfigError
    """Every fault found in one load, in the order of files and of places in them."""

    def __init__(self, errors: Iterable[ConfigError]) -> None:
        self.errors = tuple(sorted(errors, key=lambda error: (error.file, error.line, error.column)))
        super().__init__(*self.errors)

    def __str__(self) -> str:
        return "\n".join(map(str, self.errors))


class UpstreamFailure(Enum):
    """Why RabbitMQ could not be used."""

    UNAVAILABLE = "unavailable"
    REFUSED = "refused"
    TIMEOUT = "timeout"
    TLS = "tls_error"


class UpstreamError(ProxyError):
    """RabbitMQ could not be reached, refused us, or did not answer in time."""

    def __init__(self, failure: UpstreamFailure, message: str) -> None:
        super().__init__(failure, message)
        self.failure = failure
        self.message = message

    def __str__(self) -> str:
        return f"{self.failure.value}: {self.message}"
