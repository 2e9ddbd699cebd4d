"""TLS on both sides of the sidecar, in front of a real RabbitMQ with TLS and a private authority."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import ssl
import struct
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aio_pika
import pika
import pytest
import yaml
from pamqp import commands

from tests.certificates import Authority
from tests.client import PROTOCOL_HEADER
from tests.private_broker import BrokerMissing, PrivateBroker, free_port
from tests.producer import Closed, Producer, until
from tests.sidecar import PROGRAM, Sidecar, merged, oxproxy_here, request_page

RULES = """
queues: [letters]
exchanges:
  - name: post
    bindings: [{queue: letters}]
"""
VHOST = "sealed"


@dataclass
class World:
    """A broker with TLS, and the certificates of both sides."""

    broker: PrivateBroker
    authority: Authority
    tls_port: int
    management: str
    #: The sidecar's certificates for producers and for the broker.
    pair: tuple[Path, Path]
    #: Directory of the broker's files.
    home: Path
    folder: Path
    number: int = field(default=0)

    def settings(self, folder: Path) -> dict[str, object]:
        """TLS on both sides, with separate certificates in a directory."""
        install(self.pair, folder)
        return {
            "listen": [
                {
                    "address": f"127.0.0.1:{free_port()}",
                    "tls": {"certificate": "cert.pem", "key": "key.pem"},
                }
            ],
            "upstream": {
                "address": f"localhost:{self.tls_port}",
                "tls": {"ca": str(self.authority.ca), "certificate": "cert.pem", "key": "key.pem"},
                "management": self.management,
            },
            "limits": {"handshake_timeout": "2s"},
        }

    def install(self, pair: tuple[Path, Path]) -> None:
        """Replace the broker's certificate, for connections from now on."""
        install(pair, self.home)
        self.broker.rabbitmqctl("eval", "ssl:clear_pem_cache().")

    def new_folder(self) -> Path:
        self.number += 1
        folder = self.folder / str(self.number)
        folder.mkdir()
        (folder / "rules.yaml").write_text(f"vhost: {VHOST}\n{RULES}")
        return folder


def install(pair: tuple[Path, Path], folder: Path) -> None:
    """Write certificate and key to a directory, one after the other, as renewal tools do."""
    for source, name in zip(pair, ("cert.pem", "key.pem"), strict=True):
        shutil.copy(source, folder / f".{name}")
        (folder / f".{name}").rename(folder / name)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command")
    authority = Authority(tmp_path_factory.mktemp("authority"))
    pair = authority.certificate("localhost")
    home = tmp_path_factory.mktemp("broker")
    install(pair, home)
    tls = free_port()
    http = free_port()
    config = [
        f"listeners.ssl.one = 127.0.0.1:{tls}",
        f"ssl_options.cacertfile = {authority.ca}",
        f"ssl_options.certfile = {home}/cert.pem",
        f"ssl_options.keyfile = {home}/key.pem",
        "ssl_options.verify = verify_peer",
        "ssl_options.fail_if_no_peer_cert = true",
        "ssl_cert_login_from = common_name",
        *(f"auth_mechanisms.{number} = {name}" for number, name in enumerate(("PLAIN", "AMQPLAIN", "EXTERNAL"), 1)),
        "management.ssl.ip = 127.0.0.1",
        f"management.ssl.port = {http}",
        f"management.ssl.cacertfile = {authority.ca}",
        f"management.ssl.certfile = {home}/cert.pem",
        f"management.ssl.keyfile = {home}/key.pem",
    ]
    try:
        with PrivateBroker(config, ["rabbitmq_auth_mechanism_ssl"]) as broker:
            broker.create_vhost(VHOST)
            sites = tmp_path_factory.mktemp("sites")
            yield World(broker, authority, tls, f"https://localhost:{http}", pair, home, sites)
    except BrokerMissing as missing:
        pytest.skip(str(missing))


