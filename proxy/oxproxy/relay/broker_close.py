"""Describes the errors for which the broker closes a channel or a connection, without data of messages.

RabbitMQ's reply texts name exchanges, queues, virtual hosts and arguments of declarations, which are kept. They may
also quote users, routing keys, properties of messages and, after a framing error, parts of frames, which are removed.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from oxproxy.amqp import methods
from oxproxy.amqp.method_frames import Close, read_method
from oxproxy.values import text, without_passwords

#: Reply codes with texts that never quote a frame. The text of any other error is reduced to the name of the code.
_KEPT: Final = frozenset((311, 313, 320, 402, 403, 404, 405, 406, 503, 504, 506, 530, 540))
#: The texts may be truncated at any point.
_USER: Final = re.compile(r"user '.*$", re.DOTALL)
_TOPIC: Final = re.compile(r" topic '.*?(' in exchange |$)", re.DOTALL)
#: The beginning of a value in the text of an error about a message's properties.
_VALUE: Final = re.compile(r"['\"<{\[].*$", re.DOTALL)


class BrokerClose(NamedTuple):
    """One ``Channel.Close`` or ``Connection.Close`` from the broker.

    Args:
        channel: number of the channel; 0 for the connection.
        reason: the reply code and text, without data of messages.
        method: name of the method that the broker refused, such as ``Basic.Publish``; "" if there is none.
    """

    channel: int
    reply_code: int
    reason: str
    method: str

    @property
    def described(self) -> str:
        """The reason with what was closed, as a sentence."""
        what = f"channel {self.channel}" if self.channel else "the connection"
        cause = f", after {self.method}" if self.method else ""
        return f"the broker closed {what}: {self.reason}{cause}"

    @property
    def is_answer(self) -> bool:
        """True for the usual answer to the question whether an exchange or a queue exists."""
        return self.reply_code == 404 and self.method in ("Exchange.Declare", "Queue.Declare")


def read_close(channel: int, frame: bytes) -> BrokerClose:
    """Read the broker's ``Channel.Close`` or ``Connection.Close``."""
    close = read_method(Close, frame[7:-1])
    method = close.class_id << 16 | close.method_id
    name, dash, rest = text(close.reply_text).partition(" - ")
    if close.reply_code not in _KEPT:
        dash = rest = ""
    elif close.reply_code == 406 and method == methods.BASIC_PUBLISH:
        rest = _VALUE.sub("***", rest)
    rest = without_passwords(_USER.sub("user '***'", _TOPIC.sub(r" topic '***\1", rest)))
    return BrokerClose(
        channel, close.reply_code, f"{close.reply_code} {name}{dash}{rest}", methods.NAMES.get(method, "")
    )
