from __future__ import annotations

import io
import json
import os
import platform
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from oxproxy.app import process
from oxproxy.cli import main as cli
from oxproxy.cli.console import configuration
from oxproxy.cli.main import main
from oxproxy.config.loader import load_settings, parse_settings
from oxproxy.errors import ConfigErrors
from oxproxy.native import BUILD
from oxproxy.routing.bindings import patterns
from oxproxy.yamlfile.document import Faults
from tests.sidecar import PROGRAM, oxproxy

RULES = """
exchanges:
  - name: e
    bindings:
      - {queue: q, name: first, arguments: {x-match: any, "x-?hkv= a": [1, b]}}
      - {queue: night, name: second, arguments: {x-?dture: ' 2'}}
"""
GOOD = (
    RULES
    + "tests: [{name: t, publish: {exchange: e, headers: {a: 1}}, at: 2026-11-21T08:00:00Z, expect: {queues: [q]}}]\n"
)


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yaml"
    path.write_text(GOOD)
    return path


def run(*arguments: object) -> int:
    return cli.main([str(argument) for argument in arguments])


def exit_status(*arguments: object) -> int:
    with pytest.raises(SystemExit) as raised:
        run(*arguments)
    assert isinstance(raised.value.code, int)
    return raised.value.code


@pytest.mark.parametrize("arguments", ["{} --json {}", "--coverage {} --json {}", "--json -- {} {}"])
def test_options_may_stand_before_between_and_after_files(
    arguments: str, rules: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = rules.with_name("other.yaml")
    other.write_text(RULES.replace("name: e", "name: f"))
    assert run("check", *arguments.format(rules, other).split()) == 0
    assert json.loads(capsys.readouterr().out)["summary"].startswith("2 files, 2 exchanges")


def test_check_reports_failing_tests_with_status_1(rules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules.write_text(GOOD.replace("queues: [q]", "queues: [r]"))
    assert run("check", rules) == 1
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0] == f"{rules}:7:9: tests[0]: t: queues: expected r as well; queues: got q, which was not expected"
    assert "    exchange e (x-open)" in lines
    assert any(line.startswith("          match     x-?hkv= a: 1, got 1") for line in lines)
    assert lines[-1].startswith("    ")


def test_explain_reads_standard_input_only_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("explain", "--rules", "-", "--message", "-")
    assert "standard input can be read only once: got both --rules - and --message -" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("h=5", '"5"'),
        ("h:string=a: b # c", '"a: b # c"'),
        ("h:int=5", "!int32 5"),
        ("h:int=5000000000", "!int64 5000000000"),
        ("h:int64=5", "!int64 5"),
        ("h:uint8=5", "!uint8 5"),
        ("h:float=5", "5.0"),
        ("h:float32=0.5", "!float32 0.5"),
        ("h:bool=true", "true"),
        ("h:null=", "null"),
        ("h:timestamp=2026-11-21T08:00:00Z", "!timestamp 2026-11-21T08:00:00Z"),
        ("h:bytes=0a0b", "!bytes 0a0b"),
        ("h:yaml=[a, {b: !int64 5}]", "[a, {b: !int64 5}]"),
        ("h=ü 😀", '"ü 😀"'),
    ],
)
def test_a_header_on_the_command_line_equals_one_in_a_message_file(
    rules: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], header: str, value: str
) -> None:
    kinds = "snbia"
    tests = ", ".join(f"x-?hkex{kind}: h" for kind in kinds)
    rules.write_text(
        f"exchanges: [{{name: e, bindings: [{{queue: q, arguments: {{x-match: any, h: {value}, {tests}}}}}]}}]\n"
    )
    message = tmp_path / "message.yaml"
    message.write_text(f"{{exchange: e, headers: {{h: {value}}}}}")
    at = ["--at", "2026-11-21T08:00:00Z", "--json"]
    if value.startswith("["):  # with `any`, a list means alternatives
        rules.write_text("exchanges: [{name: e, bindings: [{queue: q, arguments: {x-?hkexa: h}}]}]\n")
    assert run("explain", "--rules", rules, "--message", message, *at) == 0
    of_file = json.loads(capsys.readouterr().out)
    assert run("explain", "--rules", rules, "--exchange", "e", "--header", header, *at) == 0
    assert json.loads(capsys.readouterr().out) == of_file
    assert "match" in [step["verdict"] for step in of_file["walk"][0]["bindings"][0]["operators"]]