class TlsSidecar(Sidecar):
    """A sidecar that listens with TLS."""

    def __init__(self, world: World, more: Mapping[str, object] | None = None) -> None:
        folder = world.new_folder()
        super().__init__(world.broker, [folder / "rules.yaml"], merged(world.settings(folder), more or {}), folder)
        listen = self._settings["listen"]
        assert isinstance(listen, list)
        self.port = int(listen[0]["address"].rpartition(":")[2])
        self.world = world

    def post(self, path: str) -> dict[str, object]:
        _, text = request_page(self.admin + path, b"", "POST")
        parsed: dict[str, object] = json.loads(text)
        return parsed

    def producer(self, context: ssl.SSLContext | None = None) -> Producer:
        """A producer over TLS, with channel 1 open and confirming."""
        return Producer(self.port, VHOST, tls=context or self.world.authority.client()).open(confirm=True)

    def serial(self) -> str:
        """Serial number of the certificate that a new connection gets."""
        context = self.world.authority.client()
        with socket.create_connection(("127.0.0.1", self.port)) as plain:
            plain.settimeout(10)
            with context.wrap_socket(plain, server_hostname="localhost") as wrapped:
                shown = wrapped.getpeercert()
        assert shown
        return str(shown["serialNumber"])


@pytest.fixture(scope="module")
def tls_sidecar(world: World) -> Iterator[TlsSidecar]:
    with TlsSidecar(world) as sidecar:
        yield sidecar


def take(world: World) -> list[bytes]:
    with Producer(world.broker.port, VHOST).open() as direct:
        return [message.body for message in direct.take("letters")]


def listening(port: int, **tls: object) -> dict[str, object]:
    made = {"certificate": "cert.pem", "key": "key.pem", **tls}
    return {"listen": [{"address": f"127.0.0.1:{port}", "tls": made}]}


# -- publishing and consuming --------------------------------------------------------------------------------------


def test_pika_publishes_over_tls_on_both_sides(world: World, tls_sidecar: TlsSidecar) -> None:
    options = pika.SSLOptions(world.authority.client(), "localhost")
    where = pika.ConnectionParameters("127.0.0.1", tls_sidecar.port, VHOST, ssl_options=options)
    with pika.BlockingConnection(where) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("post", "any", b"by pika", mandatory=True)
    assert take(world) == [b"by pika"]


async def test_aio_pika_publishes_over_tls_on_both_sides(world: World, tls_sidecar: TlsSidecar) -> None:
    connection = await aio_pika.connect(
        f"amqps://guest:guest@localhost:{tls_sidecar.port}/{VHOST}", ssl_context=world.authority.client()
    )
    async with connection:
        channel = await connection.channel()
        exchange = await channel.get_exchange("post", ensure=False)
        assert await exchange.publish(aio_pika.Message(b"by aio-pika"), "any", mandatory=True)
    assert take(world) == [b"by aio-pika"]


def test_a_large_message_passes_unchanged_in_both_directions(world: World, tls_sidecar: TlsSidecar) -> None:
    body = os.urandom(5_000_000)
    with tls_sidecar.producer() as producer:
        assert producer.send_settled("post", body=body).acked
        (message,) = producer.take("letters")
    assert message.body == body


def test_the_control_user_and_the_inventory_use_tls_too(world: World, tls_sidecar: TlsSidecar) -> None:
    until(lambda: any(connection.get("ssl") for connection in world.broker.api("GET", "connections")))
    control = [
        connection
        for connection in world.broker.api("GET", "connections")
        if connection["vhost"] == VHOST and connection["ssl"]
    ]
    assert "oxproxy control" in {connection["client_properties"].get("connection_name") for connection in control}
    assert "degraded" not in tls_sidecar.get("/readyz")


def test_plain_and_tls_listeners_work_together(world: World) -> None:
    plain, secure = free_port(), free_port()
    listen = [{"address": f"127.0.0.1:{plain}"}, *listening(secure)["listen"]]  # type: ignore[misc]
    with TlsSidecar(world, {"listen": listen}):
        for producer in (Producer(plain, VHOST), Producer(secure, VHOST, tls=world.authority.client())):
            with producer:
                assert producer.open(confirm=True).send_settled("post").acked
    assert take(world) == [b"body", b"body"]


def test_a_connection_over_tls_is_handed_to_the_next_producer(world: World) -> None:
    with TlsSidecar(world, {"upstream": {"reuse": "60s"}}) as sidecar:
        for _ in range(3):
            producer = sidecar.producer()
            assert producer.send_settled("post").acked
            producer.ask(commands.Channel.Close(200, "", 0, 0))
            producer.close()
        assert sidecar.metric("connections_reused_total") == 2
        assert sidecar.metric("connections_kept") == 1
    assert take(world) == [b"body"] * 3


# -- refused producers ---------------------------------------------------------------------------------------------


