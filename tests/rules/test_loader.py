from __future__ import annotations

import contextlib
import gc
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from oxproxy.config.loader import rules_files
from oxproxy.config.settings import Settings
from oxproxy.errors import ConfigErrors
from oxproxy.routing.decision import Facts, QueueNames
from oxproxy.rules.loader import LoadedRules, compile_rules, compile_sources, load_rules
from oxproxy.rules.schema import MAX_FILE_BYTES, read_source
from oxproxy.yamlfile.document import MAX_ERRORS, Faults
from tests.rules.loading import faults, load

SCALARS = st.sampled_from(
    [
        "a",
        "",
        5,
        -1,
        200,
        1.5,
        True,
        None,
        "x.o.p.e.n.x.a",
        "pass",
        "queue",
        "topic",
        "headers",
        "any",
        "a.#",
        "(",
        "{",
        2**70,
    ]
)
WORDS = """
    vhost timezone queues exchanges tests name type delivery carrier unmatched arguments bindings queue exchange
    routing_key publish at expect headers properties body_size outcome x-match x-order x-goto-ontrue x-addq-ontrue
    max-payload-size alternate-exchange a x-?rkta x-?dture x-addqre-onfalse x-?hkx x-
"""
KEYS = st.sampled_from([*WORDS.split(), "x-?hkv= a", "x-?hkvre a", "x-?pr> priority"])
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=25
)
BINDINGS = st.lists(
    st.fixed_dictionaries(
        {"queue": st.sampled_from("abc")}, optional={"arguments": st.dictionaries(KEYS, TREES, max_size=4)}
    ),
    max_size=4,
)
FILES = st.dictionaries(KEYS, TREES, max_size=6) | st.fixed_dictionaries(
    {"exchanges": st.lists(st.fixed_dictionaries({"name": st.sampled_from("ef"), "bindings": BINDINGS}), max_size=2)},
    optional={"tests": TREES, "queues": TREES},
)


@given(FILES)
def test_any_file_gives_usable_rules_or_errors_with_lines(file: object) -> None:
    text = yaml.safe_dump(file, allow_unicode=True).encode()
    noted = Faults()
    with contextlib.suppress(ConfigErrors):
        compile_rules([("f.yaml", text)], noted).failures()
    assert all(error.line > 0 for error in noted.errors)


def decided(loaded: LoadedRules, exchange: bytes, key: bytes = b"", vhost: str = "/") -> tuple[bytes, ...]:
    decision = loaded.routers[vhost].decide(exchange, Facts(key), 0.0, QueueNames(), lambda _: 0)
    return decision.queues + decision.exchanges


def test_files_of_one_virtual_host_route_together() -> None:
    loaded = load(
        "exchanges: [{name: e, bindings: [{exchange: f}]}]",
        "exchanges: [{name: f, bindings: [{queue: q}]}]",
        "vhost: other\nexchanges: [{name: e, bindings: [{queue: other}]}]",
    )
    assert decided(loaded, b"e") == (b"q",)
    assert decided(loaded, b"e", vhost="other") == (b"other",)


def test_equal_orders_are_visited_top_to_bottom() -> None:
    text = "exchanges: [{name: e, bindings: [{queue: a, arguments: {x-stop-ontrue: ''}}, {queue: b}]}]"
    assert decided(load(text), b"e") == (b"a",)


def test_every_error_of_every_file_is_reported_together() -> None:
    assert faults("exchanges: [{name: 5}]\nqueus: []\n", "a: *x\n", "tests: {}\n") == [
        "a.yaml:1:20: exchanges[0].name: got the number 5, expected the name of an exchange: put it in quotes",
        "a.yaml:2:1: queus: unknown key; did you mean queues?",
        "b.yaml:1:1: a: unknown key, expected one of addresses, brokers, exchanges, queues, tests, timezone, vhost",
        "b.yaml:1:4: a: got the alias *x, but aliases are not supported; put strings in quotes",
        "c.yaml:1:8: tests: got a mapping, expected a list",
    ]


