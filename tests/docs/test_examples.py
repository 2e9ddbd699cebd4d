"""Tests the examples in config/, rules.md, configuration.md and other pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from deploy.reference import entries
from oxproxy.cli.check import check_files
from oxproxy.config.loader import load_settings, parse_settings
from oxproxy.config.settings import Settings
from oxproxy.routing.bindings.arguments import EXTENSIONS
from oxproxy.routing.decision import BindingStep, Trace, Verdict
from oxproxy.rules.addresses import AddressModel, BrokerModel, BrokerTlsModel
from oxproxy.rules.evaluation import decide, mentioned_queues
from oxproxy.rules.file_tests import ExpectationModel, FileTestModel
from oxproxy.rules.loader import LoadedRules, compile_rules, load_rules
from oxproxy.rules.message import MessageModel
from oxproxy.rules.operator_reference import OPERATORS
from oxproxy.rules.schema import TOP_KEYS, BindingModel, ExchangeModel
from oxproxy.yamlfile.document import Faults
from oxproxy.yamlfile.models import key_names

ROOT = Path(__file__).resolve().parents[2]
RULES_FILES = sorted((ROOT / "config").glob("*/*.yaml"))
RULES_TEXT = (ROOT / "docs" / "reference" / "rules.md").read_text()
#: Pages whose YAML blocks are rules files.
PAGES_WITH_RULES = (
    "tutorial/first-message.md",
    "how-to/time-windows.md",
    "how-to/multi-tenant.md",
    "how-to/other-brokers.md",
    "how-to/celery.md",
    "how-to/spring.md",
    "reference/header-types.md",
    "reference/rules.md",
)
CONFIGURATION_TEXT = (ROOT / "docs" / "reference" / "configuration.md").read_text()


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(text: str) -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def untested_bindings(loaded: LoadedRules) -> set[tuple[bytes, str]]:
    """Return the bindings that are not true in any test."""
    left = {
        (exchange.name, binding.id)
        for vhost in loaded.rules.vhosts.values()
        for exchange in vhost.exchanges
        for binding in exchange.bindings
    }
    for test in loaded.tests:
        router = loaded.routers[test.vhost]
        queues = mentioned_queues(loaded.rules.vhosts[test.vhost], router) | test.queues
        left -= set(decide(router, test.message, test.at or 0.0, queues).matched)
    return left


@pytest.mark.parametrize("path", RULES_FILES, ids=named)
def test_a_rules_file_is_valid_and_its_tests_pass(path: Path) -> None:
    findings = check_files([path], {})
    assert [str(finding) for finding in (*findings.errors, *findings.warnings, *findings.failures)] == []


def test_the_examples_are_valid_together() -> None:
    findings = check_files([path for path in RULES_FILES if path.parent.name == "examples"], {})
    assert [str(finding) for finding in (*findings.errors, *findings.warnings, *findings.failures)] == []


@pytest.mark.parametrize("path", RULES_FILES, ids=named)
def test_a_rules_file_tests_each_of_its_bindings(path: Path) -> None:
    assert untested_bindings(load_rules([path])) == set()


@pytest.mark.parametrize("path", RULES_FILES, ids=named)
def test_a_rules_file_begins_with_a_comment(path: Path) -> None:
    assert path.read_text().startswith("# ")


def test_the_examples_can_be_loaded_together() -> None:
    assert (
        len(load_rules(path for path in RULES_FILES if path.parent.name == "examples").rules.vhosts["/"].exchanges) > 8
    )


@pytest.mark.parametrize(
    ("page", "number"),
    [(page, number) for page in PAGES_WITH_RULES for number in range(len(blocks((ROOT / "docs" / page).read_text())))],
)
def test_a_rules_file_in_the_documentation_is_valid_and_its_tests_pass(page: str, number: int) -> None:
    loaded = compile_rules([(page, blocks((ROOT / "docs" / page).read_text())[number].encode())])
    assert loaded.tests
    assert [str(finding) for finding in (*loaded.warnings, *loaded.failures())] == []
    assert untested_bindings(loaded) == set()


def test_the_documentation_shows_rules_files() -> None:
    assert len(blocks(RULES_TEXT)) >= 5


def walked() -> Iterator[BindingStep]:
    """Yield every evaluation of a binding in the tests of the files in config/."""
    for path in RULES_FILES:
        loaded = load_rules([path])
        for test in loaded.tests:
            router, trace = loaded.routers[test.vhost], Trace()
            if test.message.exchange in router.exchanges:
                queues = mentioned_queues(loaded.rules.vhosts[test.vhost], router) | test.queues
                decide(router, test.message, test.at or 0.0, queues, trace)
                yield from (visit for step in trace.exchanges for visit in step.visits)


@cache
def shown() -> frozenset[tuple[str, bool]]:
    """Return operators with their results: conditions that were true or false, and effects that were applied."""
    results = set()
    for visit in walked():
        results |= {(name(step.key), step.verdict is Verdict.MATCH) for step in visit.operators}
        if visit.added or visit.removed or visit.jump or visit.stopped:
            names = {name(key) for key, _ in visit.binding.arguments}
            results |= {
                (operator, True) for operator in names if not operator.endswith("-onfalse" if visit.true else "-ontrue")
            }
    return frozenset(results)


def name(key: bytes) -> str:
    return key.decode().partition(" ")[0]


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_has_an_example(operator: str) -> None:
    assert (operator, True) in shown()
    if operator.startswith("x-?"):
        assert (operator, False) in shown()


def test_the_operators_are_those_of_the_plugin_and_its_extensions() -> None:
    """The operators are in the order of the plugin's README: conditions, routes, routes of the producer, others."""
    compared = ["=", "!=", "<", "<=", ">=", ">", "re", "!re"]
    assert set(OPERATORS) == {
        *(f"x-?hk{kind}v{test}" for kind in ("", "?") for test in compared),
        *("x-?hkex", "x-?hk!ex", "x-?hkexs", "x-?hkexn", "x-?hkexb", "x-?hkexi", "x-?hkexa"),
        *("x-?hkex!s", "x-?hkex!n", "x-?hkex!b", "x-?hkex!i", "x-?hkex!a"),
        *("x-?rk=", "x-?rk!=", "x-?rkre", "x-?rk!re", "x-?rkta", "x-?rk!ta", "x-?rktaci", "x-?rk!taci"),
        *("x-?prex", "x-?pr!ex", *(f"x-?pr{test}" for test in compared)),
        *("x-?dture", "x-?dtu!re", "x-?dtlre", "x-?dtl!re"),
        *(
            f"x-{effect}-{when}"
            for effect in (
                *("addq", "adde", "addqre", "addq!re", "add1qre", "add1q!re"),
                *("delq", "dele", "delqre", "delq!re", "stop", "goto"),
                *("msg-addq", "msg-adde", "msg-addqre", "msg-delq", "msg-dele", "msg-delqre"),
            )
            for when in ("ontrue", "onfalse")
        ),
        *("x-match", "x-order", "x-del-dest", "x-msg-destq-rk"),
    } | {key.decode() for key in EXTENSIONS}


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_is_documented(operator: str) -> None:
    assert re.search(rf"`\"?{re.escape(operator)}(?: NAME)?`", RULES_TEXT)