def shake(port: int, context: ssl.SSLContext) -> None:
    """Do a TLS handshake and wait for its result; a producer that sends nothing gets no data."""
    with socket.create_connection(("127.0.0.1", port)) as plain:
        plain.settimeout(10)
        with context.wrap_socket(plain, server_hostname="localhost") as wrapped:
            wrapped.sendall(b"AMQP\x00\x00\x09\x01")
            if not wrapped.recv(1):
                raise ConnectionError("closed")


def old(world: World) -> ssl.SSLContext:
    context = world.authority.client()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    return context


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1")
def test_tls_1_1_is_refused_and_counted(world: World, tls_sidecar: TlsSidecar) -> None:
    before = tls_sidecar.metric("connections_total", side="downstream", result="tls_error")
    with pytest.raises(OSError, match=r"alert|protocol|version|reset"):
        shake(tls_sidecar.port, old(world))
    until(lambda: tls_sidecar.metric("connections_total", side="downstream", result="tls_error") == before + 1)
    assert "older than minimum_version" in tls_sidecar.logged("producer not connected")[-1]


def test_silent_peers_leave_descriptors_for_admin_pages_and_the_control_plane(world: World) -> None:
    plain, secure = free_port(), free_port()
    listen = [{"address": f"127.0.0.1:{plain}"}, *listening(secure)["listen"]]  # type: ignore[misc]
    limits = {"connections": 20, "connections_per_peer": 10, "handshake_timeout": "60s"}
    with TlsSidecar(world, {"listen": listen, "limits": limits}) as sidecar, contextlib.ExitStack() as flood:
        resource.prlimit(sidecar.process_id, resource.RLIMIT_NOFILE, (296, 296))
        for _ in range(400):
            flood.enter_context(socket.create_connection(("127.0.0.1", secure), timeout=30))
        until(lambda: sidecar.metric("connections_rejected_total", reason="connections_per_peer") == 390)
        # 10 accepted, and at most 64 that get the reason; the others were closed at once.
        assert len(os.listdir(f"/proc/{sidecar.process_id}/fd")) < 150
        assert sidecar.get("/livez") == "alive\n"
        assert sidecar.get("/readyz") == "ready\n"
        with socket.create_connection(("127.0.0.1", plain), 30, ("127.0.0.2", 0)) as producer:
            producer.sendall(PROTOCOL_HEADER)
            assert producer.recv(11)[7:] == b"\x00\x0a\x00\x0a"  # Connection.Start


def test_a_required_client_certificate_is_verified(world: World) -> None:
    port = free_port()
    with TlsSidecar(world, listening(port, client_ca=str(world.authority.ca))) as sidecar:
        with pytest.raises(OSError, match=r"certificate required|closed|reset|EOF"):
            shake(port, world.authority.client())
        until(lambda: sidecar.metric("connections_total", side="downstream", result="tls_error") == 1)
        assert "client_ca" in sidecar.logged("producer not connected")[-1]
        with sidecar.producer(world.authority.client(world.authority.certificate("producer"))) as producer:
            assert producer.send_settled("post").acked
    assert take(world) == [b"body"]


def test_an_optional_client_certificate_is_refused_only_if_invalid(world: World, tmp_path: Path) -> None:
    port = free_port()
    stranger = Authority(tmp_path / "stranger").certificate("producer")
    more = listening(port, client_ca=str(world.authority.ca), client_verify="optional")
    with TlsSidecar(world, more) as sidecar:
        with sidecar.producer() as producer:
            assert producer.send_settled("post").acked
        with pytest.raises(OSError, match=r"unknown ca|alert|closed|reset|EOF"):
            shake(port, world.authority.client(stranger))
    assert take(world) == [b"body"]


def test_sasl_external_cannot_use_the_certificate_of_the_sidecar(world: World, tls_sidecar: TlsSidecar) -> None:
    def offered(port: int) -> tuple[Producer, str]:
        context = world.authority.client(world.pair)
        producer = Producer(port, VHOST, tls=context, log_in=False)
        producer.send(PROTOCOL_HEADER)
        return producer, str(producer.expect("Connection.Start").arguments["mechanisms"])

    world.broker.create_user("localhost", "unknown")
    world.broker.grant("localhost", VHOST)
    direct, mechanisms = offered(world.tls_port)
    assert "EXTERNAL" in mechanisms
    direct.call(commands.Connection.StartOk({}, "EXTERNAL", "", "en_US"), 0)
    direct.expect("Connection.Tune")
    direct.disconnect()
    through, mechanisms = offered(tls_sidecar.port)
    assert sorted(mechanisms.split()) == ["AMQPLAIN", "PLAIN"]
    through.call(commands.Connection.StartOk({}, "EXTERNAL", "", "en_US"), 0)
    with through, pytest.raises(Closed) as caught:
        through.expect("Connection.Tune")
    assert (caught.value.code, "the broker would see its certificate, not yours" in caught.value.text) == (403, True)


