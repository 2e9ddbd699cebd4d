"""Describes each operator, effect, permission and filter of an open exchange, with an example.

The entries have several uses: ``oxproxy operators`` prints them, ``python -m deploy.reference`` generates the tables in
docs/reference/rules.md, and error messages and the JSON Schema for rules files are derived from them. A test compares
the keys with the keys that `routing` reads, and compiles every example.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from oxproxy.routing.bindings.arguments import GREATEST_ORDER, LEAST_ORDER, X_MATCH
from oxproxy.rules.field_values import read_table
from oxproxy.rules.message import PROPERTIES, json_value
from oxproxy.rules.spelling import lines as spelling
from oxproxy.rules.spelling.lines import MAY
from oxproxy.rules.spelling.lines import PERMISSIONS as PERMITTED
from oxproxy.values import Value
from oxproxy.yamlfile.document import Faults, Mapping, read_document


@dataclass(frozen=True, slots=True)
class OperatorEntry:
    """Keys that are described together.

    Args:
        keys: the keys as written; NAME stands for the name of a header or property.
        meaning: end of the sentence that begins with `OperatorSection.lead`.
        example: one argument, as YAML.
    """

    keys: tuple[str, ...]
    value: str
    meaning: str
    example: str

    @property
    def readable(self) -> tuple[str, ...]:
        """The forms of the keys in the readable spelling; empty for arguments of an exchange and for match types."""
        return tuple(filter(None, map(spelling.documented_form, self.keys)))

    @property
    def readable_example(self) -> str:
        """The example in the readable spelling; empty for arguments of an exchange."""
        node = read_document(self.example, "", Faults())
        table = read_table(node, "", Faults()) if isinstance(node, Mapping) else ()
        # The list operator that negates `in` has a readable form with every match type except `all`.
        lines = spelling.lines_of(table) or spelling.lines_of(((X_MATCH, Value("S", b"any")), *table))
        for line in (lines or ())[-1:]:
            same = line.value == table[0][1]
            value = self.example.partition(": ")[2] if same else json.dumps(json_value(line.value)).replace('"', "")
            return f"{line.section}: {{{line.key}: {value}}}" if line.section else f"{line.key}: {value}"
        return ""


@dataclass(frozen=True, slots=True)
class OperatorSection:
    """Entries of one kind.

    Args:
        lead: beginning of the sentence that each meaning completes.
        column: heading of the column of meanings in docs/reference/rules.md.
        first: heading of the first column in that table.
        of_exchange: whether the entries are arguments of the exchange instead of a binding.
    """

    title: str
    lead: str
    column: str
    first: str
    entries: tuple[OperatorEntry, ...]
    of_exchange: bool = False


def _both(*keys: str) -> tuple[str, ...]:
    """Return the keys for both results of a binding."""
    return tuple(f"{key}-{result}" for key in keys for result in ("ontrue", "onfalse"))


_ENTRY = OperatorEntry

MATCH_TYPES = OperatorSection(
    "How the conditions of a binding combine",
    "The binding is true if",
    "true if",
    "`match`",
    (
        _ENTRY(("all",), "", "all operators are true, or there are none (the default match type)", "x-match: all"),
        _ENTRY(("any",), "", "at least one operator is true", "x-match: any"),
        _ENTRY(
            ("set", "set N"),
            "",
            "all routing key, property and clock operators are true, no header operator is false for an existing "
            "header, and at least N header operators (0 for `set`) are true",
            "x-match: set 2",
        ),
        _ENTRY(
            ("eq",),
            "",
            "the same as for `all`, and each header of the message is tested by an operator",
            "x-match: eq",
        ),
    ),
)

HEADERS = OperatorSection(
    "Headers",
    "True if the header",
    "true if the header ...",
    "operator",
    (
        _ENTRY(("x-?hkv= NAME",), "any", "exists and equals the value", '"x-?hkv= type": report'),
        _ENTRY(("x-?hkv!= NAME",), "any", "exists and differs from the value", '"x-?hkv!= type": draft'),
        _ENTRY(
            ("x-?hkv< NAME", "x-?hkv<= NAME", "x-?hkv>= NAME", "x-?hkv> NAME"),
            "number",
            "is a number or timestamp and the comparison is true",
            '"x-?hkv>= pages": 100',
        ),
        _ENTRY(("x-?hkvin NAME",), "list", "exists and equals an element of the list", '"x-?hkvin country": [de, at]'),
        _ENTRY(("x-?hkv!in NAME",), "list", "exists and differs from every element", '"x-?hkv!in country": [de, at]'),
        _ENTRY(("x-?hkvre NAME",), "regex", "is a string that matches", '"x-?hkvre title": (?i)invoice'),
        _ENTRY(("x-?hkv!re NAME",), "regex", "is a string that does not match", '"x-?hkv!re title": ^test'),
        _ENTRY(
            tuple(f"x-?hk?v{sign} NAME" for sign in ("=", "!=", "<", "<=", ">=", ">", "in", "!in", "re", "!re")),
            "as for `x-?hkv`",
            "is missing (only with `all` and `eq`), or satisfies the corresponding `x-?hkv` operator",
            '"x-?hk?v= tenant": acme',
        ),
        _ENTRY(("x-?hkex",), "name", "exists", "x-?hkex: customer"),
        _ENTRY(("x-?hk!ex",), "name", "is missing", "x-?hk!ex: spam-score"),
        _ENTRY(
            tuple(f"x-?hkex{letter}" for letter in "snbia"),
            "name",
            "is a string, number, boolean, integer or list, respectively",
            "x-?hkexn: pages",
        ),
        _ENTRY(
            tuple(f"x-?hkex!{letter}" for letter in "snbia"),
            "name",
            "exists and is not a string, number, boolean, integer or list, respectively",
            "x-?hkex!b: urgent",
        ),
        _ENTRY(
            ("x-?hkv% NAME",),
            "share",
            "exists and its value belongs to this share of all values, in percent; the upper bound is not included",
            '"x-?hkv% customer": [0, 5]',
        ),
        _ENTRY(
            ("NAME",),
            "any",
            "exists and equals the value, as for `x-?hkv=`; only for names that do not begin with `x-`",
            "type: report",
        ),
    ),
)

MESSAGE = OperatorSection(
    "Routing key, properties, clock",
    "True if",
    "true if",
    "operator",
    (
        _ENTRY(("x-?rk=", "x-?rk!="), "string", "the key equals (differs from) the value", "x-?rk=: invoice.eu"),
        _ENTRY(
            ("x-?rkin", "x-?rk!in"),
            "list",
            "the key equals an element of the list (differs from every element)",
            "x-?rkin: [invoice.eu, invoice.us]",
        ),
        _ENTRY(("x-?rk%",), "share", "the key belongs to this share of all keys, in percent", "x-?rk%: [0, 5]"),
        _ENTRY(("x-?rkre", "x-?rk!re"), "regex", "the key matches (does not match)", r"x-?rkre: ^invoice\."),
        _ENTRY(
            ("x-?rkta", "x-?rk!ta"),
            "topic",
            "the key matches (does not match) the topic; `*` is one word, `#` any number of words",
            'x-?rkta: "#.late"',
        ),
        _ENTRY(
            ("x-?rktaci", "x-?rk!taci"),
            "topic",
            "the key matches (does not match) the topic, ignoring case",
            "x-?rktaci: invoice.*",
        ),
        _ENTRY(("x-?prex", "x-?pr!ex"), "property", "the property is set (is not set)", "x-?prex: correlation_id"),
        _ENTRY(
            ("x-?pr= NAME", "x-?pr!= NAME"),
            "string or integer",
            "the property is set and equals (differs from) the value",
            '"x-?pr= content_type": text/plain',
        ),
        _ENTRY(
            ("x-?prin NAME", "x-?pr!in NAME"),
            "list",
            "the property is set and equals an element of the list (differs from every element)",
            '"x-?prin content_type": [text/plain, text/html]',
        ),
        _ENTRY(
            ("x-?pr% NAME",),
            "share",
            "the property is set and its value belongs to this share of all values, in percent",
            '"x-?pr% message_id": [0, 5]',
        ),
        _ENTRY(
            ("x-?prre NAME", "x-?pr!re NAME"),
            "regex",
            "the string property is set and matches (does not match)",
            '"x-?prre app_id": ^shop-',
        ),
        _ENTRY(
            ("x-?pr< NAME", "x-?pr<= NAME", "x-?pr>= NAME", "x-?pr> NAME"),
            "integer",
            "the integer property is set and the comparison is true",
            '"x-?pr>= priority": 5',
        ),
        _ENTRY(
            ("x-?dture", "x-?dtu!re"),
            "regex",
            "UTC time, formatted as `20261121 080000 6 47`, matches (does not match)",
            'x-?dture: " [67] "',
        ),
        _ENTRY(
            ("x-?dtlre", "x-?dtl!re"),
            "regex",
            "local time in `timezone`, in the same format, matches (does not match)",
            "x-?dtlre: ^2026",
        ),
    ),
)

EFFECTS = OperatorSection(
    "What a binding does",
    "The binding",
    "the binding ...",
    "operator",
    (
        _ENTRY(_both("x-addq"), "name or list", "adds queues", "x-addq-ontrue: [copies, archive]"),
        _ENTRY(_both("x-adde"), "name or list", "adds exchanges", "x-adde-ontrue: audit"),
        _ENTRY(_both("x-delq"), "name or list", "removes queues", "x-delq-ontrue: team.red"),
        _ENTRY(_both("x-dele"), "name or list", "removes exchanges", "x-dele-ontrue: audit"),
        _ENTRY(
            _both("x-addqre", "x-addq!re"),
            "regex",
            "adds all queues of the virtual host whose names match (do not match)",
            r"x-addqre-ontrue: ^team\.",
        ),
        _ENTRY(
            _both("x-add1qre", "x-add1q!re"),
            "regex",
            "adds a random queue whose name matches (does not match)",
            r"x-add1qre-ontrue: ^worker\.",
        ),
        _ENTRY(
            _both("x-delqre", "x-delq!re"),
            "regex",
            "removes selected queues whose names match (do not match)",
            r"x-delqre-ontrue: ^team\.",
        ),
        _ENTRY(
            ("x-del-dest",),
            '`""`',
            "removes its own destination, even if an earlier binding added it",
            'x-del-dest: ""',
        ),
        _ENTRY(
            ("x-msg-destq-rk",),
            '`""`',
            "uses the routing key as the name of its destination queue",
            'x-msg-destq-rk: ""',
        ),
        _ENTRY(
            ("x-order",),
            "100 to 999999",
            "is visited after bindings with lower values (default: 10000); bindings with equal values are visited "
            "from top to bottom",
            "x-order: 200",
        ),
        _ENTRY(
            _both("x-goto"),
            "100 to 999999",
            "skips the following bindings whose order is lower than this value",
            "x-goto-ontrue: 400",
        ),
        _ENTRY(_both("x-stop"), '`""`', "ends the evaluation of the exchange", 'x-stop-ontrue: ""'),
    ),
)

PERMISSIONS = OperatorSection(
    "Permissions for message headers",
    "Permits these headers from the producer:",
    "permitted headers from the producer",
    "permission",
    tuple(
        _ENTRY(_both(key), '`""`', permitted, f'{key}-ontrue: ""')
        for key, permitted in (
            ("x-msg-addq", "`x-addq-ontrue`, `x-addq-onfalse`: queue names"),
            ("x-msg-adde", "`x-adde-...`: exchange names"),
            ("x-msg-delq", "`x-delq-...`"),
            ("x-msg-dele", "`x-dele-...`"),
            ("x-msg-addqre", "`x-addq-...`, `x-addqre-...`, `x-addq!re-...`: queue names or a regex"),
            ("x-msg-delqre", "`x-delq-...`, `x-delqre-...`, `x-delq!re-...`"),
        )
    ),
)

FILTERS = OperatorSection(
    "Filters of an exchange",
    "A message violates the filter if",
    "violated if",
    "argument",
    (
        _ENTRY(
            ("min-payload-size", "min-payload-size-silent"),
            "bytes",
            "the body is shorter",
            "min-payload-size-silent: 160",
        ),
        _ENTRY(
            ("max-payload-size", "max-payload-size-silent"), "bytes", "the body is longer", "max-payload-size: 1048576"
        ),
        _ENTRY(
            ("max-headers-size",),
            "bytes",
            "the headers are larger; default: 16384 if `max-headers-depth` is set",
            "max-headers-size: 4096",
        ),
        _ENTRY(
            ("max-headers-depth",),
            "levels",
            "lists are nested deeper; default: 2 if `max-headers-size` is set",
            "max-headers-depth: 1",
        ),
    ),
    of_exchange=True,
)

SECTIONS = (MATCH_TYPES, HEADERS, MESSAGE, EFFECTS, PERMISSIONS, FILTERS)


class OperatorValue(NamedTuple):
    """The expected value and the effect of an operator, for error messages and the JSON Schema.

    Args:
        expected: description of the expected value.
        schema: JSON Schema for editors; it accepts at least every expected value.
        help: effect of the operator, in one line.
        named: kind of name (header or property) that follows the key and a space; empty if no name follows.
    """

    expected: str
    schema: dict[str, Any]
    help: str
    named: str


def _or_list(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "array", "items": schema}]}


_TEXT = {"type": "string"}
_FILLED = {"type": "string", "minLength": 1}
_OTHER_TYPE = "a value of another type"
_ORDER = f"{LEAST_ORDER} to {GREATEST_ORDER}"
#: Description and schema of each kind of value in the entries.
_VALUES: dict[str, tuple[str, dict[str, Any]]] = {
    "any": (_OTHER_TYPE, {}),
    "number": (_OTHER_TYPE, {"type": ["number", "string"]}),
    "string or integer": (_OTHER_TYPE, {}),
    "integer": (_OTHER_TYPE, {"type": ["integer", "string"]}),
    "string": ("a string", _or_list(_TEXT)),
    "topic": ("a string", _or_list(_TEXT)),
    "regex": ("a regular expression (string)", _or_list(_TEXT)),
    "name": ("the name of a header (non-empty string)", _or_list(_FILLED)),
    "property": (f"the name of a property: {', '.join(PROPERTIES)}", _or_list({"enum": list(PROPERTIES)})),
    "list": ("a list of values of the operand's type", {"type": "array", "minItems": 1}),
    "share": (
        "two percentages from 0 to 100 with at most two decimals, the lower one first, such as [0, 5]",
        {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 100}, "minItems": 2, "maxItems": 2},
    ),
    "name or list": ("a name (non-empty string) or a list of names", _or_list(_FILLED)),
    '`""`': ('an empty string, ""', _or_list({"const": ""})),
    _ORDER: (
        f"an integer from {_ORDER}",
        {"type": "integer", "minimum": LEAST_ORDER, "maximum": GREATEST_ORDER},
    ),
}


def _operators() -> dict[str, OperatorValue]:
    """Return the operators by the prefix of their keys."""
    operators = {"x-match": OperatorValue("a string", _TEXT, f"{MATCH_TYPES.title}: all, any, set, set N or eq", "")}
    for section in (HEADERS, MESSAGE, EFFECTS, PERMISSIONS):
        for entry in section.entries:
            for key in entry.keys:
                name, _, named = key.partition(" ")
                if name == "NAME":
                    continue
                # An operator for an optional header accepts the same values as the operator for a required header.
                plain = operators.get(name.replace("x-?hk?v", "x-?hkv"))
                expected, schema = _VALUES[entry.value] if entry.value in _VALUES else (plain or operators[name])[:2]
                of = "property" if name.startswith("x-?pr") else "header"
                effect = f"{section.lead} {entry.meaning}"
                operators[name] = OperatorValue(expected, schema, effect, of if named else "")
    return operators


#: Every operator of open exchanges, without the space and the name that may follow.
OPERATORS = _operators()


def arguments_schema() -> dict[str, Any]:
    """Return the JSON Schema of a binding's arguments: each operator with its value and one line of help."""
    plain: dict[str, object] = {}
    named: dict[str, object] = {}
    for name, operator in OPERATORS.items():
        described = {**operator.schema, "description": operator.help}
        if operator.named:
            named[f"^{re.escape(name)} ."] = described
        else:
            plain[name] = described
    return {"properties": plain, "patternProperties": named}


