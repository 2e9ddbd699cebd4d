"""What does the configuration say of TLS? Files and names, for the listeners' side and for the broker's.

Files are looked for, not read: whether they can be used is seen when contexts are made of them.

Source: the interface of the configuration.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from proxy.config.declaration import Key
from proxy.yamlfile.faults import Faults, Place
from proxy.yamlfile.kinds import FLAG, TEXT, HostPort, optional, word
from proxy.yamlfile.nodes import join


@dataclass(frozen=True, slots=True)
class ListenTls:
    """TLS for producers."""

    certificate: Annotated[
        str | None, Key(optional(TEXT), "file of our certificate and those that lead to its authority (PEM); required")
    ] = None
    key: Annotated[str | None, Key(optional(TEXT), "file of its private key (PEM, without a passphrase); required")] = (
        None
    )
    client_ca: Annotated[
        str | None, Key(optional(TEXT), "file of authorities: producers need a certificate of one of them")
    ] = None
    client_verify: Annotated[
        str,
        Key(
            word("required", "optional"),
            "with `client_ca`: whether a producer without a certificate is refused (`required`) or not (`optional`)",
        ),
    ] = "required"


@dataclass(frozen=True, slots=True)
class UpstreamTls:
    """TLS to the broker, and to its management API where that is https."""

    ca: Annotated[str | None, Key(optional(TEXT), "file of the authorities to trust (PEM); `null`: the system's")] = (
        None
    )
    verify: Annotated[bool, Key(FLAG, "whether chain and name of the broker's certificate are checked")] = True
    server_name: Annotated[
        str | None, Key(optional(TEXT), "name that the certificate must have; `null`: the host of the address")
    ] = None
    certificate: Annotated[
        str | None, Key(optional(TEXT), "file of our certificate (PEM), for a broker that asks for one")
    ] = None
    key: Annotated[str | None, Key(optional(TEXT), "file of its private key (PEM, without a passphrase)")] = None


@dataclass(frozen=True, slots=True)
class TlsChecks:
    """Finds what is wrong with settings of TLS.

    Args:
        folder: that of the configuration.
        places: of every key that was written.
        faults: takes the faults.
        required: whether files must be there; where not, their absence is a warning.
    """

    folder: Path
    places: dict[str, Place]
    faults: Faults
    required: bool

    def listener(self, tls: ListenTls | None, path: str) -> None:
        """Check one listener's."""
        if tls is None:
            return
        for name in ("certificate", "key"):
            if getattr(tls, name) is None:
                self._error(join(path, name), path, "seen nothing, expected the name of a file")
        if tls.client_ca is None and join(path, "client_verify") in self.places:
            self._error(join(path, "client_verify"), path, "without client_ca no certificate is asked for")
        self._files(path, certificate=tls.certificate, key=tls.key, client_ca=tls.client_ca)

    def upstream(self, tls: UpstreamTls | None, path: str, addresses: Iterable[HostPort]) -> None:
        """Check the broker's, and say where passwords would cross a network in plain text."""
        if tls is None:
            far = [str(address) for address in addresses if not address.loopback]
            if far:
                message = f"without upstream.tls, passwords go to {far[0]} as plain text"
                self.faults.warn(self._place("upstream.address", "upstream"), "upstream.address", message)
            return
        if (tls.certificate is None) != (tls.key is None):
            self._error(path, path, "certificate and key go together")
        if not tls.verify:
            message = "whoever is in between can pretend to be the broker, and read passwords"
            self.faults.warn(self._place(join(path, "verify"), path), join(path, "verify"), message)
        self._files(path, ca=tls.ca, certificate=tls.certificate, key=tls.key)

    def _files(self, path: str, **names: str | None) -> None:
        for key, name in names.items():
            why = "" if name is None else _absence(self.folder / name)
            if why:
                report = self.faults.error if self.required else self.faults.warn
                where = join(path, key)
                report(self._place(where, path), where, f"{self.folder / (name or '')}: {why}")

    def _error(self, path: str, above: str, message: str) -> None:
        self.faults.error(self._place(path, above), path, message)

    def _place(self, path: str, above: str) -> Place:
        return self.places.get(path) or self.places.get(above) or Place("configuration", 0)


def _absence(file: Path) -> str:
    """Say why a file can't be found; nothing where it is there."""
    try:
        return "" if file.is_file() else "there is no such file"
    except OSError as error:  # such as a folder that we may not look into
        return error.strerror or str(error)