@pytest.mark.parametrize("text", ["", "# later\n"])
def test_an_empty_file_is_an_error(text: str) -> None:
    assert faults("queues: [q]", text) == [
        "b.yaml:1:1: the file is empty, expected a mapping with keys such as exchanges"
    ]
    assert load("exchanges: []").rules.vhosts["/"].exchanges == ()


def test_the_version_depends_on_content_and_not_on_paths(tmp_path: Path) -> None:
    first, second = tmp_path / "one.yaml", tmp_path / "two.yaml"
    first.write_text("queues: [a]\n")
    second.write_text("queues: [a]\n")
    assert load_rules([first]).rules.version == load_rules([second]).rules.version
    second.write_text("queues: [b]\n")
    assert load_rules([first]).rules.version != load_rules([second]).rules.version


def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors, match="can't be read: No such file"):
        load_rules([tmp_path / "none.yaml"])


def test_rules_files_are_found_relative_to_the_configuration_in_name_order(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    for name in ("b.yaml", "a.yaml", "c.txt", ".hidden.yaml"):
        (tmp_path / "rules" / name).touch()
    (tmp_path / "rules" / "d.yaml").mkdir()
    (tmp_path / "extra.yaml").touch()
    settings = Settings(rules=("rules/*.yaml", "extra.yaml", "rules/a.yaml"), file=tmp_path / "oxproxy.yaml")
    paths = [path.relative_to(tmp_path).as_posix() for path in rules_files(settings)]
    assert paths == ["extra.yaml", "rules/a.yaml", "rules/b.yaml"]


def test_a_rules_file_can_be_named_by_an_absolute_path_or_pattern(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").touch()
    settings = Settings(rules=(str(tmp_path / "a.yaml"), str(tmp_path / "*.yaml")))
    assert rules_files(settings) == [tmp_path / "a.yaml"]


def test_the_garbage_collector_state_is_restored_after_a_load() -> None:
    assert gc.isenabled()
    load("queues: [a]")
    assert gc.isenabled()
    faults("a: b")
    assert gc.isenabled()
    gc.disable()
    try:
        load("queues: [a]")
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_rules_file_above_the_size_limit_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(ConfigErrors) as caught:
        load_rules([path])
    expected = f"{path}: got more than 33554432 bytes, expected at most that many; split the file"
    assert str(caught.value) == expected


@pytest.mark.parametrize("files", [2, 3])
def test_errors_of_several_files_beyond_the_limit_are_counted(files: int) -> None:
    bindings = "".join("      - {queue: q, exchange: e}\n" for _ in range(MAX_ERRORS - 1))
    texts = [f"exchanges:\n  - name: e{number}\n    bindings:\n{bindings}" for number in range(files)]
    found = faults(*texts, "unknown: 1", "unknown: 1")
    assert len(found) == MAX_ERRORS + 1
    assert sum("got both" in line for line in found) == MAX_ERRORS
    assert found[-1].endswith(f"and {files * (MAX_ERRORS - 1) + 2 - MAX_ERRORS} more errors")


def test_more_errors_in_bindings_than_are_listed_are_counted_with_those_of_other_files() -> None:
    bindings = "".join("      - {queue: q, exchange: e}\n" for _ in range(MAX_ERRORS + 50))
    found = faults("unknown: 1", f"exchanges:\n  - name: e\n    bindings:\n{bindings}", "unknown: 1")
    assert len(found) == MAX_ERRORS + 1
    assert found[-1].endswith("and 52 more errors")


def test_a_test_file_above_the_size_limit_is_an_error() -> None:
    loaded = Faults()
    source = read_source("a.yaml", b"exchanges: []\ntests: a_test.yaml\n")
    with pytest.raises(ConfigErrors) as caught:
        compile_sources([source], loaded, read_tests=lambda _path: b" " * (MAX_FILE_BYTES + 1))
    assert "a_test.yaml: got more than 33554432 bytes" in str(caught.value)