def conditions_schema() -> dict[str, Any]:
    """Return the JSON Schema of conditions in the readable spelling: each operator with its value and its help."""
    patterns: dict[str, object] = {}
    keys: dict[str, object] = {}
    for words, operator in spelling.OPERATORS.items():
        for subject in operator.subjects:
            head = operator.heads.get(subject) or next(iter(operator.choices.get(subject, {}).values()), b"")
            known = OPERATORS.get(head.decode())
            described: dict[str, object] = {"description": known.help} if known else {}
            if words == "exists":
                described["type"] = "boolean"
            elif operator.choices:
                described["enum"] = list(spelling.written_choices(operator, subject))
            elif known is not None:
                described.update(known.schema)
            if subject in (spelling.KEY, spelling.UTC, spelling.LOCAL):
                keys[f"{subject} {words}".rstrip()] = described
            elif words:
                start = "^property ." if subject == spelling.PROPERTY else r"^(?!property |(key|utc|local)( |$))"
                patterns[f"{start}.* {re.escape(words)}$"] = described
    return {"properties": keys, "patternProperties": patterns}


def effects_schema() -> dict[str, Any]:
    """Return the JSON Schema of effects in the readable spelling."""
    keys: dict[str, object] = {
        MAY: {"description": "permits headers from the producer", **_or_list({"enum": list(PERMITTED)})}
    }
    for words, head in spelling.EFFECTS.items():
        known = OPERATORS[f"{head.decode()}-ontrue"]
        keys[words] = {
            "description": known.help,
            **({"const": True} if words in spelling.FLAGS else known.schema),
        }
    return {"properties": keys, "additionalProperties": False}