# -- the broker's side ---------------------------------------------------------------------------------------------


def refused(world: World, upstream: Mapping[str, object]) -> str:
    """Start a sidecar whose broker is not trusted; return its log."""
    folder = world.new_folder()
    settings = merged(world.settings(folder), {"upstream": upstream, "rules": ["rules.yaml"]})
    settings["admin"] = {"address": f"127.0.0.1:{free_port()}"}
    (folder / "oxproxy.yaml").write_text(yaml.safe_dump(settings))
    log = folder / "log"
    with log.open("w") as output:
        serving = subprocess.Popen(
            [PROGRAM, "serve", "--config", folder / "oxproxy.yaml"], stdout=output, stderr=subprocess.STDOUT
        )
    try:
        until(lambda: "not reachable" in log.read_text() or serving.poll() is not None)
        serving.terminate()
        serving.wait(30)
    finally:
        serving.kill()
        serving.wait()
    return log.read_text()


def test_a_broker_with_an_unknown_authority_is_refused(world: World, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "other").ca
    log = refused(world, {"tls": {"ca": str(authority)}})
    assert "certificate rejected" in log
    assert f"not signed by a CA in {authority}" in log


def test_a_broker_with_another_name_is_refused(world: World) -> None:
    log = refused(world, {"address": f"127.0.0.1:{world.tls_port}"})
    assert "certificate rejected: IP address mismatch" in log


def test_the_expected_name_can_be_configured(world: World) -> None:
    more = {"address": f"127.0.0.1:{world.tls_port}", "tls": {"server_name": "localhost"}}
    with TlsSidecar(world, {"upstream": more}) as sidecar, sidecar.producer() as producer:
        assert producer.send_settled("post").acked
    assert take(world) == [b"body"]


def test_without_verification_any_certificate_is_accepted_with_a_warning(world: World, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "other").ca
    more = {"address": f"127.0.0.1:{world.tls_port}", "tls": {"ca": str(authority), "verify": False}}
    with TlsSidecar(world, {"upstream": more}) as sidecar, sidecar.producer() as producer:
        assert producer.send_settled("post").acked
        assert sidecar.logged("can impersonate the broker")
    assert take(world) == [b"body"]


def test_a_client_certificate_that_the_broker_requires_is_named_in_the_error(world: World) -> None:
    log = refused(world, {"tls": {"certificate": None, "key": None}, "management": None})
    # RabbitMQ 3.8 uses TLS 1.2, in which the alert does not state the reason.
    assert re.search(r"\(the other side (requires|may require) a client certificate: upstream\.tls\.certificate\)", log)


def test_producers_get_the_reason_if_the_brokers_certificate_has_expired(world: World, tls_sidecar: TlsSidecar) -> None:
    before = tls_sidecar.metric("connections_total", side="upstream", result="tls_error")
    with tls_sidecar.producer() as producer:
        world.install(world.authority.certificate("localhost", expired=True))
        try:
            with pytest.raises(Closed) as caught:
                tls_sidecar.producer()
            assert producer.send_settled("post").acked
        finally:
            world.install(world.pair)
    assert (caught.value.code, "certificate has expired" in caught.value.text) == (320, True)
    assert tls_sidecar.metric("connections_total", side="upstream", result="tls_error") == before + 1
    with tls_sidecar.producer() as producer:
        assert producer.send_settled("post").acked
    assert take(world) == [b"body", b"body"]


# -- replaced files under a running sidecar ------------------------------------------------------------------------


def by_request(sidecar: TlsSidecar) -> None:
    assert sidecar.post("/-/reload")["result"] == "ok"


def by_signal(sidecar: TlsSidecar) -> None:
    before = sidecar.metric("rules_reload_total", result="ok")
    os.kill(sidecar.process_id, signal.SIGHUP)
    until(lambda: sidecar.metric("rules_reload_total", result="ok") > before)


