"""Reads YAML files with pydantic models: defines types of values, and reports invalid values.

`read_model` validates a tree of nodes with a model and reports every pydantic error with the file, line, column and key
of its node. Invalid values are replaced with defaults, so that later checks also run.

The annotation of a type (`Expected` or one of the classes below) describes the expected values. No message contains a
secret.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable
from ipaddress import ip_interface, ip_network
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar, Union, cast, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    SecretStr,
    Strict,
    ValidationError,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from oxproxy.values import LONGEST_NAME_BYTES, reserved_prefix
from oxproxy.yamlfile.document import Faults, Mapping, Node, Place, Scalar, Sequence, describe, join, walk
from oxproxy.yamlfile.hosts import HostPort, parse_address

JsonSchemaValue: TypeAlias = dict[str, Any]

#: Alias prefix for a field that is not a key in the file.
_NO_KEY = "\0"
_STRING: JsonSchemaValue = {"type": "string"}
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
#: The index of a list item in a path.
_INDEX = re.compile(r"\[[0-9]+\]")
#: References to variables in a shell, in Kubernetes and in templates.
_VARIABLE = re.compile(r"\$\{\w[^}]*\}|\$\(\w+\)|\{\{.+?\}\}")


class Keys:
    """A mapping in a file, its dotted path, and the collector of its errors. Methods return the positions of its keys.

    Args:
        node: the mapping, or the node that the file contains instead of a mapping.
        path: dotted path of the node; empty for the whole file.
    """

    __slots__ = ("_mapping", "faults", "node", "path")

    def __init__(self, node: Node, faults: Faults, path: str = "") -> None:
        self.node = node
        self.faults = faults
        self.path = path
        self._mapping = node if isinstance(node, Mapping) else Mapping(node.place, [])

    def __contains__(self, key: str) -> bool:
        return self._mapping.entry(key) is not None

    @property
    def place(self) -> Place:
        return self.node.place

    def at(self, key: str) -> str:
        return join(self.path, key)

    def place_of(self, key: str) -> Place:
        """Return the position of a key, or of the mapping if the key is missing."""
        entry = self._mapping.entry(key)
        return entry[0].place if entry else self.place

    def value(self, key: str) -> Node | None:
        entry = self._mapping.entry(key)
        return entry[1] if entry else None

    def remove(self, key: str) -> None:
        self._mapping.entries = [entry for entry in self._mapping.entries if entry[0].text != key]

    def section(self, key: str) -> Keys:
        """Return the mapping at a key. If the key is missing, the position is that of this mapping."""
        return Keys(self.value(key) or self.node, self.faults, self.at(key))

    def invalid(self, message: str) -> None:
        """Report an error about the whole mapping."""
        self.faults.error(self.place, self.path, message)

    def error(self, key: str, message: str) -> None:
        self.faults.error(self.place_of(key), self.at(key), message)

    def warn(self, key: str, message: str) -> None:
        self.faults.warn(self.place_of(key), self.at(key), message)


class FileModel(BaseModel):
    """A mapping in a file, with strict types and without unknown keys.

    The string after a field describes its key in the JSON Schema and in the documentation.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        defer_build=True,
        validate_by_name=True,
        validate_by_alias=True,
        protected_namespaces=(),
        use_attribute_docstrings=True,
    )
    #: By unknown key that is often written in this mapping: what is probably meant.
    misplaced: ClassVar[dict[str, str]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        for field in cls.model_fields.values():
            field.description = field.description and " ".join(field.description.split())


M = TypeVar("M", bound=FileModel)


def key_names(model: type[BaseModel]) -> dict[str, tuple[str, FieldInfo]]:
    """Return the keys of a model's mapping, each with its attribute and field."""
    fields = ((info.alias or name, name, info) for name, info in model.model_fields.items())
    return {key: (name, info) for key, name, info in fields if not key.startswith(_NO_KEY)}


# -- the adapter -------------------------------------------------------------------------------------------------------


def read_model(model: type[M], keys: Keys) -> M | None:
    """Read a mapping as a model and report every error in it.

    Returns:
        The model without the invalid values; None if a required value is missing or invalid.
    """
    data = _as_data(keys.node)
    reported = False
    while True:
        try:
            return model.model_validate(data, by_alias=True, by_name=False)
        except ValidationError as error:
            details = _causes(error.errors(include_url=False, include_input=False))
            for detail in () if reported else details:
                _report(model, keys, detail)
            reported = True
            pruned = [_prune(data, detail) for detail in details]
            if not all(pruned):
                return None
            _close_gaps(data)


def _causes(details: list[ErrorDetails]) -> list[ErrorDetails]:
    """Remove errors about a list's length that result from errors in its items."""
    within = {detail["loc"][:length] for detail in details for length in range(len(detail["loc"]))}
    return [detail for detail in details if detail["type"] != "too_short" or detail["loc"] not in within]


def _as_data(node: Node) -> object:
    """Convert a tree to input for pydantic. Nodes that no type accepts are not converted.

    These are scalars with a local tag, floats, and nodes without a value. A float in a file is never valid; the only
    valid floats are durations and times that have been converted from strings.
    """
    if isinstance(node, Mapping):
        return {key.text: _as_data(child) for key, child in node.entries}
    if isinstance(node, Sequence):
        return [_as_data(item) for item in node.items]
    if isinstance(node, Scalar) and not node.absent and node.tag is None and not isinstance(node.value, float):
        return node.value
    return node


_GONE = object()


def _prune(data: object, detail: ErrorDetails) -> bool:
    """Remove the invalid value or incomplete item. Return False if nothing can be removed."""
    loc = detail["loc"][:-1] if detail["type"] == "missing" else detail["loc"]
    chain: list[tuple[Any, Any]] = []
    inner: Any = data
    for step in loc:
        if (isinstance(inner, dict) and step in inner) or (isinstance(inner, list) and isinstance(step, int)):
            chain.append((inner, step))
            inner = cast("Any", inner)[step]
    if not chain:
        return False
    container, key = chain[-1]
    if isinstance(container, dict):
        del container[key]
    else:
        container[key] = _GONE
    return True


def _close_gaps(data: object) -> None:
    if isinstance(data, list):
        data[:] = [item for item in data if item is not _GONE]
    for child in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        _close_gaps(child)


def _report(model: type[BaseModel], keys: Keys, detail: ErrorDetails) -> None:
    """Report a pydantic error with its position, the value found and the values expected."""
    node: Node | None = keys.node
    place, path = keys.place, keys.path
    for step in detail["loc"]:
        if isinstance(node, Mapping) and isinstance(step, str):
            entry, path = node.entry(step), join(path, step)
            node, place = (entry[1], entry[1].place) if entry else (None, place)
            if entry and detail["type"] == "extra_forbidden":
                place = entry[0].place
        elif isinstance(node, Sequence) and isinstance(step, int):
            node, path = node.items[step], join(path, step)
            place = node.place
    keys.faults.error(place, path, _message(model, node, detail))


def _message(model: type[BaseModel], node: Node | None, detail: ErrorDetails) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "fault":
        return str(context["message"])
    if kind == "extra_forbidden":
        owner = key_type(model, *detail["loc"][:-1]).type
        unknown = str(detail["loc"][-1])
        meant = owner.misplaced.get(unknown)
        return f"unknown key{f'; did you mean {meant}?' if meant else suggestion(unknown, key_names(owner))}"
    key = key_type(model, *detail["loc"])
    stated = next((mark for mark in key.marks if isinstance(mark, Expected)), None)
    if kind == "missing":
        return f"missing, expected {stated.expected if stated else key.description or 'a value'}"
    if kind in ("model_type", "dict_type"):
        return f"got {_shape(node)}, expected a mapping"
    seen = describe(node)
    if kind in ("tuple_type", "too_short"):
        least = any(getattr(mark, "min_length", 0) for mark in key.marks)
        seen = "an empty list" if kind == "too_short" else seen
        return f"got {seen}, expected a list{' with at least one item' if least else ''}"
    if kind == "literal_error":
        words = [str(word).lower() if isinstance(word, bool) else word for word in get_args(key.type)]
        return f"got {seen}, expected {'one of ' * (len(words) > 1)}{', '.join(words)}"
    if stated is None:
        return f"got {seen}, expected true or false" if kind == "bool_type" else f"got {seen}: {detail['msg']}"
    if stated.hidden:
        is_text = isinstance(node, Scalar) and isinstance(node.value, str)
        return f"got {'another string' if is_text else 'a value that is not a string'}, expected {stated.expected}"
    expected = str(context["error"]) if kind == "value_error" else ""
    quotes = stated.quotes and kind == "string_type" and isinstance(node, Scalar) and not node.absent
    return f"got {seen}, expected {expected or stated.expected}{': put it in quotes' if quotes else ''}"


def _shape(node: Node | None) -> str:
    """Describe a node that is not a mapping, without its text, which may be a password."""
    if not isinstance(node, Scalar) or node.absent or node.value is None or isinstance(node.value, bool):
        return describe(node)
    return "a single value" if isinstance(node.value, str) else "a number"


class KeyType(NamedTuple):
    """The declared type of a key, or of an item of a list.

    Args:
        type: the type without ``Annotated`` and None.
        marks: the metadata in ``Annotated``.
        optional: whether null is allowed.
    """

    type: Any
    marks: tuple[Any, ...] = ()
    optional: bool = False
    description: str | None = None

    @property
    def several(self) -> bool:
        return get_origin(self.type) is tuple

    @property
    def item(self) -> Any:
        """The type of the list's items; if the type is not a list, the type itself."""
        return _unwrapped(get_args(self.type)[0]).type if self.several else self.type

    @property
    def is_section(self) -> bool:
        """True if the type is a model or a list of models."""
        return isinstance(self.item, type) and issubclass(self.item, BaseModel)


def key_type(model: type[BaseModel], *steps: str | int) -> KeyType:
    """Return the type at a path of keys and indexes in a model. An unknown key has the type None."""
    key = KeyType(model)
    for step in steps:
        arguments = get_args(key.type)
        if isinstance(key.type, type) and issubclass(key.type, BaseModel):
            field = key_names(key.type)[str(step)][1] if step in key_names(key.type) else None
            annotation: Any = field.annotation if field else None
            key = _unwrapped(annotation, field.metadata if field else (), field.description if field else None)
        elif arguments and not (isinstance(step, int) and get_origin(key.type) is Literal):
            key = _unwrapped(arguments[-1] if get_origin(key.type) is dict else arguments[0])
    return key


def _unwrapped(annotation: Any, marks: Iterable[Any] = (), description: str | None = None) -> KeyType:
    """Return a type without ``Annotated`` and None."""
    metadata, optional = [*marks], False
    while get_origin(annotation) in (Annotated, Union, UnionType):
        if get_origin(annotation) is Annotated:
            annotation, *more = get_args(annotation)
            metadata += more
        else:
            optional = True
            annotation = next(argument for argument in get_args(annotation) if argument is not type(None))
    return KeyType(annotation, tuple(metadata), optional, description)


def suggestion(name: str, known: Iterable[str]) -> str:
    """Suggest a similar name, or the only known name that begins with this name; otherwise, list all names."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, 1, 0.75)
    begun = [key for key in known if len(name) > 1 and key.startswith(name)]
    if near or len(begun) == 1:
        return f"; did you mean {(near or begun)[0]}?"
    return f", expected one of {', '.join(known)}"


def warn_of_variables(keys: Keys) -> None:
    """Warn, without showing the text, about strings that look like shell or template variables."""
    for where, _, node in walk(keys.node, keys.path):
        if isinstance(node, Scalar) and node.place.line and _VARIABLE.search(node.text):
            key = _INDEX.sub("", where)
            ways = "use password_env or password_file" if key.endswith("password") else "write the value itself"
            keys.faults.warn(node.place, key, f"got a variable reference, which is not expanded; {ways}")


# -- the types of values -----------------------------------------------------------------------------------------------


class Expected:
    """Metadata for ``Annotated``: describes the expected value in messages.

    Args:
        hidden: whether the value must be kept out of messages.
        quotes: whether a scalar of another type becomes valid when it is put in quotes.
    """

    def __init__(self, expected: str, hidden: bool = False, quotes: bool = True) -> None:
        self.expected = expected
        self.hidden = hidden
        self.quotes = quotes


class Whole(Expected):
    """Whole numbers within bounds."""

    def __init__(self, low: int, high: int) -> None:
        super().__init__(f"an integer from {low} to {high}")
        self._schema = core_schema.int_schema(strict=True, ge=low, le=high)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return self._schema


class Parsed(Expected):
    """Strings converted by a function. Values that are already converted (a default, a copy) are accepted unchanged.

    Args:
        parse: converts a string. Raises ValueError with the expected value, or `fault` with a complete message.
        made: the type of the converted values.
        written: the JSON Schema of the string.
    """

    def __init__(
        self,
        expected: str,
        parse: Callable[[str], object],
        made: type | tuple[type, ...] = (),
        written: JsonSchemaValue = _STRING,
        hidden: bool = False,
        quotes: bool = True,
    ) -> None:
        super().__init__(expected, hidden, quotes)
        self._parse = parse
        self._made = made
        self._written = written

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(self._value, core_schema.str_schema(strict=True))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return dict(self._written)

    def _value(self, value: object, string: Callable[[object], str]) -> object:
        return value if isinstance(value, self._made) else self._parse(string(value))


class Duration(Parsed):
    """Durations within bounds, in seconds, written as ``500ms``, ``5s``, ``2m`` or ``1h``."""

    def __init__(self, low: float, high: float) -> None:
        expected = f"a duration with its unit such as 500ms, 5s, 2m or 1h, from {low:g}s to {high:g}s"
        written = {"type": "string", "pattern": r"^[0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h)$"}
        super().__init__(expected, self._seconds, float, written, quotes=False)
        self._bounds = low, high

    def _seconds(self, text: str) -> float:
        parts = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)", text)
        seconds = float(parts[1]) * _UNITS[parts[2]] if parts else math.nan
        if not self._bounds[0] <= seconds <= self._bounds[1]:
            raise ValueError(self.expected)
        return seconds


class Name(Parsed):
    """The name of a queue or an exchange, or a routing key, as bytes. A routing key may be empty."""

    def __init__(self, expected: str, empty: bool = False) -> None:
        length: JsonSchemaValue = {} if empty else {"minLength": 1}
        written = {"type": "string", **length, "maxLength": LONGEST_NAME_BYTES}
        super().__init__(expected, self._encoded, bytes, written)
        self._empty = empty

    def _encoded(self, text: str) -> bytes:
        wrong = short_fault(text.encode()) if self._empty else name_fault(text)
        if wrong:
            raise fault(f"got {wrong}, expected {self.expected}")
        return text.encode()


class _OneOrMore:
    """A list as a tuple. A single value is accepted as a list with one item."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._items, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        several = handler(schema)
        return {"anyOf": [several["items"], several]}

    def _items(self, value: object) -> object:
        return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _address(least: int) -> Parsed:
    expected = "host:port such as 127.0.0.1:5672 or [::1]:5672"
    return Parsed(expected, lambda text: parse_address(text, least), HostPort, quotes=False)


def fault(message: str) -> PydanticCustomError:
    return PydanticCustomError("fault", "{message}", {"message": message})


def _network(text: str) -> str:
    try:
        ip_network(text)
    except ValueError:
        try:
            wide = ip_interface(text)
        except ValueError:
            raise ValueError("an address or a network such as 10.0.0.0/8 or fd00::/8") from None
        message = (
            f'got the string "{text}", which is an address inside the network; expected {wide.network} or {wide.ip}'
        )
        raise fault(message) from None
    return text


def _host_name(text: str) -> str:
    if not _HOST_NAME_FORM.fullmatch(text):
        raise ValueError(_HOST_NAME)
    return text


def _http_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
        good = good and (parts.port is None or parts.port > 0) and not parts.query and not parts.fragment
    except ValueError:
        good = False
    if not good:
        # The text is not shown, since it may contain a password.
        raise ValueError(_HTTP)
    return text.rstrip("/")


_HOST_NAME = "a host name without a port, such as proxy.example"
_HOST_NAME_FORM = re.compile(r"[\w.-]+")
_HTTP = "http://host:port or https://host:port; set the credentials in upstream.control"
_HIDDEN = "a password, in quotes if YAML would not read it as a string"
#: Permits converting a list to a tuple.
LISTED = Strict(False)
ONE_OR_MORE = _OneOrMore()
#: Default value for a field whose key can be omitted, but whose value must not be null.
NOTHING: Any = None
Text: TypeAlias = Annotated[str, Expected("a string")]
Texts: TypeAlias = Annotated[tuple[Text, ...], ONE_OR_MORE]
HostName: TypeAlias = Annotated[str, Parsed(_HOST_NAME, _host_name)]
Network: TypeAlias = Annotated[str, Parsed("an address or a network (CIDR)", _network)]
HttpUrl: TypeAlias = Annotated[
    str, Parsed(_HTTP, _http_url, written={"type": "string", "pattern": "^ *[Hh][Tt][Tt][Pp][Ss]?://"}, hidden=True)
]
#: A password; no message shows it.
Password: TypeAlias = Annotated[SecretStr, Parsed(_HIDDEN, SecretStr, SecretStr, hidden=True)]
#: ``host:port``, with an IPv6 host in brackets.
Address: TypeAlias = Annotated[HostPort, _address(least=1)]
#: A listening address, written in the same form. Port 0 stands for any free port.
ListenAddress: TypeAlias = Annotated[HostPort, _address(least=0)]
Table: TypeAlias = dict[str, Any]


def path_in(folder: Path, name: str | None) -> Path | None:
    """Return the path of a file that a key names relative to a directory; None if the key is missing."""
    return None if name is None else folder / name


def name_fault(text: str) -> str | None:
    """Return the reason why a string is not a valid name for a queue or an exchange; None if it is valid."""
    if "\n" in text or "\r" in text:
        return "a name with a line break, which the broker would remove"
    return short_fault(text.encode()) if text else "an empty name"


def short_fault(name: bytes) -> str | None:
    """Return the reason why a name or routing key can't be used in rules; None if it can."""
    if len(name) > LONGEST_NAME_BYTES:
        return f"{len(name)} bytes, more than the {LONGEST_NAME_BYTES} that the protocol allows"
    prefix = reserved_prefix(name)
    if prefix:
        return f"a name with the prefix {prefix.decode()}, which is reserved for the sidecar"
    return None
