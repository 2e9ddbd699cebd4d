from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import pytest

from proxy.config.section_reader import Key, KeyEntry, entries, read_section
from proxy.yamlfile.document import Faults, Place, read_document
from proxy.yamlfile.fields import Fields
from proxy.yamlfile.kinds import TEXT, duration, whole_number


@dataclass(frozen=True, slots=True)
class Door:
    colour: Annotated[str, Key(TEXT, "what it looks like")] = "red"


@dataclass(frozen=True, slots=True)
class House:
    floors: Annotated[int, Key(whole_number(1, 9), "how high it is")] = 2
    wait_seconds: Annotated[float, Key(duration(0, 9), "how long to wait", "wait")] = 1.0
    front: Door = field(default_factory=Door)
    doors: tuple[Door, ...] = field(default_factory=lambda: (Door(),))
    unseen: int = 0


def read(text: str) -> tuple[House, list[str], dict[str, Place]]:
    faults, places = Faults(), dict[str, Place]()
    root = read_document(text, "f.yaml", faults)
    assert root is not None
    house = read_section(House, Fields(root, "", faults), places)
    return house, [str(error) for error in faults.errors], places


def test_what_is_not_written_has_its_default() -> None:
    assert read("{}")[:2] == (House(), [])


def test_keys_sections_and_lists_of_sections_are_read() -> None:
    house, errors, _ = read("floors: 3\nwait: 2s\nfront: {colour: blue}\ndoors: [{colour: green}, {}]\n")
    assert (house, errors) == (House(3, 2.0, Door("blue"), (Door("green"), Door())), [])


def test_the_place_of_every_written_key_is_known() -> None:
    places = read("floors: 3\ndoors:\n  - colour: green\n")[2]
    assert {path: place.line for path, place in places.items()} == {"floors": 1, "doors": 2, "doors[0].colour": 3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("floors: 10", "f.yaml:1:9: floors: seen the number 10, expected a whole number from 1 to 9"),
        ("front: {color: blue}", "f.yaml:1:9: front.color: unknown key; did you mean colour?"),
        ("front: blue", "f.yaml:1:8: front: seen a single value, expected a mapping"),
        ("doors: []", "f.yaml:1:8: doors: seen an empty list, expected a list with at least one item"),
        ("doors: {}", "f.yaml:1:8: doors: seen a mapping, expected a list with at least one item"),
        ("doors: [{}, {colour: 5}]", "f.yaml:1:22: doors[1].colour: seen the number 5, expected a text"),
        ("wait_seconds: 2s", "f.yaml:1:1: wait_seconds: unknown key, expected one of doors, floors, front, wait"),
        ("unseen: 1", "f.yaml:1:1: unseen: unknown key, expected one of doors, floors, front, wait"),
    ],
)
def test_what_can_not_be_read_is_a_fault_and_keeps_the_default(text: str, message: str) -> None:
    assert read(text)[1] == [message]


def test_all_faults_are_found_at_once() -> None:
    assert len(read("floors: 10\nwait: 5\nfront: {a: 1}\ndoors: [{b: 1}]\n")[1]) == 4


def test_the_documentation_lists_every_key_with_its_default() -> None:
    assert list(entries(House())) == [
        KeyEntry("floors", "2", "how high it is"),
        KeyEntry("wait", "1s", "how long to wait"),
        KeyEntry("front.colour", "red", "what it looks like"),
        KeyEntry("doors[].colour", "red", "what it looks like"),
    ]
