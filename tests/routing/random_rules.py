"""Random bindings, exchanges and messages from small sets of names and values, so that bindings often match.

Rare names and values occur, but most are drawn from a handful: a binding whose condition no message satisfies or
nearly satisfies tests nothing.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from oxproxy.errors import ProtocolError
from oxproxy.routing.bindings.binding import Binding
from oxproxy.routing.bindings.compiled import ALWAYS_VISITED
from oxproxy.routing.decision import Facts, QueueNames
from oxproxy.routing.exchange import Exchange
from oxproxy.values import EXCHANGE, QUEUE, Table, Value

QUEUES = QueueNames((b"q1", b"q2", b"q3", b"a.b", b"other"), 1)

_NAMES = (b"a", b"b", b"c", b"BCC", b"x-order")
_TEXTS = (b"", b"1", b"x", b"q1", b"a.b", b"\xff")
_SCALARS = (
    *(Value("S", text) for text in _TEXTS),
    *(Value(letter, number) for letter in "bBsuIilLT" for number in (0, 1)),
    *(Value("d", number) for number in (0.0, 1.0, 1.5)),
    Value("f", 1.0),
    Value("x", b"x"),
    Value("x", b"1"),
    Value("t", True),
    Value("t", False),
    Value("V", None),
    Value("F", ()),
    Value("F", ((b"k", Value("I", 1)),)),
    Value("F", ((b"k", Value("l", 1)),)),
)
SEEN = (
    *_SCALARS,
    Value("A", ()),
    Value("A", (Value("I", 1),)),
    Value("D", (0, 1)),
    Value("d", float("nan")),
    Value("d", float("inf")),
)
_KEYS = (b"", b"1", b"x", b"q1", b"a.b", b"a.b.c", b"*", b"#")
_REGEXES = (b".", b"^q", b"^$", b"1", b"(a+)+$")
_TOPICS = (b"#", b"*", b"a.*", b"a.#", b"#.b", b"a.b", b"x", b"*.*.#")

_OFTEN = (Value("I", 1), Value("t", True), Value("d", 1.0), Value("S", b"x"), Value("T", 1))

scalars = st.one_of(st.sampled_from(_OFTEN), st.sampled_from(_SCALARS))
texts = st.sampled_from(_TEXTS).map(lambda text: Value("S", text))
regexes = st.sampled_from(_REGEXES).map(lambda text: Value("S", text))
topics = st.sampled_from(_TOPICS).map(lambda text: Value("S", text))
names = st.one_of(st.sampled_from((b"a", b"b")), st.sampled_from(_NAMES))
header_names = names.map(lambda name: Value("S", name))
queue_names = st.sampled_from(QUEUES.names).map(lambda name: Value("S", name))
exchange_names = st.sampled_from((b"e1", b"e2", b"e3")).map(lambda name: Value("S", name))
orders = st.sampled_from((100, 200, 300, 9999, 10000, 10001)).map(lambda order: Value("I", order))
flags = st.just(Value("S", b""))

_Argument = tuple[bytes, Value]


def _lists_of(values: SearchStrategy[Value]) -> SearchStrategy[Value]:
    return st.one_of(values, st.lists(values, max_size=2).map(lambda elements: Value("A", tuple(elements))))


def _comparisons(prefix: bytes) -> Iterable[SearchStrategy[_Argument]]:
    for sign in (b"=", b"!=", b"<", b"<=", b">=", b">"):
        values = _lists_of(scalars) if sign in (b"=", b"!=") else scalars
        yield st.tuples(names.map(lambda name, sign=sign: prefix + sign + b" " + name), values)  # type: ignore[misc]
    for sign in (b"re", b"!re"):
        yield st.tuples(names.map(lambda name, sign=sign: prefix + sign + b" " + name), regexes)  # type: ignore[misc]


def _under(keys: Iterable[bytes], values: SearchStrategy[Value]) -> SearchStrategy[_Argument]:
    return st.tuples(st.sampled_from(tuple(keys)), values)


_RESULTS = (b"-ontrue", b"-onfalse")
_TESTS = (b"", *(b"!"[:negated] + test for test in (b"s", b"n", b"b", b"i", b"a") for negated in (0, 1)))

_operator = st.one_of(
    *_comparisons(b"x-?hkv"),
    *_comparisons(b"x-?hk?v"),
    st.tuples(names, _lists_of(scalars)),
    st.tuples(names.map(lambda name: b"x-?hkv= " + name), scalars),
    _under((b"x-?hkex" + test for test in _TESTS), header_names),
    _under((b"x-?hk!ex",), header_names),
    _under((b"x-?rk=", b"x-?rk!="), _lists_of(st.sampled_from(_KEYS).map(lambda key: Value("S", key)))),
    _under((b"x-?rkre", b"x-?rk!re"), regexes),
    _under((b"x-?rkta", b"x-?rk!ta", b"x-?rktaci"), topics),
    _under((b"x-?pr= type", b"x-?pr!= type"), _lists_of(texts)),
    _under((b"x-?prre type",), regexes),
    _under((b"x-?pr" + sign + b" priority" for sign in (b"=", b"!=", b"<", b">=")), scalars),
    _under((b"x-?pr= expiration", b"x-?pr> expiration"), scalars),
    _under((b"x-?prex", b"x-?pr!ex"), st.sampled_from((Value("S", b"type"), Value("S", b"expiration")))),
    _under((b"x-?dture", b"x-?dtl!re"), regexes),
)

_some_values = st.lists(scalars, min_size=1, max_size=3).map(lambda elements: Value("A", tuple(elements)))
_some_keys = st.lists(st.sampled_from(_KEYS).map(lambda key: Value("S", key)), min_size=1, max_size=3).map(
    lambda elements: Value("A", tuple(elements))
)
_numbers = st.just(Value("A", (Value("I", 0), Value("I", 1))))
_shares = st.sampled_from((0, 25, 50)).map(lambda low: Value("A", (Value("I", low), Value("I", low + 50))))

_extension = st.one_of(
    st.tuples(names.map(lambda name: b"x-?hkvin " + name), _some_values),
    st.tuples(names.map(lambda name: b"x-?hkv!in " + name), _some_values),
    st.tuples(names.map(lambda name: b"x-?hk?vin " + name), _some_values),
    _under((b"x-?rkin", b"x-?rk!in"), _some_keys),
    _under((b"x-?prin type", b"x-?pr!in type"), _some_keys),
    _under((b"x-?prin expiration", b"x-?prin priority"), _numbers),
    st.tuples(names.map(lambda name: b"x-?hkv% " + name), _shares),
    _under((b"x-?rk%", b"x-?pr% type", b"x-?pr% priority"), _shares),
)

_equality = st.one_of(
    st.tuples(names.map(lambda name: b"x-?hkv= " + name), scalars),
    st.tuples(names.map(lambda name: b"x-?hk?v= " + name), scalars),
    _under((b"x-?rk=",), st.sampled_from((b"x", b"q1")).map(lambda key: Value("S", key))),
    _under((b"x-?pr= type",), st.just(Value("S", b"x"))),
    _under((b"x-?pr= expiration",), st.just(Value("I", 1))),
    st.tuples(names.map(lambda name: b"x-?hkvin " + name), _some_values),
    _under((b"x-?rkin",), _some_keys),
    _under((b"x-?hkex", b"x-?hk!ex"), header_names),
)

operators = st.one_of(_equality, _operator, _extension)

_grant = _under(
    (
        b"x-msg-" + what + result
        for what in (b"addq", b"adde", b"delq", b"dele", b"addqre", b"delqre")
        for result in _RESULTS
    ),
    flags,
)

_route = st.one_of(
    _under((b"x-" + what + result for what in (b"addq", b"delq") for result in _RESULTS), _lists_of(queue_names)),
    _under((b"x-" + what + result for what in (b"adde", b"dele") for result in _RESULTS), exchange_names),
    _under(
        (
            b"x-" + what + sign + result
            for what in (b"addq", b"delq")
            for sign in (b"re", b"!re")
            for result in _RESULTS
        ),
        regexes,
    ),
    _under((b"x-add1qre" + result for result in _RESULTS), regexes),
    _under((b"x-msg-destq-rk", b"x-del-dest"), flags),
    _under((b"x-goto" + result for result in _RESULTS), orders),
    _under((b"x-stop" + result for result in _RESULTS), flags),
)

routes = st.one_of(_route, _grant)

_match_types = st.sampled_from((b"all", b"any", b"eq", b"set", b"set 1", b"set 2")).map(
    lambda name: [(b"x-match", Value("S", name))]
)

_open_arguments = st.builds(
    lambda match_type, order, tests, actions: tuple(dict([*match_type, *order, *tests, *actions]).items()),
    st.one_of(st.just([]), _match_types),
    st.lists(st.tuples(st.just(b"x-order"), orders), max_size=1),
    st.one_of(st.lists(operators, max_size=1), st.lists(operators, max_size=3)),
    st.one_of(st.just([]), st.lists(routes, max_size=2)),
)

_equal_arguments = st.builds(
    lambda match_type, order, tests: tuple(dict([*match_type, *order, *tests]).items()),
    st.one_of(st.just([]), _match_types),
    st.lists(st.tuples(st.just(b"x-order"), orders), max_size=1),
    st.lists(_equality, min_size=1, max_size=2),
)

_headers_arguments = st.builds(
    lambda match_type, tests: tuple(dict([*match_type, *tests]).items()),
    st.one_of(
        st.just([]),
        st.sampled_from((b"all", b"any", b"all-with-x", b"any-with-x")).map(
            lambda name: [(b"x-match", Value("S", name))]
        ),
    ),
    st.lists(st.tuples(names, scalars), max_size=3),
)

_destinations = st.one_of(
    st.tuples(st.just(QUEUE), st.sampled_from(QUEUES.names)),
    st.tuples(st.just(EXCHANGE), st.sampled_from((b"e1", b"e2", b"e3"))),
)


def _bindings(keys: SearchStrategy[bytes], tables: SearchStrategy[Table]) -> SearchStrategy[list[Binding]]:
    def numbered(drawn: list[tuple[tuple[str, bytes], bytes, Table, int]]) -> list[Binding]:
        return [
            Binding(b"xo", kind, name, key, declared, sequence=at % 3, last=not rarely, extensions=True)
            for at, ((kind, name), key, declared, rarely) in enumerate(drawn)
        ]

    return st.lists(st.tuples(_destinations, keys, tables, st.integers(0, 4)), max_size=8).map(numbered)


#: Bindings by exchange type; open exchanges refuse a few of them.
BINDINGS = {
    "x-open": _bindings(st.just(b""), st.one_of(_equal_arguments, _open_arguments)),
    "topic": _bindings(st.sampled_from((*_TOPICS, *_KEYS)), st.just(())),
    "direct": _bindings(st.sampled_from(_KEYS), st.just(())),
    "headers": _bindings(st.just(b""), _headers_arguments),
    "fanout": _bindings(st.just(b""), st.just(())),
}

_producer = st.one_of(
    _under((b"x-" + what + result for what in (b"addq", b"delq") for result in _RESULTS), _lists_of(queue_names)),
    _under((b"x-" + what + result for what in (b"adde", b"dele") for result in _RESULTS), exchange_names),
    _under(
        (b"x-" + what + result for what in (b"addqre", b"delq!re") for result in _RESULTS),
        st.one_of(st.just(b"("), st.sampled_from(_REGEXES)).map(lambda text: Value("S", text)),
    ),
)

_seen = st.one_of(st.sampled_from(_OFTEN), st.sampled_from(SEEN))

messages = st.builds(
    lambda key, headers, producer, properties, size: Facts(key, (*headers, *producer), properties, size),
    st.one_of(st.sampled_from((b"x", b"q1")), st.sampled_from(_KEYS)),
    st.lists(st.tuples(names, _seen), max_size=4),
    st.one_of(st.just([]), st.lists(_producer, min_size=1, max_size=2)),
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.one_of(st.just(b"x"), st.sampled_from(_TEXTS)),
            "priority": st.integers(0, 2),
            "expiration": st.sampled_from((b"+1", b"01", b"0", b"x", b"")),
        },
    ),
    st.integers(0, 30),
)


def visit_every_binding(exchange: Exchange) -> None:
    """Disable the index of an exchange, so that every message visits every binding."""
    for compiled in exchange.entries:
        exchange.file._index.remove(compiled)
        compiled.index_place = ALWAYS_VISITED
        insort(exchange.file._index._always, compiled)


def bind_valid(exchange: Exchange, bindings: Iterable[Binding]) -> list[Binding]:
    """Bind the valid bindings; return those that were bound."""
    bound = []
    for binding in bindings:
        try:
            if exchange.bind(binding):
                bound.append(binding)
        except ProtocolError:
            continue
    return bound
