"""Tests the descriptions of the broker's closes: which parts of RabbitMQ's reply texts are shown."""

from __future__ import annotations

import pytest

from oxproxy.amqp.method_frames import channel_close, connection_close
from oxproxy.relay.broker_close import read_close

PUBLISH, CONSUME, DECLARE = (60, 40), (60, 20), (50, 10)
SECRET = "hunter2"


@pytest.mark.parametrize(
    ("code", "method", "text", "shown"),
    [
        (
            404,
            PUBLISH,
            "NOT_FOUND - no exchange 'orders' in vhost '/'",
            "NOT_FOUND - no exchange 'orders' in vhost '/'",
        ),
        (404, CONSUME, "NOT_FOUND - no queue 'a' in vhost '/'", "NOT_FOUND - no queue 'a' in vhost '/'"),
        (
            403,
            PUBLISH,
            f"ACCESS_REFUSED - access to exchange 'e' in vhost '/' refused for user '{SECRET}'",
            "ACCESS_REFUSED - access to exchange 'e' in vhost '/' refused for user '***'",
        ),
        (
            403,
            PUBLISH,
            f"ACCESS_REFUSED - access to topic 'a{SECRET}' in exchange 'e' in vhost '/' refused for user '{SECRET}'",
            "ACCESS_REFUSED - access to topic '***' in exchange 'e' in vhost '/' refused for user '***'",
        ),
        (403, PUBLISH, f"ACCESS_REFUSED - access to topic 'a{SECRET}...", "ACCESS_REFUSED - access to topic '***"),
        (
            406,
            PUBLISH,
            f"PRECONDITION_FAILED - user_id property set to '{SECRET}' but authenticated user was '{SECRET}'",
            "PRECONDITION_FAILED - user_id property set to ***",
        ),
        (
            406,
            PUBLISH,
            f'PRECONDITION_FAILED - invalid message: {{x,<<"{SECRET}">>}}',
            "PRECONDITION_FAILED - invalid message: ***",
        ),
        (
            406,
            DECLARE,
            "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false'",
            "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false'",
        ),
        (
            404,
            PUBLISH,
            f"NOT_FOUND - no exchange 'amqp://me:{SECRET}@far/x' in vhost '/'",
            "NOT_FOUND - no exchange 'amqp://me:***@far/x' in vhost '/'",
        ),
        (505, (0, 0), f"UNEXPECTED_FRAME - type 3, all octets = <<>>: {SECRET}", "UNEXPECTED_FRAME"),
        (501, (0, 0), f'FRAME_ERROR - type 3, first 16 octets = <<"{SECRET}">>', "FRAME_ERROR"),
        (541, (0, 0), "INTERNAL_ERROR", "INTERNAL_ERROR"),
    ],
)
def test_a_reply_text_is_shown_without_data_of_messages(
    code: int, method: tuple[int, int], text: str, shown: str
) -> None:
    assert read_close(1, channel_close(1, code, text.encode(), *method)).reason == f"{code} {shown}"


def test_a_close_is_described_with_its_channel_and_method() -> None:
    close = read_close(7, channel_close(7, 404, b"NOT_FOUND - no queue 'q' in vhost '/'", *CONSUME))
    assert (
        close.described == "the broker closed channel 7: 404 NOT_FOUND - no queue 'q' in vhost '/', after Basic.Consume"
    )
    close = read_close(0, connection_close(320, b"CONNECTION_FORCED - shutdown"))
    assert close.described == "the broker closed the connection: 320 CONNECTION_FORCED - shutdown"
