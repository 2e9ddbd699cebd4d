"""Pydantic models of YAML files: how values are written, and what is reported about those that are not as expected.

`read_model` is the adapter: it validates a tree of nodes with a model and reports every error of pydantic at the file,
line, column and key of its node. What can't be used is left out and its default taken, so that the checks that follow
find their faults in the same run.

A type states what it expects (`Expected`, or one of the value types below); no message shows the text of a secret.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable
from ipaddress import ip_interface, ip_network
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar, cast, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, PydanticOmit, core_schema

from proxy.values import reserved_prefix
from proxy.yamlfile.document import Faults, Mapping, Node, Place, Scalar, Sequence, describe, join
from proxy.yamlfile.hosts import HostPort, parse_address

JsonSchemaValue: TypeAlias = dict[str, Any]

#: AMQP 0-9-1 spec, 4.2.5.3: names and routing keys are short strings.
MAX_SHORT_BYTES = 255
#: What begins the alias of a field that is no key of the file.
_NO_KEY = "\0"
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
#: Variables of a shell, of Kubernetes and of templates.
_VARIABLE = re.compile(r"\$\{\w[^}]*\}|\$\(\w+\)|\{\{.+?\}\}")


class Keys:
    """A mapping of a file with its dotted path: the places of its keys, for faults that are found later.

    Args:
        node: the mapping, or what stands in its place.
        path: its dotted path, empty for the whole file.
        faults: takes what `error` reports.
    """

    __slots__ = ("_node", "faults", "path")

    def __init__(self, node: Node, path: str, faults: Faults) -> None:
        self._node = node if isinstance(node, Mapping) else Mapping(node.place, [])
        self.path = path
        self.faults = faults

    def __contains__(self, key: str) -> bool:
        """Whether a key was written."""
        return self._node.entry(key) is not None

    @property
    def place(self) -> Place:
        """Where the mapping begins."""
        return self._node.place

    def at(self, key: str) -> str:
        """Dotted path of a key."""
        return join(self.path, key)

    def place_of(self, key: str) -> Place:
        """Where a key was written, or the mapping where it was not."""
        entry = self._node.entry(key)
        return entry[0].place if entry else self._node.place

    def value(self, key: str) -> Node | None:
        """What stands under a key; None where it was not written."""
        entry = self._node.entry(key)
        return entry[1] if entry else None

    def error(self, key: str, message: str) -> None:
        """Report a fault at a key."""
        self.faults.error(self.place_of(key), self.at(key), message)


class FileModel(BaseModel):
    """A mapping of a file: strict types, no other keys."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        defer_build=True,
        validate_by_name=True,
        validate_by_alias=True,
        protected_namespaces=(),
    )


M = TypeVar("M", bound=FileModel)


def key_names(model: type[BaseModel]) -> dict[str, tuple[str, FieldInfo]]:
    """The keys of a model's mapping, each with its attribute and field."""
    fields = ((info.alias or name, name, info) for name, info in model.model_fields.items())
    return {key: (name, info) for key, name, info in fields if not key.startswith(_NO_KEY)}


# -- the adapter -------------------------------------------------------------------------------------------------------


def read_model(model: type[M], node: Node, faults: Faults, path: str = "") -> M | None:
    """Read a node as a model and report everything that is wrong with it.

    Args:
        model: what it must be.
        node: the mapping, or what stands in its place.
        faults: takes every fault.
        path: the node's dotted path.

    Returns:
        The model, without what was wrong; None where what is left is not enough for one.
    """
    data = _plain(node)
    reported = False
    while True:
        try:
            return model.model_validate(data, by_alias=True, by_name=False)
        except ValidationError as error:
            details = _causes(error.errors(include_url=False, include_input=False))
            for detail in () if reported else details:
                _report(model, node, path, detail, faults)
            reported = True
            pruned = [_prune(data, detail) for detail in details]
            if not all(pruned):
                return None
            _close_gaps(data)


def _causes(details: list[ErrorDetails]) -> list[ErrorDetails]:
    """Leave out that a list is too short where that follows from what is wrong with its items."""
    within = {detail["loc"][:length] for detail in details for length in range(len(detail["loc"]))}
    return [detail for detail in details if detail["type"] != "too_short" or detail["loc"] not in within]


def _plain(node: Node) -> object:
    """Give a tree as pydantic takes it; what no type accepts (no value, a local tag) remains a node."""
    if isinstance(node, Mapping):
        return {key.text: _plain(child) for key, child in node.entries}
    if isinstance(node, Sequence):
        return [_plain(item) for item in node.items]
    if isinstance(node, Scalar) and not node.absent and node.tag is None:
        return node.value
    return node


_GONE = object()


