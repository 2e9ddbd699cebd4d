"""Defines the models of the keys in rules files, and reads a file into parsed objects with positions.

This module checks the keys, types and names in a single file. `compiler` checks the arguments of bindings, and the
package `lint` performs the checks that involve several files.

There may be a hundred thousand bindings. Each binding is read as soon as its nodes are complete (`BindingReader`), and
the positions of its keys are packed into an array: if the bindings were read from the tree of the whole file, reading
100,000 of them would take 294 instead of 61 MiB of memory. Like everything else in files, a binding is validated by its
model. A second reader, without the model, would save 13 of 56 us of CPU time for each binding.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, TypeAlias, TypeVar

from pydantic import ConfigDict, Field

from oxproxy.garbage import without_collection
from oxproxy.routing.bindings.binding import Binding, binding_hash
from oxproxy.routing.bindings.exchange_types import OPEN
from oxproxy.routing.filters import ALTERNATE, ARGUMENTS, argument_faults
from oxproxy.rules.addresses import AddressModel, BrokerModel, BrokerRule, ParsedAddress, read_address, read_broker
from oxproxy.rules.field_values import read_table, zone
from oxproxy.rules.file_tests import FileTestModel, RulesTest, read_test
from oxproxy.rules.message import json_value
from oxproxy.rules.operator_reference import OPERATORS, arguments_schema, conditions_schema, effects_schema
from oxproxy.rules.ruleset import FILE_FIRST, ExchangeRule, QueueRule, Requirement
from oxproxy.rules.spelling.lines import (
    EFFECTS,
    ELSE,
    FLAGS,
    READABLE_KEYS,
    THEN,
    WHEN,
    Line,
    SpellingError,
    arguments_of,
    condition_argument,
    corrected_line,
    has_operator,
    lines_by_argument,
)
from oxproxy.values import EXCHANGE, LONGEST_NAME_BYTES, QUEUE, Table, Value, strings
from oxproxy.yamlfile.document import (
    Faults,
    Mapping,
    Node,
    Place,
    Scalar,
    Sequence,
    describe,
    is_tests_file,
    join,
    read_document,
    top_level_values,
)
from oxproxy.yamlfile.models import (
    LISTED,
    NOTHING,
    Expected,
    FileModel,
    Keys,
    Name,
    Parsed,
    name_fault,
    read_model,
)
from oxproxy.yamlfile.models import Table as TableModel

T = TypeVar("T")

TYPES = (OPEN, "headers", "topic", "direct", "fanout")
CARRIER: Final = "carrier"
#: Prefixes of the routing operators that name their destinations.
NAMED_ROUTES = (b"x-addq-", b"x-adde-", b"x-delq-", b"x-dele-")
#: Arguments that the sidecar itself adds to exchanges and bindings on the broker.
OWN_ARGUMENTS = frozenset((b"x-open-exchange", b"x-oxproxy"))


# -- models ------------------------------------------------------------------------------------------------------------


def _is_vhost(name: str) -> bool:
    return 1 <= len(name.encode()) <= LONGEST_NAME_BYTES


def _vhost(name: str) -> str:
    if not _is_vhost(name):
        raise ValueError("the name of a virtual host, 1 to 255 bytes")
    return name


def _or_tests_file(schema: dict[str, Any]) -> None:
    listed = {key: schema.pop(key) for key in ("type", "items", "default") if key in schema}
    schema["anyOf"] = [{"type": "string", "pattern": r"_test\.ya?ml$"}, listed]


def _or_name(schema: dict[str, Any]) -> None:
    mapping = dict(schema)
    schema.clear()
    schema.update(description=mapping.pop("description"), anyOf=[mapping["properties"]["name"], mapping])


class QueueModel(FileModel):
    """A queue to declare as durable; an existing queue is used unchanged. The name alone may replace the mapping."""

    model_config = ConfigDict(json_schema_extra=_or_name)

    name: Annotated[bytes, Name("the name of a queue")]
    arguments: TableModel = Field(default={})
    """arguments of queue.declare"""


#: A part of the readable spelling. `BindingReader` reads it, since its errors refer to other lines.
Readable: TypeAlias = Any


def _readable(schema: dict[str, Any], alias: str | None = None) -> Any:
    return Field(default=None, alias=alias, json_schema_extra=schema)


class BindingModel(FileModel):
    """A binding: a destination and conditions."""

    misplaced: ClassVar[dict[str, str]] = {
        **{effect: f"then: {{{effect}: {'true' if effect in FLAGS else 'VALUE'}}}" for effect in EFFECTS},
        **dict.fromkeys(("if", "where", "condition", "conditions", "match when", "filter"), WHEN),
        **{"otherwise": ELSE, "priority": "order", "x-match": "match", "x-order": "order", "key": "when: {key: VALUE}"},
        "require": "when, or require of the exchange",
    }

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["queue"]}, {"required": ["exchange"]}]})

    queue: Annotated[bytes, Name("the name of a queue")] = NOTHING
    """destination queue"""
    exchange: Annotated[bytes, Name("the name of an exchange")] = NOTHING
    """destination exchange, instead of a queue"""
    name: Annotated[str, Field(min_length=1), Expected("a name for metrics, audit and explain")] = NOTHING
    """id of the binding in metrics and explain, unique in its exchange"""
    routing_key: Annotated[bytes, Name("a routing key", empty=True)] = b""
    """for types topic and direct; must be empty for x-open"""
    match: Readable = _readable({"type": "string", "pattern": r"^(all|any|eq|set( \d+)?)$"})
    """all (the default), any, eq, set or set N: how the conditions are combined"""
    when: Readable = _readable({"type": "object", **conditions_schema()})
    """conditions: `[SUBJECT] NAME [OPERATOR]: VALUE`, such as `amount >=: 1000`"""
    then: Readable = _readable({"type": "object", **effects_schema()})
    """further effects if the binding is true"""
    otherwise: Readable = _readable({"type": "object", **effects_schema()}, alias="else")
    """effects if the binding is false"""
    order: Readable = _readable(OPERATORS["x-order"].schema)
    """bindings are visited by ascending order; default: 10000"""
    queue_from_key: Readable = _readable({"const": True}, alias="queue from key")
    """use the routing key as the name of the destination queue"""
    drop_destination: Readable = _readable({"const": True}, alias="drop destination")
    """remove the binding's own destination, even if an earlier binding added it"""
    arguments: TableModel = Field(default={}, json_schema_extra=arguments_schema())
    """operators as declared over AMQP, instead of the keys above; for type headers: the headers to match"""


