"""Reads one rules file key by key into parsed objects that know their places, before anything is compiled.

Checked is what one file alone shows: keys, types, names. What the arguments of a binding mean is checked by `compiler`,
what several files show together by package `lint`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import TypeVar

from proxy.routing.bindings.binding import Binding, binding_hash
from proxy.routing.filters import ARGUMENTS, argument_faults
from proxy.rules.addresses import ParsedAddress, read_addresses, read_brokers
from proxy.rules.field_values import SystemZone, read_table, zone
from proxy.rules.file_tests import RulesTest, read_test
from proxy.rules.ruleset import FILE_FIRST, BrokerRule, QueueRule
from proxy.values import EXCHANGE, QUEUE, Table, Value
from proxy.yamlfile.document import Faults, Mapping, Node, Place, describe, join
from proxy.yamlfile.fields import Fields, name_fault, short_fault, text_of

T = TypeVar("T")

#: Top-level keys of a rules file; they also tell it from a configuration file.
TOP_KEYS = ("vhost", "timezone", "queues", "exchanges", "brokers", "addresses", "tests")
OPEN = "x-open"
TYPES = (OPEN, "headers", "topic", "direct", "fanout")
CARRIER = "carrier"
DELIVERIES = (CARRIER, "queue")
ALTERNATE = b"alternate-exchange"
#: Routing operators that name their destinations.
NAMED_ROUTES = (b"x-addq-", b"x-adde-", b"x-delq-", b"x-dele-")
#: Arguments that the proxy itself puts on exchanges and bindings of the broker.
OWN_ARGUMENTS = frozenset((b"x-open-exchange", b"x-oxproxy"))


@dataclass(slots=True)
class ParsedQueue:
    """A queue that a file asks for."""

    place: Place
    path: str
    rule: QueueRule


@dataclass(slots=True)
class ParsedBinding:
    """One binding; `arguments` is its mapping in the file."""

    place: Place
    path: str
    binding: Binding
    arguments: Mapping | None
    key_place: Place
    #: places of the id, where the operator gave one
    name_place: Place | None = None

    def argument_place(self, key: str) -> Place:
        """Where an argument was written."""
        for name, _ in self.arguments.entries if self.arguments else ():
            if name.text == key:
                return name.place
        return self.arguments.place if self.arguments else self.place

    def argument_path(self, key: str) -> str:
        """Dotted path of an argument."""
        return join(f"{self.path}.arguments", key)

    def named_routes(self) -> Iterator[tuple[str, bytes]]:
        """Destinations that routing operators name: the argument's key and each name."""
        for name, value in self.binding.arguments:
            if not name.startswith(NAMED_ROUTES):
                continue
            elements = value.value if value.letter == "A" and isinstance(value.value, tuple) else (value,)
            for element in elements:
                if isinstance(element, Value) and isinstance(element.value, bytes):
                    yield name.decode(), element.value


@dataclass(slots=True)
class ParsedExchange:
    """One exchange; `fields` finds the places of its keys."""

    fields: Fields
    name: bytes
    type: str
    delivery: str
    carrier: bytes
    unmatched_pass: bool
    arguments: Table
    local_time: tzinfo
    bindings: list[ParsedBinding] = field(default_factory=list)

    def argument_place(self, name: bytes) -> Place:
        """Where an argument was written."""
        table = self.fields.mapping("arguments")
        for key, _ in table.entries if table else ():
            if key.text.encode() == name:
                return key.place
        return self.fields.place_of("arguments")

    def argument_path(self, name: bytes) -> str:
        """Dotted path of an argument."""
        return join(self.fields.at("arguments"), name.decode())

    @property
    def alternate(self) -> bytes | None:
        """Name of the alternate exchange."""
        for name, value in self.arguments:
            if name == ALTERNATE and isinstance(value.value, bytes):
                return value.value
        return None


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


def read_rules_file(root: Node, source: str, faults: Faults) -> ParsedFile:
    """Read the document of one rules file.

    Args:
        root: the document.
        source: the file's name.
        faults: takes everything that is wrong; what can't be used is left out.
    """
    fields = Fields(root, "", faults)
    vhost = fields.text("vhost", "the name of a virtual host")
    if vhost is not None and (not vhost or len(vhost.encode()) > 255):
        fields.wrong("vhost", "the name of a virtual host, 1 to 255 bytes")
    local_time = _local_time(fields)
    queues = _present(_queue(path, node, faults) for path, node in fields.items("queues"))
    exchanges = _present(_exchange(path, node, local_time, faults) for path, node in fields.items("exchanges"))
    name = vhost or "/"
    addresses, brokers = read_addresses(fields), read_brokers(fields, source)
    tests = _present(read_test(Fields(node, path, faults), name) for path, node in fields.items("tests"))
    fields.finish()
    return ParsedFile(source, name, queues, exchanges, tests, addresses, brokers)


def _present(found: Iterable[T | None]) -> list[T]:
    return [each for each in found if each is not None]


def _local_time(fields: Fields) -> tzinfo:
    name = fields.text("timezone", "a time zone such as Europe/Berlin")
    if name is None:
        return SystemZone()
    found = zone(name)
    if found is None:
        fields.wrong("timezone", "a name of the time zone database such as Europe/Berlin or UTC")
    return found or SystemZone()