def _prune(data: object, detail: ErrorDetails) -> bool:
    """Take out what an error is about, or the item that can't be without it; False where nothing is left."""
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


def _report(model: type[BaseModel], root: Node, path: str, detail: ErrorDetails, faults: Faults) -> None:
    """Report an error of pydantic: where, what was seen, what was expected."""
    node: Node | None = root
    place = root.place
    for step in detail["loc"]:
        if isinstance(node, Mapping) and isinstance(step, str):
            entry, path = node.entry(step), join(path, step)
            node, place = (entry[1], entry[1].place) if entry else (None, place)
            if entry and detail["type"] == "extra_forbidden":
                place = entry[0].place
        elif isinstance(node, Sequence) and isinstance(step, int):
            node, path = node.items[step], f"{path}[{step}]"
            place = node.place
    faults.error(place, path, _message(model, node, detail))


def _message(model: type[BaseModel], node: Node | None, detail: ErrorDetails) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "fault":
        return str(context["message"])
    if kind == "extra_forbidden":
        owner = _walk(model, detail["loc"][:-1])[0]
        return f"unknown key{_meant(str(detail['loc'][-1]), key_names(owner))}"
    if kind == "hidden":
        return f"seen something else than a text, expected {context['expected']}"
    seen = describe(node)
    if kind in ("model_type", "dict_type"):
        return f"seen {_shape(node)}, expected a mapping"
    field = _walk(model, detail["loc"])[1]
    if kind == "missing":
        return f"seen nothing, expected {_expectation(field)}"
    if kind in ("list_type", "tuple_type", "too_short"):
        least = any(getattr(mark, "min_length", 0) for mark in (field.metadata if field else ()))
        seen = "an empty list" if kind == "too_short" else seen
        return f"seen {seen}, expected a list{' with at least one item' if least else ''}"
    if kind == "literal_error":
        allowed = re.findall(r"'([^']*)'", str(context["expected"]))
        return f"seen {seen}, expected {'one of ' * (len(allowed) > 1)}{', '.join(allowed)}"
    if kind == "bool_type":
        return f"seen {seen}, expected true or false"
    quotes = (
        kind == "text" and isinstance(node, Scalar) and not node.absent and (node.tag or type(node.value) is not str)
    )
    expected = context.get("expected") or detail["msg"]
    return f"seen {seen}, expected {expected}{': put it in quotes' if quotes else ''}"


def _shape(node: Node | None) -> str:
    """What was seen in place of a mapping; not its text, which may be a password."""
    if not isinstance(node, Scalar) or node.absent or node.value is None or isinstance(node.value, bool):
        return describe(node)
    return "a single value" if isinstance(node.value, str) else "a number"


def _walk(model: type[BaseModel], loc: Iterable[int | str]) -> tuple[Any, FieldInfo | None]:
    """Follow keys from a model: the type that they lead to, and the field of the last one."""
    kind: Any = model
    field: FieldInfo | None = None
    for step in loc:
        if isinstance(step, int) or get_origin(kind) is dict:
            kind = _item(kind)
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            field = key_names(kind)[step][1] if step in key_names(kind) else None
            kind = _unwrap(field.annotation) if field else None
    return kind, field


class KeyType(NamedTuple):
    """What the value of a key is, or an item of it where it is a list."""

    model: Any
    several: bool
    optional: bool


def key_type(model: type[BaseModel], *keys: str) -> KeyType:
    """Follow keys, and numbers of items, from a model; an unknown key has the type None."""
    kind, field = _walk(model, [int(key) if key.isdigit() else key for key in keys])
    annotation = field.annotation if field else None
    several = not keys[-1].isdigit() and get_origin(kind) is tuple
    return KeyType(_item(kind) if several else kind, several, type(None) in get_args(annotation))


def _item(kind: Any) -> Any:
    arguments = get_args(kind)
    return _unwrap(arguments[-1] if get_origin(kind) is dict else arguments[0]) if arguments else kind


def _unwrap(kind: Any) -> Any:
    """The type inside ``Annotated`` and beside None."""
    while get_origin(kind) is not None and get_origin(kind) not in (tuple, dict):
        kind = next(argument for argument in get_args(kind) if argument is not type(None))
    return kind


def _expectation(field: FieldInfo | None) -> str:
    for mark in field.metadata if field else ():
        if isinstance(mark, Expected):
            return mark.expected
    return (field.description if field else None) or "a value"


