"""States of a channel, and the table of transitions.

A producer's channel and the upstream channel with the same number share one record with one state. `next_state` looks
up (state, event) in `TRANSITIONS`; `ConnectionState.change` is its only caller and carries out the consequences of a
change. An event without an entry is a protocol error, with the reply code and text that RabbitMQ 3.10.8 uses. In the
states in `HOLDING`, frames from the producer are buffered; they become events when the channel resumes.

Either side may close a channel, and the closes may cross. Each close is answered by a close-ok. On either connection,
the channel number may be reused once no close-ok is outstanding (spec, 1.5.2.5 and 1.5.2.6). RabbitMQ answers a close
immediately, even if it crosses RabbitMQ's own close. On a channel that is being closed, RabbitMQ discards everything
else, with two exceptions: it treats an open as a second open (504), and answers a method with a further close (404) if
the method refers to the last declared queue but no queue was declared. Only RabbitMQ's first close is answered.

Source: AMQP 0-9-1 spec, 1.5 "channel" and 2.2.10 "closing"; RabbitMQ's `rabbit_channel:handle_method`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from oxproxy.errors import ProtocolError, Scope


class ChannelState(Enum):
    """State of a channel; error messages use the value as a description."""

    #: no channel has this number
    CLOSED = "closed"
    #: the producer's Channel.Open was sent upstream
    OPENING = "opening"
    OPEN = "open"
    WAITING = "holding a publish"
    #: our own methods were sent upstream for a declaration by the producer, and have not been answered yet
    DECLARING = "declaring"
    #: the producer's Channel.Close was sent upstream
    CLOSING_BY_PRODUCER = "being closed by the producer"
    #: the broker's Channel.Close was sent to the producer
    CLOSING_BY_BROKER = "being closed by the broker"
    #: closes from the producer and the broker crossed, so both close-oks are relayed
    CLOSING_BY_BOTH = "being closed by both sides"
    #: like `CLOSING_BY_BOTH`, but the producer has answered and may use the number again
    BOTH_AWAITING_BROKER = "closed by both sides, awaiting the broker"
    #: our own Channel.Close was sent to both sides, so neither close-ok is relayed
    CLOSING_BY_US = "being closed by the proxy"
    #: like `CLOSING_BY_US`, but the broker has answered
    US_AWAITING_PRODUCER = "closed by the proxy, awaiting the producer"
    #: like `CLOSING_BY_US`, but the producer has answered and may use the number again
    US_AWAITING_BROKER = "closed by the proxy, awaiting the broker"


class ChannelEvent(Enum):
    """An event on a channel; error messages use the value as a description."""

    PRODUCER_OPEN = "Channel.Open from the producer"
    #: any method except open, close and close-ok
    PRODUCER_METHOD = "method from the producer"
    #: a content frame that belongs to no publish
    PRODUCER_CONTENT = "content frame from the producer"
    PRODUCER_CLOSE = "Channel.Close from the producer"
    PRODUCER_CLOSE_OK = "Channel.CloseOk from the producer"
    BROKER_OPEN_OK = "Channel.OpenOk from the broker"
    BROKER_CLOSE = "Channel.Close from the broker"
    BROKER_CLOSE_OK = "Channel.CloseOk from the broker"
    #: destinations of a publish are not bound yet, or its exchange has to be looked up
    WAIT = "hold a publish"
    #: a declaration from the producer requires our own methods
    DECLARE = "run the proxy's own methods"
    #: destinations were bound, or our own methods were answered
    RESUME = "resume"
    #: the producer has violated the protocol or a restriction, and the reply is Channel.Close
    REFUSE = "refuse"
    END = "end"


class ChannelMode(Enum):
    """How publishes on a channel are answered; error messages use the value as the name of the mode."""

    NORMAL = "normal"
    CONFIRM = "confirm"
    TX = "tx"


# For the publish path: looking up a module global is faster than looking up an enum member.
CLOSED: Final = ChannelState.CLOSED
OPENING: Final = ChannelState.OPENING
OPEN: Final = ChannelState.OPEN
WAITING: Final = ChannelState.WAITING
DECLARING: Final = ChannelState.DECLARING
CLOSING_BY_PRODUCER: Final = ChannelState.CLOSING_BY_PRODUCER
CLOSING_BY_BROKER: Final = ChannelState.CLOSING_BY_BROKER
CLOSING_BY_BOTH: Final = ChannelState.CLOSING_BY_BOTH
BOTH_AWAITING_BROKER: Final = ChannelState.BOTH_AWAITING_BROKER
CLOSING_BY_US: Final = ChannelState.CLOSING_BY_US
US_AWAITING_PRODUCER: Final = ChannelState.US_AWAITING_PRODUCER
US_AWAITING_BROKER: Final = ChannelState.US_AWAITING_BROKER

NORMAL: Final = ChannelMode.NORMAL
CONFIRM: Final = ChannelMode.CONFIRM
TX: Final = ChannelMode.TX

_Event = ChannelEvent

#: A missing entry is an error (see `next_state`).
TRANSITIONS: Final[dict[ChannelState, dict[ChannelEvent, ChannelState]]] = {
    CLOSED: {
        _Event.PRODUCER_OPEN: OPENING,
        _Event.END: CLOSED,
    },
    OPENING: {  # the producer does not have to wait for the open-ok
        _Event.PRODUCER_METHOD: OPENING,
        _Event.PRODUCER_CLOSE: CLOSING_BY_PRODUCER,
        _Event.BROKER_OPEN_OK: OPEN,
        _Event.BROKER_CLOSE: CLOSING_BY_BROKER,
        _Event.BROKER_CLOSE_OK: OPENING,  # no close is outstanding, so the close-ok is ignored, as in other states
        _Event.WAIT: WAITING,
        _Event.DECLARE: DECLARING,
        _Event.REFUSE: CLOSING_BY_US,
        _Event.END: CLOSED,
    },
    OPEN: {
        _Event.PRODUCER_METHOD: OPEN,
        _Event.PRODUCER_CLOSE: CLOSING_BY_PRODUCER,
        _Event.BROKER_OPEN_OK: OPEN,  # the channel waited and resumed before the open-ok arrived
        _Event.BROKER_CLOSE: CLOSING_BY_BROKER,
        _Event.BROKER_CLOSE_OK: OPEN,
        _Event.WAIT: WAITING,
        _Event.DECLARE: DECLARING,
        _Event.REFUSE: CLOSING_BY_US,
        _Event.END: CLOSED,
    },
    WAITING: {
        _Event.BROKER_OPEN_OK: WAITING,
        _Event.BROKER_CLOSE: CLOSING_BY_BROKER,
        _Event.BROKER_CLOSE_OK: WAITING,
        _Event.RESUME: OPEN,
        _Event.END: CLOSED,
    },
    DECLARING: {
        _Event.BROKER_OPEN_OK: DECLARING,
        _Event.BROKER_CLOSE: CLOSING_BY_BROKER,
        _Event.BROKER_CLOSE_OK: DECLARING,
        _Event.DECLARE: DECLARING,  # a declaration may have several steps
        _Event.RESUME: OPEN,
        _Event.REFUSE: CLOSING_BY_US,
        _Event.END: CLOSED,
    },
    CLOSING_BY_PRODUCER: {
        _Event.PRODUCER_METHOD: CLOSING_BY_PRODUCER,
        _Event.PRODUCER_CONTENT: CLOSING_BY_PRODUCER,
        _Event.PRODUCER_CLOSE: CLOSING_BY_PRODUCER,
        _Event.PRODUCER_CLOSE_OK: CLOSING_BY_PRODUCER,
        _Event.BROKER_OPEN_OK: CLOSING_BY_PRODUCER,
        _Event.BROKER_CLOSE: CLOSING_BY_BOTH,
        _Event.BROKER_CLOSE_OK: CLOSED,
        _Event.END: CLOSED,
    },
    CLOSING_BY_BROKER: {
        _Event.PRODUCER_METHOD: CLOSING_BY_BROKER,
        _Event.PRODUCER_CONTENT: CLOSING_BY_BROKER,
        _Event.PRODUCER_CLOSE: CLOSING_BY_BROKER,
        _Event.PRODUCER_CLOSE_OK: CLOSED,
        _Event.BROKER_CLOSE: CLOSING_BY_BROKER,
        _Event.BROKER_CLOSE_OK: CLOSING_BY_BROKER,
        _Event.END: CLOSED,
    },
    CLOSING_BY_BOTH: {
        _Event.PRODUCER_METHOD: CLOSING_BY_BOTH,
        _Event.PRODUCER_CONTENT: CLOSING_BY_BOTH,
        _Event.PRODUCER_CLOSE: CLOSING_BY_BOTH,
        _Event.PRODUCER_CLOSE_OK: BOTH_AWAITING_BROKER,
        _Event.BROKER_CLOSE: CLOSING_BY_BOTH,
        _Event.BROKER_CLOSE_OK: CLOSING_BY_BROKER,
        _Event.END: CLOSED,
    },
    BOTH_AWAITING_BROKER: {
        _Event.BROKER_CLOSE: BOTH_AWAITING_BROKER,
        _Event.BROKER_CLOSE_OK: CLOSED,
        _Event.END: CLOSED,
    },
    CLOSING_BY_US: {
        _Event.PRODUCER_METHOD: CLOSING_BY_US,
        _Event.PRODUCER_CONTENT: CLOSING_BY_US,
        _Event.PRODUCER_CLOSE: CLOSING_BY_US,
        _Event.PRODUCER_CLOSE_OK: US_AWAITING_BROKER,
        _Event.BROKER_OPEN_OK: CLOSING_BY_US,
        _Event.BROKER_CLOSE: CLOSING_BY_US,
        _Event.BROKER_CLOSE_OK: US_AWAITING_PRODUCER,
        _Event.END: CLOSED,
    },
    US_AWAITING_PRODUCER: {
        _Event.PRODUCER_METHOD: US_AWAITING_PRODUCER,
        _Event.PRODUCER_CONTENT: US_AWAITING_PRODUCER,
        _Event.PRODUCER_CLOSE: US_AWAITING_PRODUCER,
        _Event.PRODUCER_CLOSE_OK: CLOSED,
        _Event.BROKER_CLOSE_OK: US_AWAITING_PRODUCER,
        _Event.END: CLOSED,
    },
    US_AWAITING_BROKER: {
        _Event.BROKER_OPEN_OK: US_AWAITING_BROKER,
        _Event.BROKER_CLOSE: US_AWAITING_BROKER,
        _Event.BROKER_CLOSE_OK: CLOSED,
        _Event.END: CLOSED,
    },
}

#: In these states, the producer's frames are buffered until the channel resumes or its number can be reused upstream.
HOLDING: Final = frozenset((WAITING, DECLARING, BOTH_AWAITING_BROKER, US_AWAITING_BROKER))
#: In these states, the broker's frames are discarded, except for the rest of a content and replies to a close.
DISCARDING: Final = frozenset(
    (CLOSING_BY_BROKER, CLOSING_BY_BOTH, CLOSING_BY_US, US_AWAITING_PRODUCER, US_AWAITING_BROKER, BOTH_AWAITING_BROKER)
)
#: In these states, confirms and returns from the broker and from other brokers are sent to the producer.
CONFIRMABLE: Final = frozenset((OPENING, OPEN, WAITING, DECLARING, CLOSING_BY_PRODUCER))
#: In these states, a channel counts as one of the producer's open channels.
COUNTED: Final = CONFIRMABLE | {CLOSING_BY_BROKER, CLOSING_BY_BOTH}
#: In these states, a close-ok from the producer is relayed to the broker.
RELAYED_UP: Final = frozenset((CLOSING_BY_BROKER, CLOSING_BY_BOTH))
#: In these states, a close-ok from the broker is relayed to the producer.
RELAYED_DOWN: Final = frozenset((CLOSING_BY_PRODUCER, CLOSING_BY_BOTH, BOTH_AWAITING_BROKER))

_SECOND_OPEN = (504, "second 'channel.open' seen")
_NO_OPEN = (504, "expected 'channel.open'")
_UNEXPECTED_FRAME = (505, "expected method frame, got non method frame instead")
_UNIMPLEMENTED = (503, "unimplemented method")
#: RabbitMQ's errors for events without an entry. The first error applies if there is no channel, the second otherwise.
_FAULTS: Final[dict[ChannelEvent, tuple[tuple[int, str], tuple[int, str]]]] = {
    _Event.PRODUCER_OPEN: (_SECOND_OPEN, _SECOND_OPEN),
    _Event.PRODUCER_METHOD: (_NO_OPEN, _NO_OPEN),
    _Event.PRODUCER_CONTENT: (_UNEXPECTED_FRAME, _UNEXPECTED_FRAME),
    _Event.PRODUCER_CLOSE: (_NO_OPEN, _NO_OPEN),
    _Event.PRODUCER_CLOSE_OK: (_NO_OPEN, _UNIMPLEMENTED),
}
_BROKER_EVENTS: Final = frozenset((_Event.BROKER_OPEN_OK, _Event.BROKER_CLOSE, _Event.BROKER_CLOSE_OK))


def next_state(state: ChannelState, event: ChannelEvent, method: int = 0) -> ChannelState:
    """Return the state after an event; `method` is (class << 16 | method) if the event is a method.

    Raises:
        ProtocolError: there is no transition. The connection is closed: with 503, 504 or 505 after an event from the
            producer, as on RabbitMQ; with 504 after an event from the broker; with 541 after one of our own events.
    """
    after = TRANSITIONS[state].get(event)
    if after is not None:
        return after
    faults = _FAULTS.get(event)
    if faults is not None:
        code, text = faults[state is not CLOSED]
    else:
        code, text = 504 if event in _BROKER_EVENTS else 541, f"{event.value} on a channel that is {state.value}"
    raise ProtocolError(code, text, Scope.CONNECTION, *divmod(method, 1 << 16))


def next_mode(mode: ChannelMode, selected: ChannelMode) -> ChannelMode:
    """Return the mode of a channel after Confirm.Select or Tx.Select. Once selected, the mode never changes.

    Raises:
        ProtocolError: the other mode is already selected; 406 on the channel, with RabbitMQ's text.
    """
    if mode is not NORMAL and mode is not selected:
        text = f"cannot switch from {mode.value} to {selected.value} mode"
        raise ProtocolError(406, text, Scope.CHANNEL)
    return selected
