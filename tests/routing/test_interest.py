from __future__ import annotations

from bisect import bisect_right

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.routing.decision import Facts, Interest, QueueNames
from proxy.routing.exchange import Exchange
from proxy.routing.router import Router
from tests.routing.building import arguments, decide, draw_last
from tests.routing.random_rules import BINDINGS, QUEUES, bind_valid, messages

#: More examples than usual, since the combinations that would show an error are rare.
_EXAMPLES = 150


def _mixed(interest: Interest, seen: Facts, other: Facts) -> Facts:
    """A message with the facts of interest from the first message and everything else from the second."""
    headers = seen.headers
    if interest.headers is not None:
        wanted = interest.headers
        strange = [entry for entry in other.headers if entry[0] not in wanted]
        headers = (*strange[:1], *(entry for entry in seen.headers if entry[0] in wanted), *strange[1:])
    chosen = {name: text for name, text in seen.properties.items() if name in interest.properties}
    rest = {name: text for name, text in other.properties.items() if name not in interest.properties}
    cell = bisect_right(interest.body_sizes, seen.body_size_bytes)
    same_cell = cell == bisect_right(interest.body_sizes, other.body_size_bytes)
    return Facts(
        seen.routing_key if interest.routing_key else other.routing_key,
        headers,
        {**chosen, **rest},
        other.body_size_bytes if same_cell else seen.body_size_bytes,
    )


_LIMITS = st.dictionaries(
    st.sampled_from(("min-payload-size", "max-payload-size-silent", "max-headers-size", "max-headers-depth")),
    st.integers(0, 30),
    max_size=2,
)


@pytest.mark.parametrize("kind", BINDINGS)
@settings(max_examples=_EXAMPLES)
@given(data=st.data(), limits=_LIMITS)
def test_a_decision_depends_only_on_the_interest(kind: str, data: st.DataObject, limits: dict[str, int]) -> None:
    made = Exchange(b"xo", kind, arguments(limits))
    bind_valid(made, data.draw(BINDINGS[kind]))
    router = Router([made])
    interest = router.interest(b"xo")
    seen, other = data.draw(messages), data.draw(messages)
    mixed = _mixed(interest, seen, other)
    assert decide(router, seen, QUEUES, draw_last) == decide(router, mixed, QUEUES, draw_last)


@given(data=st.data())
def test_queues_and_clock_affect_a_decision_only_if_in_the_interest(data: st.DataObject) -> None:
    made = Exchange(b"xo", "x-open")
    bind_valid(made, data.draw(BINDINGS["x-open"]))
    router = Router([made])
    interest = router.interest(b"xo")
    seen = data.draw(messages)
    here = decide(router, seen, QUEUES, draw_last)
    if not interest.queues:
        assert decide(router, seen, QueueNames((b"new",), 2), draw_last) == here
    if not interest.clock:
        assert router.decide(b"xo", seen, 0.0, QUEUES, draw_last) == here
