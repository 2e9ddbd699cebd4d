from __future__ import annotations

from pamqp import commands

from proxy.relay.channel import Channel, PendingPublish
from proxy.relay.publish.known_publishes import KnownPublishes
from proxy.relay.publish.plan import ExchangePlan
from tests.client import method
from tests.relay.wire import Wire, routed

CHANNEL = Channel(1)


def frame(key: str, channel: int = 1) -> bytes:
    return method(channel, commands.Basic.Publish(0, "e", key))


def publish(key: str, channel: Channel = CHANNEL, plan: ExchangePlan | None = None) -> PendingPublish:
    return PendingPublish(frame(key, channel.number), plan, b"e", key.encode(), channel, False)


def known(*publishes: PendingPublish) -> KnownPublishes:
    made = KnownPublishes(8)
    for one in publishes:
        made.remember(one)
    return made


def test_what_follows_is_found_and_expected_the_next_time() -> None:
    one, other = publish("a"), publish("b")
    data = b"before" + frame("b") + b"behind"
    publishes = known(one, other)
    assert publishes.following(one, data, 6, len(data)) is other
    assert one.successor is other
    publishes.clear()
    assert one.successor is None


def test_nothing_follows_where_it_is_unknown_cut_or_of_another_channel_or_kind() -> None:
    one, remote_targets = publish("a"), publish("a", Channel(2))
    wire = Wire(routed("a"))
    plan = ExchangePlan(wire.state.exchanges[b"xo"], wire.plans)
    ours = publish("ours", plan=plan)
    publishes = known(one, remote_targets, ours)
    for data in (frame("new"), frame("a")[:-1], frame("a")[:5], b"", remote_targets.frame, ours.frame):
        assert publishes.following(one, data, 0, len(data)) is None
    assert one.successor is None


def test_so_many_are_remembered_and_no_more() -> None:
    made = KnownPublishes(3)
    for number in range(10):
        made.remember(publish(str(number)))
        assert str(number).encode() in {one.routing_key for one in made.values()}
        assert len(made) <= 3