def by_itself(sidecar: TlsSidecar) -> None:
    shown = sidecar.serial()
    until(lambda: sidecar.serial() != shown)


@pytest.mark.parametrize("reload", [by_request, by_signal, by_itself])
def test_new_certificates_apply_to_new_connections(
    world: World, tls_sidecar: TlsSidecar, reload: Callable[[TlsSidecar], None]
) -> None:
    before = tls_sidecar.serial()
    with tls_sidecar.producer() as producer:
        install(world.authority.certificate("localhost"), tls_sidecar.folder)
        reload(tls_sidecar)
        assert tls_sidecar.serial() != before
        assert producer.send_settled("post").acked
    assert take(world) == [b"body"]


def test_an_invalid_file_keeps_all_previous_files_in_use(world: World, tls_sidecar: TlsSidecar) -> None:
    shown, key = tls_sidecar.serial(), (tls_sidecar.folder / "key.pem").read_text()
    errors = tls_sidecar.metric("rules_reload_total", result="error")
    (tls_sidecar.folder / "key.pem").write_text(world.authority.certificate("other")[1].read_text())
    rules = tls_sidecar.folder / "rules.yaml"
    good = rules.read_text()
    rules.write_text(good.replace("letters", "others"))
    answer = tls_sidecar.post("/-/reload")
    assert answer["result"] == "error"
    assert f"{tls_sidecar.folder}/key.pem: expected the private key of the certificate in" in str(answer["errors"])
    assert tls_sidecar.metric("rules_reload_total", result="error") > errors
    assert tls_sidecar.logged("reload failed")
    assert tls_sidecar.serial() == shown
    with tls_sidecar.producer() as producer:
        assert producer.send_settled("post").acked
    assert take(world) == [b"body"]
    rules.write_text(good)
    (tls_sidecar.folder / "key.pem").write_text(key)
    by_request(tls_sidecar)


