"""Applications in other languages, in ``programs/``, and the tests that each of them must pass.

Each application has the same scenarios, written as its library's users would write them. Its arguments are the name of
the scenario, the AMQP URL, and the names of an exchange and a routing key if the scenario needs them. Each line of the
output contains values that are separated by tabs. The test modules define the fixture `application`, and a subclass of
`ApplicationTests`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.broker.client_libraries.header_types import TYPES, letters
from tests.broker.delivery.site import Site
from tests.producer import Closed, Message, until
from tests.rabbitmq import Broker

PROGRAMS = Path(__file__).with_name("programs")
#: Programs that `make test-matrix` installs or compiles.
BUILT = Path(__file__).resolve().parents[3] / "build" / "clients"

#: Maximum seconds for one scenario; each takes at most five.
SCENARIO_SECONDS = 60

LARGE = bytes(index % 251 for index in range(1 << 20))


def through(site: Site) -> str:
    """URL of the sidecar."""
    return Broker("127.0.0.1", site.sidecar.port, "").url(site.vhost)


class Running:
    """A scenario that runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def line(self) -> list[str]:
        """Wait for a line of the output, and return its values."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n").split("\t")

    def rest(self) -> list[list[str]]:
        """Wait for the end, and return the values of each remaining line."""
        output, errors = self._process.communicate(timeout=SCENARIO_SECONDS)
        assert self._process.returncode == 0, f"{output}{errors}"
        return [line.split("\t") for line in output.splitlines()]


class Application:
    """An application.

    Args:
        command: command without the arguments of the scenario.
        environment: variables to add.
    """

    def __init__(self, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
        self._command = [str(part) for part in command]
        self._environment = os.environ | (environment or {})

    @contextlib.contextmanager
    def started(self, scenario: str, url: str, *arguments: str) -> Iterator[Running]:
        command = [*self._command, scenario, url, *arguments]
        with subprocess.Popen(
            command, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                yield Running(process)
            finally:
                process.kill()

    def run(self, scenario: str, url: str, *arguments: str) -> list[list[str]]:
        """Run a scenario, and return the values of each line."""
        with self.started(scenario, url, *arguments) as running:
            return running.rest()


def other_properties(message: Message) -> bytes:
    """The encoded properties, without the headers, whose order may be random."""
    return message.properties.replace(message.entries or b"", b"", 1)


def reach(site: Site, body: str) -> None:
    """Publish until a message has been routed. The exchange, its binding and the queue may be missing at first."""

    def routed() -> bool:
        producer = site.producer()
        try:
            return not producer.send_settled("fleet", "", {"kind": "letter"}, body.encode(), mandatory=True).returned
        except Closed:
            return False
        finally:
            producer.disconnect()

    until(routed)


@pytest.mark.clients
class ApplicationTests:
    """Tests of an application, which use the fixture `application`."""

    #: Its name in TYPES and in docs/reference/header-types.md.
    library: ClassVar[str]
    #: The property ``product`` of its connections.
    product: ClassVar[str]
    #: Whether the library itself connects and declares again.
    recovers = False
    #: Whether it can request a smaller frame size.
    limits_frames = True

    def test_it_declares_binds_publishes_and_consumes(self, application: Application, site: Site) -> None:
        assert application.run("orders", through(site)) == [
            ["confirmed", "2500", "true"],
            ["returned", "312", "sales", "k", "10"],
            ["confirmed", "10", "true"],
            ["delivered", "sales", "k", "2500", "false"],
            ["delivered", "sales", "k", "2500", "true"],
            ["got", "false"],
            ["returned", "312", "sales", "k", "2500"],
            ["confirmed", "2500", "true"],
        ]

    def test_header_types_are_matched_and_arrive_as_without_a_sidecar(
        self, application: Application, site: Site
    ) -> None:
        producer = site.producer()
        assert application.run("types", site.broker.url(site.vhost), "", "inbox") == [["confirmed", "true", "0"]]
        direct = site.next("inbox")
        assert letters(direct.headers) == TYPES[self.library]
        for exchange in ("typed", "typed packets"):
            assert application.run("types", through(site), exchange, "k") == [["confirmed", "true", "0"]]
            message = site.next("inbox", through=producer)
            assert (message.address, message.body) == ((exchange, "k"), b"typed")
            assert message.headers == direct.headers
            assert (message.flags, other_properties(message)) == (direct.flags, other_properties(direct))

    def test_each_of_many_publishes_is_confirmed(self, application: Application, exchange: str, site: Site) -> None:
        assert application.run("many", through(site), exchange) == [["acked", "500"]]
        bodies = [b"%d" % number for number in range(500)]
        assert site.bodies("inbox", "copy") == [bodies, bodies]

    def test_large_messages_in_small_frames_are_complete(
        self, application: Application, exchange: str, site: Site
    ) -> None:
        lines = application.run("large", through(site), exchange)
        assert lines[:2] == [["acked", "true"], ["received", str(len(LARGE)), hashlib.sha256(LARGE).hexdigest()]]
        assert lines[2:] == ([["frame_max", "4096"]] if self.limits_frames else [])
        assert site.bodies("copy") == [[LARGE]]

    def test_refusals_close_only_their_channel(self, application: Application, exchange: str, site: Site) -> None:
        assert application.run("closes", through(site), exchange) == [
            ["missing", "404", "false"],
            ["reserved", "403", "false"],
            ["invalid", "406", "false"],
            ["acked", "true"],
        ]

    def test_an_idle_connection_is_kept_by_heartbeats(self, application: Application, site: Site) -> None:
        assert application.run("idle", through(site), "letters") == [["acked", "true"]]

    def test_it_is_notified_if_its_queue_is_deleted(self, application: Application, site: Site) -> None:
        assert application.run("cancelled", through(site)) == [["cancelled", "reader"]]

    def test_it_commits_and_rolls_back(self, application: Application, exchange: str, site: Site) -> None:
        assert application.run("transactions", through(site), exchange) == []
        assert site.bodies("inbox", "copy") == [[b"committed"], [b"committed"]]

    @pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
    def test_it_continues_after_a_restart_of_the_sidecar(
        self, application: Application, site: Site, end: signal.Signals
    ) -> None:
        with application.started("recovery", through(site)) as running:
            assert running.line() == ["consuming"]
            reach(site, "first")
            assert running.line() == ["received", "first"]
            self._check_properties(site)
            os.kill(site.sidecar.process_id, end)
            site.sidecar.stop()
            site.sidecar.start()
            reach(site, "last")
            lines = running.rest()
        assert ["received", "last"] in lines
        assert (["consuming"] in lines) is not self.recovers

    def _check_properties(self, site: Site) -> None:
        """Check that the broker knows the client's properties and capabilities, and that it uses a sidecar."""

        def connections() -> list[dict[str, Any]]:
            listed = site.broker.api("GET", f"vhosts/{site.vhost}/connections")
            properties = [connection.get("client_properties", {}) for connection in listed]
            return [client for client in properties if client.get("product") == self.product]

        until(connections)
        [properties] = connections()
        assert properties["capabilities"]["consumer_cancel_notify"] is True
        assert "oxproxy" in properties