class ExchangeModel(FileModel):
    """An exchange that the sidecar evaluates."""

    misplaced: ClassVar[dict[str, str]] = {
        **{name.decode(): f"arguments: {{{name.decode()}: VALUE}}" for name in ARGUMENTS},
        WHEN: "when of a binding, or require",
        "queue": "bindings: [{queue: NAME}]",
    }

    name: Annotated[bytes, Name("the name of an exchange")]
    """the name that producers publish to"""
    type: Literal["x-open", "headers", "topic", "direct", "fanout"] = OPEN
    """exchange type; all types are evaluated by the sidecar"""
    delivery: Literal["carrier", "queue"] = CARRIER
    """carrier: through an exchange on the broker; queue: to each queue, without such an exchange"""
    carrier: Annotated[bytes, Name("the name of an exchange")] = NOTHING
    """name of the carrier exchange on the broker; default: the name of the exchange"""
    carrier_type: Literal["auto", "direct", "topic"] = "auto"
    """type of the carrier if it has to be declared; auto: topic on RabbitMQ before 3.13 with many destinations,
    otherwise direct"""
    unmatched: Literal["pass"] = NOTHING
    """pass: messages that no binding routes are passed to the broker's own exchange"""
    arguments: TableModel = Field(default={})
    """filters and alternate-exchange"""
    require: Readable = _readable({"type": "object", **conditions_schema()})
    """contract: conditions, as under `when`, that every message has to satisfy; checked before the bindings"""
    violations: Literal["reject", "observe"] = "reject"
    """what happens to a message that violates the contract or a filter: rejected with 406 (`reject`), or routed and
    counted (`observe`)"""
    bindings: Annotated[tuple[BindingModel, ...], LISTED] = ()
    """visited by ascending order"""


