"""``oxproxy rules convert``: files in the other spelling, with the same compiled rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxproxy.cli.main import main
from oxproxy.errors import ConfigErrors, ProtocolError
from oxproxy.routing.bindings.binding import Binding, typed_arguments
from oxproxy.routing.exchange import Exchange
from oxproxy.rules.loader import compile_rules
from oxproxy.rules.spelling.conversion import convert, identities, value_node
from oxproxy.rules.spelling.lines import OPERATORS, arguments_of, lines_of
from oxproxy.values import Table, Value
from oxproxy.yamlfile.document import Mapping, Node, Place, Scalar, Sequence
from oxproxy.yamlfile.models import name_fault
from oxproxy.yamlfile.writing import write_document
from tests.conformance.files import OWN_VECTORS, vectors
from tests.conformance.typed import Json, binding_of
from tests.routing.random_rules import BINDINGS

NOWHERE = Place("", 0)
OPEN_VECTORS = [path for path in OWN_VECTORS if path.parent.name == "open-exchange"]


def text(content: str) -> Scalar:
    return Scalar(NOWHERE, content, plain=False)


def mapping(**entries: Node) -> Mapping:
    return Mapping(NOWHERE, [(text(key), node) for key, node in entries.items()])


def rules_file(exchanges: Iterable[tuple[str, list[Binding]]]) -> bytes:
    """A rules file with these exchanges, in which every binding has arguments."""
    items: list[Node] = [
        mapping(name=text(name), bindings=Sequence(NOWHERE, [written(binding) for binding in bindings]))
        for name, bindings in exchanges
    ]
    return write_document(mapping(exchanges=Sequence(NOWHERE, items))).encode()


def written(binding: Binding) -> Mapping:
    table = [(text(key.decode()), value_node(value)) for key, value in binding.arguments]
    entries = {binding.destination_type: text(binding.destination.decode())}
    return mapping(**entries, arguments=Mapping(NOWHERE, table))


def has_yaml_form(value: Value) -> bool:
    if value.letter in "AF" and isinstance(value.value, tuple):
        return all(has_yaml_form(entry[-1] if isinstance(entry[0], bytes) else entry) for entry in value.value)
    return value.letter not in "DL" and not (value.letter == "S" and not is_text(value.value))


def is_text(content: object) -> bool:
    """Whether YAML can represent the bytes as a string."""
    try:
        return isinstance(content, bytes) and content.decode().isprintable()
    except UnicodeDecodeError:
        return False


def fit_for_a_file(bindings: Iterable[Binding]) -> list[Binding]:
    """The bindings that a rules file can contain: valid and distinct, with texts and names that YAML can represent."""
    kept = []
    exchange = Exchange(b"xo", "x-open")
    for binding in bindings:
        names = [binding.destination, *(key for key, _ in binding.arguments)]
        if len(set(names[1:])) < len(names[1:]) or not all(map(is_text, names)):
            continue
        if name_fault(binding.destination.decode()):
            continue
        if not all(has_yaml_form(value) for _, value in binding.arguments):
            continue
        try:
            if exchange.bind(binding):
                kept.append(binding)
        except ProtocolError:
            continue
    return kept


def of_vectors(path: Path) -> Iterator[tuple[str, list[Binding]]]:
    for vector in vectors(path):
        declared: list[Json] = vector["bindings"] if vector.get("exchange_type", "x-open") == "x-open" else []
        bindings = fit_for_a_file(binding_of(b"xo", binding) for binding in declared)
        if bindings:
            yield vector["id"], bindings


def there_and_back(data: bytes) -> tuple[bytes, int]:
    """Convert a file to readable conditions and back; return the readable file and the number of unchanged bindings."""
    before = identities(compile_rules([("a.yaml", data)]))
    readable = convert("a.yaml", data, "readable")
    assert identities(compile_rules([("a.yaml", readable.text.encode())])) == before
    back = convert("a.yaml", readable.text.encode(), "arguments")
    assert identities(compile_rules([("a.yaml", back.text.encode())])) == before
    return readable.text.encode(), len(readable.kept)


@pytest.mark.parametrize("path", OPEN_VECTORS, ids=lambda path: path.name.partition(".")[0])
def test_most_bindings_of_vectors_have_a_readable_form_that_is_the_same_binding(path: Path) -> None:
    bindings = [binding for _, bindings in of_vectors(path) for binding in bindings]
    readable = [lines_of(binding.arguments) for binding in bindings]
    assert readable.count(None) <= len(readable) * 0.15
    for binding, lines in zip(bindings, readable, strict=True):
        translated = tuple((key, value) for _, key, value in arguments_of(lines or ()))
        assert lines is None or typed_arguments(translated) == typed_arguments(binding.arguments)


@pytest.mark.parametrize("path", OPEN_VECTORS, ids=lambda path: path.name.partition(".")[0])
def test_converting_a_file_of_vectors_there_and_back_changes_nothing(path: Path) -> None:
    exchanges = list(islice(of_vectors(path), 100))  # the limit saves time
    if exchanges:
        there_and_back(rules_file(exchanges))


@given(BINDINGS["x-open"])
def test_converting_random_bindings_there_and_back_changes_nothing(bindings: list[Binding]) -> None:
    fitting = fit_for_a_file(Binding(b"xo", *drawn(binding), extensions=True) for binding in bindings)
    if fitting:
        there_and_back(rules_file([("xo", fitting)]))


#: Words from which names of headers are made that the readable spelling could read as something else.
WORDS = (
    *(word for words in OPERATORS for word in words.split()),
    *(
        "header",
        "headers",
        "property",
        "key",
        "utc",
        "local",
        "x-match",
        "x-?hkv=",
        "==",
        "&&",
        "a",
        "b.c",
        "a>=",
        "é",
        "-",
    ),
)
odd_names = st.one_of(
    st.sampled_from(("a", "amount", "x-own", "key", "in", "a in", "property type", "header a", "headers.a", "a>=")),
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join),
    st.text(max_size=12),
)
#: Strings that YAML or the readable spelling could read as something else.
odd_texts = st.one_of(
    st.sampled_from(
        ("", "no", "null", "1", "1e3", "0x1", ".inf", "~", ">= 5", "*", "/a/", "true", " a", "- a", "a: b")
    ),
    odd_names,
)
numbers = st.one_of(
    st.integers(-(2**31), 2**31 - 1).map(lambda number: Value("I", number)),
    st.integers(-(2**63), 2**63 - 1).map(lambda number: Value("l", number)),
    st.integers(-128, 127).map(lambda number: Value("b", number)),
    st.integers(0, 2**32 - 1).map(lambda number: Value("i", number)),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda number: Value("d", number)),
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(lambda number: Value("f", number)),
    st.integers(0, 2**33).map(lambda seconds: Value("T", seconds)),
)
odd_values = st.recursive(
    st.one_of(
        odd_texts.map(lambda content: Value("S", content.encode("utf-8", "ignore"))),
        numbers,
        st.booleans().map(lambda truth: Value("t", truth)),
        st.just(Value("V", None)),
        st.binary(max_size=4).map(lambda content: Value("x", content)),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda elements: Value("A", tuple(elements))),
        st.dictionaries(odd_names, inner, max_size=2).map(
            lambda table: Value("F", tuple((key.encode("utf-8", "ignore"), value) for key, value in table.items()))
        ),
    ),
    max_leaves=4,
)
HEADS = sorted({head for operator in OPERATORS.values() for head in operator.heads.get("header", b"").split()})
EXISTENCE = sorted({head for operator in OPERATORS.values() for head in operator.choices.get("header", {}).values()})


def arguments_with(name: str, head: bytes, value: Value) -> tuple[bytes, Value]:
    encoded = name.encode("utf-8", "ignore")
    return (head + b" " + encoded if head else encoded), value


odd_conditions = st.one_of(
    st.builds(arguments_with, odd_names, st.sampled_from([b"", *HEADS]), odd_values),
    st.builds(
        lambda head, name: (head, Value("S", name.encode("utf-8", "ignore"))), st.sampled_from(EXISTENCE), odd_names
    ),
)
odd_bindings = st.builds(
    lambda match, conditions: tuple(dict([*match, *conditions]).items()),
    st.sampled_from([[], [(b"x-match", Value("S", b"any"))], [(b"x-match", Value("S", b"set"))]]),
    st.lists(odd_conditions, min_size=1, max_size=3),
)


@given(st.lists(odd_bindings, min_size=1, max_size=3))
def test_converting_odd_names_and_values_there_and_back_changes_nothing(tables: list[Table]) -> None:
    fitting = fit_for_a_file(Binding(b"xo", "queue", b"q", b"", table, extensions=True) for table in tables)
    if fitting:
        there_and_back(rules_file([("xo", fitting)]))


def drawn(binding: Binding) -> tuple[str, bytes, bytes, tuple[tuple[bytes, Value], ...]]:
    arguments = tuple(entry for entry in binding.arguments if not entry[0].startswith(b"x-add"))
    return binding.destination_type, binding.destination, b"", arguments


def test_the_readable_form_of_a_file() -> None:
    data = dedent(
        """
        vhost: a   # a comment
        exchanges:
          - name: orders
            bindings:
              - {queue: big, arguments: {"x-?hkv>= amount": 1000, "x-?hkvin country": [de, "no", !int64 5]}}
              - queue: late
                arguments: {x-match: any, "x-?rkta": "#.late", x-order: 200, x-addq-ontrue: archive, x-stop-onfalse: ""}
              - {queue: kept, arguments: {"x-?hkex": [a]}}
          - {name: h, type: headers, bindings: [{queue: q, arguments: {kind: a}}]}
        """
    ).encode()
    converted = convert("a.yaml", data)
    assert converted.kept == ["exchanges[0].bindings[2]"]
    assert converted.text == dedent(
        """\
        vhost: a
        exchanges:
        - name: orders
          bindings:
          - {queue: big, when: {amount >=: 1000, country in: [de, 'no', !int64 '5']}}
          - queue: late
            order: 200
            match: any
            when: {key topic: '#.late'}
            then: {add queue: archive}
            else: {stop: true}
          - {queue: kept, arguments: {'x-?hkex': [a]}}
        - name: h
          type: headers
          bindings:
          - {queue: q, arguments: {kind: a}}
        """
    )


def test_a_readable_file_becomes_arguments_and_the_same_readable_file_again() -> None:
    data = b"exchanges: [{name: e, bindings: [{queue: q, when: {a >=: 5, b exists: true}, order: 200}]}]\n"
    arguments = convert("a.yaml", data)
    assert arguments.spelling == "arguments"
    assert "arguments: {'x-?hkv>= a': 5, 'x-?hkex': b, x-order: 200}" in arguments.text
    again = convert("a.yaml", arguments.text.encode())
    assert again.spelling == "readable"
    assert "{queue: q, order: 200, when: {a >=: 5, b exists: true}}" in again.text


def test_an_invalid_file_is_not_converted() -> None:
    with pytest.raises(ConfigErrors, match="unknown operator"):
        convert("a.yaml", b'exchanges: [{name: e, bindings: [{queue: q, arguments: {"x-?hkx a": 5}}]}]')


def test_the_command_prints_the_file_and_says_what_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text('exchanges: [{name: e, bindings: [{queue: q, arguments: {"x-?hkv>= a": 5}}]}]\n')
    assert main(["rules", "convert", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "when: {a >=: 5}" in out
    assert err == f"{path}: converted to readable; comments and layout are not kept\n"
    assert main(["rules", "convert", "--to", "arguments", "--json", str(path)]) == 0
    assert '"spelling": "arguments"' in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "fault"), [(["convert"], "got 0 files"), (["show", "--to", "readable"], "--to")])
def test_wrong_usage_of_the_command(arguments: list[str], fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["rules", *arguments])
    assert exited.value.code == 2
    assert fault in capsys.readouterr().err