def _meant(name: str, known: Iterable[str]) -> str:
    """Name the key that was probably meant: one that is much alike, or the only one that begins so; else all keys."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, 1, 0.75)
    begun = [key for key in known if len(name) > 1 and key.startswith(name)]
    if near or len(begun) == 1:
        return f"; did you mean {(near or begun)[0]}?"
    return f", expected one of {', '.join(known)}"


def warn_of_variables(node: Node, path: str, faults: Faults) -> None:
    """Point at text that looks like a variable of a shell or a template, which nothing replaces here; never show it."""
    if isinstance(node, Mapping):
        for key, child in node.entries:
            warn_of_variables(child, join(path, key.text), faults)
    for item in node.items if isinstance(node, Sequence) else [node]:
        if isinstance(item, Mapping) and item is not node:
            warn_of_variables(item, path, faults)
        if isinstance(item, Scalar) and item.place.line and _VARIABLE.search(item.text):
            ways = "use password_env or password_file" if path.endswith("password") else "write the value itself"
            faults.warn(item.place, path, f"seen what looks like a variable, which is not replaced here: {ways}")


# -- the types of values -----------------------------------------------------------------------------------------------


class ValueType:
    """One way to write a value, put into ``Annotated`` beside its Python type."""

    #: what JSON Schema says of it; None: what pydantic derives from the Python type
    written: JsonSchemaValue | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return self.core_schema(lambda: handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(schema) if self.written is None else dict(self.written)

    def core_schema(self, inner: Callable[[], CoreSchema]) -> CoreSchema:
        """What checks a value; `inner` gives what checks the Python type."""
        raise NotImplementedError


class Expected(ValueType):
    """States what a value must be; pydantic's own errors for it become this one.

    Args:
        expected: what it must be, for messages.
        kind: ``expected``; ``text`` for strings, which quotes make of anything; ``hidden`` where no message may show
            the value.
    """

    def __init__(self, expected: str, kind: str = "expected") -> None:
        self.expected = expected
        self.kind = kind

    def core_schema(self, inner: Callable[[], CoreSchema]) -> CoreSchema:
        return self._stated(inner())

    def _stated(self, schema: CoreSchema) -> CoreSchema:
        return core_schema.custom_error_schema(
            schema,
            custom_error_type=self.kind,
            custom_error_message="{expected}",
            custom_error_context={"expected": self.expected},
        )


class Whole(Expected):
    """Whole numbers within bounds."""

    def __init__(self, low: int, high: int) -> None:
        super().__init__(f"a whole number from {low} to {high}")
        self._schema = core_schema.int_schema(strict=True, ge=low, le=high)

    def core_schema(self, inner: Callable[[], CoreSchema]) -> CoreSchema:
        return self._stated(self._schema)


class Parsed(Expected):
    """Strings that a function turns into values; others were made so already (defaults, copies).

    Args:
        expected: what it must be, for messages.
        parse: gives the value; ValueError has what was expected, `fault` a whole message.
        made: type of values that are taken as they are.
        written: what JSON Schema says of it.
        kind: as for `Expected`.
    """

    def __init__(
        self,
        expected: str,
        parse: Callable[[str], object],
        made: type | None = None,
        written: JsonSchemaValue | None = None,
        kind: str = "text",
    ) -> None:
        super().__init__(expected, kind)
        self.written = written
        self._parse = parse
        self._made = made

    def core_schema(self, inner: Callable[[], CoreSchema]) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(
            self._value, self._stated(core_schema.str_schema(strict=True))
        )

    def _value(self, value: object, string: Callable[[object], str]) -> object:
        if self._made is not None and isinstance(value, self._made):
            return value
        try:
            return self._parse(string(value))
        except (ValidationError, PydanticCustomError):
            raise
        except ValueError as error:
            kind = "hidden" if self.kind == "hidden" else "expected"
            raise PydanticCustomError(kind, "{expected}", {"expected": str(error)}) from None


class Checked(Expected):
    """Values that a function turns into others, whatever they are; ValueError means that it can't."""

    def __init__(self, expected: str, check: Callable[[Any], object], written: JsonSchemaValue) -> None:
        super().__init__(expected)
        self.written = written
        self._check = check

    def core_schema(self, inner: Callable[[], CoreSchema]) -> CoreSchema:
        return self._stated(core_schema.no_info_plain_validator_function(self._check))


class Duration(Parsed):
    """Durations within bounds, in seconds; written as ``500ms``, ``5s``, ``2m``, ``1h``."""

    def __init__(self, low: float, high: float) -> None:
        expected = f"a duration with its unit such as 500ms, 5s, 2m or 1h, from {low:g}s to {high:g}s"
        pattern = r"^[0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h)$"
        super().__init__(expected, self._seconds, float, {"type": "string", "pattern": pattern}, "expected")
        self._bounds = low, high

    def _seconds(self, text: str) -> float:
        parts = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)", text)
        seconds = float(parts[1]) * _UNITS[parts[2]] if parts else math.nan
        if not self._bounds[0] <= seconds <= self._bounds[1]:
            raise ValueError(self.expected)
        return seconds


