"""A sidecar and its broker answer the same bytes in the same way.

The tests compare what RabbitMQ tolerates beyond the specification, because some clients depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
from pamqp import commands

from tests import client
from tests.producer import Producer
from tests.rabbitmq import Broker
from tests.sidecar import Sidecar

CLOSE = client.method(0, commands.Connection.Close(200, "bye", 0, 0))


class Answers(NamedTuple):
    """The replies of one side: names and channels of methods, and the arguments of closes."""

    frames: tuple[tuple[object, ...], ...]


Conversation = Callable[[int], Answers]


@pytest.fixture(scope="module")
def ports(broker: Broker, sidecar: Sidecar) -> tuple[int, int]:
    """The ports of the broker and of the sidecar."""
    return broker.port, sidecar.port


def read(producer: Producer, count: int) -> Answers:
    """The next frames."""
    frames = []
    for _ in range(count):
        frame = producer.frame()
        code = (frame.arguments["reply_code"],) if frame.name.endswith(".Close") else ()
        frames.append((frame.name, frame.channel, *code))
    return Answers(tuple(frames))


def compare(ports: Sequence[int], talk: Conversation) -> Answers:
    """Send the same bytes to both sides; check that the replies are equal, and return them."""
    at_broker, at_sidecar = (talk(port) for port in ports)
    assert at_sidecar == at_broker
    return at_sidecar


# -- protocol headers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", [b"AMQP\x00\x00\x09\x01", b"AMQP\x01\x01\x00\x09"])
def test_a_header_that_the_broker_accepts_as_0_9_1_opens_a_connection(ports: tuple[int, int], header: bytes) -> None:
    def talk(port: int) -> Answers:
        with Producer(port, header=header) as producer:
            version = producer.start["version_major"], producer.start["version_minor"]
            producer.open(confirm=True).publish("", "nobody", mandatory=True)
            [returned] = producer.settle().returned
            producer.close()
            return Answers((version, returned.address))

    assert compare(ports, talk).frames == ((0, 9), ("", "nobody"))


@pytest.mark.parametrize(
    "header",
    [
        b"AMQP\x00\x00\x09\x00", b"AMQP\x01\x00\x09\x01", b"AMQP\x00\x01\x00\x09", b"AMQP\x01\x01\x09\x00",
        b"AMQP\x03\x01\x00\x00", b"GET / HTTP/1.1\r\n\r\n",
    ],
)  # fmt: skip
def test_a_header_that_the_broker_rejects_is_answered_with_the_header_to_use(
    broker: Broker, ports: tuple[int, int], header: bytes
) -> None:
    def talk(port: int) -> Answers:
        with Producer(port, log_in=False) as producer:
            producer.send(header)
            return Answers(((producer.socket.recv(8),),))

    # RabbitMQ 4.0 answers with the header of AMQP 1.0, which the sidecar does not support.
    answer = compare(ports, talk) if broker.version < (4,) else talk(ports[1])
    assert answer.frames == ((client.PROTOCOL_HEADER,),)


# -- frames above frame-max --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame_max", [8192, 131072])
@pytest.mark.parametrize("above", [0, 1, 8, 9])
def test_body_frames_up_to_eight_bytes_above_frame_max_are_accepted(
    ports: tuple[int, int], frame_max: int, above: int
) -> None:
    """AMQPStorm splits bodies into pieces of frame-max bytes, without room for the eight bytes around each."""

    def talk(port: int) -> Answers:
        with Producer(port, frame_max=frame_max).open(confirm=True) as producer:
            producer.send(client.publish(1, b"", b"nobody", body=bytes(2 * frame_max), frame_max=frame_max + above))
            return read(producer, 1)

    answer = ("Connection.Close", 0, 501) if above > 8 else ("Basic.Ack", 1)
    assert compare(ports, talk).frames == (answer,)


@pytest.mark.parametrize("above", [8, 9])
def test_headers_and_methods_up_to_eight_bytes_above_frame_max_are_accepted(ports: tuple[int, int], above: int) -> None:
    frame_max = 8192

    def header(port: int) -> Answers:
        with Producer(port, frame_max=frame_max).open(confirm=True) as producer:
            entries = b"\x01hS" + (frame_max + above - 8 - 18 - 7).to_bytes(4, "big")
            entries += b"x" * (frame_max + above - 8 - 18 - 7)
            sent = client.content_header(1, 0, entries)
            assert len(sent) == frame_max + above
            method = client.publish(1, b"", b"nobody")
            producer.send(method[: -len(client.content(1))] + sent)
            return read(producer, 1)

    def declare(port: int) -> Answers:
        with Producer(port, frame_max=frame_max).open() as producer:
            sent = client.method(1, commands.Queue.Declare(exclusive=True, arguments={"x-note": ""}))
            text = b"x" * (frame_max + above - len(sent))
            longer = sent[7:-1].replace(b"S\0\0\0\0", b"S" + len(text).to_bytes(4, "big") + text)
            table = len(longer) - 4 - 2 - 1 - 1 - 4
            longer = longer[:8] + table.to_bytes(4, "big") + longer[12:]
            producer.send(client.frame(1, 1, longer))
            return read(producer, 1)

    refused = (("Connection.Close", 0, 501),)
    assert compare(ports, header).frames == (refused if above > 8 else (("Basic.Ack", 1),))
    assert compare(ports, declare).frames == (refused if above > 8 else (("Queue.DeclareOk", 1),))


# -- pipelined errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (client.frame(1, 1, b"\x00\x3c\x00\x50")[:-1] + b"\x00", 501),
        (client.method(1, commands.Channel.Open()), 504),
        (client.frame(2, 1, bytes(14)), 505),
    ],
    ids=["frame end", "second open", "unexpected content"],
)
def test_publishes_before_an_error_of_the_connection_are_returned_and_confirmed(
    ports: tuple[int, int], wrong: bytes, code: int
) -> None:
    def talk(port: int) -> tuple[int, int, object]:
        with Producer(port).open(confirm=True) as producer:
            producer.send(client.publish(1, b"", b"nobody", (), b"", mandatory=True) * 20 + wrong)
            returned, acked = 0, set[int]()
            while (frame := producer.frame()).name != "Connection.Close":
                returned += frame.name == "Basic.Return"
                if frame.name == "Basic.Ack":
                    tag = frame.arguments["delivery_tag"]
                    assert isinstance(tag, int)
                    acked |= set(range(1, tag + 1)) if frame.arguments["multiple"] else {tag}
            return returned, len(acked), frame.arguments["reply_code"]

    at_broker, at_sidecar = map(talk, ports)
    assert at_sidecar == (20, 20, code)
    assert at_broker[2] == code  # RabbitMQ may close the connection before its channel has replied to all publishes


# -- several Connection.Close ------------------------------------------------------------------------------------------


def test_each_close_of_a_connection_is_answered_and_the_peer_ends_it(ports: tuple[int, int]) -> None:
    def talk(port: int) -> Answers:
        with Producer(port).open().open(2) as producer:
            producer.send(CLOSE * 3)
            first = read(producer, 3)
            producer.send(client.method(5, commands.Channel.Open()) + CLOSE)
            second = read(producer, 1)
            producer.send(CLOSE[:5])
            producer.send(CLOSE[5:])
            third = read(producer, 1)
            producer.call(commands.Connection.CloseOk(), 0)
            assert producer.gone()
            return Answers(first.frames + second.frames + third.frames)

    assert compare(ports, talk).frames == (("Connection.CloseOk", 0),) * 5


# -- channel numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2046, 2048, 65535])
def test_any_channel_number_is_accepted(ports: tuple[int, int], number: int) -> None:
    def talk(port: int) -> Answers:
        with Producer(port, channel_max=2046).open(number, confirm=True) as producer:
            producer.publish("", "nobody", channel=number, mandatory=True)
            assert [returned.address for returned in producer.settle(number).returned] == [("", "nobody")]
            producer.ask(commands.Channel.Close(200, "", 0, 0), number)
            producer.open(number)
            producer.close()
            return Answers(())

    compare(ports, talk)


def test_more_channels_than_channel_max_end_the_connection(ports: tuple[int, int]) -> None:
    def talk(port: int) -> Answers:
        with Producer(port, channel_max=2).open(100).open(65535) as producer:
            producer.call(commands.Channel.Open(), 7)
            closed = producer.closed(0)
            return Answers(((closed.code, closed.text, closed.method),))

    answers = compare(ports, talk)
    text = "NOT_ALLOWED - number of channels opened (2) has reached the negotiated channel_max (2)"
    assert answers.frames[0][:2] == (530, text)
