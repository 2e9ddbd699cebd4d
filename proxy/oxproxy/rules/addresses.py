"""Reads the address table (`addresses:`) and the definitions of other brokers (`brokers:`) from rules files.

The package `addressing` defines patterns and translations, and `lint.addresses` checks them.

Source: the messenger-addressing specification, Part 2 and section 3.2; docs/reference/addresses.md.
"""

from __future__ import annotations

from collections.abc import Mapping as Environment
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import SecretStr

from oxproxy.addressing.table import AddressRule
from oxproxy.values import LONGEST_NAME_BYTES
from oxproxy.yamlfile.document import Faults, Place, Scalar, join
from oxproxy.yamlfile.hosts import HostPort
from oxproxy.yamlfile.models import (
    LISTED,
    NOTHING,
    Address,
    Duration,
    Expected,
    FileModel,
    Keys,
    Password,
    Whole,
    path_in,
    read_model,
    warn_of_variables,
)
from oxproxy.yamlfile.secret_sources import MissingSecret, read_password_source

_FileName: TypeAlias = Annotated[str, Expected("the name of a file")]


class AddressModel(FileModel):
    """One rule of the address table."""

    name: Annotated[str, Expected("a name for explain")] = NOTHING
    pattern: Annotated[str, Expected("a pattern such as orders/*")]
    """pattern of the addresses to translate, such as orders/*"""
    # No message may show the translation, since it may contain a password.
    translation: Annotated[str, Expected("an address such as /queue/q or amqps://broker/queue/q", hidden=True)]
    """the new address"""
    hosts: Annotated[tuple[Annotated[str, Expected("a host, host:port, or *")], ...], LISTED] = NOTHING
    """permitted hosts of a translation whose host contains a variable"""


class BrokerTlsModel(FileModel):
    """TLS settings for another broker, whose certificate is always verified."""

    ca: _FileName = NOTHING
    """file with trusted CA certificates (PEM); default: the system's"""
    certificate: _FileName = NOTHING
    """file with the client certificate (PEM)"""
    key: _FileName = NOTHING
    """file with the certificate's private key (PEM, no passphrase)"""
    server_name: Annotated[str, Expected("the name in the broker's certificate")] = NOTHING
    """host name expected in the broker's certificate; default: the host in the address"""


class BrokerModel(FileModel):
    """Another broker, defined for use in translations."""

    address: Address
    """host:port of the broker"""
    tls: BrokerTlsModel = NOTHING
    """TLS settings; {} uses the system's CA certificates"""
    username: Annotated[str, Expected("the name of a user")] = NOTHING
    """user name, unless the translation contains one"""
    password: Password = NOTHING
    """password in plain text; causes a warning unless the broker is on loopback"""
    password_env: Annotated[str, Expected("the name of an environment variable")] = NOTHING
    """environment variable that contains the password"""
    password_file: _FileName = NOTHING
    """file that contains the password"""
    vhost: Annotated[str, Expected("the name of a virtual host")] = NOTHING
    """virtual host; default: the producer's"""
    deadline: Annotated[float, Duration(0.1, 3600)] = 10.0
    """timeout of a publish to this broker"""
    unconfirmed: Annotated[int, Whole(1, 1_000_000)] = 50_000
    """number of unconfirmed publishes at which producers are paused"""
    unconfirmed_mib: Annotated[int, Whole(1, 4096)] = 32
    """total size of unconfirmed message bodies, in MiB, at which producers are paused"""


@dataclass(slots=True)
class ParsedAddress:
    """One rule of the address table. `fields` contains the positions of its keys."""

    fields: Keys
    rule: AddressRule

    @property
    def places(self) -> dict[str, tuple[Place, str]]:
        """Positions and paths of the keys whose values are verified later."""
        return {key: (self.fields.place_of(key), self.fields.at(key)) for key in ("translation", "hosts")}


def read_address(keys: Keys) -> ParsedAddress | None:
    model = read_model(AddressModel, keys)
    if model is None:
        return None
    hosts = None if model.hosts is None else tuple(host.encode() for host in model.hosts)
    if hosts == ():
        keys.error("hosts", "no host, expected a host, host:port, or *")
    return ParsedAddress(keys, AddressRule(model.pattern.encode(), model.translation.encode(), model.name or "", hosts))


@dataclass(frozen=True, slots=True)
class BrokerRule:
    """Another broker that translations may name.

    Args:
        settings: the broker's keys. File names in the settings are relative to `folder`, the directory of the rules
            file.
        places: positions of the keys whose values are verified later: address, password_env, password_file, and the
            files in tls.
    """

    name: bytes
    settings: BrokerModel
    folder: Path
    place: Place
    places: Environment[str, Place]

    @property
    def tls(self) -> BrokerTlsModel | None:
        """TLS settings; None for plain TCP."""
        return self.settings.tls

    @property
    def password_source(self) -> Path | str | None:
        """File or environment variable with the password; None if the password is in the settings or unnecessary."""
        return path_in(self.folder, self.settings.password_file) or self.settings.password_env


#: Keys whose values can be verified only on the sidecar's host.
_VERIFIED_LATER = ("address", "password_env", "password_file")
_TLS_FILES = ("ca", "certificate", "key")


def read_broker(name: Scalar, keys: Keys) -> BrokerRule | None:
    warn_of_variables(keys)
    model = read_model(BrokerModel, keys)
    if not name.text or any(sign in name.text for sign in "/:@[]~") or len(name.text.encode()) > LONGEST_NAME_BYTES:
        keys.faults.error(
            name.place, keys.path, "the name of a broker is used as a host, so it must not contain / : @ [ ] ~"
        )
        return None
    if model is None:
        return None
    _credentials(keys, model.address, model.tls is not None)
    places = {key: keys.place_of(key) for key in _VERIFIED_LATER}
    if model.tls is not None:
        inner = keys.section("tls")
        places |= {f"tls.{key}": inner.place_of(key) for key in _TLS_FILES}
        if (model.tls.certificate is None) != (model.tls.key is None):
            inner.invalid("certificate and key must be given together")
    return BrokerRule(name.text.encode(), model, Path(name.place.source).parent, name.place, places)


def _credentials(fields: Keys, address: HostPort, tls: bool) -> None:
    sources = [key for key in ("password", "password_env", "password_file") if key in fields]
    if len(sources) > 1:
        fields.error(sources[1], f"got {' and '.join(sources)}, expected one of them")
    if sources and "username" not in fields:
        fields.error(sources[0], "a password requires a username")
    if "username" in fields and not sources:
        fields.error("username", "a username requires password, password_env or password_file")
    if "password" in fields and not address.loopback:
        message = "the password is in plain text and the broker is not on loopback; use password_env or password_file"
        fields.warn("password", message)
    if sources and not tls and not address.loopback:
        fields.warn("address", "without tls the password is sent in plain text")


def broker_password(broker: BrokerRule, environ: Environment[str, str], faults: Faults) -> SecretStr:
    source = broker.password_source
    if source is None:
        return broker.settings.password or SecretStr("")
    try:
        return SecretStr(read_password_source(source, environ))
    except MissingSecret as missing:
        key = "password_file" if isinstance(source, Path) else "password_env"
        path = join(join("brokers", broker.name.decode()), key)
        faults.missing(broker.places.get(key, broker.place), path, str(missing))
    return SecretStr("")