class Name(Parsed):
    """The name of a queue or an exchange, or a routing key, as bytes.

    Args:
        expected: what it must be, for messages.
        empty: whether it may be empty.
    """

    def __init__(self, expected: str, empty: bool = False) -> None:
        length: JsonSchemaValue = {} if empty else {"minLength": 1}
        super().__init__(expected, self._encoded, bytes, {"type": "string", **length, "maxLength": MAX_SHORT_BYTES})
        self._empty = empty

    def _encoded(self, text: str) -> bytes:
        wrong = short_fault(text.encode()) if self._empty else name_fault(text)
        if wrong:
            raise fault(f"seen {wrong}, expected {self.expected}")
        return text.encode()


class _Several(ValueType):
    """A list, as a tuple.

    Args:
        single: whether one value stands for a list of it.
    """

    def __init__(self, single: bool) -> None:
        self._single = single

    def core_schema(self, inner: Callable[[], CoreSchema]) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._items, inner())

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        several = handler(schema)
        return {"anyOf": [several["items"], several]} if self._single else several

    def _items(self, value: object) -> object:
        if isinstance(value, list):
            return tuple(value)
        return (value,) if self._single and not isinstance(value, tuple) else value


class _NoKey(ValueType):
    """A field that is no key of the file: its alias begins with a zero byte, and no schema has it."""

    def core_schema(self, inner: Callable[[], CoreSchema]) -> CoreSchema:
        return core_schema.any_schema()

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        raise PydanticOmit


def one_of(*words: str) -> Parsed:
    def known(word: str) -> str:
        if word not in words:
            raise ValueError(expected)
        return word

    expected = f"one of {', '.join(words)}" if len(words) > 1 else words[0]
    return Parsed(expected, known, written={"enum": list(words)}, kind="expected")


def _address(least: int) -> Parsed:
    written = {"type": "string"}
    expected = "host:port such as 127.0.0.1:5672 or [::1]:5672"
    return Parsed(expected, lambda text: parse_address(text, least), HostPort, written, "expected")


def fault(message: str) -> PydanticCustomError:
    """An error whose message has everything."""
    return PydanticCustomError("fault", "{message}", {"message": message})


def _network(text: str) -> str:
    try:
        ip_network(text)
    except ValueError:
        try:
            wide = ip_interface(text)
        except ValueError:
            raise ValueError("an address or a network such as 10.0.0.0/8 or fd00::/8") from None
        message = f'seen the text "{text}", an address inside the network: expected {wide.network} or {wide.ip}'
        raise fault(message) from None
    return text


def _http_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
        good = good and (parts.port is None or parts.port > 0) and not parts.query and not parts.fragment
    except ValueError:
        good = False
    if not good:
        # The text is not shown: it may hold a password.
        raise ValueError(_HTTP)
    return text.rstrip("/")


_HTTP = "http://host:port or https://host:port, credentials go under control"
_HIDDEN = "a password, in quotes where it could be something else than a text"
_STRING: JsonSchemaValue = {"type": "string"}
LISTED = _Several(single=False)
ONE_OR_MORE = _Several(single=True)
NO_KEY = _NoKey()
#: The default of a key that may be left out and may not be null.
NOTHING: Any = None
Text: TypeAlias = Annotated[str, Expected("a text", "text")]
Texts: TypeAlias = Annotated[tuple[Text, ...], ONE_OR_MORE]
Network: TypeAlias = Annotated[str, Parsed("an address or a network (CIDR)", _network, written=_STRING)]
HttpUrl: TypeAlias = Annotated[
    str, Parsed(_HTTP, _http_url, written={"type": "string", "pattern": "^https?://"}, kind="hidden")
]
#: A password; no message shows it.
Password: TypeAlias = Annotated[SecretStr, Parsed(_HIDDEN, SecretStr, SecretStr, _STRING, "hidden")]
#: ``host:port``, an IPv6 host in brackets.
Address: TypeAlias = Annotated[HostPort, _address(least=1)]
#: The same where we listen: port 0 is any free one.
ListenAddress: TypeAlias = Annotated[HostPort, _address(least=0)]
Table: TypeAlias = dict[str, Any]


def name_fault(text: str) -> str | None:
    """Say what is wrong with a name of a queue or an exchange, None if it can be used."""
    return short_fault(text.encode()) if text else "an empty name"


def short_fault(name: bytes) -> str | None:
    """Say what is wrong with a name or routing key that rules may use, None if nothing is."""
    if len(name) > MAX_SHORT_BYTES:
        return f"{len(name)} bytes, the protocol allows {MAX_SHORT_BYTES}"
    prefix = reserved_prefix(name)
    if prefix:
        return f"a name under the prefix {prefix.decode()}, which is reserved for the proxy"
    return None
