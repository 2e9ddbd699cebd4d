"""Tests commands that query a running sidecar, and the JSON that the sidecar returns."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.broker.delivery.site import Site, standing
from tests.private_broker import free_port
from tests.rabbitmq import Broker
from tests.sidecar import PROGRAM, oxproxy, oxproxy_here, pika_channel

RULES = """\
# the orders of a shop
queues: [orders.all, orders.big]
brokers:
  archive: {address: "127.0.0.1:1", username: mover, password: hunter2}   # never reached
exchanges:
  - name: orders
    bindings:
      - {queue: orders.all, name: all orders, arguments: {x-order: 200}}
      - {queue: orders.big, name: big orders, arguments: {"x-?hkv>= amount": 1000, x-stop-ontrue: ""}}
      - {queue: nowhere, name: lost orders, arguments: {"x-?hkv= lost": true}}
addresses:
  - {name: moved, pattern: "old/%", translation: "amqp://mover:hunter3@127.0.0.1:1/queue/new"}
  - {name: login, pattern: "amqp://me:hunter4/5@far/%", translation: "/queue/$1"}
"""


@pytest.fixture(scope="module")
def site(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with standing(broker, tmp_path_factory.mktemp("live"), RULES) as running:
        yield running


def rules_of(site: Site) -> Path:
    return site.sidecar.folder / "rules.yaml"


def run(site: Site, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
    """Run a command that takes the sidecar's address from its configuration."""
    done = oxproxy_here(*arguments, "--config", site.sidecar.configuration, input=stdin)
    return done.returncode, done.stdout, done.stderr


def publish(site: Site, number: int, amount: int) -> None:
    with pika_channel(site.sidecar.port, site.vhost) as channel:
        for _ in range(number):
            channel.basic_publish("orders", "", b"", pika.BasicProperties(headers={"amount": amount}))


def test_status_is_ready_and_lists_missing_destinations(site: Site) -> None:
    status, out, err = run(site, "status")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert re.fullmatch(r"oxproxy \S+ at http://127\.0\.0\.1:\d+: ready", lines[0])
    assert any(line.startswith("rules           ") for line in lines)
    assert any(line.startswith("producers       ") for line in lines)
    assert re.search(rf"^vhost           {site.vhost}: connected, \d+ queues?, read at \d{{4}}-", out, re.MULTILINE)
    assert re.search(r"^  broker        RabbitMQ \d+\.\d+\.\d+$", out, re.MULTILINE)
    assert re.search(r"^  missing       queue nowhere: ", out, re.MULTILINE)


def test_status_is_printed_again_until_ctrl_c(site: Site) -> None:
    command = [str(PROGRAM), "status", "--admin", site.sidecar.admin, "--watch", "0.1", "--token-file", "-"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True) as watching:
        assert watching.stdin is not None
        assert watching.stdout is not None
        watching.stdin.write("token")
        watching.stdin.close()
        seen = 0
        while seen < 3:
            line = watching.stdout.readline()
            assert "\x1b" not in line
            assert not line.startswith("oxproxy status:")  # an error, such as a token that is read again
            seen += line.startswith("oxproxy ")
        watching.send_signal(signal.SIGINT)
        watching.stdout.read()
        assert watching.wait(20) == 0


def test_tail_states_what_is_not_recorded(site: Site) -> None:
    nothing, from_now_on = (
        "no failed publishes are recorded\n",
        "unroutable publishes are recorded from now on, for five ",
    )
    first = run(site, "tail")
    assert (first[:2], first[2].startswith(nothing + from_now_on)) == ((0, ""), True)
    assert run(site, "tail") == (0, "", nothing)


@pytest.mark.parametrize(
    ("command", "options"),
    [("serve", "--config FILE"), ("cleanup", "--config FILE"), ("check", "FILE, --values FILE")],
)
def test_a_command_finds_the_configuration_in_its_directory(tmp_path: Path, command: str, options: str) -> None:
    (tmp_path / "oxproxy.yaml").write_text("log: {level: loud}\n")
    found = oxproxy(command, cwd=tmp_path)
    assert (found.returncode, found.stderr.partition(" ")[0]) == (2, "oxproxy.yaml:1:14:")
    none = oxproxy(command, cwd="/")
    assert (none.returncode, none.stderr) == (
        2,
        f"oxproxy {command}: no configuration, expected {options}, oxproxy.yaml or /etc/oxproxy/oxproxy.yaml\n",
    )


