"""The actions that follow from the desired and the observed state: tables, without a broker."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from oxproxy.broker.management_api import BindingInfo, ExchangeInfo, QueueInfo
from oxproxy.broker.methods import DeclareQueue
from oxproxy.broker.reconcile.desired import DesiredState, desired_state
from oxproxy.broker.reconcile.diff import (
    Action,
    BindToken,
    Observation,
    RemoveBinding,
    believed_tokens,
    diff,
    missing_destinations,
    undetermined,
)
from oxproxy.broker.reconcile.observed import ObservedState
from oxproxy.relay.tokens import Tokens
from oxproxy.relay.vhost import Delivery, OwnedExchange
from oxproxy.values import Destination
from tests.broker.observed import Queue, exchanges, owned, queues, router
from tests.relay.wire import token

MINE = QueueInfo(b"mine", exclusive=True)
CONFLICT = "exchange x exists on the broker with type fanout"


def names(
    *there: str, carriers: Iterable[str] = (), exclusive: Iterable[QueueInfo] = (), listed: bool = True
) -> ObservedState:
    state = ObservedState()
    listing = {name.encode(): QueueInfo(name.encode()) for name in there} | {info.name: info for info in exclusive}
    if listed:
        state.queues_listed({}, listing)
        state.exchanges_listed({name.encode(): ExchangeInfo(name.encode(), "direct") for name in carriers})
    else:
        state.queues = listing
    return state


def rules(*destinations: str, exchange: OwnedExchange | None = None) -> DesiredState:
    evaluated = exchange or owned("x")
    return desired_state({evaluated.name: evaluated}, router({"x": queues(*destinations)}))


def observed(state: ObservedState, **more: object) -> Observation:
    return Observation(state, Tokens())._replace(**more)  # type: ignore[arg-type]


def bound(*names: str) -> OwnedExchange:
    """The exchange ``x``, on whose carrier the tokens of these queues are bound."""
    return owned("x", bound=queues(*names))


def bind(exchange: OwnedExchange, name: str) -> BindToken:
    return BindToken(exchange, ("queue", name.encode()), token("queue", name.encode()))


@pytest.mark.parametrize(
    ("desired", "asked", "observation", "actions"),
    [
        (rules("a", exchange=bound("a")), [], observed(names("a", carriers=["x"])), []),
        (rules("a"), [], observed(names("a", carriers=["x"])), ["bind queue a to exchange x"]),
        (rules("a", "b"), [], observed(names("a", carriers=["x"])), ["bind queue a to exchange x"]),
        (
            rules("a"),
            [],
            observed(names("a")),
            ["declare direct exchange x", "bind queue a to exchange x"],
        ),
        (
            rules("a"),
            [Queue(b"a"), Queue(b"b")],
            observed(names("b", carriers=["x"])),
            ["declare queue a", "bind queue a to exchange x"],
        ),
        (rules(), [Queue(b"\xff")], observed(names(carriers=["x"])), []),
        (rules("mine"), [], observed(names(carriers=["x"], exclusive=[MINE])), []),
        (rules("a"), [], observed(names("a", carriers=["x"]), conflicts={b"x": CONFLICT}), []),
        (rules("a"), [], observed(names(listed=False)), ["declare direct exchange x", "bind queue a to exchange x"]),
        (rules("a", exchange=owned("x", Delivery.QUEUE)), [], observed(names("a")), []),
    ],
    ids=[
        "nothing differs",
        "a token lacks",
        "a token of a queue that does not exist",
        "a broker that lost the carrier",
        "a queue of the rules lacks",
        "a queue that can't be named",
        "an exclusive queue of another connection",
        "something else has the carrier's name",
        "nobody lists",
        "queue delivery declares nothing",
    ],
)
def test_the_difference_between_desired_and_observed_state_gives_the_actions(
    desired: DesiredState, asked: list[Queue], observation: Observation, actions: list[str]
) -> None:
    assert list(map(str, diff(desired, asked, observation))) == actions


def test_a_full_pass_declares_every_carrier_so_that_the_broker_compares() -> None:
    observation = observed(names("a", carriers=["x"]))
    assert list(map(str, diff(rules("a", exchange=bound("a")), [], observation, declare_all=True))) == [
        "declare direct exchange x"
    ]


def test_unverified_tokens_are_bound_again_and_foreign_bindings_removed_last() -> None:
    exchange = bound("a")
    foreign = RemoveBinding(b"x", BindingInfo(("queue", b"a"), b"by hand", "by%20hand"))
    verify = bind(exchange, "a")
    observation = observed(names("a", "b", carriers=["x"]), unverified=[verify], foreign=[foreign])
    actions = diff(rules("a", "b", exchange=exchange), [], observation)
    assert actions == [bind(exchange, "b"), verify, foreign]
    assert str(foreign) == "remove binding of exchange x to queue a with key 'by hand'"


def test_without_a_listing_only_tokens_that_can_exist_are_verified() -> None:
    exchange = owned("x", bound=queues("a", "gone", "mine"))
    desired = rules("a", "gone", "mine", exchange=exchange)
    known = names("a", carriers=["x"], exclusive=[MINE])
    assert believed_tokens(desired, (), observed(known)) == [bind(exchange, "a")]
    assert believed_tokens(desired, [b"x"], observed(known)) == []


@pytest.mark.parametrize(
    ("known", "seen", "refused", "lacking", "missing"),
    [
        ({"a"}, observed(names("a")), {}, {}, {}),
        (set(), observed(names()), {}, {}, {("queue", b"a"): "does not exist"}),
        (set(), observed(names("a"), conflicts={b"x": CONFLICT}), {}, {}, {("queue", b"a"): CONFLICT}),
        (set(), observed(names("a")), {"a": "refused: 403"}, {}, {("queue", b"a"): "refused: 403"}),
        ({"a"}, observed(names("a")), {}, {("queue", b"b"): "does not exist"}, {("queue", b"b"): "does not exist"}),
        (set(), observed(names("a")), {}, {}, {}),
    ],
    ids=["bound", "absent", "conflict", "refused", "asked for", "unbound since"],
)
def test_each_missing_destination_has_a_reason(
    known: set[str],
    seen: Observation,
    refused: dict[str, str],
    lacking: dict[Destination, str],
    missing: dict[Destination, str],
) -> None:
    exchange = owned("x", bound=queues(*known))
    failed: dict[Action, str] = {bind(exchange, name): why for name, why in refused.items()}
    assert missing_destinations(rules("a", exchange=exchange), seen, failed, lacking) == missing


def test_a_queue_that_could_not_be_declared_is_missing_until_it_exists() -> None:
    failed: dict[Action, str] = {DeclareQueue(b"a"): "can't be declared: 403"}
    assert missing_destinations(rules(), observed(names()), failed, {}) == {("queue", b"a"): "can't be declared: 403"}
    assert missing_destinations(rules(), observed(names("a")), failed, {}) == {}


def test_only_destinations_that_no_listing_covers_are_queried() -> None:
    desired = desired_state({b"x": owned("x", Delivery.QUEUE)}, router({"x": queues("a") | exchanges("e")}))
    assert undetermined(desired, names()) == []
    assert set(undetermined(desired, names(listed=False))) == queues("a") | exchanges("e")
