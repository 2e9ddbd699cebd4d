from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.relay.confirm_ledger import WAITING_RETURNS, Ledger, Returns, Settled


def test_acks_in_order_are_counted_one_by_one() -> None:
    settled = Settled()
    assert [settled.settle(tag, 0, 3) for tag in (1, 2, 3)] == [1, 1, 1]
    assert (settled.low, settled.count, settled.outstanding(3)) == (3, 3, [])


def test_a_multiple_ack_counts_all_up_to_it() -> None:
    settled = Settled()
    assert settled.settle(4, 1, 5) == 4
    assert settled.outstanding(5) == [5]


def test_a_multiple_ack_counts_what_was_acked_before_only_once() -> None:
    settled = Settled()
    settled.settle(2, 0, 6)
    settled.settle(4, 0, 6)
    settled.settle(6, 0, 6)
    assert settled.settle(4, 1, 6) == 2
    assert settled.outstanding(6) == [5]


def test_tag_zero_with_multiple_means_all_that_are_outstanding() -> None:
    settled = Settled()
    assert settled.settle(0, 1, 7) == 7
    assert settled.settle(0, 1, 7) == 0


def test_tag_zero_with_nothing_outstanding_settles_nothing() -> None:
    assert Settled().settle(0, 1, 0) == 0


@pytest.mark.parametrize("multiple", [0, 1])
def test_a_tag_that_is_settled_already_is_not_counted_again(multiple: int) -> None:
    settled = Settled()
    settled.settle(3, 1, 9)
    settled.settle(6, 0, 9)
    assert settled.settle(2, multiple, 9) == 0
    assert settled.settle(6, 0, 9) == 0
    assert settled.count == 4


def test_a_gap_that_is_filled_joins_what_is_above_it() -> None:
    settled = Settled()
    settled.settle(2, 0, 4)
    settled.settle(3, 0, 4)
    settled.settle(1, 0, 4)
    assert (settled.low, settled.outstanding(4)) == (3, [4])


SETTLES = st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=60)


@given(SETTLES, st.integers(1, 40))
def test_settled_counts_each_tag_once_in_any_order(settles: list[tuple[int, bool]], published: int) -> None:
    settled, known = Settled(), set[int]()
    for asked, multiple in settles:
        tag = min(asked, published)
        new = set(range(1, tag + 1) if multiple else (tag,)) - known
        assert settled.settle(tag, multiple, published) == len(new)
        known |= new
    assert settled.count == len(known)
    assert settled.outstanding(published) == sorted(set(range(1, published + 1)) - known)


# -- the ledger -----------------------------------------------------------------------------------------------------


def test_a_tag_is_settled_when_its_last_copy_is() -> None:
    ledger = Ledger([], 0)
    ledger.add(1, 3)
    assert ledger.settle(2, False, True) == []
    assert ledger.settle(3, False, True) == []
    assert ledger.settle(1, False, True) == [(1, True)]


def test_one_nack_among_the_copies_is_a_nack() -> None:
    ledger = Ledger([], 0)
    ledger.add(1, 2)
    assert ledger.settle(1, False, False) == []
    assert ledger.settle(2, False, True) == [(1, False)]


def test_the_ledger_takes_over_what_is_outstanding_under_its_old_tags() -> None:
    ledger = Ledger([2, 5], 5)
    ledger.add(6, 2)
    assert ledger.settle(5, False, True) == [(5, True)]
    assert ledger.settle(7, True, True) == [(2, True), (6, True)]


def test_a_multiple_ack_settles_producer_tags_whose_copies_it_covers() -> None:
    ledger = Ledger([], 0)
    for tag, copies in enumerate((1, 3, 1, 2), 1):
        ledger.add(tag, copies)
    assert ledger.settle(6, True, True) == [(1, True), (2, True), (3, True)]
    assert ledger.settle(0, True, True) == [(4, True)]


def test_a_tag_that_nobody_knows_settles_nothing() -> None:
    ledger = Ledger([], 0)
    ledger.add(1, 1)
    assert ledger.settle(9, False, True) == []
    assert ledger.settle(1, False, True) == [(1, True)]
    assert ledger.settle(1, False, True) == []


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, list[int], list[tuple[int, bool, bool]]]:
    """How many publishes are before the ledger, copies of those behind it, and settles of upstream tags."""
    before = draw(st.integers(0, 5))
    copies = draw(st.lists(st.integers(1, 4), max_size=8))
    last = before + sum(copies)
    steps = []
    for _ in range(draw(st.integers(0, 30))):
        tag = draw(st.integers(0, last))
        multiple = draw(st.booleans()) if tag else True
        steps.append((tag, multiple, draw(st.booleans())))
    return before, copies, steps


