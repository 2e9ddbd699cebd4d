"""``oxproxy adopt``: what version 0.1, or a previous secret, left on the broker gets a signature and keeps routing."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from proxy.amqp.tables import decode_table
from proxy.cli import main as cli
from proxy.relay.declare.storage import kept_arguments, pack
from proxy.relay.tokens import token
from proxy.values import Table, Value
from tests.broker.delivery.applications import Application, entries
from tests.broker.world import Outside
from tests.producer import until
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar

MATCH: dict[str, object] = {"x-?hkex": "a", "x-addq-ontrue": "more"}
FAST = {"inventory": {"refresh": "200ms"}}


class Old:
    """What sidecars of version 0.1 left in a virtual host: an exchange and a binding to each of two queues."""

    def __init__(self, broker: Broker, vhost: str) -> None:
        self.broker, self.vhost = broker, vhost
        Outside(broker, vhost).make_queues("one", "two", "more")
        marked = ((b"x-open-exchange", Value("t", True)), (b"x-oxproxy", Value("S", pack(1, b""))))
        with Application(broker.port, vhost) as beside:
            beside.exchange("ox", marked, kind="direct", durable=True)
            for sequence, queue in enumerate(("one", "two"), 2):
                beside.bind(queue, "ox", kept(sequence, MATCH), token("queue", queue.encode()).decode())

    def signatures(self) -> list[str]:
        """The signatures of stored bindings; "" where there is none."""
        rows = self.broker.api("GET", f"exchanges/{self.vhost}/ox/bindings/source")
        return [row["arguments"].get("x-oxproxy-signature", "") for row in rows if "x-oxproxy" in row["arguments"]]

    def under(self, keys: set[str]) -> set[str]:
        """The destinations that are bound under one of these keys."""
        rows = self.broker.api("GET", f"exchanges/{self.vhost}/ox/bindings/source")
        return {row["destination"] for row in rows if row["routing_key"] in keys}


def kept(sequence: int, arguments: dict[str, object]) -> Table:
    raw = kept_arguments(sequence, entries(arguments), b"", "guest")
    return decode_table(raw, 0, len(raw))


@pytest.fixture
def old(broker: Broker, vhost: str) -> Old:
    return Old(broker, vhost)


@pytest.fixture
def running(old: Old, tmp_path: Path) -> Iterator[Sidecar]:
    """A sidecar of this version with a secret of its own."""
    (tmp_path / "current").write_bytes(secrets.token_bytes(32))
    settings = {**FAST, "declared": {"secrets": [{"file": "current"}]}}
    with Sidecar(old.broker, settings=settings, folder=tmp_path) as sidecar:
        yield sidecar


def run(sidecar: Sidecar, old: Old, *more: str) -> int:
    return cli.main(["adopt", "--config", str(sidecar.configuration), "--vhost", old.vhost, *more])


def reached(app: Application) -> list[str]:
    return app.reached("ox", {"a": 1}, "one", "two", "more")


def unsigned(sidecar: Sidecar, old: Old) -> int:
    vhosts = json.loads(sidecar.get("/status"))["vhosts"]
    (found,) = (one["unsigned"] for one in vhosts if one["vhost"] == old.vhost)
    return sum(map(len, found.values()))


def test_what_is_adopted_reaches_again_what_its_client_may_bind(
    running: Sidecar, old: Old, capsys: pytest.CaptureFixture[str]
) -> None:
    with Application(running.port, old.vhost) as app:
        assert reached(app) == ["one", "two"]
        assert run(running, old, "--dry-run") == 0
        listed = capsys.readouterr().out
        assert "queue one with key" in listed
        assert "user 'guest', arguments x-?hkex, x-addq-ontrue: no signature: would be signed\n" in listed
        assert old.signatures() == ["", ""]
        assert unsigned(running, old) == 2
        assert run(running, old) == 0
        assert "2 bindings signed, 0 still without a valid signature" in capsys.readouterr().out
        assert "" not in old.signatures()
        assert len(old.signatures()) == 2
        until(lambda: unsigned(running, old) == 0)
        assert reached(app) == ["one", "two", "more"]
        assert run(running, old) == 0
        assert "0 bindings signed, 0 still" in capsys.readouterr().out
        for queue in ("one", "two"):
            app.unbind(queue, "ox", MATCH)
        assert old.signatures() == []


def test_what_was_signed_is_there_for_machines(running: Sidecar, old: Old, capsys: pytest.CaptureFixture[str]) -> None:
    for more, left in ((["--dry-run"], "would be signed"), ([], None)):
        assert run(running, old, "--json", *more) == 0
        (found,) = json.loads(capsys.readouterr().out)["vhosts"]
        assert (found["vhost"], found["complete"], found["transition"]) == (old.vhost, True, [])
        assert [(each["signed"], each["left"]) for each in found["bindings"]] == [(left is None, left)] * 2
        one = next(each for each in found["bindings"] if each["binding"].startswith("queue one "))
        assert (one["exchange"], one["user"], one["reason"]) == ("ox", "guest", "no signature")
        assert one["arguments"] == ["x-?hkex", "x-addq-ontrue"]
    assert run(running, old, "--json", "--finish") == 0
    (found,) = json.loads(capsys.readouterr().out)["vhosts"]
    assert found["bindings"] == []
    assert found["transition"][0].startswith("transition finished; ")


def test_messages_reach_their_queues_while_they_are_adopted(running: Sidecar, old: Old) -> None:
    adopted = threading.Event()
    sent = 0
    with Application(running.port, old.vhost) as app, ThreadPoolExecutor(1) as other:
        adopting = other.submit(run, running, old)
        adopting.add_done_callback(lambda _: adopted.set())
        while not adopted.is_set() or sent < 100:
            assert app.send_settled("ox", "k", {"a": 1}).acked
            sent += 1
        assert adopting.result() == 0
        until(lambda: unsigned(running, old) == 0)
        assert [len(app.take(queue)) for queue in ("one", "two")] == [sent, sent]


def test_version_0_1_still_reads_what_was_adopted(running: Sidecar, old: Old) -> None:
    before = _kept(old)
    assert run(running, old) == 0
    assert _kept(old) == before


def _kept(old: Old) -> list[tuple[str, str, str]]:
    """All that version 0.1 looks at: destination, key and what is kept."""
    rows = old.broker.api("GET", f"exchanges/{old.vhost}/ox/bindings/source")
    found = [(row["destination"], row["routing_key"], row["arguments"].get("x-oxproxy", "")) for row in rows]
    return sorted(row for row in found if row[2])


def test_bindings_under_a_previous_secret_are_said_and_signed_again(
    running: Sidecar, old: Old, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(running, old) == 0
    before = set(old.signatures())
    settings = yaml.safe_load(running.configuration.read_text())
    (tmp_path / "next").write_bytes(secrets.token_bytes(32))
    settings["declared"]["secrets"] = [{"file": "next"}, {"file": "current"}]
    running.configuration.write_text(yaml.safe_dump(settings))
    capsys.readouterr()
    assert run(running, old, "--dry-run") == 0
    said = capsys.readouterr().out
    assert said.count(": signed with a previous secret: would be signed") == 2
    assert "0 still without a valid signature, 2 still signed with a previous secret" in said
    assert run(running, old) == 0
    assert "2 bindings signed, 0 still without a valid signature, 0 still signed" in capsys.readouterr().out
    assert not before & set(old.signatures())


def test_the_transition_ends_when_told_so_and_every_message_still_arrives(
    running: Sidecar, old: Old, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then the tokens of version 0.1, which anybody can compute, are bound no more."""
    unkeyed = {token("queue", queue.encode()).decode() for queue in ("one", "two", "more")}
    with Application(running.port, old.vhost) as app:
        assert run(running, old) == 0
        until(lambda: unsigned(running, old) == 0)
        assert reached(app) == ["one", "two", "more"]
        assert {"one", "two"} == old.under(unkeyed) - {"more"}
        capsys.readouterr()
        assert run(running, old, "--finish") == 0
        assert f"vhost {old.vhost}: transition finished; " in capsys.readouterr().out
        until(lambda: old.under(unkeyed) == set())
        assert reached(app) == ["one", "two", "more"]
        assert "" not in old.signatures()
    running.stop()
    running.start()
    with Application(running.port, old.vhost) as app:
        assert reached(app) == ["one", "two", "more"]
        assert old.under(unkeyed) == set()
        for queue in ("one", "two"):
            app.unbind(queue, "ox", MATCH)
        assert reached(app) == []