def test_all_parts_of_a_message_can_be_given_on_the_command_line(
    rules: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules.write_text(
        "exchanges:\n- name: e\n  arguments: {min-payload-size: 10}\n  bindings:\n"
        "  - queue: q\n    arguments: {x-?rk=: a.b, 'x-?pr>= priority': 5, 'x-?pr= app_id': '5', type: report}\n"
    )
    command = ["explain", "--rules", rules, "--exchange", "e", "--key", "a.b", "--size", "10", "--expect", "q"]
    described = ["--property", "priority=5", "--property", "app_id=5", "--header", "type=report"]
    assert run(*command, *described) == 0
    assert run(*command, *described[:-1], "type=other") == 1
    assert "mismatch  type" in capsys.readouterr().out


def test_explain_reads_rules_from_standard_input(rules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(rules.read_bytes())))
    assert run("explain", "--rules", "-", "--exchange", "e", "--header", "a:int=1", "--expect", "q") == 0


@pytest.mark.parametrize(
    ("expected", "status", "complaint"),
    [
        (["q"], 0, ""),
        (["q", "other"], 1, "expected queue other, but the message does not reach it\n"),
    ],
)
def test_explain_compares_the_queues_with_an_expectation(
    rules: Path, capsys: pytest.CaptureFixture[str], expected: list[str], status: int, complaint: str
) -> None:
    expectations = [argument for queue in expected for argument in ("--expect", queue)]
    assert run("explain", "--rules", rules, "--exchange", "e", "--header", "a:int=1", *expectations) == status
    assert capsys.readouterr().err == complaint


def test_explain_takes_several_rules_files_as_one_set(
    rules: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("exchanges: [{name: f, bindings: [{exchange: e}]}]")
    message = ["--exchange", "f", "--header", "a:int=1"]
    assert run("explain", "--rules", rules, "--rules", other, *message, "--expect", "q") == 0
    assert "exchange e (x-open)" in capsys.readouterr().out


@pytest.mark.parametrize(("text", "complaint"), [("exchange: [", "YAML syntax"), (None, "can't be read: No such file")])
def test_an_unreadable_message_is_status_2(
    rules: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, complaint: str
) -> None:
    message = tmp_path / "message.yaml"
    if text is not None:
        message.write_text(text)
    assert run("explain", "--rules", rules, "--message", message) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["no-such-command"],
        ["schema"],
        ["schema", "message"],
        ["explain", "--rules", "a"],
        ["explain", "--rules", "a", "--message", "b", "--at", "noon"],
        ["explain", "--rules", "a", "--message", "b", "--exchange", "c"],
        ["explain", "--rules", "a", "--message", "b", "--key", "c"],
        ["explain", "--rules", "a", "--message", "b", "--vhost", "c"],
        ["explain", "--rules", "a", "--admin", "http://localhost", "--exchange", "b"],
        ["explain", "--rules", "a", "--address", "b", "--at", "2026-11-21T08:00:00Z"],
        ["explain", "--address", "b", "--expect", "q"],
        ["explain", "--rules", "a", "--exchange", "b", "--header", "amount"],
        ["explain", "--rules", "a", "--exchange", "b", "--header", "amount:int=many"],
        ["explain", "--rules", "a", "--exchange", "b", "--header", "urgent:bool=yes"],
        ["explain", "--rules", "a", "--exchange", "b", "--property", "Priority=5"],
    ],
)
def test_a_usage_error_is_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(*arguments) == 2
    assert "usage: oxproxy" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "meant"),
    [("integer", "int"), ("Int", "int"), ("str", "string"), ("boolean", "bool"), ("time", "timestamp")],
)
def test_a_misspelled_header_type_is_refused_with_a_hint(
    rules: Path, capsys: pytest.CaptureFixture[str], kind: str, meant: str
) -> None:
    command = ["explain", "--rules", str(rules), "--exchange", "e", "--header"]
    assert exit_status(*command, f"a:{kind}=1") == 2
    assert (
        f'--header: got the unknown type "{kind}"; did you mean {meant}? '
        f'For a header with the name "a:{kind}", write a:{kind}:string=1'
    ) in capsys.readouterr().err
    assert run(*command, f"a:{kind}:string=1") == 0