def test_authorities_for_the_broker_are_also_reloaded(world: World, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    shutil.copy(world.authority.ca, ca)
    with TlsSidecar(world, {"upstream": {"tls": {"ca": str(ca)}}}) as sidecar:
        shutil.copy(Authority(tmp_path / "other").ca, ca)
        by_request(sidecar)
        with pytest.raises(Closed) as caught:
            sidecar.producer()
        assert "certificate rejected" in caught.value.text
        shutil.copy(world.authority.ca, ca)
        by_request(sidecar)
        sidecar.producer().disconnect()


def test_no_key_and_no_password_is_in_the_log(world: World, tls_sidecar: TlsSidecar) -> None:
    log = tls_sidecar.log.read_text()
    keys = [*world.authority.folder.glob("*.key"), tls_sidecar.folder / "key.pem"]
    lines = {line for key in keys for line in key.read_text().splitlines() if not line.startswith("-")}
    assert not [line for line in lines if line in log]
    assert "guest:guest" not in log


# -- queries of the command line to the broker ---------------------------------------------------------------------


def ask_broker(world: World, url: str, *files: Path) -> tuple[int, list[str]]:
    done = oxproxy_here("check", "--broker", url, *files)
    return done.returncode, done.stderr.splitlines()


@pytest.mark.parametrize("scheme", ["amqps", "https"])
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_check_queries_a_broker_with_the_tls_settings_of_the_configuration(
    world: World, scheme: str, host: str
) -> None:
    folder = world.new_folder()
    rules = folder / "rules.yaml"
    rules.write_text(f"vhost: {VHOST}\n{RULES}  - name: more\n    bindings: [{{queue: nowhere}}]\n")
    settings = merged(world.settings(folder), {"rules": ["rules.yaml"]})
    if host != "localhost":  # not a name in the certificate
        tls = {"address": f"{host}:{world.tls_port}", "tls": {"server_name": "localhost"}}
        settings = merged(settings, {"upstream": tls})
    config = folder / "oxproxy.yaml"
    config.write_text(yaml.safe_dump(settings))
    port = world.tls_port if scheme == "amqps" else world.management.rpartition(":")[2]
    status, lines = ask_broker(world, f"{scheme}://guest:guest@{host}:{port}", config)
    warning = f"{rules}:8:16: exchanges[1].bindings[0].queue: warning: the broker has no such queue"
    assert (status, lines[-1:]) == (0, [warning])
    assert not [line for line in lines if "--broker" in line]


@pytest.mark.parametrize("scheme", ["amqps", "https"])
def test_without_the_configuration_a_private_authority_is_not_trusted(world: World, scheme: str) -> None:
    rules = world.new_folder() / "rules.yaml"
    rules.write_text(f"vhost: {VHOST}\nexchanges: [{{name: e, bindings: [{{queue: nowhere}}]}}]\n")
    port = world.tls_port if scheme == "amqps" else world.management.rpartition(":")[2]
    status, lines = ask_broker(world, f"{scheme}://guest:s3cret@localhost:{port}", rules)
    assert status == 2
    assert lines[-1].startswith("--broker: ")
    assert "certificate rejected" in lines[-1]
    assert "the system's CA certificates" in lines[-1]
    assert "s3cret" not in "".join(lines)


def test_check_reports_unusable_authorities_and_sends_no_query(world: World) -> None:
    folder = world.new_folder()
    (folder / "no-ca.pem").write_text("none")
    config = folder / "oxproxy.yaml"
    tls = {"upstream": {"tls": {"ca": "no-ca.pem"}}, "rules": ["rules.yaml"]}
    config.write_text(yaml.safe_dump(merged(world.settings(folder), tls)))
    status, lines = ask_broker(world, f"amqps://guest:guest@localhost:{world.tls_port}", config)
    assert status == 2
    assert f"{folder / 'no-ca.pem'}: no PEM block CERTIFICATE" in lines[-1]


def test_cleanup_queries_a_management_api_with_the_tls_settings_of_the_configuration(
    world: World, tls_sidecar: TlsSidecar
) -> None:
    done = oxproxy_here("cleanup", "--vhost", VHOST, "--config", tls_sidecar.configuration)
    assert (done.returncode, done.stderr) == (0, "")
    assert "post" in done.stdout


def test_replay_trusts_the_certificate_in_the_configuration(world: World, tls_sidecar: TlsSidecar) -> None:
    producer = tls_sidecar.producer()
    assert producer.send_settled("post").acked
    producer.disconnect()
    done = oxproxy_here(
        "replay", "--queue", "letters", "--vhost", VHOST, "--dry-run", "--config", tls_sidecar.configuration
    )
    assert done.stderr == ""
    assert "post" in done.stdout
    assert take(world) == [b"body"]


# -- closing -------------------------------------------------------------------------------------------------------


def test_a_close_is_answered_and_both_sides_end(world: World, tls_sidecar: TlsSidecar) -> None:
    producer = tls_sidecar.producer()
    assert producer.send_settled("post").acked
    producer.call(commands.Connection.Close(200, "", 0, 0), 0)
    producer.expect("Connection.CloseOk")
    assert producer.gone()
    producer.disconnect()
    until(lambda: tls_sidecar.metric("connections", side="upstream") == 0)
    assert take(world) == [b"body"]


def test_a_half_closed_producer_ends_both_sides_and_loses_no_confirmed_message(
    world: World, tls_sidecar: TlsSidecar
) -> None:
    """RabbitMQ itself may drop unconfirmed messages if a socket ends without Connection.Close."""
    producer = tls_sidecar.producer()
    assert all(producer.send_settled("post", body=b"x" * 1000).acked for _ in range(20))
    wrapped = producer.socket
    assert isinstance(wrapped, ssl.SSLSocket)
    with contextlib.suppress(OSError):
        wrapped.unwrap()  # close_notify: no more data from this side
    until(lambda: tls_sidecar.metric("connections", side="downstream") == 0)
    assert take(world) == [b"x" * 1000] * 20
    producer.disconnect()


@pytest.mark.parametrize("how", ["reset", "cut"])
def test_a_lost_producer_leaves_no_connection(world: World, tls_sidecar: TlsSidecar, how: str) -> None:
    producer = tls_sidecar.producer()
    if how == "reset":
        producer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    producer.disconnect()
    until(lambda: tls_sidecar.metric("connections", side="downstream") == 0)
    until(lambda: tls_sidecar.metric("connections", side="upstream") == 0)


def test_a_producer_that_does_not_answer_a_close_is_dropped_after_the_deadline(world: World) -> None:
    with TlsSidecar(world) as sidecar, sidecar.producer() as producer:
        os.kill(sidecar.process_id, signal.SIGTERM)
        assert producer.frame().name == "Connection.Close"
        assert producer.gone()
        until(lambda: sidecar.logged("event=stopped"))
