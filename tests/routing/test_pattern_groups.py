from __future__ import annotations

import pytest

from proxy.routing.pattern_cost import straight
from proxy.routing.pattern_escapes import InvalidPattern
from proxy.routing.pattern_groups import Groups, Opening, Repeat


def read_one(groups: Groups, empty: bool = False) -> None:
    groups.item(Repeat.SINGLE, 0, empty, straight(1))


def test_captures_are_numbered_as_they_open() -> None:
    groups = Groups()
    assert groups.open(Opening.CAPTURE, 0, 0).number == 1
    assert groups.open(Opening.PLAIN, 0, 0).number == 0
    assert groups.open(Opening.CAPTURE, 0, 0).number == 2
    assert groups.captures == 2


def test_branches_of_a_reset_group_share_their_numbers() -> None:
    groups = Groups()
    groups.open(Opening.PLAIN, 0, 0).reset = 0
    for _ in range(2):
        groups.open(Opening.CAPTURE, 0, 0)
        groups.close()
    groups.branch()
    assert groups.open(Opening.CAPTURE, 0, 0).number == 1
    groups.close()
    groups.close()
    assert groups.captures == 2


def test_more_brackets_close_than_open_is_an_error() -> None:
    with pytest.raises(InvalidPattern):
        Groups().close()


@pytest.mark.parametrize("call", [b"1", b"-1", b"&n", b"0"])
def test_a_call_of_an_open_group_must_have_read_something(call: bytes) -> None:
    groups = Groups()
    groups.open(Opening.CAPTURE, 0, 0, b"n")
    with pytest.raises(InvalidPattern):
        groups.called(call)
    read_one(groups)
    assert groups.called(call) is True


def test_what_could_be_empty_does_not_count_as_read() -> None:
    groups = Groups()
    groups.open(Opening.CAPTURE, 0, 0)
    item = groups.item(Repeat.SINGLE, 0, False, straight(1))
    groups.repeated(item, 0, straight(1))
    with pytest.raises(InvalidPattern):
        groups.called(b"1")


def test_a_closed_group_is_empty_if_a_branch_of_it_is() -> None:
    groups = Groups()
    groups.open(Opening.CAPTURE, 0, 0)
    read_one(groups)
    groups.close()
    groups.open(Opening.CAPTURE, 0, 0)
    read_one(groups)
    groups.branch()
    groups.close()
    assert groups.called(b"1") is False
    assert groups.called(b"2") is True
    assert groups.called(b"+1") is True  # not known yet


def test_a_condition_with_one_branch_can_be_empty_and_its_assertion_is_not_repeated() -> None:
    groups = Groups()
    groups.open(Opening.CONDITION, 0, 0).awaits_assertion = True
    groups.open(Opening.ASSERTION, 0, 0)
    assert groups.close()[1] is None
    read_one(groups)
    groups.close()
    assert groups.top.empty


def test_optional_groups_have_no_place_in_a_lookbehind() -> None:
    groups = Groups()
    groups.open(Opening.ASSERTION, 0, 0).lookbehind = True
    groups.open(Opening.PLAIN, 0, 0)
    item = groups.close()[1]
    assert item is not None
    with pytest.raises(InvalidPattern):
        groups.repeated(item, 0, straight(1))


def test_a_recursion_test_names_a_group_or_a_number_that_exists() -> None:
    groups = Groups()
    groups.open(Opening.CAPTURE, 0, 0, b"R7")
    assert groups.numbered_or_false(b"R1")
    assert groups.numbered_or_false(b"R7")
    assert groups.numbered_or_false(b"R0")
    assert not groups.numbered_or_false(b"R2")
