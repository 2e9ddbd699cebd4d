from __future__ import annotations

from functools import partial

from pamqp import base, commands

from proxy.relay.declare.sidecar_channel import SidecarChannel
from tests.client import method, split

BIND, OTHER = commands.Queue.Bind(0, "q", "e", "k"), commands.Queue.Bind(0, "other", "e", "k")
OPEN = commands.Channel.Open()
CLOSE = commands.Channel.Close(403, "ACCESS_REFUSED - no", 50, 20)


class Channel:
    """The channel, with the broker's part and what became of the methods."""

    def __init__(self, number: int | None = 7) -> None:
        self._out: list[bytes] = []
        self.answers: list[tuple[str, str | None]] = []
        self.own = SidecarChannel(number, self._out)

    def run(self, command: base.Frame) -> list[str]:
        queue = str(dict(command)["queue"])
        self.own.run([method(7, command)], partial(self._done, queue))
        return self.sent()

    def _done(self, queue: str, refused: str | None) -> None:
        self.answers.append((queue, refused))

    def receive(self, command: base.Frame) -> list[str]:
        (frame,) = split(method(7, command))
        self.own.take_method(frame.payload)
        return self.sent()

    def sent(self) -> list[str]:
        frames = split(b"".join(self._out))
        self._out.clear()
        assert {one.channel for one in frames} <= {7}
        return [one.name for one in frames]


def test_channel_is_opened_when_it_is_first_needed() -> None:
    channel = Channel()
    assert channel.sent() == []
    assert channel.run(BIND) == ["Channel.Open"]
    assert channel.receive(commands.Channel.OpenOk()) == ["Queue.Bind"]
    assert channel.own.busy
    assert channel.receive(commands.Queue.BindOk()) == []
    assert channel.answers == [("q", None)]
    assert not channel.own.busy


def test_it_is_opened_once() -> None:
    channel = Channel()
    channel.run(BIND)
    channel.receive(commands.Channel.OpenOk())
    channel.receive(commands.Queue.BindOk())
    assert channel.run(OTHER) == ["Queue.Bind"]


def test_methods_run_one_at_a_time_in_order() -> None:
    channel = Channel()
    assert channel.run(BIND) == ["Channel.Open"]
    assert channel.run(OTHER) == []
    assert channel.receive(commands.Channel.OpenOk()) == ["Queue.Bind"]
    assert channel.receive(commands.Queue.BindOk()) == ["Queue.Bind"]
    assert channel.answers == [("q", None)]
    channel.receive(commands.Queue.BindOk())
    assert channel.answers == [("q", None), ("other", None)]


def test_a_refusal_is_told_with_the_brokers_words_and_the_next_method_runs_on_a_new_channel() -> None:
    channel = Channel()
    channel.run(BIND)
    channel.run(OTHER)
    channel.receive(commands.Channel.OpenOk())
    assert channel.receive(CLOSE) == ["Channel.CloseOk", "Channel.Open"]
    assert channel.answers == [("q", "403 ACCESS_REFUSED - no")]
    assert channel.receive(commands.Channel.OpenOk()) == ["Queue.Bind"]
    channel.receive(commands.Queue.BindOk())
    assert channel.answers[1:] == [("other", None)]


def test_a_close_while_nothing_runs_is_answered_and_blamed_on_nobody() -> None:
    channel = Channel()
    channel.run(BIND)
    channel.receive(commands.Channel.OpenOk())
    channel.receive(commands.Queue.BindOk())
    assert channel.receive(CLOSE) == ["Channel.CloseOk"]
    assert channel.answers == [("q", None)]
    assert channel.run(OTHER) == ["Channel.Open"]


def test_a_method_that_a_done_runs_comes_behind_those_that_wait() -> None:
    channel = Channel()
    channel.own.run(
        [method(7, BIND)], lambda refused: channel.own.run([method(7, OTHER)], partial(channel._done, "then"))
    )
    channel.receive(commands.Channel.OpenOk())
    assert channel.receive(commands.Queue.BindOk()) == ["Queue.Bind"]
    channel.receive(commands.Queue.BindOk())
    assert channel.answers == [("then", None)]


def test_of_several_methods_the_first_refusal_is_told_when_all_are_answered() -> None:
    channel = Channel()
    channel.own.run([method(7, BIND), method(7, OTHER), method(7, BIND)], partial(channel._done, "all"))
    channel.receive(commands.Channel.OpenOk())
    channel.receive(CLOSE)
    channel.receive(commands.Channel.OpenOk())
    channel.receive(commands.Queue.BindOk())
    assert channel.answers == []
    channel.receive(commands.Channel.Close(404, "NOT_FOUND - gone", 50, 20))
    assert channel.answers == [("all", "403 ACCESS_REFUSED - no")]
    channel.run(OTHER)
    channel.receive(commands.Channel.OpenOk())
    channel.receive(commands.Queue.BindOk())
    assert channel.answers[1:] == [("other", None)]


def test_without_a_channel_to_spare_every_method_is_refused_at_once() -> None:
    channel = Channel(None)
    assert channel.run(BIND) == []
    assert channel.answers == [("q", "the broker leaves no channel to spare")]