class RulesModel(FileModel):
    """A rules file."""

    vhost: Annotated[str, Parsed("the name of a virtual host", _vhost)] = "/"
    """virtual host of this file"""
    timezone: Annotated[tzinfo, Parsed("a time zone such as Europe/Berlin", zone, tzinfo)] = NOTHING
    """time zone of the clock operators for local time (x-?dtl…), such as Europe/Berlin; default: the system's"""
    queues: Annotated[tuple[QueueModel, ...], LISTED] = ()
    """queues to declare"""
    exchanges: Annotated[tuple[ExchangeModel, ...], LISTED] = ()
    """exchanges that the sidecar evaluates"""
    brokers: dict[str, BrokerModel] = Field(default={})
    """other brokers by name"""
    addresses: Annotated[tuple[AddressModel, ...], LISTED] = ()
    """the address table, first match wins"""
    tests: Annotated[tuple[FileTestModel, ...], LISTED] = Field(default=(), json_schema_extra=_or_tests_file)
    """tests of the rules, or a test file"""


class TestsModel(FileModel):
    """A test file."""

    tests: Annotated[tuple[FileTestModel, ...], LISTED]
    """tests of the rules"""


#: Top-level keys of a rules file; they distinguish it from a configuration file.
TOP_KEYS = tuple(RulesModel.model_fields)


# -- parsed objects ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ParsedQueue:
    """A queue declared by a file."""

    place: Place
    path: str
    rule: QueueRule


class PackedPlaces:
    """An array of positions in one file. Each number encodes a line and a column."""

    __slots__ = ("_packed", "_source")

    def __init__(self, source: str) -> None:
        self._source = source
        self._packed = array("Q")

    def extend(self, places: Iterable[Place]) -> int:
        """Add positions in this file; return the index of the first position."""
        first = len(self._packed)
        self._packed.extend([place.line << 32 | place.column for place in places])
        return first

    def place(self, index: int) -> Place:
        return Place(self._source, self._packed[index] >> 32, self._packed[index] & 0xFFFFFFFF)


@dataclass(slots=True)
class PackedBinding:
    """A binding whose exchange is not known yet; `first` is the index of its first position."""

    kind: str
    destination: bytes
    routing_key: bytes
    arguments: Table
    name: str
    first: int
    readable: bool


#: Order of a binding's positions: the binding, its routing key, its name, its arguments, then each argument.
_OWN, _KEY, _NAME, _ARGUMENTS, _FIRST_ARGUMENT = range(5)


def line_path(path: str, section: str, key: str) -> str:
    """Return the dotted path of a line of the readable spelling."""
    return join(join(path, section) if section else path, key)


def binding_path(exchange_path: str, index: int) -> str:
    return f"{exchange_path}.bindings[{index}]"


