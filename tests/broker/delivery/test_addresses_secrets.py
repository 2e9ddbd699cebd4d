"""Passwords in files, in addresses and from producers are not shown anywhere.

A sidecar with full logging runs through successes and failures. After that, the test searches its log, its pages, its
audit log, the texts that producers got, the output of the commands and the representations of its objects.
"""

from __future__ import annotations

import base64
import contextlib
import gc
import json
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pamqp import commands
from pydantic import SecretStr

from oxproxy.addressing.address import parse_address
from oxproxy.addressing.targets import Target
from oxproxy.app.composition import remote_brokers
from oxproxy.app.sidecar import Sidecar
from oxproxy.broker.connection import ControlSettings
from oxproxy.cli.main import main
from oxproxy.config.loader import load_settings
from oxproxy.errors import ConfigErrors
from oxproxy.net.remote.endpoints import endpoint
from oxproxy.rules.loader import load_rules
from tests.broker.delivery.distance import QUOTED, SECRET, Far
from tests.broker.delivery.site import Site, standing
from tests.broker.delivery.test_audit import records
from tests.broker.observed import Outside
from tests.producer import Closed, Gone, Producer, until
from tests.rabbitmq import Broker
from tests.sidecar import request_page

CONTROL, PRODUCER = "c0ntrol-w0rd", "pr0ducer-w0rd"
#: Each password in plain text, percent-encoded as in addresses, and as encoded by HTTP and SASL.
WORDS = [
    SECRET,
    QUOTED,
    CONTROL,
    PRODUCER,
    "0ther-w0rd",
    *(
        base64.b64encode(text.encode()).decode().rstrip("=")
        for user, word in (("mover", SECRET), ("controller", CONTROL), ("speaker", PRODUCER))
        for text in (f"{user}:{word}", f"\0{user}\0{word}")
    ),
]

RULES = """
queues: [a]
exchanges:
  - name: letters
    bindings: [{{queue: a}}, {{queue: away}}]
brokers:
  far: {{address: "127.0.0.1:{port}", username: mover, password: {secret}, vhost: {vhost}, deadline: 2s}}
  kept: {{address: "127.0.0.1:{port}", username: mover, password_env: FAR_WORD, vhost: {vhost}}}
  filed: {{address: "127.0.0.1:{port}", username: mover, password_file: word, vhost: {vhost}}}
  strange: {{address: "127.0.0.1:{tls}", tls: {{ca: {ca}}}, username: mover, password: {secret}, deadline: 1s}}
  stranger: {{address: "127.0.0.1:{port}", username: mover, password: 0ther-w0rd, vhost: {vhost}, deadline: 1s}}
  nobody: {{address: "127.0.0.1:{nobody}", username: mover, password: {secret}, deadline: 1s}}
addresses:
  - {{pattern: away, translation: "amqp://mover:{quoted}@far/queue/away"}}
  - {{pattern: "far/*", translation: far/queue/$1}}
  - {{pattern: "kept/*", translation: kept/queue/$1}}
  - {{pattern: "filed/*", translation: filed/queue/$1}}
  - {{pattern: "uri/*", translation: "amqp://mover:{quoted}@127.0.0.1:{port}/queue/$1"}}
  - {{pattern: "to/*", translation: "amqp://mover:{quoted}@$1", hosts: ["127.0.0.1:{port}"]}}
  - {{pattern: "broken/*", translation: "amqp://mover:{quoted}@127.0.0.1:{port}/exchange//nothing"}}
  - {{pattern: "strange/*", translation: strange/queue/$1}}
  - {{pattern: "stranger/*", translation: stranger/queue/$1}}
  - {{pattern: "nobody/*", translation: nobody/queue/$1}}
"""
KEYS = [
    *("away", "far/one", "kept/one", "filed/one", "uri/one", "to/127.0.0.1:1/q", "to/elsewhere.example/q", "to/::"),
    *("broken/x", "strange/one", "stranger/one", "nobody/one", "far/nothing-there"),
]
#: Rules files that can't be loaded, each with a password at the invalid position.
BAD = [
    f'brokers: {{far: {{address: "h:1", username: mover, password: [{json.dumps(SECRET)}]}}}}',
    f'brokers: {{far: {{address: "h:1", username: mover, password: {json.dumps(SECRET)}, port: 5}}}}',
    f'brokers: {{far: {{address: "mover:{QUOTED}@h:1"}}}}',
    f'addresses: [{{pattern: a, translation: "amqp://mover:{QUOTED}@:99999/q"}}]',
    f'addresses: [{{pattern: a, translation: "http://mover:{QUOTED}@h/q"}}]',
    f'addresses: [{{pattern: "*", translation: "amqp://mover:{QUOTED}@$1"}}]',
    f'addresses: [{{pattern: a, translation: {{to: "amqp://mover:{QUOTED}@h/q"}}}}]',
    f'addresses: [{{pattern: a, transaltion: "amqp://mover:{QUOTED}@h/q"}}]',
    f'brokers: {{far: {{address: "h:1", username: mover, password: "{QUOTED}',
]


