from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest
import yaml

from oxproxy.app.sidecar import product_version
from oxproxy.audit.segments import InstanceLock
from oxproxy.cli.main import main
from oxproxy.native import BUILD
from tests import client
from tests.broker.observed import Outside
from tests.private_broker import free_port
from tests.producer import Closed, Producer, until
from tests.served import END_SECONDS, RULES, Connect, Running, Serve
from tests.sidecar import PROGRAM, oxproxy
from tests.tap import Tap

# -- starting ----------------------------------------------------------------------------------------------------------


def test_too_few_file_descriptors_lower_the_limit_of_connections(serve: Serve, connect: Connect) -> None:
    running = serve(wrap=["prlimit", "--nofile=276:276"], limits={"connections": 10000})
    running.await_ready()
    (line,) = [line for line in running.log.read_text().splitlines() if "file descriptors" in line]
    warned = "descriptors=276 needed=20256 permitted=10000 admitted=10"
    assert f'too few file descriptors for limits.connections; the limit is lowered" {warned}' in line
    assert "level=warning" in line
    producers = [connect(running) for _ in range(10)]
    with pytest.raises(Closed) as caught:
        connect(running)
    assert caught.value.code == 530
    assert all(producer.open(confirm=True).send_settled("letters", "k").acked for producer in producers)


def test_a_lowered_default_limit_is_no_warning(serve: Serve) -> None:
    running = serve(wrap=["prlimit", "--nofile=2000:2000"])
    running.await_ready()
    (line,) = [line for line in running.log.read_text().splitlines() if "file descriptors" in line]
    assert "level=info" in line
    assert "descriptors=2000 needed=20256 permitted=10000 admitted=872" in line


