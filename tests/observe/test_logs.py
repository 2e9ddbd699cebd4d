from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from oxproxy.observe.logs import RepeatLimit, configure, mask_secrets

Lines = Callable[[], list[str]]


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def logging_to(style: str, level: str = "info") -> tuple[structlog.typing.FilteringBoundLogger, Lines]:
    stream = io.StringIO()
    configure(level, style, stream)
    return structlog.get_logger(), lambda: stream.getvalue().splitlines()


def test_text_format_is_key_value_with_time_level_and_event_first() -> None:
    log, lines = logging_to("text")
    log.info("upstream connected", address="127.0.0.1:5672", attempts=2, tls=False, reason=None)
    (line,) = lines()
    timestamp, rest = line.split(" ", 1)
    assert timestamp.startswith("ts=20")
    assert timestamp.endswith("Z")
    assert rest == 'level=info event="upstream connected" address=127.0.0.1:5672 attempts=2 tls=false reason='


def test_json_format_is_one_object_per_line() -> None:
    log, lines = logging_to("json")
    log.warning("x", name=b"\xff", nested={"a": [1, b"b"]})
    got = json.loads(lines()[0])
    assert got.pop("ts").endswith("Z")
    assert got == {"level": "warning", "event": "x", "name": "\\xff", "nested": {"a": [1, "b"]}}


def test_lines_below_the_level_are_not_written() -> None:
    log, lines = logging_to("text", "warning")
    log.info("no")
    log.warning("yes")
    assert [line.split("event=")[1] for line in lines()] == ["yes"]


@pytest.mark.parametrize("style", ["text", "json"])
def test_secrets_are_masked_at_any_depth(style: str) -> None:
    log, lines = logging_to(style)
    log.info(
        "connecting to amqp://user:h/u@nter2@host/",
        password="hunter2",
        nested={"Authorization": "hunter2", "list": [{"client_secret": "hunter2"}]},
        url="amqps://user:hunter2@host",
        error=ValueError("amqp://u:hunter2@h refused"),
        upstream_password_bytes=b"hunter2",
    )
    (line,) = lines()
    assert "nter2" not in line
    assert line.count("***") == 7
    assert "host" in line


def test_an_exception_is_one_line() -> None:
    log, lines = logging_to("text")
    try:
        raise RuntimeError("two\nlines")
    except RuntimeError:
        log.exception("connection failed")
    (line,) = lines()
    assert "RuntimeError: two\\nlines" in line


def test_a_list_of_strings_is_quoted_once() -> None:
    log, lines = logging_to("text")
    log.error("x", errors=['r.yaml:1: ["a b"]: unknown', "r.yaml:2: other"])
    assert lines()[0].endswith(r'errors="r.yaml:1: [\"a b\"]: unknown; r.yaml:2: other"')


@given(st.lists(st.text()), st.text(), st.text())
def test_any_text_is_one_line_and_round_trips_through_json(values: list[str], value: str, event: str) -> None:
    # Passwords in URLs are masked, so the strings must not contain URLs.
    event, value, *values = (text.replace("://", "") for text in (event, value, *values))
    log, lines = logging_to("text")
    log.info(event, value=value, values=values)
    (line,) = lines()
    assert line.isprintable()
    log, lines = logging_to("json")
    log.info(event, value=value, values=values)
    (line,) = lines()
    got = json.loads(line)
    assert (got["event"], got["value"], got["values"]) == (event, value, values)


def test_repeated_events_are_suppressed_and_counted_per_event_and_key() -> None:
    now = 0.0
    limit = RepeatLimit(10, lambda: now)
    log: list[dict[str, object]] = []

    def event(name: str, key: str) -> None:
        try:
            log.append(dict(limit(None, "", {"event": name, "repeat": key})))
        except structlog.DropEvent:
            return

    for key in ("a", "a", "b", "a"):
        event("full", key)
    event("gone", "a")
    now = 9.9
    event("full", "a")
    now = 10.0
    event("full", "a")
    event("full", "a")
    assert log == [
        {"event": "full"},
        {"event": "full"},
        {"event": "gone"},
        {"event": "full", "suppressed": 3},
    ]


def test_events_without_a_repeat_key_are_never_suppressed() -> None:
    log, lines = logging_to("text")
    for _ in range(3):
        log.info("same")
    assert len(lines()) == 3


def test_the_number_of_repeat_keys_is_bounded() -> None:
    limit = RepeatLimit(10, lambda: 0.0)
    for number in range(5000):
        limit(None, "", {"event": "e", "repeat": number})
    assert len(limit._seen) <= 1024


def test_log_lines_of_libraries_have_the_same_format() -> None:
    _, lines = logging_to("json")
    logging.getLogger("some.library").warning("lost %s", "amqp://a:hunter2@b")
    logging.getLogger("some.library").info("chatter")
    logging.getLogger("some.library").error("bad %d", "format")
    got = [json.loads(line) for line in lines()]
    assert [(line["level"], line["logger"], line["event"]) for line in got] == [
        ("warning", "some.library", "lost amqp://a:***@b"),
        ("error", "some.library", "bad %d"),
    ]


def test_a_failing_stream_raises_no_error() -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    configure(stream=Broken())
    structlog.get_logger().info("x")
    closed = io.StringIO()
    closed.close()
    configure(stream=closed)
    structlog.get_logger().info("x")


@pytest.mark.parametrize(
    "address", ["amqp://me@corp.example:s3cret@host:5672/", "amqp://corp/me:s3cret@host", "amqp://u:s3cret@h/v"]
)
def test_passwords_in_addresses_are_masked_whatever_the_user_is_named(address: str) -> None:
    assert "s3cret" not in str(mask_secrets(None, "", {"event": f"can't connect to {address}", "address": address}))


def test_a_library_line_with_a_missing_name_in_its_format_raises_no_error() -> None:
    stream = io.StringIO()
    configure(stream=stream)
    try:
        logging.getLogger("library").warning("%(missing)s", {"given": 1})
    finally:
        configure()
    assert "%(missing)s" in stream.getvalue()