@contextlib.contextmanager
def watched(broker: Broker, far: Far, folder: Path, style: str) -> Iterator[Site]:
    """A site with full logging, and separate users for control and producers."""
    (folder / "audit").mkdir()
    (folder / "word").write_text(SECRET)
    settings = {
        "upstream": {"control": {"username": "controller", "password": CONTROL}},
        "log": {"level": "debug", "format": style},
        "audit": {"directory": "audit", "mode": "strict"},
        "shutdown": {"deadline": "2s"},
    }

    def prepare(outside: Outside) -> None:
        for name, word in (("controller", CONTROL), ("speaker", PRODUCER)):
            broker.create_user(name, word, "monitoring")
            broker.grant(name, outside.vhost)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAR_WORD", SECRET)
        patch.setenv("PYTHONFAULTHANDLER", "1")
        with standing(broker, folder, far.rules(RULES), settings, prepare) as site:
            far.broker.create_vhost(site.vhost)
            far.broker.grant("mover", site.vhost)
            yield site


def found_in(texts: dict[str, str]) -> set[tuple[str, str]]:
    return {(name, word) for name, text in texts.items() for word in WORDS if word in text}


def publish_all(site: Site) -> str:
    """Publish to every key, in every way; return the text that the producer got."""
    answers = []
    with Producer(site.sidecar.port, site.vhost, "speaker", PRODUCER).open(confirm=True) as producer:
        for key in KEYS:
            answers.append(repr(producer.send_settled("", key, mandatory=True)))
        answers.append(repr(producer.send_settled("", "far/one", user_id=b"speaker")))
        answers.append(repr(producer.send_settled("letters", "k")))
    with Producer(site.sidecar.port, site.vhost, "speaker", PRODUCER).open() as producer:
        producer.ask(commands.Tx.Select())
        producer.publish("", "far/one")
        answers.append(repr(producer.closed()))
    for word in ("0ther-w0rd", SECRET):
        with pytest.raises((Closed, Gone)) as refused:
            Producer(site.sidecar.port, site.vhost, "speaker", word).open()
        answers.append(repr(refused.value) + str(refused.value.__dict__))
    return "\n".join(answers)


def pages(site: Site) -> str:
    asked = [site.sidecar.get(path) for path in ("/metrics", "/status", "/readyz")]
    asked.append(request_page(site.sidecar.admin + "/metrics", Accept="application/openmetrics-text")[1])
    for key in KEYS:
        question = json.dumps({"exchange": "", "routing_key": key, "vhost": site.vhost}).encode()
        asked.append(request_page(site.sidecar.admin + "/explain", question)[1])
    assert "far" in asked[-1]
    return "\n".join(asked)


def reloaded(site: Site) -> None:
    """Load invalid files, and restore the valid files."""
    file = site.sidecar.folder / "rules.yaml"
    good = file.read_text()
    for count, bad in enumerate(BAD, 1):
        file.write_text(f"vhost: {site.vhost}\n{bad}\n")
        os.kill(site.sidecar.process_id, signal.SIGHUP)
        until(lambda count=count: site.metric("rules_reload_total", result="error") >= count)  # type: ignore[misc]
    site.sidecar.get("/status")
    file.write_text(good)


