"""Log lines on standard error.

An event is always written as a single line, as key=value pairs or JSON, even if it contains text from peers. Times are
in UTC. Passwords are masked regardless of which module logs them. Modules log with
``structlog.get_logger().warning("what happened", key=value)``. An event that may occur very often is logged with
``repeat=<key>``: it is written once per key and interval, and the key's next line contains the number of suppressed
events (``suppressed=N``). Log records from libraries are handled in the same way.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from threading import Lock
from typing import TYPE_CHECKING, TextIO

import structlog

from oxproxy.values import text

if TYPE_CHECKING:
    from structlog.typing import EventDict, WrappedLogger

MASK = "***"
#: Values of keys that contain one of these words are never logged.
_SECRET_KEY = re.compile(r"passw|secret|authorization|credential", re.IGNORECASE)
#: user:password@ in an address. The match is greedy, since user and password may contain an unescaped @ or /, and
#: masking too much is safe.
_ADDRESS = re.compile(r"(://[^\s:]*):\S*@")
#: Maximum number of tracked keys of repeated events; the least recently seen key is dropped first.
_REPEAT_KEYS = 1024
#: Interval in which a repeated event is written only once.
_REPEAT_SECONDS = 10.0


def configure(level: str = "info", style: str = "text", stream: TextIO | None = None) -> None:
    """Set up logging for the whole process. Can be called again to change the settings.

    Args:
        level: debug, info, warning or error.
        style: ``text`` for key=value, or ``json``.
        stream: output; standard error by default.
    """
    least = logging.getLevelNamesMapping()[level.upper()]
    renderer: list[structlog.typing.Processor] = [escape, structlog.processors.LogfmtRenderer(bool_as_flag=False)]
    if style == "json":
        renderer = [structlog.processors.JSONRenderer(default=str)]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            RepeatLimit(_REPEAT_SECONDS),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            mask_secrets,
            *renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=lambda *_: _LineLogger(stream),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers[:] = [_LibraryHandler()]
    # Libraries log every connection at INFO; the sidecar logs connections itself.
    root.setLevel(max(least, logging.WARNING) if least > logging.DEBUG else logging.DEBUG)


class RepeatLimit:
    """Drops an event with ``repeat=<key>`` if the same event and key were last logged less than `seconds` ago."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._seen: OrderedDict[tuple[object, object], tuple[float, int]] = OrderedDict()
        self._lock = Lock()

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        """Return the event with the number of suppressed events, or drop it."""
        if "repeat" not in event:
            return event
        key = (event.get("event"), event.pop("repeat"))
        now = self._clock()
        with self._lock:
            written, suppressed = self._seen.pop(key, (None, 0))
            if written is not None and now - written < self._seconds:
                self._seen[key] = (written, suppressed + 1)
                raise structlog.DropEvent
            self._seen[key] = (now, 0)
            if len(self._seen) > _REPEAT_KEYS:
                self._seen.popitem(last=False)
        if suppressed:
            event["suppressed"] = suppressed
        return event


def mask_secrets(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Mask the values of secret keys, and passwords in addresses, at any depth; put time, level and event first."""
    first = [key for key in ("ts", "level", "event") if key in event]
    return {key: _masked(key, event[key]) for key in dict.fromkeys((*first, *event))}


def _masked(key: object, value: object) -> object:
    if _SECRET_KEY.search(str(key)):
        return MASK
    if isinstance(value, bytes):
        value = text(value)
    elif isinstance(value, Mapping):
        return {str(inner): _masked(inner, item) for inner, item in value.items()}
    elif isinstance(value, (list, tuple, set, frozenset)):
        return [_masked("", item) for item in value]
    elif value is None or isinstance(value, (bool, int, float)):
        return value
    return _ADDRESS.sub(rf"\1:{MASK}@", str(value))


def escape(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Escape control characters that peers send, since `LogfmtRenderer` escapes only newlines."""
    return {key: _printable(value) for key, value in event.items()}


def _printable(value: object) -> object:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = "; ".join(value)  # JSON would be quoted twice, which is hard to read
    elif isinstance(value, (dict, list)):
        return json.dumps(value, default=str)
    if not isinstance(value, str) or value.isprintable():
        return value
    kept = (char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode() for char in value)
    return "".join(kept)


class _LineLogger:
    """Writes whole lines. Errors while writing are ignored."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def msg(self, line: str) -> None:
        stream = self._stream or sys.stderr
        try:
            stream.write(line + "\n")
            stream.flush()
        except (OSError, ValueError):  # ValueError: the stream is closed
            return

    log = debug = info = warn = warning = error = critical = fatal = exception = msg


class _LibraryHandler(logging.Handler):
    """Passes records of `logging` to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        level = min(record.levelno // 10 * 10, logging.CRITICAL)
        try:
            message = record.getMessage()
        except (KeyError, TypeError, ValueError):  # the arguments don't fit the format
            message = str(record.msg)
        log = structlog.get_logger()
        log.log(level, message, logger=record.name, **({"exc_info": record.exc_info} if record.exc_info else {}))
