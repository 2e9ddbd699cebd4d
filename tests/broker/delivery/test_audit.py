"""The audit log of real traffic: as many lines as publishes, no secrets, and no confirm without its line."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from tests.broker.delivery.site import standing
from tests.producer import Producer
from tests.rabbitmq import Broker

RULES = """
queues: [a, b, {name: full, arguments: {x-max-length: 1, x-overflow: reject-publish}}]
exchanges:
  - name: letters
    arguments: {max-payload-size: 100000}
    bindings:
      - {queue: a, name: to a, arguments: {"x-?hkv= to": a, x-addq-ontrue: b}}
      - {queue: full, name: to full, arguments: {"x-?hkv= to": full}}
"""
SECRET = "hunter2-never-to-be-seen"
TEXT_PROPERTIES = (
    *("content_type", "content_encoding", "correlation_id", "reply_to"),
    *("message_id", "type", "app_id", "cluster_id"),
)


def written(directory: Path) -> str:
    """The text of closed and open segments, in order."""
    texts = [
        gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for path in sorted(directory.rglob("*.jsonl*"))
    ]
    return b"".join(texts).decode()


def records(directory: Path, kind: str = "publish") -> list[dict[str, object]]:
    """All complete records of a kind, of closed and open segments, in order."""
    lines = [json.loads(line) for line in written(directory).split("\n") if line.endswith("}")]
    return [record for record in lines if record["kind"] == kind]


def audited(folder: Path, **more: object) -> tuple[Path, dict[str, object]]:
    directory = folder / "audit"
    directory.mkdir()
    return directory, {"audit": {"directory": str(directory), **more}}


def test_each_publish_has_one_line_with_the_queues_that_got_it(broker: Broker, tmp_path: Path) -> None:
    directory, settings = audited(tmp_path, headers=["to"])
    count = 300
    with standing(broker, tmp_path, RULES, settings) as site:
        producer = site.producer()
        for number in range(count):
            to = ("a", "nobody")[number % 2]
            producer.publish("letters", f"k{number}", {"to": to}, message_id=b"m%d" % number)
        producer.publish("amq.direct", "elsewhere")
        producer.settle_all(count + 1)
        held = Counter({queue: len(site.take(queue)) for queue in ("a", "b")})
        assert site.metric("audit_dropped_total") == 0
    lines = records(directory)
    assert len(lines) == count + 1
    assert [line["seq"] for line in lines] == list(range(1, count + 2))
    assert [line["rk"] for line in lines[:count]] == [f"k{number}" for number in range(count)]
    assert [line["message_id"] for line in lines[:count]] == [f"m{number}" for number in range(count)]
    queues = Counter(queue for line in lines for queue in line["queues"])  # type: ignore[attr-defined]
    assert queues == held == {"a": count / 2, "b": count / 2}
    assert Counter(str(line["outcome"]) for line in lines) == {"routed": 150, "unrouted": 150, "passed": 1}
    assert {str(line["headers"]) for line in lines} == {"{'to': 'a'}", "{'to': 'nobody'}", "{}"}
    assert {tuple(line["bindings"]) for line in lines} == {("to a",), ()}  # type: ignore[arg-type]
    # One decision for each value of the header that the rules use.
    assert ["decide_us" in line for line in lines] == [True, True] + [False] * (count - 1)


def test_records_name_the_rules_in_force_also_in_virtual_hosts_that_a_reload_does_not_change(
    broker: Broker, tmp_path: Path
) -> None:
    directory, settings = audited(tmp_path)
    broker.create_vhost("unchanged")
    more = tmp_path / "more.yaml"
    more.write_text(f"vhost: unchanged\n{RULES}")
    settings["rules"] = [str(tmp_path / "rules.yaml"), str(more)]
    versions = []
    try:
        with standing(broker, tmp_path, RULES, settings) as site:
            producers = [
                Producer(site.sidecar.port, vhost).open(confirm=True) for vhost in (site.vhost, "unchanged", "/")
            ]
            for rules in (RULES, RULES.replace("to a", "changed")):
                site.reload(rules)
                versions.append(json.loads(site.sidecar.get("/status"))["rules"])
                for producer in producers:
                    producer.send_settled("amq.direct")
                producers[1].send_settled("letters")  # its decision is cached
            for producer in producers:
                producer.disconnect()
    finally:
        broker.delete_vhost("unchanged")
    assert versions[0] != versions[1]
    assert [line["rules"] for line in records(directory)] == [versions[0]] * 4 + [versions[1]] * 4


def test_with_scope_ruled_only_publishes_to_exchanges_with_rules_are_recorded(broker: Broker, tmp_path: Path) -> None:
    directory, settings = audited(tmp_path, scope="ruled")
    with standing(broker, tmp_path, RULES, settings) as site:
        producer = site.producer()
        producer.publish("amq.direct", "elsewhere")
        producer.publish("letters", "k", {"to": "a"})
        producer.settle_all(2)
    assert [line["exchange"] for line in records(directory)] == ["letters"]


def test_returns_and_nacks_are_settle_records_of_their_publishes(broker: Broker, tmp_path: Path) -> None:
    directory, settings = audited(tmp_path)
    with standing(broker, tmp_path, RULES, settings) as site:
        producer = site.producer()
        for number in range(3):
            producer.publish("letters", "there", {"to": "full"}, mandatory=True)
            producer.settle()
            producer.publish("letters", f"nowhere{number}", {"to": "nobody"}, mandatory=True)
            assert producer.settle().returned
    settled = {(line["seq"], line["result"]) for line in records(directory, "settle")}
    assert {(3, "nacked"), (5, "nacked"), (2, "returned"), (4, "returned"), (6, "returned")} <= settled
    assert (1, "nacked") not in settled


def test_a_message_that_a_silent_filter_dropped_is_filtered_with_its_reason(broker: Broker, tmp_path: Path) -> None:
    """With and without an alternate exchange, in the rules or on the broker."""
    directory, settings = audited(tmp_path)
    rules = """