@pytest.mark.parametrize("style", ["text", "json"])
def test_no_password_is_in_any_output_of_a_running_sidecar(
    broker: Broker, far: Far, tmp_path: Path, style: str
) -> None:
    with watched(broker, far, tmp_path, style) as site:
        answers = publish_all(site)
        reloaded(site)
        shown = pages(site)
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        resource.prlimit(site.sidecar.process_id, resource.RLIMIT_CORE, (0, 0))
        # The output of a crash: the stacks of all threads.
        os.kill(site.sidecar.process_id, signal.SIGABRT)
        until(lambda: "Fatal Python error: Aborted" in site.sidecar.log.read_text())
        log = site.sidecar.log.read_text()
        audit = json.dumps([records(tmp_path / "audit", kind) for kind in ("publish", "settle")])
        assert "reload failed" in log
        assert "nobody/one" in audit
        assert found_in({"producer": answers, "pages": shown, "log": log, "audit": audit}) == set()


def test_no_password_is_in_the_output_of_commands(far: Far, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def oxproxy(*arguments: str) -> str:
        main(arguments)
        return "".join(capsys.readouterr())

    file = tmp_path / "rules.yaml"
    (tmp_path / "word").write_text(SECRET)
    file.write_text(far.rules(RULES))
    texts = {"check": oxproxy("check", str(file)), "check --json": oxproxy("check", "--json", str(file))}
    for key in KEYS:
        message = tmp_path / "message.json"
        message.write_text(json.dumps({"exchange": "", "routing_key": key}))
        for more in ((), ("--json",)):
            texts[f"explain {key} {more}"] = oxproxy("explain", "--rules", str(file), "--message", str(message), *more)
            texts[f"address {key} {more}"] = oxproxy("explain", "--rules", str(file), "--address", key, *more)
    assert "mover" in texts["address uri/one ()"]
    config = tmp_path / "oxproxy.yaml"
    config.write_text("rules: [rules.yaml]\n")
    for number, bad in enumerate(BAD):
        file.write_text(bad)
        for command in (("check", str(file)), ("check", "--json", str(file)), ("serve", "--config", str(config))):
            texts[f"bad {number} {command[0]} {command[1]}"] = text = oxproxy(*command)
            assert "rules.yaml" in text
    assert found_in(texts) == set()


def test_no_password_is_in_the_representation_of_objects(far: Far, tmp_path: Path) -> None:
    """Debuggers and exception reports print these. Covers all our objects that contain, or contained, passwords."""
    (tmp_path / "word").write_text(SECRET)
    (tmp_path / "rules.yaml").write_text(far.rules(RULES))
    config = tmp_path / "oxproxy.yaml"
    config.write_text(f"upstream: {{control: {{username: controller, password: {CONTROL}}}}}\nrules: [rules.yaml]\n")
    environ = {"FAR_WORD": SECRET}
    settings, _ = load_settings(config, environ)
    loaded = load_rules([tmp_path / "rules.yaml"])
    sidecar = Sidecar(settings, loaded, environ)
    brokers = remote_brokers(loaded, environ, ())
    targets = [loaded.books["/"].look_up(b"", key.encode()) for key in KEYS]
    remotes = [target.remote for target in targets if isinstance(target, Target) and target.remote is not None]
    kept: list[object] = [endpoint(remote, brokers["/"], "/") for remote in remotes]
    kept += [loaded.books["/"].table.translate(key.encode()) for key in KEYS]
    kept += [parse_address(f"amqp://mover:{QUOTED}@h/q".encode()), targets, brokers, sidecar]
    kept.append(settings.upstream.control.password)
    ours = [
        instance
        for instance in (*gc.get_objects(), *kept)
        if str(type(instance).__module__).startswith(("oxproxy.", "pydantic"))
    ]
    assert {SecretStr, ControlSettings} <= {type(instance) for instance in ours}
    assert len(remotes) > 5
    assert (
        found_in({f"{type(instance).__name__} {number}": repr(instance) for number, instance in enumerate(ours)})
        == set()
    )


@pytest.mark.parametrize("bad", BAD)
def test_no_password_is_in_the_report_of_an_exception(tmp_path: Path, bad: str) -> None:
    (tmp_path / "rules.yaml").write_text(bad)
    with pytest.raises(ConfigErrors) as raised:
        load_rules([tmp_path / "rules.yaml"])
    chain: BaseException | None = raised.value
    while chain is not None:
        assert (
            found_in({"report": f"{chain!r} {chain} {chain.__dict__ if hasattr(chain, '__dict__') else ''}"}) == set()
        )
        chain = chain.__cause__ or chain.__context__