def test_an_unknown_header_type_is_refused_with_the_list_of_types(
    rules: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["explain", "--rules", str(rules), "--exchange", "e", "--header"]
    assert exit_status(*command, "a:number=5") == 2
    assert (
        '--header: got the unknown type "number", expected one of string, int, float, bool, null, yaml, '
    ) in capsys.readouterr().err
    assert run(*command, "a:number:string=5") == 0
    assert run(*command, "a=urn:5") == 0


def test_rules_lists_only_the_missing_action(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status("rules") == 2
    assert "the following arguments are required: action\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        *((["top", "--interval", text], "0.1 to 86400 seconds") for text in ("x", "0", "nan", "inf")),
        *((["top", "--count", text], "an integer from 1") for text in ("x", "0", "-1")),
        (["top", "--rows", "-1"], "an integer from 1"),
        *((["shadow", "a", "--seconds", text], "0 to 2592000 seconds") for text in ("x", "-1", "nan", "inf")),
        *((["check", "a", "--fail-under", text], "a percentage from 0 to 100") for text in ("x", "-1", "nan")),
    ],
)
def test_a_number_outside_its_limits_is_an_error(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_status(*arguments) == 2
    assert f"argument {arguments[-2]}: got {arguments[-1]}, expected {expected}" in capsys.readouterr().err


def test_the_versions_of_oxproxy_python_and_pcre2_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status("--version") == 0
    python = re.escape(platform.python_version())
    expected = rf"oxproxy \d+\.\d+\.\d+ \({BUILD}, Python {python}, PCRE2 \d+\.\d+\)\n"
    assert re.fullmatch(expected, capsys.readouterr().out)


def test_the_version_is_printed_without_pcre2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(patterns, "_LIBRARY", "libmissing.so")
    monkeypatch.setattr("ctypes.util.find_library", lambda _: None)
    assert exit_status("--version") == 0
    assert capsys.readouterr().out.endswith(", PCRE2 not installed)\n")


def test_an_interrupt_prints_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(config: Path, environ: Mapping[str, str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "run", interrupted)
    assert run("serve", "--config", "a.yaml") == 130
    assert capsys.readouterr() == ("", "")


def imported(*arguments: object) -> set[str]:
    """Run a command in a new process, and return the modules that it imported."""
    program = (
        "import sys; from oxproxy.cli.main import main\n"
        "try: status = main(sys.argv[1:])\n"
        "except SystemExit as exit: status = exit.code\n"
        "print(*sys.modules)\n"
        "sys.exit(status)"
    )
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_check_and_explain_import_no_network_libraries(rules: Path, tmp_path: Path) -> None:
    message = tmp_path / "message.yaml"
    message.write_text("exchange: e")
    heavy = {"asyncio", "aio_pika", "aiohttp", "uvloop", "prometheus_client", "pyspark", "oxproxy.app.sidecar"}
    assert heavy & imported("check", rules) == set()
    assert heavy & imported("explain", "--rules", rules, "--message", message) == set()


def test_a_command_imports_only_its_own_module() -> None:
    main = {"oxproxy.cli.commands", "oxproxy.cli.console", "oxproxy.cli.main"}
    modules = {name for name in imported("--version") if name.startswith("oxproxy.")}
    for_pcre2 = {"oxproxy.routing", "oxproxy.routing.bindings", "oxproxy.routing.bindings.patterns"}
    assert modules == main | {"oxproxy.cli", "oxproxy.errors", "oxproxy.native"} | for_pcre2
    modules = {name for name in imported("schema", "config") if name.startswith("oxproxy.cli.")}
    assert modules == main | {"oxproxy.cli.schema"}


@pytest.mark.parametrize(
    "arguments", [["operators", "goto"], ["routes", "--help"], ["top", "--help"], ["status", "-h"]]
)
def test_a_command_without_a_table_does_not_import_rich(arguments: list[str]) -> None:
    assert {"rich", "asyncio", "aiohttp"} & imported(*arguments) == set()


def test_a_closed_pipe_causes_no_traceback(rules: Path) -> None:
    command = [sys.executable, "-m", "oxproxy.cli.main", "check", str(rules)]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("command", [["check"], ["routes"], ["explain", "--exchange", "e", "--rules"]])
def test_a_full_disk_is_an_error_without_a_traceback(command: list[str], rules: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([PROGRAM, *command, rules], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "oxproxy: standard output can't be written: No space left on device\n"


def test_characters_that_the_locale_does_not_contain_are_escaped(rules: Path) -> None:
    done = oxproxy("routes", rules, env={**os.environ, "PYTHONIOENCODING": "latin-1"})
    assert (done.returncode, done.stderr) == (0, "")
    assert r"first \u2192 queue q" in done.stdout


def test_coverage_lists_bindings_that_are_true_in_no_test(rules: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", "--coverage", rules) == 0
    assert capsys.readouterr().err == (
        f"{rules}:6:9: exchanges[0].bindings[1]: warning: no test makes this binding true\n"
    )


def test_import_writes_rules_that_check_accepts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exchange = {"name": "t", "vhost": "/", "type": "topic", "arguments": {}}
    binding = {"source": "t", "vhost": "/", "destination": "q", "destination_type": "queue", "routing_key": "a.#"}
    (tmp_path / "d.json").write_text(json.dumps({"exchanges": [exchange], "bindings": [binding]}))
    assert run("import", tmp_path / "d.json") == 0
    (tmp_path / "r.yaml").write_text(capsys.readouterr().out)
    assert run("check", tmp_path / "r.yaml") == 0
    assert capsys.readouterr().out.startswith("ok: 1 file, 1 exchange, 1 binding")


def test_import_writes_no_rules_if_the_requested_exchange_is_misspelled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "d.json").write_text(
        json.dumps({"exchanges": [{"name": "orders", "type": "topic", "arguments": {}}], "bindings": []})
    )
    assert run("import", "--exchange", "order", tmp_path / "d.json") == 2
    assert capsys.readouterr() == (
        "",
        f'{tmp_path / "d.json"}: --exchange: got "order"; did you mean orders?\n',
    )


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
def test_check_reads_standard_input_once_and_reports_its_errors(name: str) -> None:
    command = [sys.executable, "-m", "oxproxy.cli.main", "check", name]
    bad = subprocess.run(command, input=b"exchanges: [{name: 5}]\n", capture_output=True, timeout=60, check=False)
    assert (bad.returncode, bad.stdout) == (2, b"")
    assert bad.stderr.decode().startswith(f"{name}:1:20: exchanges[0].name: got the number 5")
    good = subprocess.run(command, input=GOOD.encode(), capture_output=True, timeout=60, check=False)
    assert (good.returncode, good.stderr) == (0, b"")
    assert good.stdout.startswith(b"ok: 1 file, 1 exchange, 2 bindings, 1 test; rules ")


def test_check_reads_a_configuration_from_standard_input_and_its_rules(
    rules: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(rules.parent)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"rules: [rules.yaml]\n")))
    assert run("check", "-") == 0
    assert capsys.readouterr().out.startswith("ok: 2 files, 1 exchange, 2 bindings, 1 test; rules ")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:abc", "http://127.0.0.1:1 5", "http://[::1", "http://127.0.0.1:99999"]
)
def test_an_unusable_url_is_an_error(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--admin", url]) == 2
    assert capsys.readouterr().err.startswith("oxproxy status: ")


@pytest.mark.parametrize("answer", [b"AMQP\0\0\x09\x01", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}"])
def test_a_port_that_does_not_serve_http_is_an_error(answer: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def respond() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

        thread = threading.Thread(target=respond)
        thread.start()
        port = server.getsockname()[1]
        assert main(["status", "--admin", f"http://127.0.0.1:{port}"]) == 2
        thread.join()
    assert "check that this is the admin address of a sidecar" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rules: [" + "a" * 300 + "]", "rules[0]"),
        ('rules: ["\\0.yaml"]', "rules[0]"),
        ('rules: ["\\0/*.yaml"]', "rules[0]"),
        ('declared: {secrets: [{file: "\\0"}]}', "declared.secrets[0].file"),
        ('exchanges: []\ntests: "\\0_test.yaml"', "tests"),
        ('brokers: {b: {address: "h:1", tls: {}, username: u, password_file: "\\0"}}', "brokers.b.password_file"),
    ],
)
def test_an_unusable_file_name_is_reported_at_its_key(
    text: str, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(text)
    main(["check", str(file)])
    assert f": {shown}: " in capsys.readouterr().err


def test_a_configuration_in_a_directory_without_permission_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oxproxy.cli.console._CONFIGURATIONS", [Path("a" * 300)])  # as with EACCES, is_file() raises
    assert configuration(None) is None


@pytest.mark.parametrize(
    ("name", "value"), [("OXPROXY_LISTEN__\u00b2__ADDRESS", "a:1"), ("OXPROXY_UPSTREAM__CONTROL__PASSWORD", "\udcff")]
)
def test_unusable_variables_are_errors(name: str, value: str) -> None:
    with pytest.raises(ConfigErrors) as raised:
        parse_settings(b"rules: []", Path("oxproxy.yaml"), {name: value}, Faults())
    assert [error.file for error in raised.value.errors] == [name]


def test_a_closed_standard_output_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("exchanges: []\n")
    command = f'exec "$0" -m oxproxy.cli.main check "{file}" >&-'
    finished = subprocess.run(["sh", "-c", command, sys.executable], stderr=subprocess.PIPE, check=False)
    assert (finished.returncode, finished.stderr) == (0, b"")


def test_the_written_files_pass_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "new" / "here"
    assert cli.main(["init", str(directory)]) == 0
    written = {"oxproxy.yaml", "rules/orders.yaml", "secrets/current"}
    assert {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()} == written
    assert str(directory / "secrets" / "current") in capsys.readouterr().out
    assert cli.main(["check", str(directory / "oxproxy.yaml")]) == 0
    answer = capsys.readouterr()
    assert "1 test" in answer.out
    assert answer.err == ""


def test_the_names_of_the_files_are_printed_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["init", str(tmp_path), "--json"]) == 0
    written = ["oxproxy.yaml", "rules/orders.yaml", "secrets/current"]
    assert json.loads(capsys.readouterr().out) == {"files": [str(tmp_path / name) for name in written]}


def test_the_secret_is_random_and_readable_only_by_its_owner(tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert cli.main(["init", str(tmp_path / name)]) == 0
    first, second = (tmp_path / name / "secrets" / "current" for name in ("a", "b"))
    assert first.stat().st_mode & 0o777 == 0o600
    assert first.parent.stat().st_mode & 0o777 == 0o700
    assert len(first.read_bytes()) == 32
    assert first.read_bytes() != second.read_bytes()
    settings, _ = load_settings(tmp_path / "a" / "oxproxy.yaml", {})
    assert [source.value for source in settings.declared.secrets] == [first.read_bytes()]


@pytest.mark.parametrize("name", ["oxproxy.yaml", "rules/orders.yaml", "secrets/current"])
def test_nothing_is_overwritten(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    existing = tmp_path / name
    existing.parent.mkdir(exist_ok=True)
    existing.write_text("mine")
    assert cli.main(["init", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"{existing}: already exists; nothing was written\n"
    assert existing.read_text() == "mine"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [existing]


def test_an_unwritable_directory_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert cli.main(["init", str(tmp_path / "file" / "below")]) == 2
    assert "can't be written: " in capsys.readouterr().err
    assert cli.main(["init", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err == f"{tmp_path / 'file'}: can't be written: File exists\n"


@pytest.mark.parametrize(
    ("command", "hint"), [("chek", "did you mean check?"), ("zzz", "expected one of serve, check,")]
)
def test_a_misspelt_command_is_named(command: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main([command, "rules.yaml"])
    assert exited.value.code == 2
    assert f'there is no command "{command}"; {hint}' in capsys.readouterr().err
