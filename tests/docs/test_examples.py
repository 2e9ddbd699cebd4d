"""Do the examples do what they say?

They are the files under config/ and the YAML in docs/reference/rules.md and docs/reference/configuration.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from deploy.reference import entries
from proxy.cli.check import check_files
from proxy.config.loader import load_settings, parse_settings
from proxy.config.settings import Settings
from proxy.routing.decision import BindingStep, Trace, Verdict
from proxy.rules.addresses import AddressModel, BrokerModel, BrokerTlsModel
from proxy.rules.evaluation import decide, mentioned_queues
from proxy.rules.file_tests import ExpectationModel, FileTestModel
from proxy.rules.loader import LoadedRules, compile_rules, load_rules
from proxy.rules.message import MessageModel
from proxy.rules.operator_reference import OPERATORS
from proxy.rules.schema import TOP_KEYS, BindingModel, ExchangeModel
from proxy.yamlfile.document import Faults
from proxy.yamlfile.models import key_names

ROOT = Path(__file__).resolve().parents[2]
RULES_FILES = sorted((ROOT / "config").glob("*/*.yaml"))
RULES_TEXT = (ROOT / "docs" / "reference" / "rules.md").read_text()
#: Pages whose YAML blocks are rules files.
PAGES_WITH_RULES = (
    "tutorial/first-message.md",
    "how-to/time-windows.md",
    "how-to/multi-tenant.md",
    "how-to/another-vhost.md",
    "how-to/other-brokers.md",
    "reference/header-types.md",
    "reference/rules.md",
)
CONFIGURATION_TEXT = (ROOT / "docs" / "reference" / "configuration.md").read_text()


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(text: str) -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def untested_bindings(loaded: LoadedRules) -> set[tuple[bytes, str]]:
    """Bindings that are true in no test."""
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
def test_a_rules_file_is_good_and_its_tests_hold(path: Path) -> None:
    findings = check_files([path], {})
    assert [str(found) for found in (*findings.errors, *findings.warnings, *findings.failures)] == []


def test_the_examples_are_good_as_one_set() -> None:
    findings = check_files([path for path in RULES_FILES if path.parent.name == "examples"], {})
    assert [str(found) for found in (*findings.errors, *findings.warnings, *findings.failures)] == []


@pytest.mark.parametrize("path", RULES_FILES, ids=named)
def test_a_rules_file_has_a_test_for_each_of_its_bindings(path: Path) -> None:
    assert untested_bindings(load_rules([path])) == set()


@pytest.mark.parametrize("path", RULES_FILES, ids=named)
def test_a_rules_file_begins_with_a_comment_that_says_what_it_shows(path: Path) -> None:
    assert path.read_text().startswith("# ")


def test_the_examples_can_be_loaded_together() -> None:
    assert (
        len(load_rules(path for path in RULES_FILES if path.parent.name == "examples").rules.vhosts["/"].exchanges) > 8
    )


@pytest.mark.parametrize(
    ("page", "number"),
    [(page, number) for page in PAGES_WITH_RULES for number in range(len(blocks((ROOT / "docs" / page).read_text())))],
)
def test_a_rules_file_of_the_documentation_is_good_and_its_tests_hold(page: str, number: int) -> None:
    loaded = compile_rules([(page, blocks((ROOT / "docs" / page).read_text())[number].encode())])
    assert loaded.tests
    assert [str(found) for found in (*loaded.warnings, *loaded.failures())] == []
    assert untested_bindings(loaded) == set()


def test_the_documentation_shows_rules_files() -> None:
    assert len(blocks(RULES_TEXT)) >= 5


def walked() -> Iterator[BindingStep]:
    """Every visit of every binding in the tests of the files under config/."""
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
    """Operators with what became of them: conditions met or not, effects that did something."""
    found = set()
    for visit in walked():
        found |= {(name(step.key), step.verdict is Verdict.MATCH) for step in visit.operators}
        if visit.added or visit.removed or visit.jump or visit.stopped:
            names = {name(key) for key, _ in visit.binding.arguments}
            found |= {(each, True) for each in names if not each.endswith("-onfalse" if visit.true else "-ontrue")}
    return frozenset(found)


def name(key: bytes) -> str:
    return key.decode().partition(" ")[0]


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_has_an_example_whose_tests_hold(operator: str) -> None:
    assert (operator, True) in shown()
    if operator.startswith("x-?"):
        assert (operator, False) in shown()


def test_the_list_of_operators_is_that_of_the_plugin() -> None:
    """Header, key, property and clock conditions, then routes, the producer's routes, and the rest (its README)."""
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
    }


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_stands_in_the_documentation(operator: str) -> None:
    assert re.search(rf"`\"?{re.escape(operator)}(?: NAME)?`", RULES_TEXT)


@pytest.mark.parametrize("key", TOP_KEYS)
def test_every_key_of_a_rules_file_stands_in_the_documentation(key: str) -> None:
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
def test_every_key_within_a_rules_file_stands_in_the_documentation(page: str, key: str) -> None:
    assert re.search(rf"`{key}\b", (ROOT / "docs" / "reference" / f"{page}.md").read_text())


@pytest.mark.parametrize("entry", list(entries(Settings())), ids=lambda entry: entry.path)
def test_every_setting_stands_in_the_documentation_with_its_default(entry: object) -> None:
    path, default, doc = (getattr(entry, name) for name in ("path", "default", "doc"))
    assert f"| `{path}` | `{default}` | {doc} |\n" in CONFIGURATION_TEXT


def test_the_documentation_lists_no_setting_that_is_not_there() -> None:
    listed = re.findall(r"^\| `([a-z_.\[\]]+)` \| `[^`]*` \|", CONFIGURATION_TEXT, re.MULTILINE)
    assert sorted(listed) == sorted(entry.path for entry in entries(Settings()))


def test_the_configuration_of_the_documentation_is_good(tmp_path: Path) -> None:
    path = tmp_path / "oxproxy.yaml"
    (block,) = blocks(CONFIGURATION_TEXT)
    path.write_text(block)
    environ = {"OXPROXY_CONTROL_PASSWORD": "a", "OXPROXY_SECRET": "0f" * 32}
    assert load_settings(path, environ)[1] == []


def test_the_configuration_file_has_every_key_and_runs_on_one_machine_as_it_is() -> None:
    path = ROOT / "config" / "oxproxy.yaml"
    settings, warnings = load_settings(path, {})
    assert warnings == []
    text = re.sub(r"# (tls: \{.*?\}|secrets: \[.*?\])", r"\1", path.read_text())  # these need files
    faults = Faults()
    parse_settings(text.encode(), path, {}, faults, secrets_required=False)
    missing = ("file does not exist", "No such file or directory")
    assert all(any(text in str(warning) for text in missing) for warning in faults.warnings)
    written = yaml.safe_load(text)
    for entry in entries(settings):
        if entry.path.endswith(("password_env", "password_file", "secrets[].env")):
            continue
        found = written
        for key in entry.path.split("."):
            found = found[key[:-2]][0] if key.endswith("[]") else found[key]