def test_a_signature_of_nobody_s_is_left_unless_told_otherwise(
    running: Sidecar, old: Old, capsys: pytest.CaptureFixture[str]
) -> None:
    forged = (*kept(9, {"x-?hkex": "b"}), (b"x-oxproxy-signature", Value("S", b"0" * 64)))
    with Application(old.broker.port, old.vhost) as beside:
        beside.bind("one", "ox", forged, token("queue", b"one").decode())
    assert run(running, old) == 0
    assert "2 bindings signed, 1 still without a valid signature" in capsys.readouterr().out
    assert "0" * 64 in old.signatures()
    assert run(running, old, "--doubtful") == 0
    assert "0" * 64 not in old.signatures()


def test_what_the_broker_refuses_is_left_and_said(
    running: Sidecar, old: Old, capsys: pytest.CaptureFixture[str]
) -> None:
    with Application(old.broker.port, old.vhost) as owner:
        owner.declare("mine", exclusive=True)
        owner.bind("mine", "ox", kept(9, MATCH), token("queue", b"mine").decode())
        assert run(running, old) == 1
        said = capsys.readouterr().out
        assert "no signature: not signed: exclusive queue of another connection\n" in said
        assert "2 bindings signed, 1 still without a valid signature" in said
        assert sorted(map(bool, old.signatures())) == [False, True, True]


def test_only_what_is_asked_for_is_adopted(running: Sidecar, old: Old, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(running, old, "--exchange", "other") == 0
    assert old.signatures() == ["", ""]
    assert run(running, old, "--vhost", "nope") == 2
    assert '--vhost: seen "nope", expected one of ' in capsys.readouterr().err


def test_without_the_management_api_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "oxproxy.yaml"
    file.write_text("upstream: {address: 127.0.0.1:1}\n")
    assert cli.main(["adopt", "--config", str(file)]) == 2
    assert "upstream.management: not set" in capsys.readouterr().err