@given(histories())
def test_the_ledger_settles_each_tag_once_whatever_the_broker_says(
    history: tuple[int, list[int], list[tuple[int, bool, bool]]],
) -> None:
    before, copies, steps = history
    ledger = Ledger(list(range(1, before + 1)), before)
    owner = {tag: tag for tag in range(1, before + 1)}
    upstream = before
    for producer_tag, count in enumerate(copies, before + 1):
        ledger.add(producer_tag, count)
        for _ in range(count):
            upstream += 1
            owner[upstream] = producer_tag
    left = Counter(owner.values())
    open_tags, verdict = set(owner), dict.fromkeys(left, True)
    seen: list[int] = []
    for tag, multiple, ack in [*steps, (0, True, True)]:
        covered = {one for one in open_tags if one <= tag or not tag} if multiple else {tag} & open_tags
        open_tags -= covered
        expected = []
        for one in sorted(covered):
            left[owner[one]] -= 1
            verdict[owner[one]] &= ack
            if not left[owner[one]]:
                expected.append((owner[one], verdict[owner[one]]))
        found = ledger.settle(tag, multiple, ack)
        assert found == sorted(expected)
        seen += [producer_tag for producer_tag, _ in found]
    assert sorted(seen) == list(range(1, before + len(copies) + 1))


# -- returns --------------------------------------------------------------------------------------------------------


def test_a_return_goes_to_the_producer_when_the_last_copy_has_come_back() -> None:
    returns = Returns()
    returns.expect(1, ("a", "b", "c"))
    assert [returns.returned(copy) for copy in "bca"] == [False, False, True]
    assert not returns


def test_a_return_of_a_publish_that_left_once_goes_to_the_producer() -> None:
    returns = Returns()
    returns.expect(1, ("a", "b"))
    assert returns.returned("elsewhere")
    assert returns


def test_copies_that_look_alike_are_counted() -> None:
    returns = Returns()
    returns.expect(1, ("part", "part", "part"))
    assert [returns.returned("part") for _ in range(3)] == [False, False, True]


def test_of_publishes_that_look_alike_the_oldest_is_meant() -> None:
    returns = Returns()
    returns.expect(1, ("a", "b"))
    returns.expect(2, ("a", "b"))
    assert [returns.returned(copy) for copy in "aabb"] == [False, False, True, True]
    assert not returns


def test_a_confirmed_publish_is_waited_for_no_more() -> None:
    returns = Returns()
    returns.expect(4, ("a", "b"))
    returns.expect(9, ("a", "b"))
    assert not returns.returned("a")
    returns.settled(4)
    assert [returns.returned(copy) for copy in "ba"] == [False, True]


def test_a_confirm_of_a_publish_that_left_once_changes_nothing() -> None:
    returns = Returns()
    returns.expect(4, ("a", "b"))
    for tag in (1, 3, 5):
        returns.settled(tag)
    assert [returns.returned(copy) for copy in "ab"] == [False, True]


def test_the_oldest_is_forgotten_where_there_are_too_many() -> None:
    returns = Returns()
    for tag in range(WAITING_RETURNS + 1):
        returns.expect(tag, (f"{tag}a", f"{tag}b"))
    assert returns.returned("0a")
    assert returns.returned("0b")
    assert not returns.returned("1a")


@given(
    st.lists(st.lists(st.sampled_from("abc"), min_size=2, max_size=4), max_size=6), st.randoms(use_true_random=False)
)
def test_as_many_returns_as_publishes_when_every_copy_comes_back(publishes: list[list[str]], random: object) -> None:
    returns = Returns()
    for tag, copies in enumerate(publishes, 1):
        returns.expect(tag, copies)
    everything = [copy for copies in publishes for copy in copies]
    random.shuffle(everything)  # type: ignore[attr-defined]
    assert sum(returns.returned(copy) for copy in everything) == len(publishes)
    assert not returns
