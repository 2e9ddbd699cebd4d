"""Compares every row of the tables in docs/reference/addresses.md with the address table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from oxproxy.addressing.table import AddressRule, AddressTable
from oxproxy.addressing.targets import AddressBook, FailedTranslation, Publication, address_of
from tests.rules.loading import load

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "addresses.md").read_text()


def rows(*heads: str) -> list[list[str]]:
    """Return the cells of every row of the tables with these headings, without backticks."""
    cells = []
    for table in re.findall(r"(?:^\|.*\|\n)+", TEXT, re.MULTILINE):
        lines = [[cell.strip().strip("`") for cell in line[1:-1].split("|")] for line in table.splitlines()]
        if tuple(lines[0]) == heads:
            cells += lines[2:]
    return cells


@pytest.mark.parametrize(
    ("pattern", "translation", "address", "result"), rows("pattern", "translation", "address", "result")
)
def test_a_rule_translates_an_address_as_documented(pattern: str, translation: str, address: str, result: str) -> None:
    table = AddressTable([AddressRule(pattern.encode(), translation.encode())])
    translated = table.translate(address.encode())
    assert (
        translated.address.decode() if translated is not None and translated.address is not None else "no match"
    ) == result


@pytest.mark.parametrize(("publish", "address"), rows("publish", "address"))
def test_a_publish_has_the_documented_address(publish: str, address: str) -> None:
    match = re.fullmatch(r"(?:default exchange|exchange `(.*)`), key (?:`(.*)|empty)", publish)
    assert match is not None
    publication = Publication((match[1] or "").encode(), (match[2] or "").encode())
    assert address_of(publication) == address.encode()


@pytest.mark.parametrize("row", rows("name", "target exchange", "routing key"), ids=str)
def test_a_name_is_published_to_the_documented_exchange_and_key(row: list[str]) -> None:
    name, exchange, key = row
    name = "" if name == "(none)" else name
    book = AddressBook(AddressTable([AddressRule(b"*", f"h{name}".encode(), hosts=None)]))
    target = book.look_up(b"E", b"K")
    if exchange == "nowhere":
        assert isinstance(target, FailedTranslation)
    else:
        assert not isinstance(target, FailedTranslation)
        assert target is not None
        assert target.publication == (exchange.encode(), key.encode())


def test_every_row_of_the_tables_is_tested() -> None:
    counts = [
        len(rows("pattern", "translation", "address", "result")),
        len(rows("publish", "address")),
        len(rows("name", "target exchange", "routing key")),
    ]
    assert counts == [26, 5, 17]


def test_the_example_is_valid_and_its_test_passes() -> None:
    (example,) = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    loaded = load(example)
    assert (loaded.failures(), loaded.warnings) == ([], ())
