from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from oxproxy.cli.console import load_rules_of
from oxproxy.cli.main import main
from oxproxy.errors import ConfigErrors
from oxproxy.rules.explain import as_text, explain
from tests.rules.loading import message_request

RULES = """\
exchanges:
  - name: e
    arguments: {max-payload-size: 10}
    bindings:
      - {queue: q, name: first, arguments: {x-order: 100, "x-?hkv= a": 1, "x-?hkex": b, x-goto-ontrue: 900}}
      - {queue: r, name: last, arguments: {x-order: 900, x-delq-ontrue: q, x-stop-ontrue: ""}}
"""
CLOCK_RULES = "exchanges: [{name: e, bindings: [{queue: q, arguments: {x-?dture: ^2026}}]}]\n"
#: An escape sequence that sets a style or resets it.
COLOUR = re.compile(r"\x1b\[([0-9;]+)m")


@pytest.fixture
def rules(tmp_path: Path) -> str:
    (tmp_path / "rules.yaml").write_text(CLOCK_RULES)
    return str(tmp_path / "rules.yaml")


def use_terminal(monkeypatch: pytest.MonkeyPatch, **environment: str) -> None:
    """Make standard output a terminal with colours."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", **environment}.items():
        monkeypatch.setenv(name, value)


def test_in_a_terminal_the_lines_of_the_text_are_coloured(
    rules: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_terminal(monkeypatch)
    Path(rules).write_text(RULES)
    message = '{"exchange": "e", "headers": {"a": 1, "b": "%s"}, "at": "2026-01-01T00:00:00Z"}' % ("x" * 200)
    Path(rules).with_name("message.json").write_text(message)
    assert main(["explain", "--rules", rules, "--message", str(Path(rules).with_name("message.json"))]) == 0
    out = capsys.readouterr().out
    text = as_text(explain(load_rules_of([Path(rules)]), message_request(message.encode(), "m"), 1767225600.0))
    assert COLOUR.sub("", out) == text + "\n"
    styles = {COLOUR.sub("", line).strip(): COLOUR.findall(line)[:1] for line in out.splitlines()}
    for line, style in {
        "exchange e (x-open)": ["1;36"],
        "filter max-payload-size: passed": ["2"],
        "100 first -> queue q: true (all)": ["32"],
        "match     x-?hkv= a: 1, got 1": ["32"],
        "continues at order 900": ["33"],
        "removes queue q": ["31"],
        "outcome   routed": ["32"],
        "queues    r": [],
    }.items():
        assert (line, styles[line]) == (line, style)


@pytest.mark.parametrize("escape", ["\\e[31m", "\\u009b1m", "\\r", "\\x07", "\\n"])
def test_control_characters_in_a_message_are_escaped(
    escape: str, rules: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_terminal(monkeypatch, TERM="dumb")
    Path(rules).with_name("message.yaml").write_text(f'{{exchange: e, headers: {{a: "x{escape}y"}}}}')
    main(["explain", "--rules", rules, "--message", str(Path(rules).with_name("message.yaml"))])
    text = capsys.readouterr().out
    assert re.search(r'header    a: "x\\.*y"', text)
    assert not any(ord(character) in (7, 13, 27, 0x9B) for character in text)


@pytest.mark.parametrize(
    "key", ["a\u0085b", "a \u2028 b", "a\x7fb", "a\u0080b", "a\ufffeb", "a\ue000b", "a\U0001f600b"]
)
def test_a_routing_key_on_the_command_line_is_not_changed(key: str, rules: str) -> None:
    text = 'exchanges: [{name: e, bindings: [{queue: q, arguments: {"x-?rk=": "%s"}}]}]\n'
    escaped = "".join(f"\\U{ord(char):08x}" for char in key)
    Path(rules).write_text(text % escaped)
    assert main(["explain", "--rules", rules, "--exchange", "e", "--key", key, "--expect", "q"]) == 0


@pytest.mark.parametrize("key", ["a\u0085b", "a\x7fb", "a\u0080b", "a\ufffeb", "a\U0001f600b", "a\U000e0001b"])
@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_every_string_of_a_json_message_is_read(key: str, ensure_ascii: bool) -> None:
    text = json.dumps({"exchange": "e", "routing_key": key}, ensure_ascii=ensure_ascii, indent="\t")
    assert message_request(text.encode(), "m.json").message.facts.routing_key == key.encode()


@pytest.mark.parametrize(
    "message",
    [
        "exchange: e\n",
        "exchange: e\nheaders:\n  a: |\n    x",
        "# a comment\n{exchange: e}\n",
        '\ufeff{"exchange": "e"}',
        "\ufeffexchange: e\n",
        "  exchange: e\n",
        "---\nexchange: e\n...\n",
        '---\n{"exchange": "e"}\n',
        '--- {"exchange": "e"}\n',
        "exchange: e\r\nrouting_key: a\r\n",
    ],
)
def test_the_time_is_added_to_every_form_of_a_message(message: str, rules: str, tmp_path: Path) -> None:
    (tmp_path / "message.yaml").write_bytes(message.encode())
    options = ["explain", "--rules", rules, "--message", str(tmp_path / "message.yaml")]
    assert main([*options, "--at", "2026-01-01T00:00:00Z", "--expect", "q"]) == 0
    assert main([*options, "--at", "2025-01-01T00:00:00Z", "--expect", "q"]) == 1


@pytest.mark.parametrize("at", ["9999-12-31T23:59:59-01:00", "0001-01-01T00:00:00+01:00"])
def test_a_time_outside_the_calendar_is_refused(at: str, rules: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["explain", "--rules", rules, "--exchange", "e", "--at", at])
    assert raised.value.code == 2
    Path(rules).write_text(f'{CLOCK_RULES}tests: [{{name: t, publish: {{exchange: e}}, at: "{at}", expect: {{}}}}]\n')
    assert main(["check", rules]) == 2
    assert "tests[0].at: got" in capsys.readouterr().err


def test_an_explanation_of_an_address_does_not_control_the_terminal(
    rules: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_terminal(monkeypatch)
    Path(rules).write_text('addresses: [{name: "\\e[31m", pattern: "a*", translation: /queue/q}]\n')
    assert main(["explain", "--rules", rules, "--address", "a\x1bb"]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_a_json_message_in_utf_16_is_an_error() -> None:
    with pytest.raises(ConfigErrors):
        message_request('{"exchange": "é"}'.encode("utf-16-le"), "m.json")


@pytest.mark.parametrize(("exchange", "status"), [("e", 0), ("", 0), ("typo", 1)])
def test_an_exchange_that_no_rules_file_names_is_status_1(exchange: str, status: int, rules: str) -> None:
    assert main(["explain", "--rules", rules, "--exchange", exchange]) == status