def test_status_shows_the_last_reload_and_lists_missing_destinations_once(site: Site) -> None:
    urllib.request.urlopen(f"{site.sidecar.admin}/-/reload", data=b"").close()
    out = run(site, "status")[1]
    assert re.search(r"^last reload     ok at \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ, reason request$", out, re.M)
    assert out.count("queue nowhere") == 1


def test_status_is_printed_as_json(site: Site) -> None:
    status, out, _ = run(site, "status", "--json")
    assert (status, json.loads(out)["ready"]) == (0, True)


@pytest.mark.parametrize(
    "command", [["status"], ["top"], ["routes"], ["rules", "show"], ["explain", "--exchange", "e"]]
)
def test_an_unreachable_sidecar_is_status_2_with_its_address(command: list[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    done = oxproxy_here(*command, "--admin", url)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"oxproxy {command[0]}: {url}/")
    assert "refused" in done.stderr


def test_a_configuration_without_an_admin_address_is_an_error(tmp_path: Path) -> None:
    config = tmp_path / "oxproxy.yaml"
    config.write_text("admin: {address: null}\n")
    done = oxproxy("status", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "oxproxy.yaml:1:9: admin.address: not set, expected the address of a running sidecar\n"


def test_top_counts_publishes(site: Site) -> None:
    command = [str(PROGRAM), "top", "--admin", site.sidecar.admin, "--interval", "0.5", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as top:
        assert top.stdout is not None
        top.stdout.readline()
        publish(site, 20, 2000)
        total = 0.0
        while total < 19.9:
            interval = json.loads(top.stdout.readline())
            rows = [row for row in interval["bindings"] if row["binding"] == "big orders"]
            total += sum(row["per_second"] for row in rows) * interval["seconds"]
        assert interval["destinations"]
        assert interval["publishes_per_second"] >= 0
        top.send_signal(signal.SIGINT)
        assert top.wait(20) == 0
    assert total == pytest.approx(20, abs=0.1)


def test_top_without_a_terminal_prints_a_table_for_each_interval(site: Site) -> None:
    publish(site, 1, 5)
    status, out, err = run(site, "top", "--interval", "0.2", "--count", "2")
    assert (status, err) == (0, "")
    assert out.count("publishes/s") == 2
    assert "\x1b" not in out
    assert re.search(r"^\S* *orders +(all orders) +\d+\.\d +\d+", out, re.MULTILINE)


def test_top_redraws_in_a_terminal_until_ctrl_c_and_respects_no_color(site: Site) -> None:
    parent, child = pty.openpty()
    command = [str(PROGRAM), "top", "--admin", site.sidecar.admin, "--interval", "0.2"]
    environment = {**os.environ, "NO_COLOR": "1", "TERM": "xterm", "COLUMNS": "70", "LINES": "40"}
    with subprocess.Popen(command, stdout=child, stderr=child, stdin=child, env=environment) as top:
        os.close(child)
        output = b""
        end = time.monotonic() + 30
        while output.count(b"publishes/s") < 2 and time.monotonic() < end:
            if select.select([parent], [], [], 1)[0]:
                output += os.read(parent, 65536)
        top.send_signal(signal.SIGINT)
        assert top.wait(20) == 0
    os.close(parent)
    assert output.count(b"publishes/s") >= 2
    assert not re.search(rb"\x1b\[[0-9;]*3[0-7]m", output)


def test_routes_of_a_sidecar_show_bindings_in_order_and_missing_queues(site: Site) -> None:
    status, out, err = run(site, "routes", "--vhost", site.vhost)
    assert (status, err) == (0, "")
    assert "hunter" not in out
    order = [out.index(name) for name in ("all orders", "big orders", "lost orders")]
    assert order == sorted(order)
    assert re.search(r"10000 lost orders → queue nowhere  missing: \S", out)
    assert "x-?hkv>= amount: 1000" in out
    assert 'x-stop-ontrue: ""' in out
    assert "0 (moved): old/% → amqp://mover:***@127.0.0.1:1/queue/new" in out


def test_routes_of_a_sidecar_include_bindings_of_clients(site: Site) -> None:
    with pika_channel(site.sidecar.port, site.vhost) as client:
        client.exchange_declare("of-a-client", "x-open")
        client.queue_declare("of-a-client.queue")
        client.queue_bind("of-a-client.queue", "of-a-client", "", {"x-?hkv= a": 1})
    status, out, _ = run(site, "routes", "--exchange", "of-a-client")
    assert status == 0
    assert "→ queue of-a-client.queue  bound by a client of user guest" in out
    assert "exchange orders" not in out


def test_routes_of_files_equal_those_of_the_sidecar(site: Site) -> None:
    rules = rules_of(site)
    _, of_sidecar, _ = run(site, "routes", "--exchange", "orders", "--json")
    for stdin, name in (("", str(rules)), ("", str(site.sidecar.configuration)), (rules.read_text(), "-")):
        status, of_files, err = run(site, "routes", name, "--exchange", "orders", "--json", stdin=stdin)
        assert (status, err) == (0, "")
        live = json.loads(of_sidecar)
        del live["missing"]
        assert json.loads(of_files) == live


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--vhost", "no-such"), 'no virtual host in the rules is named "no-such"'),
        (("--exchange", "no-such"), 'no exchange in the rules is named "no-such"'),
        (("--exchange", "order"), 'no exchange in the rules is named "order"; did you mean orders?'),
    ],
)
def test_routes_reports_an_unknown_exchange_or_virtual_host_with_status_1(
    site: Site, options: tuple[str, ...], error: str
) -> None:
    assert run(site, "routes", *options) == (1, "", f"{error}\n")


def test_routes_reports_one_unknown_exchange_of_several(site: Site) -> None:
    status, out, err = run(site, "routes", "--exchange", "orders", "--exchange", "no-such")
    assert (status, err) == (1, 'no exchange in the rules is named "no-such"\n')
    assert "exchange orders" in out


def test_explain_reports_an_exchange_without_rules_with_status_1(site: Site) -> None:
    status, out, err = run(site, "explain", "--exchange", "order")
    assert (status, err) == (1, "")
    assert "no rules file names order: the message is passed to the broker unchanged; did you mean orders?" in out
    assert run(site, "explain", "--exchange", "order", "--json")[0] == 1
    assert run(site, "explain", "--exchange", "", "--key", "q")[0] == 0


def test_rules_in_force_are_shown_as_written_without_passwords(site: Site) -> None:
    path = rules_of(site)
    status, out, err = run(site, "rules", "show")
    assert (status, err) == (0, "")
    expected = path.read_text().replace("hunter2", "***").replace("hunter3", "***").replace("hunter4/5", "***")
    assert out.partition("\n")[2] == expected
    assert out.startswith(f"# {path}, rules ")
    assert run(site, "rules", "show", path.name)[:2] == (0, expected)
    status, _, err = run(site, "rules", "show", "other.yaml")
    assert (status, err) == (2, f"other.yaml: got a file that is not active, expected one of {path}\n")


def test_changed_files_are_status_1_and_no_password_is_shown(site: Site) -> None:
    path = rules_of(site)
    text = path.read_text()
    status, out, err = run(site, "rules", "diff")
    assert (status, err) == (0, "")
    assert re.fullmatch(r"The files are identical to the active files: rules [0-9a-f]+\.\n", out)
    changed = text.replace("1000", "5000").replace("hunter2", "hunter4")
    status, out, err = run(site, "rules", "diff", "-", stdin=changed)
    assert (status, err) == (1, "")
    assert re.search(r"^-.*amount\": 1000", out, re.MULTILINE)
    assert re.search(r"^\+.*amount\": 5000", out, re.MULTILINE)
    assert "hunter" not in out
    status, out, _ = run(site, "rules", "diff", "--json", "-", stdin=changed)
    assert (status, len(json.loads(out)["differences"])) == (1, 1)


def test_a_changed_password_is_a_difference(site: Site) -> None:
    path = rules_of(site)
    status, out, _ = run(site, "rules", "diff", "-", stdin=path.read_text().replace("hunter2", "hunter9"))
    assert status == 1
    assert out.startswith("The files differ only in passwords")


def test_the_address_is_read_from_a_configuration_on_standard_input(site: Site) -> None:
    done = oxproxy("status", "--config", "-", "--json", input=site.sidecar.configuration.read_text())
    assert (done.returncode, json.loads(done.stdout)["ready"], done.stderr) == (0, True, "")


def test_a_running_sidecar_translates_an_address_without_its_password(site: Site) -> None:
    for address, expected in (("old/letters", 0), ("new/letters", 1)):
        status, out, err = run(site, "explain", "--address", address)
        done = oxproxy_here("explain", "--rules", rules_of(site), "--address", address)
        assert (status, out, err) == (expected, done.stdout, "")
        assert "hunter3" not in out
    status, out, _ = run(site, "explain", "--address", "amqp://me:hunter4/5@far/q")
    assert (status, "hunter4" in out, "5@" in out) == (0, False, False)
    status, out, _ = run(site, "explain", "--address", "old/letters", "--json")
    assert (status, json.loads(out)["rule"]) == (0, 0)


def test_the_routes_of_a_sidecar_contain_no_password(site: Site) -> None:
    page = site.sidecar.get("/api/routes")
    assert "amqp://me:***@far/%" in page
    assert "hunter" not in page


@pytest.mark.parametrize(("address", "expected"), [("old/letters", 0), ("new/letters", 1)])
def test_a_running_sidecar_translates_an_address_in_a_message_file(site: Site, address: str, expected: int) -> None:
    status, out, err = run(site, "explain", "--message", "-", stdin=f"address: {address}\n")
    assert (status, err) == (expected, "")
    assert out.startswith(f'address   "{address}"\n')


def test_a_running_sidecar_explains_a_message_of_the_command_line(site: Site) -> None:
    described = ["--exchange", "orders", "--vhost", site.vhost]
    status, out, err = run(site, "explain", *described, "--header", "amount=2000")
    assert (status, err) == (0, "")
    assert 'mismatch  x-?hkv>= amount: 1000, got "2000"' in out
    status, out, _ = run(site, "explain", *described, "--header", "amount:int=2000", "--expect", "orders.big")
    assert status == 0
    assert "match     x-?hkv>= amount: 1000, got 2000" in out
    status, out, err = run(site, "explain", *described, "--expect", "orders.big", "--json")
    assert (status, json.loads(out)["queues"]) == (1, ["orders.all"])
    assert err == "expected queue orders.big, but the message does not reach it\n"


def test_a_running_sidecar_explains_for_a_given_time(site: Site) -> None:
    message = json.dumps({"exchange": "orders", "vhost": site.vhost})
    for described, stdin in ((["--exchange", "orders", "--vhost", site.vhost], ""), (["--message", "-"], message)):
        status, out, _ = run(site, "explain", *described, "--at", "2026-11-21T08:00:00Z", "--json", stdin=stdin)
        assert (status, json.loads(out)["at"]) == (0, "2026-11-21T08:00:00Z")


def test_an_invalid_message_is_reported_with_its_position(site: Site) -> None:
    status, out, err = run(site, "explain", "--message", "-", stdin="exchange: 5\n")
    assert (status, out) == (2, "")
    assert err.startswith("message:1:11: exchange: got the number 5")


def test_pages_of_rules_are_guarded_and_their_keys_are_documented(site: Site) -> None:
    for page in ("/api/rules", "/api/routes"):
        request = urllib.request.Request(site.sidecar.admin + page, headers={"Origin": "http://evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(request, timeout=10)
    documented = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "api.md").read_text()
    document: dict[str, Any] = json.loads(site.sidecar.get("/api/routes"))
    vhost = next(vhost for vhost in document["vhosts"] if vhost["vhost"] == site.vhost)
    keys = {*document, *vhost, *vhost["exchanges"][0], *vhost["exchanges"][0]["bindings"][0], *vhost["addresses"][0]}
    keys |= {*json.loads(site.sidecar.get("/api/rules")), *json.loads(site.sidecar.get("/status"))}
    keys |= set(json.loads(site.sidecar.get("/status"))["vhosts"][0])
    assert sorted(key for key in keys if f"`{key}`" not in documented) == []
