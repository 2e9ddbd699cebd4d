"""What does the address table make of one address, for people: rule, captures, result without its password, target.

Source: the messenger-addressing specification, 3.4 (a dry run that prints rule number, captures, result and target).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from proxy.addressing.address import without_password
from proxy.addressing.targets import AddressBook, FailedTranslation, Publication, address_of, publication_at

_HIDDEN = "***"


@dataclass(frozen=True, slots=True)
class Lookup:
    """One look into the address table; no text in it holds a password.

    Args:
        address: the address that was looked up.
        rule: number of the rule that was for it, from 0; None where none was.
        name: the rule's name.
        pattern: its pattern.
        captures: what its wildcards took.
        result: what it made of the address.
        target: where that leads, or why nowhere.
    """

    address: str
    rule: int | None = None
    name: str = ""
    pattern: str = ""
    captures: tuple[str, ...] = ()
    result: str = ""
    target: str = ""


def look_up(book: AddressBook, address: bytes) -> Lookup:
    """Ask the table about an address as a publish would have it."""
    shown = _text(without_password(address))
    found = book.table.translate(address)
    if found is None:
        return Lookup(shown)
    rule = book.table.rules[found.rule]
    original = publication_at(address) or Publication(b"", address)
    secret = _secret(address)

    def hidden(text: bytes) -> str:
        return _text(text.replace(secret, _HIDDEN.encode()) if secret else text)

    return Lookup(
        shown,
        found.rule,
        rule.name,
        _text(rule.pattern),
        tuple(map(hidden, found.captures)),
        hidden(found.shown),
        hidden(_target(book, found.rule, found.address, original).encode()),
    )


def look_ups(book: AddressBook, publications: Iterable[Publication]) -> Iterator[Lookup]:
    """Ask the table about publishes; those that no rule is for are left out."""
    for publication in publications:
        found = look_up(book, address_of(publication))
        if found.rule is not None:
            yield found


def _target(book: AddressBook, rule: int, result: bytes | None, original: Publication) -> str:
    target = book.resolve(rule, result, original)
    if isinstance(target, FailedTranslation):
        return f"nowhere: {target.reason}"
    exchange, key = target.publication
    where = f"exchange {_text(exchange)}, key {_text(key)}" if exchange else f"queue {_text(key)}"
    if target.remote is None:
        return f"{where} here"
    remote = target.remote
    link = "" if remote.tls is None else ", TLS" if remote.tls else ", plain"
    user = "" if remote.user is None else f", user {_text(remote.user)}"
    return f"{where} at {remote.label}{link}{user}"


def _secret(address: bytes) -> bytes:
    """The password in an address, as it is written there."""
    shown = without_password(address)
    if shown == address:
        return b""
    start = shown.index(b":" + _HIDDEN.encode() + b"@") + 1 if b":***@" in shown else 0
    return address[start : len(address) - (len(shown) - start - len(_HIDDEN))]


def as_lines(lookup: Lookup) -> Iterator[str]:
    """Give a look as lines for a terminal."""
    yield f'address   "{lookup.address}"'
    if lookup.rule is None:
        yield "          no rule of the address table is for it"
        return
    name = f" ({lookup.name})" if lookup.name else ""
    yield f'rule      {lookup.rule}{name}: "{lookup.pattern}"'
    for number, capture in enumerate(lookup.captures, 1):
        yield f'          ${number} = "{capture}"'
    yield f'result    "{lookup.result}"'
    yield f"target    {lookup.target}"


def as_data(lookup: Lookup) -> dict[str, object]:
    """Give a look as plain data for JSON."""
    return {
        "address": lookup.address,
        "rule": lookup.rule,
        "name": lookup.name or None,
        "pattern": lookup.pattern or None,
        "captures": list(lookup.captures),
        "result": lookup.result if lookup.rule is not None else None,
        "target": lookup.target or None,
    }


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