def _queue(path: str, node: Node, faults: Faults) -> ParsedQueue | None:
    arguments: Table = ()
    if isinstance(node, Mapping):
        fields = Fields(node, path, faults)
        name = fields.name("name", "the name of a queue", required=True)
        table = fields.mapping("arguments")
        fields.finish()
        arguments = read_table(table, fields.at("arguments"), faults) if table else ()
    else:
        name = _queue_name(path, node, faults)
    if name is None:
        return None
    if name.startswith(b"amq."):
        faults.error(node.place, path, "names that begin with \"amq.\" are the broker's own and can't be declared")
    return ParsedQueue(node.place, path, QueueRule(name, arguments))


def _queue_name(path: str, node: Node, faults: Faults) -> bytes | None:
    text = text_of(node)
    fault = describe(node) if text is None else name_fault(text)
    if fault:
        faults.error(node.place, path, f"seen {fault}, expected the name of a queue, or a mapping with its name")
        return None
    return (text or "").encode()


def _exchange(path: str, node: Node, local_time: tzinfo, faults: Faults) -> ParsedExchange | None:
    fields = Fields(node, path, faults)
    name = fields.name("name", "the name of an exchange", required=isinstance(node, Mapping))
    kind = fields.choice("type", TYPES, OPEN)
    delivery = fields.choice("delivery", DELIVERIES, CARRIER)
    carrier = fields.name("carrier", "the name of an exchange")
    unmatched = fields.choice("unmatched", ("pass",), "")
    table = fields.mapping("arguments")
    arguments = read_table(table, fields.at("arguments"), faults) if table else ()
    items = fields.items("bindings")
    fields.finish()
    if name is None:
        return None
    parsed = ParsedExchange(fields, name, kind, delivery, carrier or name, bool(unmatched), arguments, local_time)
    _exchange_arguments(parsed)
    _carrier(parsed)
    bindings = (_binding(name, each, item, FILE_FIRST - index, faults) for index, (each, item) in enumerate(items, 1))
    parsed.bindings = _present(bindings)
    return parsed


def _exchange_arguments(parsed: ParsedExchange) -> None:
    for fault in argument_faults(parsed.arguments):
        ignored = parsed.type != OPEN and fault.name in ARGUMENTS and fault.name != ALTERNATE  # `lint` warns of these
        if fault.name not in OWN_ARGUMENTS and not ignored:
            place, path = parsed.argument_place(fault.name), parsed.argument_path(fault.name)
            parsed.fields.faults.error(place, path, fault.message)
    for name, value in parsed.arguments:
        path = parsed.argument_path(name)
        if name in OWN_ARGUMENTS:
            parsed.fields.faults.error(parsed.argument_place(name), path, "this argument is the proxy's own")
        if name != ALTERNATE or value.letter != "S" or not isinstance(value.value, bytes):
            continue
        wrong = name_fault(value.value.decode())
        if wrong:
            message = f"seen {wrong}, expected the name of an exchange"
            parsed.fields.faults.error(parsed.argument_place(name), path, message)


def _carrier(parsed: ParsedExchange) -> None:
    fields = parsed.fields
    if parsed.delivery != CARRIER:
        if "carrier" in fields:
            fields.error("carrier", "goes with delivery: carrier only")
        return
    if parsed.carrier.startswith(b"amq."):
        key = "carrier" if "carrier" in fields else "name"
        ways = "give another name under carrier:, or delivery: queue"
        fields.error(key, f"names that begin with \"amq.\" are the broker's own and can't be declared: {ways}")
    if parsed.unmatched_pass and parsed.carrier == parsed.name:
        message = "needs another name for the carrier under carrier:, or delivery: queue; "
        fields.error("unmatched", message + "otherwise the broker's own exchange of this name is the carrier itself")


def _binding(exchange: bytes, path: str, node: Node, sequence: int, faults: Faults) -> ParsedBinding | None:
    fields = Fields(node, path, faults)
    queue = fields.name("queue", "the name of a queue")
    target = fields.name("exchange", "the name of an exchange")
    name = fields.text("name", "a name for metrics, audit and explain")
    if name == "":
        fields.wrong("name", "a name for metrics, audit and explain")
    key = (fields.text("routing_key", "a text") or "").encode()
    fault = short_fault(key)
    if fault:
        fields.error("routing_key", f"seen {fault}")
    table = fields.mapping("arguments")
    fields.finish()
    if isinstance(node, Mapping) and ("queue" in fields) == ("exchange" in fields):
        seen = "both" if "queue" in fields else "neither"
        faults.error(fields.place, path, f"seen {seen}, expected either queue: or exchange:")
        return None
    destination = queue if queue is not None else target
    if destination is None:
        return None
    kind = QUEUE if queue is not None else EXCHANGE
    arguments = read_table(table, fields.at("arguments"), faults) if table else ()
    ident = name or binding_hash(kind, destination, key, arguments)
    binding = Binding(exchange, kind, destination, key, arguments, ident, sequence)
    name_place = fields.place_of("name") if name else None
    return ParsedBinding(fields.place, path, binding, table, fields.place_of("routing_key"), name_place)


def release_parsed(file: ParsedFile) -> None:
    """Release the parsed bindings of a file one by one; see `release_tree`."""
    for exchange in file.exchanges:
        while exchange.bindings:
            exchange.bindings.pop()
