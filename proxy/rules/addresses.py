"""The keys `addresses:` and `brokers:` of rules files: the address table and the brokers that it may name.

What patterns and translations mean is defined in the package `addressing`; its findings get file and line here. No
message shows a translation, which may hold a password. Where the passwords of brokers are is read here as well.

Source: the messenger-addressing specification, Part 2 and 3.2; the interface of rules files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Mapping as Environment
from dataclasses import dataclass
from pathlib import Path

from proxy.addressing.lint import Severity, check
from proxy.addressing.table import AddressRule, AddressTable
from proxy.addressing.targets import AddressBook
from proxy.errors import located
from proxy.rules.ruleset import AddressPlaces, BrokerRule, TlsRule
from proxy.yamlfile.document import Faults, Mapping, Node, Place, join
from proxy.yamlfile.fields import Fields, warn_of_variables
from proxy.yamlfile.kinds import (
    ADDRESS,
    SECRET,
    HostPort,
    Secret,
    T,
    UnexpectedError,
    ValueKind,
    duration,
    whole_number,
)


@dataclass(slots=True)
class ParsedAddress:
    """One rule of the address table; `fields` finds the places of its keys."""

    fields: Fields
    rule: AddressRule

    @property
    def places(self) -> AddressPlaces:
        """Where it was written."""
        fields = self.fields
        return AddressPlaces(fields.path, fields.place_of("translation"), fields.place_of("hosts"))


def read_addresses(fields: Fields) -> list[ParsedAddress]:
    """Read `addresses:` of a file."""
    found = (_address(Fields(node, path, fields.faults)) for path, node in fields.items("addresses"))
    return [parsed for parsed in found if parsed is not None]


def _address(fields: Fields) -> ParsedAddress | None:
    name = fields.text("name", "a name for explain")
    pattern = fields.text("pattern", "a pattern such as orders/*", required=True)
    translation = _quiet_text(fields, "translation", "an address such as /queue/q or amqps://broker/queue/q")
    hosts = [item.text.encode() for _, item in fields.texts("hosts", "a host, host:port, or *")]
    listed = "hosts" in fields
    fields.finish()
    if pattern is None or translation is None:
        return None
    if listed and not hosts:
        fields.error("hosts", "seen no host, expected a host, host:port, or *")
    rule = AddressRule(pattern.encode(), translation.encode(), name or "", tuple(hosts) if listed else None)
    return ParsedAddress(fields, rule)


def _quiet_text(fields: Fields, key: str, expected: str) -> str | None:
    """Read a required text that no message may show, since a password may stand in it."""
    node = fields.take(key)
    if node is None:
        fields.error(key, f"seen nothing, expected {expected}")
        return None
    try:
        return SECRET.read(node).reveal()
    except UnexpectedError:
        fields.faults.error(node.place, fields.at(key), f"seen something else than a text, expected {expected}")
        return None


def address_book(rules: Sequence[ParsedAddress], brokers: Iterable[BrokerRule], faults: Faults) -> AddressBook:
    """Compile the address table of one virtual host and report what is wrong or doubtful in it.

    Args:
        rules: of all its files, in order.
        brokers: that they may name.
        faults: takes the findings.
    """
    names = [broker.name for broker in brokers]
    table = AddressTable([parsed.rule for parsed in rules])
    findings = check(table, names)
    for finding in findings:
        fields = rules[finding.rule].fields
        report = faults.error if finding.severity is Severity.ERROR else faults.warn
        message = finding.message
        if finding.other is not None:
            place = rules[finding.other].fields.place
            message += f"; rule {finding.other} is in {located(place.source, place.line)}"
        report(fields.place_of(finding.key), fields.at(finding.key), message)
    wrong = {finding.rule for finding in findings if finding.severity is Severity.ERROR}
    book = AddressBook(table, names)
    for index, parsed in enumerate(rules):
        reason = "" if index in wrong else book.certain_failure(index)
        if reason:
            message = f"leads nowhere, whatever the address: {reason}"
            faults.warn(parsed.fields.place_of("translation"), parsed.fields.at("translation"), message)
    return book


_DEADLINE = duration(0.1, 3600)
_UNCONFIRMED = whole_number(1, 1_000_000)
_UNCONFIRMED_MIB = whole_number(1, 4096)
_LONGEST_NAME = 255
#: Keys whose value is right or wrong only where the sidecar runs.
_JUDGED_LATER = ("address", "password_env", "password_file")
_TLS_FILES = ("ca", "certificate", "key")


def read_brokers(fields: Fields, source: str) -> list[BrokerRule]:
    """Read `brokers:` of a file.

    Args:
        fields: the file.
        source: its name; the files that it names are relative to its directory.
    """
    table = fields.mapping("brokers")
    found = []
    for key, node in table.entries if table is not None else ():
        broker = _broker(key.text, key.place, Fields(node, join("brokers", key.text), fields.faults), source)
        if broker is not None:
            found.append(broker)
    return found


def _broker(name: str, place: Place, fields: Fields, source: str) -> BrokerRule | None:
    folder = Path(source).parent
    address = _read(fields, "address", ADDRESS)
    if "address" not in fields:
        fields.error("address", "seen nothing, expected host:port")
    places: dict[str, Place] = {}
    tls = _tls(fields, folder, places)
    username = fields.text("username", "the name of a user")
    warn_of_variables(fields.take("username"), fields.at("username"), fields.faults)
    password = _read(fields, "password", SECRET)
    variable = fields.text("password_env", "the name of an environment variable")
    file = fields.text("password_file", "the name of a file")
    vhost = fields.text("vhost", "the name of a virtual host")
    deadline = _read(fields, "deadline", _DEADLINE) or 10.0
    unconfirmed = _read(fields, "unconfirmed", _UNCONFIRMED) or 50_000
    mib = _read(fields, "unconfirmed_mib", _UNCONFIRMED_MIB) or 32
    fields.finish()
    if not name or any(sign in name for sign in "/:@[]~") or len(name.encode()) > _LONGEST_NAME:
        fields.faults.error(place, fields.path, "a broker's name is what stands for a host: no / : @ [ ] ~ in it")
        return None
    if address is None:
        return None
    _credentials(fields, address, tls is not None)
    return BrokerRule(
        name.encode(),
        address.host,
        address.port,
        tls,
        username,
        password,
        variable,
        folder / file if file is not None else None,
        vhost,
        deadline,
        unconfirmed,
        mib << 20,
        place,
        places | {key: fields.place_of(key) for key in _JUDGED_LATER},
    )


def _read(fields: Fields, key: str, kind: ValueKind[T]) -> T | None:
    node = fields.take(key)
    if node is not None:
        warn_of_variables(node, fields.at(key), fields.faults)
        try:
            return kind.read(node)
        except UnexpectedError as error:
            fields.faults.error(node.place, fields.at(key), str(error))
    return None


def _tls(fields: Fields, folder: Path, places: dict[str, Place]) -> TlsRule | None:
    node: Node | None = fields.take("tls")
    if node is None:
        return None
    if not isinstance(node, Mapping):
        fields.wrong("tls", "a mapping, {} for the system's authorities")
        return None
    inner = Fields(node, fields.at("tls"), fields.faults)
    names = [inner.text(key, "the name of a file") for key in _TLS_FILES]
    places |= {f"tls.{key}": inner.place_of(key) for key in _TLS_FILES}
    server_name = inner.text("server_name", "the name in the broker's certificate")
    inner.finish()
    ca, certificate, key = (folder / name if name is not None else None for name in names)
    if (certificate is None) != (key is None):
        fields.faults.error(inner.place, inner.path, "certificate and key go together")
    return TlsRule(ca, server_name, certificate, key)


def _credentials(fields: Fields, address: HostPort, tls: bool) -> None:
    ways = [key for key in ("password", "password_env", "password_file") if key in fields]
    if len(ways) > 1:
        fields.error(ways[1], f"seen {' and '.join(ways)}, expected one of them")
    if ways and "username" not in fields:
        fields.error(ways[0], "a password without a username")
    if "username" in fields and not ways:
        fields.error("username", "a username without password, password_env or password_file")
    if "password" in fields and not address.loopback:
        message = "a password as text, for a broker elsewhere: use password_env or password_file"
        fields.faults.warn(fields.place_of("password"), fields.at("password"), message)
    if ways and not tls and not address.loopback:
        message = "without tls the password is sent in plain text"
        fields.faults.warn(fields.place_of("address"), fields.at("address"), message)


def check_brokers(brokers: Sequence[BrokerRule], faults: Faults) -> None:
    """Report a broker that two places describe."""
    first: dict[bytes, BrokerRule] = {}
    for broker in brokers:
        other = first.setdefault(broker.name, broker)
        if other is not broker:
            path = join("brokers", broker.name.decode())
            faults.error(broker.place, path, f"{other.place.source}:{other.place.line} has a broker of this name")


def broker_password(
    broker: BrokerRule, environ: Environment[str, str], faults: Faults, required: bool = True
) -> Secret:
    """Find a broker's password.

    Args:
        broker: the broker.
        environ: the environment.
        faults: takes what is missing.
        required: whether it must be there; False makes its absence a warning, for a machine that must not know it.
    """
    if broker.password is not None:
        return broker.password
    key, message = "password_env", f'there is no environment variable "{broker.password_env}"'
    if broker.password_env is not None and broker.password_env in environ:
        return Secret(environ[broker.password_env])
    if broker.password_file is not None:
        try:
            return Secret(broker.password_file.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r"))
        except (OSError, UnicodeDecodeError) as error:
            cause = getattr(error, "strerror", None) or "not UTF-8 text"
            key, message = "password_file", f"{broker.password_file} can't be read: {cause}"
    if broker.password_env is not None or broker.password_file is not None:
        report = faults.error if required else faults.warn
        report(broker.places.get(key, broker.place), join(join("brokers", broker.name.decode()), key), message)
    return Secret("")