@dataclass(slots=True)
class ParsedBinding:
    """One binding, with its positions."""

    binding: Binding
    exchange_path: str
    index: int
    named: bool
    places: PackedPlaces
    first_place: int

    @property
    def path(self) -> str:
        return binding_path(self.exchange_path, self.index)

    @property
    def place(self) -> Place:
        return self.places.place(self.first_place + _OWN)

    @property
    def key_place(self) -> Place:
        """Position of the routing key."""
        return self.places.place(self.first_place + _KEY)

    @property
    def name_place(self) -> Place:
        """Position of the binding's name, or of the binding if it has none."""
        return self.places.place(self.first_place + _NAME)

    @property
    def arguments_place(self) -> Place:
        """Position of the arguments, or of the first key of the readable spelling."""
        return self.places.place(self.first_place + _ARGUMENTS)

    def argument_at(self, name: bytes) -> tuple[Place, str]:
        """Return the position and the dotted path of an argument, or of the readable line that it comes from."""
        names = [other for other, _ in self.binding.arguments]
        place = _FIRST_ARGUMENT + names.index(name) if name in names else _ARGUMENTS
        path = join(f"{self.path}.arguments", name.decode())
        if self.binding.readable:
            line = lines_by_argument(self.binding.arguments).get(name)
            path = self.path if line is None else line_path(self.path, line.section, line.key)
        return self.places.place(self.first_place + place), path

    def written_key(self, name: bytes) -> str:
        """Return the key of an argument as written: the key itself, or that of its line in the readable spelling."""
        line = lines_by_argument(self.binding.arguments).get(name) if self.binding.readable else None
        return name.decode() if line is None else line.text

    def named_routes(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the argument's key and the name for each destination that a routing operator names."""
        for key, value in self.binding.arguments:
            for destination in strings(value) if key.startswith(NAMED_ROUTES) else ():
                yield key, destination


@dataclass(slots=True)
class ParsedExchange:
    """One exchange. `fields` contains the positions of its keys; `bindings` adds positions to the rule's bindings."""

    fields: Keys
    rule: ExchangeRule
    bindings: list[ParsedBinding] = field(default_factory=list)

    def argument_at(self, name: bytes) -> tuple[Place, str]:
        """Return the position and the dotted path of an argument."""
        return self._entry_at("arguments", name.decode())

    def condition_at(self, written: str) -> tuple[Place, str]:
        """Return the position and the dotted path of a condition of the contract."""
        return self._entry_at("require", written)

    def _entry_at(self, key: str, name: str) -> tuple[Place, str]:
        table = self.fields.value(key)
        entry = table.entry(name) if isinstance(table, Mapping) else None
        place = entry[0].place if entry else self.fields.place_of(key)
        return place, join(self.fields.at(key), name)


class TestsFile(NamedTuple):
    """A test file: its path, and the position where a rules file names it."""

    path: Path
    named_at: Place


@dataclass(slots=True)
class ParsedFile:
    """One rules file."""

    source: str
    vhost: str
    queues: list[ParsedQueue]
    exchanges: list[ParsedExchange]
    tests: list[RulesTest]
    addresses: list[ParsedAddress] = field(default_factory=list)
    brokers: list[BrokerRule] = field(default_factory=list)
    tests_file: TestsFile | None = None


# -- reading -----------------------------------------------------------------------------------------------------------


def read_rules_file(root: Node, source: RulesSource, faults: Faults) -> ParsedFile:
    """Read the document of one rules file. Errors are reported in `faults`, and invalid values are omitted."""
    keys = Keys(root, faults)
    tests_file = _take_tests_file(keys, source.name)
    lists = {key: _take_sections(keys, key) for key in ("queues", "exchanges", "addresses", "tests")}
    brokers = keys.value("brokers")
    named = list(brokers.entries) if isinstance(brokers, Mapping) else []
    if isinstance(brokers, Mapping):
        brokers.entries = []
    model = read_model(RulesModel, keys) or RulesModel()
    queues = _present(map(_queue, lists["queues"]))
    exchanges = _present(_exchange(section, model.timezone, source.places) for section in lists["exchanges"])
    addresses = _present(map(read_address, lists["addresses"]))
    rules = _present(read_broker(name, Keys(node, faults, join("brokers", name.text))) for name, node in named)
    tests = _present(read_test(section, model.vhost) for section in lists["tests"])
    return ParsedFile(source.name, model.vhost, queues, exchanges, tests, addresses, rules, tests_file)


def _take_tests_file(keys: Keys, source: str) -> TestsFile | None:
    """Remove and return the name of a test file if the key `tests` contains a name instead of a list."""
    node = keys.value("tests")
    if not isinstance(node, Scalar) or node.absent:
        return None
    keys.remove("tests")
    if node.tag is None and isinstance(node.value, str) and is_tests_file(node.value) and "\0" not in node.value:
        return TestsFile(Path(source).parent / node.value, node.place)
    expected = "a list of tests, or the name of a file that ends in _test.yaml"
    keys.faults.error(node.place, "tests", f"got {describe(node)}, expected {expected}")
    return None


def read_tests_file(source: RulesSource, vhost: str, faults: Faults) -> list[RulesTest]:
    """Read a file that contains only tests for the rules of one virtual host."""
    faults.extend(source.faults)
    if source.root is None:
        if not source.faults.errors:
            faults.error(Place(source.name, 1, 1), "", "the file is empty, expected a mapping with the key tests")
        return []
    keys = Keys(source.root, faults)
    tests = _take_sections(keys, "tests")
    read_model(TestsModel, keys)
    return _present(read_test(section, vhost) for section in tests)


def _present(items: Iterable[T | None]) -> list[T]:
    return [item for item in items if item is not None]


def _take_items(keys: Keys, key: str) -> list[Any]:
    """Remove and return the items of a list, so that the caller can read them one by one."""
    node = keys.value(key)
    if not isinstance(node, Sequence):
        return []
    items: list[Any] = node.items
    node.items = []
    return items


def _take_sections(keys: Keys, key: str) -> list[Keys]:
    """Remove and return the items of a list, which need not be mappings."""
    return [Keys(item, keys.faults, join(keys.at(key), index)) for index, item in enumerate(_take_items(keys, key))]


def _table(keys: Keys) -> Table:
    node = keys.value("arguments")
    return read_table(node, keys.at("arguments"), keys.faults) if isinstance(node, Mapping) else ()


def _queue(keys: Keys) -> ParsedQueue | None:
    node = keys.node
    arguments: Table = ()
    if isinstance(node, Mapping):
        model = read_model(QueueModel, keys)
        if model is None:
            return None
        name, arguments = model.name, _table(keys)
    else:
        text = node.value if isinstance(node, Scalar) and node.tag is None else None
        fault = name_fault(text) if isinstance(text, str) else describe(node)
        if fault:
            keys.invalid(f"got {fault}, expected the name of a queue, or a mapping with its name")
            return None
        name = str(text).encode()
    if name.startswith(b"amq."):
        keys.invalid('names that begin with "amq." are reserved by the broker and can\'t be declared')
    return ParsedQueue(keys.place, keys.path, QueueRule(name, arguments))


def _exchange(keys: Keys, local_time: tzinfo | None, places: PackedPlaces) -> ParsedExchange | None:
    items = _take_items(keys, "bindings")
    model = read_model(ExchangeModel, keys)
    if model is None:
        return None
    arguments = _table(keys)
    names = (value.value for name, value in arguments if name == ALTERNATE)
    rule = ExchangeRule(
        name=model.name,
        type=model.type,
        delivery=model.delivery,
        carrier=model.carrier or model.name,
        carrier_type=model.carrier_type,
        unmatched_pass=model.unmatched is not None,
        arguments=arguments,
        alternate=next((name for name in names if isinstance(name, bytes)), None),
        bindings=(),
        local_time=local_time,
        require=_requirements(keys),
        observes=model.violations == "observe",
    )
    parsed = ParsedExchange(keys, rule)
    _check_arguments(parsed)
    _check_carrier(parsed)
    items.reverse()
    for index in range(len(items)):
        packed: PackedBinding | None = items.pop()
        if packed is not None:
            parsed.bindings.append(_binding(packed, parsed, index, places))
    parsed.rule = replace(rule, bindings=tuple(parsed.binding for parsed in parsed.bindings))
    return parsed


def _requirements(keys: Keys) -> tuple[Requirement, ...]:
    """Return the conditions of a contract."""
    node = keys.value("require")
    if node is None:
        return ()
    if not isinstance(node, Mapping):
        keys.error("require", f"got {describe(node)}, expected a mapping such as {{tenant is: string}}")
        return ()
    requirements = []
    for name, value, place in _entries(node, keys.at("require"), keys.faults):
        line = Line(WHEN, name.decode(), value)
        try:
            argument = condition_argument(line, under_all=False)
        except SpellingError as error:
            keys.faults.error(place, join(keys.at("require"), line.key), str(error))
            continue
        content = json_value(value)
        expected = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        requirements.append(Requirement(argument, line.key, expected))
    return tuple(requirements)


def _binding(packed: PackedBinding, owner: ParsedExchange, index: int, places: PackedPlaces) -> ParsedBinding:
    kind, destination, key, arguments = packed.kind, packed.destination, packed.routing_key, packed.arguments
    ident = packed.name or binding_hash(kind, destination, key, arguments)
    named = owner.rule.name, kind, destination, key, arguments, ident, FILE_FIRST - index - 1
    binding = Binding(*named, extensions=True, readable=packed.readable)
    parsed = ParsedBinding(binding, owner.fields.path, index, bool(packed.name), places, packed.first)
    if packed.readable and owner.rule.type != OPEN:
        expected = "arguments: {NAME: VALUE}" if owner.rule.type == "headers" else "routing_key:"
        message = f"got a binding of type {owner.rule.type} with when, match, then, else or order, expected {expected}"
        owner.fields.faults.error(parsed.arguments_place, parsed.path, message)
    return parsed


#: Maximum number of shared names and entries.
_MOST_SHARED = 8192
#: Keys of a binding whose positions are stored, each with its index in the order of positions (`_OWN` and following).
_POSITIONS = {"routing_key": _KEY, "name": _NAME, "arguments": _ARGUMENTS}


class BindingReader:
    """Reads bindings while `read_document` parses the file."""

    def __init__(self, places: PackedPlaces, faults: Faults) -> None:
        self._places = places
        self._faults = faults
        #: Names of destinations, and entries of arguments, that many bindings share.
        self._shared: dict[object, Any] = {}

    def __call__(self, node: Node, exchange: int, index: int) -> PackedBinding | None:
        """Return the binding; None if it is invalid."""
        path = binding_path(f"exchanges[{exchange}]", index)
        found = _destination(Keys(node, self._faults, path))
        if found is None or not isinstance(node, Mapping):
            return None
        kind, destination, routing_key, name = found
        positions = [node.place] * _FIRST_ARGUMENT
        arguments: Table = ()
        readable: list[tuple[Scalar, Node]] = []
        for key, child in node.entries:
            if key.text in _POSITIONS:
                positions[_POSITIONS[key.text]] = key.place
            if key.text in READABLE_KEYS:
                readable.append((key, child))
            elif key.text == "arguments" and isinstance(child, Mapping):
                read = _entries(child, f"{path}.arguments", self._faults)
                arguments = tuple((argument, value) for argument, value, _ in read)
                positions += [place for *_, place in read]
        if readable:
            positions[_ARGUMENTS] = readable[0][0].place
            if "arguments" in (key.text for key, _ in node.entries):
                expected = "expected one of the two spellings; `oxproxy rules convert` translates between them"
                self._faults.error(
                    positions[_ARGUMENTS], path, f"got both arguments and {readable[0][0].text}, {expected}"
                )
                return None
            read = read_lines(readable, path, self._faults)
            arguments = tuple((argument, value) for argument, value, _ in read)
            positions += [place for *_, place in read]
        first = self._places.extend(positions)
        # Values that may contain floats are not shared, since zero and negative zero are equal.
        arguments = tuple(entry if entry[1].letter in "dfAF" else self._once(entry) for entry in arguments)
        return PackedBinding(kind, self._once(destination), routing_key, arguments, name, first, bool(readable))

    def _once(self, value: T) -> T:
        """Return an equal object that was read earlier, if any, or the value itself."""
        get = self._shared.setdefault if len(self._shared) < _MOST_SHARED else self._shared.get
        kept: T = get(value, value)
        return kept


def _entries(node: Mapping, path: str, faults: Faults) -> list[tuple[bytes, Value, Place]]:
    """Return the valid entries of a mapping, with the positions of their keys."""
    table = read_table(node, path, faults)
    written = node.entries
    if len(table) < len(written):  # invalid entries were omitted
        kept = {key for key, _ in table}
        written = [entry for entry in written if entry[0].text.encode() in kept]
    return [(key, value, scalar.place) for (key, value), (scalar, _) in zip(table, written, strict=True)]


def _without_expressions(node: Mapping, path: str, faults: Faults) -> Mapping:
    """Report keys such as ``amount >= 1000``, which have no value of their own, and return the other entries."""
    kept = []
    for key, child in node.entries:
        is_absent = isinstance(child, Scalar) and child.absent and not has_operator(key.text)
        expected = corrected_line(key.text) if is_absent else ""
        if expected and expected != corrected_line(""):
            faults.error(key.place, join(path, key.text), f"got a key without a value, expected {expected}")
        else:
            kept.append((key, child))
    return Mapping(node.place, kept)


def read_lines(keys: list[tuple[Scalar, Node]], path: str, faults: Faults) -> list[tuple[bytes, Value, Place]]:
    """Return the arguments that the keys of a readable binding stand for, with the positions of their lines."""
    lines: dict[Line, Place] = {}
    for key, child in keys:
        if key.text not in (WHEN, THEN, ELSE):
            for _, value, place in _entries(Mapping(child.place, [(key, child)]), path, faults):
                lines[Line("", key.text, value)] = place
        elif isinstance(child, Mapping):
            if key.text == WHEN:
                child = _without_expressions(child, join(path, key.text), faults)
            for name, value, place in _entries(child, join(path, key.text), faults):
                lines[Line(key.text, name.decode(), value)] = place
        else:
            example = "{amount >=: 1000}" if key.text == WHEN else "{add queue: NAME}"
            example = corrected_line(child.text) if isinstance(child, Scalar) and key.text == WHEN else example
            faults.error(
                child.place, join(path, key.text), f"got {describe(child)}, expected a mapping such as {example}"
            )

    def report(fault: SpellingError) -> None:
        line = fault.line
        faults.error(lines[line], line_path(path, line.section, line.key), str(fault))

    return [(key, value, lines[line]) for line, key, value in arguments_of(lines, report)]


def _destination(keys: Keys) -> tuple[str, bytes, bytes, str] | None:
    """Return the kind and name of a binding's destination, its routing key, and its own name; None if invalid."""
    model = read_model(BindingModel, keys)
    if isinstance(keys.node, Mapping) and (QUEUE in keys) == (EXCHANGE in keys):
        seen = "both" if QUEUE in keys else "neither"
        keys.invalid(f"got {seen}, expected either queue: or exchange:")
        return None
    kind = QUEUE if QUEUE in keys else EXCHANGE
    destination = getattr(model, kind, None)
    return None if model is None or destination is None else (kind, destination, model.routing_key, model.name or "")


def _check_arguments(parsed: ParsedExchange) -> None:
    def error(name: bytes, message: str) -> None:
        parsed.fields.faults.error(*parsed.argument_at(name), message)

    rule = parsed.rule
    for fault in argument_faults(rule.arguments):
        ignored = rule.type != OPEN and fault.name in ARGUMENTS and fault.name != ALTERNATE  # `lint` warns about these
        if fault.name not in OWN_ARGUMENTS and not ignored:
            error(fault.name, fault.message)
    for name, value in rule.arguments:
        if name in OWN_ARGUMENTS:
            error(name, "this argument is reserved for the sidecar")
        if name == ALTERNATE and value.letter == "S" and isinstance(value.value, bytes):
            wrong = name_fault(value.value.decode())
            if wrong:
                error(name, f"got {wrong}, expected the name of an exchange")


def _check_carrier(parsed: ParsedExchange) -> None:
    fields, rule = parsed.fields, parsed.rule
    if rule.delivery != CARRIER:
        for key in ("carrier", "carrier_type"):
            if key in fields:
                fields.error(key, "requires delivery: carrier")
        return
    if rule.carrier.startswith(b"amq."):
        key = "carrier" if "carrier" in fields else "name"
        expected = "expected another name in carrier:, or delivery: queue"
        fields.error(key, f'names that begin with "amq." are reserved by the broker and can\'t be declared: {expected}')
    if rule.unmatched_pass and rule.carrier == rule.name:
        message = "requires another name in carrier:, or delivery: queue; "
        fields.error("unmatched", message + "otherwise the carrier would be the broker's own exchange of this name")


@dataclass(slots=True)
class RulesSource:
    """A file with its parsed document and packed bindings.

    Args:
        root: the file's document; None if the file is empty or has a syntax error.
        faults: syntax errors in the file.
    """

    name: str
    data: bytes
    root: Node | None
    places: PackedPlaces
    faults: Faults


#: Maximum size of a rules file. A parsed file takes up to 250 times its size.
MAX_FILE_BYTES: Final = 32 << 20


def read_source(name: str, data: bytes) -> RulesSource:
    """Parse a file, which need not be a rules file."""
    places, faults, of_bindings = PackedPlaces(name), Faults(), Faults()
    if len(data) > MAX_FILE_BYTES:
        message = f"got more than {MAX_FILE_BYTES} bytes, expected at most that many; split the file"
        faults.error(Place(name, 0), "", message)
        return RulesSource(name, data, None, places, faults)
    with without_collection():
        root = read_document(data, name, faults, BindingReader(places, of_bindings))
    if root is not None:
        faults.extend(of_bindings)
    return RulesSource(name, data, root, places, faults)


def vhosts_of(source: RulesSource) -> frozenset[str] | None:
    """Return the virtual hosts that a file names, also if the file is invalid; None if they can't be determined.

    A valid file names one virtual host. A file that names several (a duplicate key) is invalid.
    """
    root = source.root
    if source.faults.errors:
        values = top_level_values(source.data, "vhost")
    elif isinstance(root, Mapping):
        entry = root.entry("vhost")
        values = [] if entry is None else [entry[1].value if isinstance(entry[1], Scalar) else None]
        if entry is None and all(key.text in TOP_KEYS for key, _ in root.entries):
            return frozenset((RulesModel.model_fields["vhost"].default,))
    else:
        values = []
    names = frozenset(value for value in values if isinstance(value, str) and _is_vhost(value))
    return names if values and len(names) == len(set(values)) else None


def release_parsed(file: ParsedFile) -> None:
    """Release the parsed bindings of a file one by one; see `release_tree`."""
    for exchange in file.exchanges:
        while exchange.bindings:
            exchange.bindings.pop()