@pytest.mark.parametrize("key", TOP_KEYS)
def test_every_top_level_key_of_a_rules_file_is_documented(key: str) -> None:
    assert f"| `{key}` |" in RULES_TEXT


KEYS_OF_PAGES = [
    (page, key)
    for page, model in (
        ("rules", ExchangeModel),
        ("rules", BindingModel),
        ("rules", FileTestModel),
        ("rules", MessageModel),
        ("rules", ExpectationModel),
        ("addresses", AddressModel),
        ("addresses", BrokerModel),
        ("addresses", BrokerTlsModel),
    )
    for key in key_names(model)
]


@pytest.mark.parametrize(("page", "key"), KEYS_OF_PAGES)
def test_every_nested_key_of_a_rules_file_is_documented(page: str, key: str) -> None:
    assert re.search(rf"`{key}\b", (ROOT / "docs" / "reference" / f"{page}.md").read_text())


@pytest.mark.parametrize("entry", list(entries(Settings())), ids=lambda entry: entry.path)
def test_every_setting_is_documented_with_its_default(entry: object) -> None:
    path, default, doc = (getattr(entry, name) for name in ("path", "default", "doc"))
    assert f"| `{path}` | {default} | {doc} |\n" in CONFIGURATION_TEXT


def test_every_documented_setting_exists() -> None:
    (table,) = re.findall(r"^\| key \| default \| meaning \|\n\|[-|]+\n((?:\|.*\n)+)", CONFIGURATION_TEXT, re.MULTILINE)
    listed = re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)
    assert sorted(listed) == sorted(entry.path for entry in entries(Settings()))


def test_the_configuration_in_the_documentation_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "oxproxy.yaml"
    (block,) = blocks(CONFIGURATION_TEXT)
    path.write_text(block)
    environ = {"OXPROXY_CONTROL_PASSWORD": "a", "OXPROXY_SECRET": "0f" * 32}
    assert load_settings(path, environ)[1] == []


def test_the_configuration_file_has_every_key_and_is_valid_unchanged() -> None:
    path = ROOT / "config" / "oxproxy.yaml"
    settings, warnings = load_settings(path, {})
    assert warnings == []
    text = re.sub(
        r"# (tls: \{.*?\}|(?:secrets|tokens): \[.*?\])", r"\1", path.read_text()
    )  # these settings require files
    faults = Faults(secrets_required=False)
    parse_settings(text.encode(), path, {}, faults)
    missing = ("file does not exist", "No such file or directory")
    assert all(any(text in str(warning) for text in missing) for warning in faults.warnings)
    written = yaml.safe_load(text)
    for entry in entries(settings):
        if entry.path.endswith(("password_env", "password_file", "secrets[].env")):
            continue
        value = written
        for key in entry.path.split("."):
            value = value[key[:-2]][0] if key.endswith("[]") else value[key]
