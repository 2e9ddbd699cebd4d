"""The four families of errors.

- ``ProtocolError``: a peer violated AMQP 0-9-1 or one of our own restrictions. The reply is Channel.Close or
  Connection.Close.
- ``LocalProtocolError``: our own code attempted something that the protocol forbids, which is a bug.
- ``ConfigError``: an operator's file is invalid. The error contains the file, line and key.
- ``UpstreamError``: RabbitMQ is unreachable or refused a request.

Results of normal traffic, such as nacks, returns and messages without a route, are represented by values, never by
exceptions.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Self


class ProxyError(Exception):
    """Base class of the four families."""


class Scope(Enum):
    """What a protocol error closes."""

    CHANNEL = "channel"
    CONNECTION = "connection"


class ProtocolError(ProxyError):
    """A protocol violation by a peer, answered with a close method.

    Args:
        reply_code: AMQP 0-9-1 reply code (spec, 1.2 "Constants").
        text: reply text without the name of the code, such as ``Max size payload hit.``, as str or encoded bytes.
        scope: whether the channel or the connection is closed.
        class_id: class of the offending method; 0 if unknown.
        method_id: offending method; 0 if unknown.
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
        """Set the offending method (class id << 16 | method id) unless it is set already."""
        if not self.class_id:
            self.class_id, self.method_id = divmod(method, 1 << 16)
        return self

    def __str__(self) -> str:
        return f"{self.reply_code} {self.text.decode(errors='replace')}"


class LocalProtocolError(ProxyError):
    """A bug in our own code: an operation that the protocol does not allow in this state."""


def located(file: str, line: int, column: int = 0) -> str:
    """Return ``file:line:column``. A line or column of 0 is omitted."""
    numbers = [line, column] if line and column else [line] if line else []
    return ":".join((file, *map(str, numbers)))


class ConfigError(ProxyError):
    """One error in an operator's file.

    Args:
        file: path as the operator wrote it, or the name of an environment variable.
        line: line number, counting from 1; 0 for the whole file.
        key: dotted path of the key, e.g. ``exchanges[0].bindings[2].arguments``.
        message: text with the value found and the value expected; never contains a secret.
        column: column number, counting from 1; 0 if unknown.
    """

    def __init__(self, file: str, line: int, key: str, message: str, column: int = 0) -> None:
        super().__init__(file, line, key, message)
        self.file = file
        self.line = line
        self.key = key
        self.message = message
        self.column = column

    def __str__(self) -> str:
        """Return ``file:line:column: key: message``, the documented format."""
        place = located(self.file, self.line, self.column)
        return f"{place}: {self.key}: {self.message}" if self.key else f"{place}: {self.message}"


class ConfigErrors(ProxyError):  # noqa: N818 -- the plural of ConfigError
    """All errors found while files were loaded, ordered by file and position."""

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
    """RabbitMQ is unreachable, refused a request, or did not respond in time."""

    def __init__(self, failure: UpstreamFailure, message: str) -> None:
        super().__init__(failure, message)
        self.failure = failure
        self.message = message

    def __str__(self) -> str:
        return f"{self.failure.value}: {self.message}"
