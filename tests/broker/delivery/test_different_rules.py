"""Two sidecars with different rules for one carrier: tokens that only one of them no longer needs are kept."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.broker.observed import Outside, queues
from tests.producer import Producer, until
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar


class Ruled:
    """A sidecar whose rules send every message to some queues."""

    def __init__(self, broker: Broker, vhost: str, folder: Path, *names: str) -> None:
        folder.mkdir()
        self._vhost = vhost
        self._rules = folder / "rules.yaml"
        self._write(*names)
        self.sidecar = Sidecar(broker, [self._rules], {"inventory": {"refresh": "500ms"}}, folder)

    def _write(self, *names: str) -> None:
        bindings = "".join(f"      - {{queue: {name}}}\n" for name in names)
        self._rules.write_text(f"vhost: {self._vhost}\nexchanges:\n  - name: letters\n    bindings:\n{bindings}")

    def reload(self, *names: str) -> None:
        version = self._version()
        self._write(*names)
        os.kill(self.sidecar.process_id, signal.SIGHUP)
        until(lambda: self._version() != version)

    def _version(self) -> str:
        [line] = [line for line in self.sidecar.get("/metrics").splitlines() if line.startswith("oxproxy_rules_info{")]
        return line


@pytest.fixture
def pair(broker: Broker, outside: Outside, vhost: str, tmp_path: Path) -> Iterator[tuple[Ruled, Ruled]]:
    outside.make_queues("a", "b", "c")
    first = Ruled(broker, vhost, tmp_path / "first", "a", "b")
    second = Ruled(broker, vhost, tmp_path / "second", "b", "c")
    with ExitStack() as stack:
        for ruled in (first, second):
            stack.enter_context(ruled.sidecar)
        yield first, second


def test_a_token_that_one_sidecar_no_longer_needs_is_kept_for_the_other(
    pair: tuple[Ruled, Ruled], outside: Outside
) -> None:
    first, second = pair
    with Producer(second.sidecar.port, outside.vhost).open(confirm=True) as producer:
        for number in range(50):
            if number == 10:
                first.reload("a")
            assert producer.send_settled("letters", "k", mandatory=True) == (True, [])
        assert [len(producer.take(queue)) for queue in ("a", "b", "c")] == [0, 50, 50]
    second.reload("c")
    with Producer(second.sidecar.port, outside.vhost).open(confirm=True) as producer:
        assert producer.send_settled("letters", "k", mandatory=True) == (True, [])
        assert [len(producer.take(queue)) for queue in ("a", "b", "c")] == [0, 0, 1]
    assert outside.bound("letters") == queues("a", "b", "c")  # tokens that no rule needs stay, and receive nothing
