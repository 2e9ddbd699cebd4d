"""Tests ``oxproxy adopt``: bindings of version 0.1, or with a previous secret, are signed and keep routing."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.amqp.tables import decode_table
from proxy.cli import main as cli
from proxy.relay.declare.storage import kept_arguments, pack
from proxy.relay.tokens import is_keyed, token
from proxy.values import Table, Value
from tests.broker.delivery.applications import Application, entries
from tests.broker.observed import Outside
from tests.producer import until
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar

MATCH: dict[str, object] = {"x-?hkex": "a", "x-addq-ontrue": "more"}
FAST = {"inventory": {"refresh": "200ms"}}


class Old:
    """Objects that sidecars of version 0.1 leave in a virtual host: an exchange, bound to two queues."""

    def __init__(self, broker: Broker, vhost: str) -> None:
        self.broker, self.vhost = broker, vhost
        Outside(broker, vhost).make_queues("one", "two", "more")
        marked = ((b"x-open-exchange", Value("t", True)), (b"x-oxproxy", Value("S", pack(1, b""))))
        with Application(broker.port, vhost) as client:
            client.exchange("ox", marked, kind="direct", durable=True)
            for sequence, queue in enumerate(("one", "two"), 2):
                client.bind(queue, "ox", kept(sequence, MATCH), token("queue", queue.encode()).decode())

    def signatures(self) -> list[str]:
        """Return the signatures of stored bindings; "" for unsigned ones."""
        stored = [row["arguments"] for row in self.rows() if "x-oxproxy" in row["arguments"]]
        return [arguments.get("x-oxproxy-signature", "") for arguments in stored]

    def under(self, keys: set[str]) -> set[str]:
        """Return the destinations bound with one of these keys."""
        return {row["destination"] for row in self.rows() if row["routing_key"] in keys}

    def rows(self) -> list[dict[str, Any]]:  # Any: JSON
        rows: list[dict[str, Any]] = self.broker.api("GET", f"exchanges/{self.vhost}/ox/bindings/source")
        return rows


def kept(sequence: int, arguments: dict[str, object]) -> Table:
    raw = kept_arguments(sequence, entries(arguments), b"", "guest")
    return decode_table(raw, 0, len(raw))


@pytest.fixture
def old(broker: Broker, vhost: str) -> Old:
    return Old(broker, vhost)


@pytest.fixture(scope="module")
def lasting(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """A sidecar of this version with a secret."""
    folder = tmp_path_factory.mktemp("sidecar")
    (folder / "current").write_bytes(secrets.token_bytes(32))
    settings = {**FAST, "declared": {"secrets": [{"file": "current"}]}}
    with Sidecar(broker, settings=settings, folder=folder) as sidecar:
        yield sidecar


@pytest.fixture
def running(lasting: Sidecar, old: Old) -> Sidecar:
    """This sidecar, after a client has connected and the sidecar has bound its own tokens for the two queues."""

    def bound() -> set[str]:
        return {row["destination"] for row in old.rows() if is_keyed(row["routing_key"].encode())}

    with Application(lasting.port, old.vhost):
        until(lambda: bound() == {"one", "two"})
    return lasting


def run(sidecar: Sidecar, old: Old, *more: str) -> int:
    return cli.main(["adopt", "--config", str(sidecar.configuration), "--vhost", old.vhost, *more])


def reached(app: Application) -> list[str]:
    return app.reached("ox", {"a": 1}, "one", "two", "more")


def unsigned(sidecar: Sidecar, old: Old) -> int:
    vhosts = json.loads(sidecar.get("/status"))["vhosts"]
    (bindings,) = (vhost["unsigned"] for vhost in vhosts if vhost["vhost"] == old.vhost)
    return sum(map(len, bindings.values()))


def test_adopted_bindings_reach_the_destinations_that_their_client_may_bind(
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


def test_signed_bindings_are_printed_as_json(running: Sidecar, old: Old, capsys: pytest.CaptureFixture[str]) -> None:
    for more, left in ((["--dry-run"], "would be signed"), ([], None)):
        assert run(running, old, "--json", *more) == 0
        (result,) = json.loads(capsys.readouterr().out)["vhosts"]
        assert (result["vhost"], result["complete"], result["transition"]) == (old.vhost, True, [])
        assert [(binding["signed"], binding["left"]) for binding in result["bindings"]] == [(left is None, left)] * 2
        first = next(row for row in result["bindings"] if row["binding"].startswith("queue one "))
        assert (first["exchange"], first["user"], first["reason"]) == ("ox", "guest", "no signature")
        assert first["arguments"] == ["x-?hkex", "x-addq-ontrue"]
    assert run(running, old, "--json", "--finish") == 0
    (result,) = json.loads(capsys.readouterr().out)["vhosts"]
    assert result["bindings"] == []
    assert result["transition"][0].startswith("transition finished; ")


def test_messages_are_delivered_during_the_adoption(running: Sidecar, old: Old) -> None:
    adopted = threading.Event()
    sent = 0
    with Application(running.port, old.vhost) as app, ThreadPoolExecutor(1) as executor:
        adopting = executor.submit(run, running, old)
        adopting.add_done_callback(lambda _: adopted.set())
        while not adopted.is_set() or sent < 100:
            assert app.send_settled("ox", "k", {"a": 1}).acked
            sent += 1
        assert adopting.result() == 0
        until(lambda: unsigned(running, old) == 0)
        assert [len(app.take(queue)) for queue in ("one", "two")] == [sent, sent]


def test_version_0_1_reads_adopted_bindings(running: Sidecar, old: Old) -> None:
    before = stored_bindings(old)
    assert run(running, old) == 0
    assert stored_bindings(old) == before


def stored_bindings(old: Old) -> list[tuple[str, str, str]]:
    """Return everything that version 0.1 reads: destination, key and stored arguments."""
    stored = [(row["destination"], row["routing_key"], row["arguments"].get("x-oxproxy", "")) for row in old.rows()]
    return sorted(row for row in stored if row[2])


def test_bindings_with_a_previous_secret_are_listed_and_signed_again(
    running: Sidecar, old: Old, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(running, old) == 0
    before = set(old.signatures())
    settings = yaml.safe_load(running.configuration.read_text())
    (tmp_path / "next").write_bytes(secrets.token_bytes(32))
    settings["declared"]["secrets"] = [{"file": "next"}, {"file": str(running.folder / "current")}]
    (tmp_path / "next.yaml").write_text(yaml.safe_dump(settings))
    changed = ["--config", str(tmp_path / "next.yaml")]
    capsys.readouterr()
    assert run(running, old, *changed, "--dry-run") == 0
    output = capsys.readouterr().out
    assert output.count(": signed with a previous secret: would be signed") == 2
    assert "0 still without a valid signature, 2 still signed with a previous secret" in output
    assert run(running, old, *changed) == 0
    assert "2 bindings signed, 0 still without a valid signature, 0 still signed" in capsys.readouterr().out
    assert not before & set(old.signatures())


def test_ending_the_transition_loses_no_message(running: Sidecar, old: Old, capsys: pytest.CaptureFixture[str]) -> None:
    """The tokens of version 0.1, which are predictable, are no longer bound afterwards."""
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


def test_a_signature_with_an_unknown_secret_is_replaced_only_on_request(
    running: Sidecar, old: Old, capsys: pytest.CaptureFixture[str]
) -> None:
    forged = (*kept(9, {"x-?hkex": "b"}), (b"x-oxproxy-signature", Value("S", b"0" * 64)))
    with Application(old.broker.port, old.vhost) as client:
        client.bind("one", "ox", forged, token("queue", b"one").decode())
    assert run(running, old) == 0
    output = capsys.readouterr().out
    assert "no configured secret: not signed: it is forged, or its secret was lost (--doubtful signs it)\n" in output
    assert "2 bindings signed, 1 still without a valid signature" in output
    assert "0" * 64 in old.signatures()
    assert run(running, old, "--doubtful") == 0
    assert "0" * 64 not in old.signatures()


def test_bindings_that_the_broker_refuses_are_listed_and_left(
    running: Sidecar, old: Old, capsys: pytest.CaptureFixture[str]
) -> None:
    with Application(old.broker.port, old.vhost) as owner:
        owner.declare("mine", exclusive=True)
        owner.bind("mine", "ox", kept(9, MATCH), token("queue", b"mine").decode())
        assert run(running, old) == 1
        output = capsys.readouterr().out
        assert "no signature: not signed: exclusive queue of another connection\n" in output
        assert "2 bindings signed, 1 still without a valid signature" in output
        assert sorted(map(bool, old.signatures())) == [False, True, True]


def test_only_bindings_of_the_selected_exchanges_are_adopted(running: Sidecar, old: Old) -> None:
    with Application(running.port, old.vhost) as app:
        app.exchange("other", kind="x-open")
        assert run(running, old, "--exchange", "other") == 0
        assert old.signatures() == ["", ""]


@pytest.mark.parametrize(("option", "expected"), [("--exchange", "ox"), ("--vhost", "")])
def test_a_name_that_does_not_exist_is_an_error(
    running: Sidecar, old: Old, capsys: pytest.CaptureFixture[str], option: str, expected: str
) -> None:
    assert run(running, old, option, "nope") == 2
    assert f'{option}: got "nope", expected one of {expected}' in capsys.readouterr().err
    assert old.signatures() == ["", ""]


def test_a_missing_management_api_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "oxproxy.yaml"
    file.write_text("upstream: {address: 127.0.0.1:1}\n")
    assert cli.main(["adopt", "--config", str(file)]) == 2
    assert "upstream.management: not set" in capsys.readouterr().err