def test_a_signal_ends_the_wait_for_a_process_to_close_old_audit_segments(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    lock = InstanceLock.acquire(tmp_path / "audit", "i", closing=True)
    assert lock is not None
    running = serve(audit={"directory": "audit", "instance": "i"})
    running.await_log("waiting for another process to close old audit segments")
    assert running.end() == 0
    assert "another process has been closing old segments" not in running.log.read_text()
    lock.release()


#: Mounts one file over another in a private mount namespace, as the kubelet does for `subPath`.
_MOUNTED_ALONE = 'mount --bind "$0" "$1"; shift; exec "$@"'


def test_a_rules_file_mounted_with_sub_path_causes_a_warning(serve: Serve, tmp_path: Path) -> None:
    unshare = ["unshare", "--map-root-user", "--mount"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs to be allowed mount namespaces")
    alone, rules = tmp_path / "mounted.yaml", tmp_path / "rules.yaml"
    alone.write_text("queues: []\n")
    running = serve(wrap=[*unshare, "sh", "-ec", _MOUNTED_ALONE, str(alone), str(rules)])
    running.await_log(f'event="file is mounted without its directory (subPath) and will never change" file={rules}')


def test_producers_are_accepted_when_inventory_and_carriers_are_complete(serve: Serve, outside: Outside) -> None:
    later = free_port()
    running = serve(upstream={"address": f"127.0.0.1:{later}"})
    running.await_log("the broker is not reachable yet")
    assert running.get("/livez")[0] == 200
    status, page = running.get("/readyz")
    assert status == 503
    assert f"vhost {outside.vhost}: the first reconcile pass has not succeeded yet" in page
    assert not running.listens()
    with Tap(outside.broker.host, outside.broker.port, later):
        running.await_ready()
        assert outside.bound("letters") == {("queue", b"a")}
        with Producer(running.port, outside.vhost).open(confirm=True) as producer:
            assert producer.send_settled("letters", "k") == (True, [])
            assert producer.get("a") is not None
        assert running.end() == 0


def test_the_sidecar_can_be_stopped_without_a_broker(serve: Serve) -> None:
    running = serve(upstream={"address": f"127.0.0.1:{free_port()}"})
    running.await_log("the broker is not reachable yet")
    assert running.end() == 0


def test_without_rules_publishes_pass_unchanged(serve: Serve, outside: Outside) -> None:
    running = serve(rules=None)
    running.await_ready()
    with Producer(running.port, outside.vhost).open(confirm=True) as producer:
        queue = producer.declare(exclusive=True)
        assert producer.send_settled("", queue, {"n": 1}, b"x") == (True, [])
        message = producer.get(queue)
        assert message is not None
        assert message.body == b"x"
    assert running.end() == 0


#: Runs the sidecar in the configuration's directory, with the configuration on standard input.
_CONFIGURED_BY_INPUT = 'cd "$(dirname "$3")"; exec "$0" serve --config - < "$3"'


def test_the_configuration_can_be_on_standard_input(serve: Serve, outside: Outside) -> None:
    running = serve(wrap=["sh", "-ec", _CONFIGURED_BY_INPUT], limits={"connections": 100})
    running.await_ready()
    with Producer(running.port, outside.vhost).open(confirm=True) as producer:
        assert producer.send_settled("letters", "k") == (True, [])
    running.process.send_signal(signal.SIGHUP)
    running.await_log("reloaded")
    assert "level=warning" not in running.log.read_text()
    assert running.end() == 0


def test_settings_reach_the_listener(serve: Serve, outside: Outside) -> None:
    limits = {"connections": 1, "handshake_timeout": "2s", "frame_max": 8192}
    running = serve(limits=limits, log={"format": "json"})
    running.await_ready()
    with Producer(running.port, log_in=False) as silent:
        assert silent.gone()
    with Producer(running.port, outside.vhost) as producer:
        assert producer.tune["frame_max"] == 8192
        assert "oxproxy" in producer.start["server_properties"]  # type: ignore[operator]
        with pytest.raises(Closed) as caught:
            Producer(running.port, outside.vhost)
        assert caught.value.code == 530
    events = [json.loads(line)["event"] for line in running.log.read_text().splitlines()]
    assert "too many connections" in events
    page = running.get("/metrics")[1]
    for result in ("timeout", "refused", "ok"):
        assert f'oxproxy_connections_total{{result="{result}",side="downstream"}} 1.0\n' in page


def test_connections_are_logged_and_publishes_are_not(serve: Serve, outside: Outside) -> None:
    running = serve()
    running.await_ready()

    def lines() -> list[str]:
        return running.log.read_text().splitlines()

    before = len(lines())
    with Producer(running.port, outside.vhost).open(confirm=True) as producer:
        message = client.publish(1, b"letters", b"k", (), b"x")
        for _ in range(10):
            producer.send(message * 1000)
        settled = 0
        while settled < 10_000:
            settled = int(str(producer.expect("Basic.Ack").arguments["delivery_tag"]))
        producer.publish("letters", body=b"x", channel=2)  # a channel that is not open
        assert producer.closed(0).code == 504
    until(lambda: len(lines()) == before + 2)
    connected, ended = lines()[before:]
    names = {"name": "test", "user": "guest", "vhost": outside.vhost}
    assert 'event="producer connected"' in connected
    assert 'event="producer closed because of an error"' in ended
    for line in (connected, ended):
        assert all(f"{key}={value}" in line for key, value in names.items())
        assert " peer=127.0.0.1:" in line
    assert "letters" not in connected + ended


def test_the_next_address_is_used_if_the_first_is_down(serve: Serve, outside: Outside) -> None:
    addresses = [f"127.0.0.1:{free_port()}", outside.broker.address]
    running = serve(upstream={"address": addresses})
    running.await_ready()
    with Producer(running.port, outside.vhost).open(confirm=True) as producer:
        assert producer.send_settled("letters", "k") == (True, [])
    assert running.end() == 0


def test_the_admin_pages_show_the_state_of_the_sidecar(serve: Serve, outside: Outside) -> None:
    running = serve()
    running.await_ready()
    status = json.loads(running.get("/status")[1])
    assert (status["version"], status["ready"], status["not_ready"]) == (product_version(), True, [])
    [vhost] = status["vhosts"]
    assert (vhost["vhost"], vhost["ready"], vhost["connected"]) == (outside.vhost, True, True)
    page = running.get("/metrics")[1]
    assert f'oxproxy_build_info{{build="{BUILD}",version="{product_version()}"}} 1.0' in page
    assert f'oxproxy_rules_info{{version="{status["rules"]}"}} 1.0' in page
    assert running.get("/nowhere")[0] == 404


def test_a_queue_that_only_a_regular_expression_selects_is_counted(serve: Serve, outside: Outside) -> None:
    route = "bindings: [{queue: a, arguments: {x-addqre-ontrue: ^team}}]"
    running = serve(rules=f"queues: [a, team]\nexchanges: [{{name: e, {route}}}]\n")
    running.await_ready()
    with Producer(running.port, outside.vhost).open(confirm=True) as producer:
        assert producer.send_settled("e", "", {}, b"x") == (True, [])
    page = running.get("/metrics")[1]
    for queue in ("a", "team"):
        series = f'oxproxy_destination_publishes_total{{destination="{queue}",vhost="{outside.vhost}"}}'
        assert f"{series} 1.0" in page.splitlines()


def made_by(running: Running) -> list[str]:
    """Return what a sidecar has declared and bound according to its log."""
    events = ("queue declared", "exchange declared", "destination bound", "declared on the broker")
    lines = [
        line for line in running.log.read_text().splitlines() if any(f'event="{event}"' in line for event in events)
    ]
    assert all("level=info" in line for line in lines)
    return [line.partition("event=")[2] for line in lines]


def test_each_object_declared_or_bound_is_logged_once(serve: Serve, outside: Outside) -> None:
    rules = "queues: [a]\nexchanges: [{name: e, bindings: [{queue: a}, {exchange: amq.fanout}, {queue: nowhere}]}]\n"
    running = serve(rules=rules)
    running.await_ready()
    bound = f'"destination bound" vhost={outside.vhost} exchange=e destination='
    expected = [
        f'"queue declared" vhost={outside.vhost} queue=a',
        f'"exchange declared" vhost={outside.vhost} exchange=e',
        f'{bound}"exchange amq.fanout"',
        f'{bound}"queue a"',
        f'"declared on the broker" vhost={outside.vhost} queues=1 exchanges=1 bindings=2',
    ]
    own = [line for line in made_by(running) if "x.o.p.e.n.x" in line]  # the marker, on a new broker
    assert [line for line in made_by(running) if line not in own] == expected
    assert running.end() == 0
    again = serve(rules=rules)
    again.await_ready()
    assert made_by(again)[len(own) + len(expected) :] == []


# -- errors at startup -------------------------------------------------------------------------------------------------


def refused(running: Running) -> str:
    """Return the log of a process that exited with status 2."""
    assert running.process.wait(END_SECONDS) == 2
    return running.log.read_text()


def test_a_wrong_configuration_is_named_by_file_and_line(serve: Serve) -> None:
    running = serve(limits={"connections": "many"}, listening=1)
    log = refused(running)
    lines = running.configuration.read_text().splitlines()
    for key, column, fault in (("connections", 16, "limits.connections: "), ("listening", 1, "listening: ")):
        [number] = [at for at, line in enumerate(lines, 1) if line.strip().startswith(f"{key}:")]
        assert f"{running.configuration}:{number}:{column}: {fault}" in log


def test_invalid_rules_are_reported_with_file_and_line(serve: Serve, tmp_path: Path) -> None:
    log = refused(serve("exchanges:\n  - name: x\n    bindings:\n      - {queue: a, arguments: {x-no-such: 1}}\n"))
    assert f"{tmp_path / 'rules.yaml'}:5:32: exchanges[0].bindings[0].arguments" in log
    assert "unknown operator x-no-such" in log


def test_rules_with_failing_tests_prevent_the_start(serve: Serve, tmp_path: Path) -> None:
    log = refused(
        serve(RULES + "tests: [{name: a letter, publish: {exchange: letters}, expect: {queues: [elsewhere]}}]\n")
    )
    assert str(tmp_path / "rules.yaml") in log
    assert "a letter" in log
    assert "elsewhere" in log


def test_wrong_credentials_of_the_control_user_are_an_error_that_does_not_show_them(
    serve: Serve, outside: Outside
) -> None:
    log = refused(serve(upstream={"control": {"username": "guest", "password": "wrong-password"}}))
    assert "ACCESS_REFUSED" in log
    assert outside.vhost in log
    assert "wrong-password" not in log


def test_a_missing_virtual_host_is_an_error(serve: Serve, outside: Outside) -> None:
    outside.broker.delete_vhost(outside.vhost)
    try:
        log = refused(serve())
    finally:
        outside.broker.create_vhost(outside.vhost)
    assert outside.vhost in log


@pytest.mark.parametrize("key", ["listen[1].address", "admin.address"])
def test_an_address_in_use_is_an_error_at_its_key(serve: Serve, key: str) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        address = f"127.0.0.1:{port}"
        listen = {"listen": [{"address": f"127.0.0.1:{free_port()}"}, {"address": address}]}
        log = refused(serve(**(listen if key != "admin.address" else {"admin": {"address": address}})))
    (error,) = [line for line in log.splitlines() if not line.startswith("ts=")]
    assert re.search(
        rf"/oxproxy\.yaml:\d+:\d+: {re.escape(key)}: can't listen on {address}: Address already in use$", error
    )


#: Configurations that cannot be served, and the error message of both `check` and `serve`.
UNSERVABLE = {
    "{admin: {allow: [10.0.0.1/8]}}": '1:18: admin.allow[0]: got the string "10.0.0.1/8", which is an address '
    "inside the network; expected 10.0.0.0/8 or 10.0.0.1",
    "{admin: {allow: 10.0.0.0/33}}": '1:17: admin.allow: got the string "10.0.0.0/33", expected an address or a '
    "network such as 10.0.0.0/8 or fd00::/8",
    "{audit: {directory: ., hash: [usr]}}": '1:31: audit.hash[0]: got the string "usr", expected one of message_id, '
    "user, rk",
    "{audit: {directory: ., hash: rk}}": "1:24: audit.hash: hashes need a key: set hash_key_env or hash_key_file",
    "{audit: {hash: [rk], hash_key_file: key}}": "1:22: audit.hash_key_file: got a key of 5 bytes, expected 16 to 64",
    "{listen: [{address: 0.0.0.0:7001}], admin: {address: localhost:7001}}": "1:45: admin.address: localhost:7001 "
    "conflicts with listen[0].address 0.0.0.0:7001",
    "{listen: [{address: 127.0.0.1:15693}]}": "1:12: listen[0].address: 127.0.0.1:15693 conflicts with "
    "admin.address 127.0.0.1:15693",
    '{listen: [{address: "[::]:7001"}, {address: "[::1]:7001"}]}': "1:36: listen[1].address: [::1]:7001 conflicts "
    "with listen[0].address [::]:7001",
    "{listen: [{address: 0.0.0.0:7001}], upstream: {address: [a:1, 127.0.0.1:7001]}}": "1:48: upstream.address: "
    "127.0.0.1:7001 is an address that this sidecar itself listens on",
    "{upstream: {address: 127.0.0.1:0}}": '1:22: upstream.address: got the string "127.0.0.1:0", expected a port from '
    "1 to 65535",
    "{listen: [{address: 127.0.0.1:0, reuse_port: true}]}": "1:12: listen[0].address: port 0 would be a different port "
    "for each process, but reuse_port expects the same port",
    "{workers: 2, rules: []}": "1:2: workers: unknown key, expected one of admin, audit, declared, inventory, limits, "
    "listen, log, metrics, rules, shutdown, upstream",
    "{listen: [{address: a..b:7001}]}": '1:21: listen[0].address: got the string "a..b:7001", expected host:port with '
    "a name whose parts between dots have 1 to 63 characters",
}


@pytest.mark.parametrize("text", UNSERVABLE)
def test_check_and_serve_report_the_same_errors(text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "oxproxy.yaml"
    file.write_text(text)
    (tmp_path / "key").write_text("short")
    for command in (["check", str(file)], ["serve", "--config", str(file)]):
        assert main(command) == 2, command
        errors = [line for line in capfd.readouterr().err.splitlines() if ": warning: " not in line]
        assert errors == [f"{file}:{UNSERVABLE[text]}"], command


def test_similar_addresses_that_do_not_conflict_are_accepted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "oxproxy.yaml"
    file.write_text(
        "listen: [{address: 127.0.0.1:7001}, {address: 127.0.0.2:7001}, {address: '[::1]:7001'},"
        " {address: '[::]:7002'}, {address: 0.0.0.0:7002}]\nupstream: {address: rabbit:7001, tls: {}}\n"
    )
    assert main(["check", str(file)]) == 0
    assert "together" not in capfd.readouterr().err


def test_port_0_causes_a_warning(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "oxproxy.yaml"
    file.write_text("listen: [{address: 127.0.0.1:0}, {address: 127.0.0.1:0}]\n")
    assert main(["check", str(file)]) == 0
    assert (
        capfd.readouterr().err.count("address: warning: port 0 selects any free port, which differs at each start") == 2
    )


def test_an_unexpected_error_is_logged_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "oxproxy.yaml"
    file.write_text("log: {level: info}\n")

    def broken(_paths: object) -> None:
        raise KeyError("unexpected")

    monkeypatch.setattr("oxproxy.app.process.load_rules", broken)
    assert main(["serve", "--config", str(file)]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert 'level=error event="exiting after an unexpected error" error="KeyError: \'unexpected\'"' in line
    assert Path(__file__).name in line  # the location of the error


def test_a_missing_configuration_is_an_error(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["serve", "--config", str(tmp_path / "none.yaml")]) == 2
    assert f"{tmp_path / 'none.yaml'}: can't be read" in capfd.readouterr().err


# -- settings that require a restart -----------------------------------------------------------------------------------


def test_a_reload_names_the_settings_that_need_a_restart(serve: Serve) -> None:
    running = serve(limits={"connections": 50})
    running.await_ready()
    running.process.send_signal(signal.SIGHUP)
    running.await_log("event=reloaded")
    assert "require a restart" not in running.log.read_text()

    written = yaml.safe_load(running.configuration.read_text())
    written["limits"] = {"connections": 60, "publish_rate": 5}
    written["upstream"]["control"]["password"] = "another"
    written["listen"].append({"address": f"127.0.0.1:{free_port()}"})
    running.configuration.write_text(yaml.safe_dump(written))
    running.process.send_signal(signal.SIGHUP)
    running.await_log("changed settings require a restart")
    keys = ["listen", "upstream.control.password", "limits.connections", "limits.publish_rate"]
    line = next(line for line in running.log.read_text().splitlines() if "require a restart" in line)
    assert f' keys="{"; ".join(keys)}"' in line
    until(lambda: json.loads(running.get("/status")[1])["last_reload"]["restart"] == keys)

    running.configuration.write_text("limts: {}\n")
    running.process.send_signal(signal.SIGHUP)
    running.await_log("the configuration is now invalid: a restart would fail")
    assert "limts: unknown key; did you mean limits?" in running.log.read_text()
    assert running.ready()


# -- references in runbooks --------------------------------------------------------------------------------------------

RUNBOOKS = sorted((Path(__file__).resolve().parents[2] / "docs" / "runbooks").glob("*.md"))
#: The rest of a clause after `/status`, with the keys that it names.
_OF_STATUS = re.compile(r"`/status`[^.:]*")


def status_keys(text: str) -> set[str]:
    text_about_status = " ".join(_OF_STATUS.findall(text))
    return set(re.findall(r"`([a-z_]+)`", text_about_status))


def test_status_has_the_keys_named_in_runbooks(serve: Serve) -> None:
    running = serve()
    running.await_ready()
    status = json.loads(running.get("/status")[1])
    known = {*status, *(key for vhost in status["vhosts"] for key in vhost)}
    named = {path.stem: status_keys(path.read_text()) for path in RUNBOOKS}
    assert {"audit_failure", "missing", "foreign", "unsigned"} <= set().union(*named.values()) <= known


def test_events_searched_for_in_runbooks_exist() -> None:
    source = "".join(path.read_text() for path in (Path(__file__).resolve().parents[2] / "proxy/oxproxy").rglob("*.py"))
    searched = {
        event for path in RUNBOOKS for event in re.findall(r"journalctl[^\n|]*\| grep '([a-z ]+)'", path.read_text())
    }
    assert len(searched) > 3
    assert {event for event in searched if event not in source} == set()


# -- draining ----------------------------------------------------------------------------------------------------------


def test_sigint_drains_the_sidecar(serve: Serve) -> None:
    running = serve()
    running.await_ready()
    assert running.end(signal.SIGINT) == 0


def test_two_signals_within_a_second_are_one_and_a_later_one_ends_the_process(serve: Serve, outside: Outside) -> None:
    running = serve()
    running.await_ready()
    with Producer(running.port, outside.vhost) as producer:
        running.process.send_signal(signal.SIGTERM)
        running.process.send_signal(signal.SIGINT)
        assert producer.closed(0).code == 320  # it is still draining, until the producer closes its socket
    assert running.process.wait(END_SECONDS) == 0
    assert "second signal" not in running.log.read_text()
    running = serve()
    running.await_ready()
    with Producer(running.port, outside.vhost):

        def ended() -> bool:
            running.process.send_signal(signal.SIGTERM)
            return running.process.poll() is not None

        until(ended, every=0.2)
    assert running.process.returncode == -signal.SIGTERM
    assert "second signal: ending immediately" in running.log.read_text()


def test_a_file_name_that_the_system_refuses_is_an_error_at_its_key(tmp_path: Path) -> None:
    config = tmp_path / "oxproxy.yaml"
    config.write_text(f"rules: [{'a' * 300}.yaml]")
    done = subprocess.run([PROGRAM, "serve", "--config", config], capture_output=True, text=True, check=False)
    assert (done.returncode, "oxproxy.yaml:1:9: rules[0]: " in done.stderr) == (2, True)


@pytest.mark.parametrize("content", ["", "# upstream: {address: broker:5672}\n", "{}"])
def test_serve_refuses_a_configuration_without_keys_as_check_does(tmp_path: Path, content: str) -> None:
    config = tmp_path / "oxproxy.yaml"
    config.write_text(content)
    for command in (["check"], ["serve", "--config"]):
        done = oxproxy(*command, config)
        assert done.returncode == 2
        assert f"{config}:1:1: got " in done.stderr
    assert "got the keys (none), expected those of a configuration (listen, upstream, rules, " in done.stderr


def test_sighup_during_startup_does_not_end_the_sidecar(tmp_path: Path) -> None:
    port = free_port()
    config = tmp_path / "oxproxy.yaml"
    os.mkfifo(rules_pipe := tmp_path / "password")
    config.write_text(
        f"{{listen: [{{address: 127.0.0.1:{port}}}], admin: {{address: null}}, "
        f"upstream: {{address: 127.0.0.1:{free_port()}, control: {{username: me, password_file: password}}}}}}"
    )
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen([PROGRAM, "serve", "--config", config], stderr=output)
    try:
        with rules_pipe.open("w") as password:  # blocks until the sidecar reads the file
            process.send_signal(signal.SIGHUP)
            password.write("secret")
        # Before this event, the sidecar has unblocked the signal.
        until(lambda: process.poll() is not None or "event=ready" in log.read_text())
        assert process.poll() is None, log.read_text()
    finally:
        process.kill()
        process.wait()
