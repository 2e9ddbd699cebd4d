from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.broker.delivery.site import Site

#: Maximum seconds for one command; each takes a few milliseconds.
COMMAND_SECONDS = 30

pytestmark = [
    pytest.mark.broker,
    pytest.mark.skipif(not shutil.which("amqp-publish"), reason="amqp-tools are not installed (run `make setup`)"),
]


def tool(site: Site, name: str, *arguments: str, stdin: bytes = b"", status: int = 0) -> bytes:
    """Run one of the amqp-tools through the sidecar and return its output."""
    server = ["--server=127.0.0.1", f"--port={site.sidecar.port}", f"--vhost={site.vhost}"]
    done = subprocess.run(
        [name, *server, "--username=guest", "--password=guest", *arguments],
        input=stdin,
        capture_output=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return done.stdout if not status else done.stderr


def publish(site: Site, exchange: str, body: bytes, kind: str = "letter") -> None:
    tool(site, "amqp-publish", "-e", exchange, "-r", "some.key", "-H", f"kind: {kind}", stdin=body)


def test_published_messages_can_be_got_from_each_queue(site: Site, exchange: str, body: bytes) -> None:
    publish(site, exchange, body)
    for queue in ("inbox", "copy"):
        assert tool(site, "amqp-get", "-q", queue) == body


def test_published_messages_are_consumed(site: Site, exchange: str, body: bytes) -> None:
    publish(site, exchange, body)
    for queue in ("inbox", "copy"):
        assert tool(site, "amqp-consume", "-q", queue, "-c", "1", "cat") == body


def test_an_unroutable_message_is_in_no_queue(site: Site, exchange: str, body: bytes) -> None:
    publish(site, exchange, body, "bill")
    assert site.bodies("inbox", "copy") == [[], []]
    tool(site, "amqp-get", "-q", "inbox", status=2)


def test_it_declares_and_deletes_queues(site: Site) -> None:
    assert tool(site, "amqp-declare-queue", "-q", "tooled").strip() == b"tooled"
    tool(site, "amqp-publish", "-r", "tooled", "-b", "x")
    assert tool(site, "amqp-get", "-q", "tooled") == b"x"
    assert tool(site, "amqp-delete-queue", "-q", "tooled").strip() == b"0"


def test_errors_of_the_broker_are_shown(site: Site, tmp_path: Path) -> None:
    error = tool(site, "amqp-get", "-q", "nowhere", status=1)
    assert b"NOT_FOUND - no queue 'nowhere'" in error
    error = tool(site, "amqp-publish", "--password=wrong", "-e", "letters", status=1)
    assert b"403" in error or b"ACCESS_REFUSED" in error