queues: [small, other]
exchanges:
  - {name: none, arguments: {max-payload-size-silent: 3}, bindings: [{queue: small}]}
  - {name: ruled, arguments: {max-payload-size-silent: 3, alternate-exchange: rest}, bindings: [{queue: small}]}
  - {name: own, arguments: {max-payload-size-silent: 3, alternate-exchange: amq.fanout}, bindings: [{queue: small}]}
  - {name: rest, bindings: [{queue: other}]}
"""
    with standing(broker, tmp_path, rules, settings) as site:
        site.sidecar.get("/api/recent")  # starts recording
        site.direct.ask(commands.Queue.Bind(queue="other", exchange="amq.fanout"))
        for exchange in ("none", "ruled", "own"):
            producer = site.producer()
            for body in (b"four", b"3 b", b"four"):
                producer.publish(exchange, body=body)
            producer.settle_all(3)
            for outcome, count in (("filtered", 2), ("routed", 1), ("unrouted", 0)):
                assert site.metric("publishes_total", exchange=exchange, outcome=outcome) == count
            assert site.bodies("small", "other") == [[b"3 b"], [] if exchange == "none" else [b"four"] * 2]
        recorded = json.loads(site.sidecar.get("/api/recent"))["publishes"]
    reasons = [(publish["exchange"], publish["reason"]) for publish in recorded]
    assert reasons == [("none", "dropped by the filter max-payload-size-silent")] * 2
    filtered, routed = ("filtered", "max-payload-size-silent"), ("routed", None)
    assert [(line["outcome"], line["reason"]) for line in records(directory)] == [filtered, routed, filtered] * 3


def test_lost_publishes_have_the_error_of_the_broker(broker: Broker, tmp_path: Path) -> None:
    directory, settings = audited(tmp_path, hash=["user"], hash_key_env="AUDIT_KEY")
    with pytest.MonkeyPatch.context() as patch, broker.temporary_user() as user:
        patch.setenv("AUDIT_KEY", "k" * 32)
        with standing(broker, tmp_path, RULES, settings) as site:
            broker.grant(user, site.vhost, write="ordres")
            for exchange, code in (("ordres", 404), ("amq.fanout", 403)):
                with Producer(site.sidecar.port, site.vhost, user, user).open(confirm=True) as producer:
                    producer.publish(exchange)
                    assert producer.closed().code == code
    access = "write access" if broker.version >= (4,) else "access"
    refused = f"{access} to exchange 'amq.fanout' in vhost '{site.vhost}' refused for user '***'"
    assert [(line["result"], line["reason"]) for line in records(directory, "settle")] == [
        ("lost", f"404 NOT_FOUND - no exchange 'ordres' in vhost '{site.vhost}'"),
        ("lost", f"403 ACCESS_REFUSED - {refused}"),
    ]
    assert user not in written(directory)


def test_a_refused_publish_has_its_line(broker: Broker, tmp_path: Path) -> None:
    directory, settings = audited(tmp_path)
    with standing(broker, tmp_path, RULES, settings) as site:
        producer = site.producer()
        producer.publish("letters", "big", body=b"x" * 100_001)
        assert producer.closed().code == 406
    assert [(line["rk"], line["outcome"], line["size"]) for line in records(directory)] == [
        ("big", "rejected", 100_001)
    ]


def test_secrets_reach_neither_log_nor_metrics_nor_audit(broker: Broker, tmp_path: Path) -> None:
    directory, settings = audited(tmp_path, headers=["to"], hash=["message_id", "user", "rk"], hash_key_env="AUDIT_KEY")
    key = "a key that is long enough for a hash"
    user, password = f"user-{SECRET}", f"password-{SECRET}"
    text = SECRET.encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUDIT_KEY", key)
        with standing(broker, tmp_path, RULES, settings) as site:
            broker.create_user(user, password)
            broker.grant(user, site.vhost)
            try:
                producer = Producer(site.sidecar.port, site.vhost, user, password).open(confirm=True)
                nested = {SECRET: {SECRET: [SECRET, text]}}
                table = {"to": "a", "password": SECRET, SECRET: nested}
                of_text: dict[str, Any] = dict.fromkeys(TEXT_PROPERTIES, text)
                producer.publish("letters", SECRET, table, text, user_id=user.encode(), **of_text)
                producer.settle()
                producer.disconnect()
            finally:
                broker.delete_user(user)
            page = site.sidecar.get("/metrics") + site.sidecar.get("/status")
        log = (tmp_path / "oxproxy.log").read_text()
    assert len(records(directory)) == 1
    # The log of the process contains user names; the audit log here does not.
    log = log.replace(user, "")
    for secret in (SECRET, key):
        assert secret not in written(directory)
        assert secret not in page
        assert secret not in log


def test_a_missing_audit_directory_is_created_for_owner_and_group(broker: Broker, tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    with standing(broker, tmp_path, RULES, {"audit": {"directory": str(directory)}}) as site:
        producer = site.producer()
        producer.publish("letters", table={"to": "a"})
        assert producer.settle().acked
    assert directory.stat().st_mode & 0o777 == 0o750
    assert len(records(directory)) == 1
