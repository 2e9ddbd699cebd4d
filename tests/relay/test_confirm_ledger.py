from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from proxy.relay.confirm_ledger import WAITING_RETURNS, Ledger, Returns, Settled

SETTLES = st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=60)


@given(SETTLES, st.integers(1, 40))
def test_settled_tags_are_counted_once_in_any_order(settles: list[tuple[int, bool]], published: int) -> None:
    settled, known = Settled(), set[int]()
    for requested, multiple in settles:
        tag = min(requested, published)
        new = set(range(1, tag + 1) if multiple else (tag,)) - known
        assert settled.settle(tag, multiple, published) == len(new)
        known |= new
    assert settled.count == len(known)
    assert settled.outstanding(published) == sorted(set(range(1, published + 1)) - known)


# -- the ledger -----------------------------------------------------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, list[int], list[tuple[int, bool, bool]]]:
    """Number of publishes before the ledger, copies of those after it, and acks and nacks of upstream tags."""
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
def test_the_ledger_settles_each_tag_once_for_any_broker_replies(
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
        covered = (
            {covered_tag for covered_tag in open_tags if covered_tag <= tag or not tag}
            if multiple
            else {tag} & open_tags
        )
        open_tags -= covered
        expected = []
        for covered_tag in sorted(covered):
            left[owner[covered_tag]] -= 1
            verdict[owner[covered_tag]] &= ack
            if not left[owner[covered_tag]]:
                expected.append((owner[covered_tag], verdict[owner[covered_tag]]))
        settled = ledger.settle(tag, multiple, ack)
        assert settled == sorted(expected)
        seen += [producer_tag for producer_tag, _ in settled]
    assert sorted(seen) == list(range(1, before + len(copies) + 1))


# -- returns --------------------------------------------------------------------------------------------------------


def test_the_oldest_awaited_returns_are_dropped_above_the_limit() -> None:
    returns = Returns()
    for tag in range(WAITING_RETURNS + 1):
        returns.expect(tag, (f"{tag}a", f"{tag}b"))
    assert returns.returned("0a")
    assert returns.returned("0b")
    assert not returns.returned("1a")


@given(
    st.lists(st.lists(st.sampled_from("abc"), min_size=2, max_size=4), max_size=6), st.randoms(use_true_random=False)
)
def test_each_publish_is_returned_once_if_every_copy_is_returned(publishes: list[list[str]], random: object) -> None:
    returns = Returns()
    for tag, copies in enumerate(publishes, 1):
        returns.expect(tag, copies)
    everything = [copy for copies in publishes for copy in copies]
    random.shuffle(everything)  # type: ignore[attr-defined]
    assert sum(returns.returned(copy) for copy in everything) == len(publishes)
    assert not returns
