"""Every state of a channel with every event: where it leads, or what it is answered with."""

from __future__ import annotations

from itertools import product

import pytest

from proxy.errors import ProtocolError, Scope
from proxy.relay.channel import Channel, ContentUnderWay, PendingPublish
from proxy.relay.channel_state import (
    CONFIRMABLE,
    COUNTED,
    DISCARDING,
    HOLDING,
    TRANSITIONS,
    ChannelEvent,
    ChannelMode,
    ChannelState,
    next_mode,
    next_state,
)

#: One row for each state; the columns are the events. A number is the reply code of a protocol error.
TABLE = """
                      OPEN     METHOD   CONTENT  CLOSE    CLOSE_OK OPEN_OK  B_CLOSE  B_CLOSE_OK WAIT    DECLARE  RESUME   REFUSE   END
CLOSED                OPENING  504      505      504      504      504      504      504        541     541      541      541      CLOSED
OPENING               504      OPENING  505      BY_PROD  503      OPEN     BY_BROK  OPENING    WAITING DECLARE  541      BY_US    CLOSED
OPEN                  504      OPEN     505      BY_PROD  503      OPEN     BY_BROK  OPEN       WAITING DECLARE  541      BY_US    CLOSED
WAITING               504      504      505      504      503      WAITING  BY_BROK  WAITING    541     541      OPEN     541      CLOSED
DECLARING             504      504      505      504      503      DECLARE  BY_BROK  DECLARE    541     DECLARE  OPEN     BY_US    CLOSED
CLOSING_BY_PRODUCER   504      BY_PROD  BY_PROD  BY_PROD  BY_PROD  BY_PROD  BY_BOTH  CLOSED     541     541      541      541      CLOSED
CLOSING_BY_BROKER     504      BY_BROK  BY_BROK  BY_BROK  CLOSED   504      504      BY_BROK    541     541      541      541      CLOSED
CLOSING_BY_BOTH       504      BY_BOTH  BY_BOTH  BY_BOTH  BOTH_AB  504      504      BY_BROK    541     541      541      541      CLOSED
BOTH_AWAITING_BROKER  504      504      505      504      503      504      504      CLOSED     541     541      541      541      CLOSED
CLOSING_BY_US         504      BY_US    BY_US    BY_US    US_AB    BY_US    BY_US    US_AP      541     541      541      541      CLOSED
US_AWAITING_PRODUCER  504      US_AP    US_AP    US_AP    CLOSED   504      504      US_AP      541     541      541      541      CLOSED
US_AWAITING_BROKER    504      504      505      504      503      US_AB    US_AB    CLOSED     541     541      541      541      CLOSED
"""  # noqa: E501 -- a table
SHORT = {
    "BY_PROD": ChannelState.CLOSING_BY_PRODUCER,
    "BY_BROK": ChannelState.CLOSING_BY_BROKER,
    "BY_BOTH": ChannelState.CLOSING_BY_BOTH,
    "BOTH_AB": ChannelState.BOTH_AWAITING_BROKER,
    "BY_US": ChannelState.CLOSING_BY_US,
    "US_AP": ChannelState.US_AWAITING_PRODUCER,
    "US_AB": ChannelState.US_AWAITING_BROKER,
    "DECLARE": ChannelState.DECLARING,
}
ROWS = {row.split()[0]: row.split()[1:] for row in TABLE.strip().splitlines()[1:]}


@pytest.mark.parametrize(("state", "event"), list(product(ChannelState, ChannelEvent)), ids=lambda one: one.name)
def test_every_event_in_every_state(state: ChannelState, event: ChannelEvent) -> None:
    expected = ROWS[state.name][list(ChannelEvent).index(event)]
    if not expected.isdecimal():
        assert next_state(state, event) is SHORT.get(expected, ChannelState.__members__.get(expected))
        return
    with pytest.raises(ProtocolError) as error:
        next_state(state, event, 20 << 16 | 40)
    assert error.value.reply_code == int(expected)
    assert (error.value.scope, error.value.class_id, error.value.method_id) == (Scope.CONNECTION, 20, 40)


def test_the_table_has_a_row_for_each_state_and_knows_an_end_for_each() -> None:
    assert set(TRANSITIONS) == set(ChannelState)
    assert {row[ChannelEvent.END] for row in TRANSITIONS.values()} == {ChannelState.CLOSED}


def test_every_state_can_be_reached_and_left() -> None:
    reached = {ChannelState.CLOSED}
    while more := {after for state in reached for after in TRANSITIONS[state].values()} - reached:
        reached |= more
    assert reached == set(ChannelState)


def test_held_frames_are_no_events_before_the_channel_goes_on() -> None:
    of_the_producer = [event for event in ChannelEvent if event.name.startswith("PRODUCER_")]
    assert [state for state in HOLDING for event in of_the_producer if event in TRANSITIONS[state]] == []


def test_a_channel_whose_confirms_reach_the_producer_counts_as_open() -> None:
    assert CONFIRMABLE < COUNTED
    assert not CONFIRMABLE & DISCARDING


MODES = [
    (ChannelMode.PLAIN, ChannelMode.CONFIRM, ""),
    (ChannelMode.PLAIN, ChannelMode.TX, ""),
    (ChannelMode.CONFIRM, ChannelMode.CONFIRM, ""),
    (ChannelMode.TX, ChannelMode.TX, ""),
    (ChannelMode.TX, ChannelMode.CONFIRM, "cannot switch from tx to confirm mode"),
    (ChannelMode.CONFIRM, ChannelMode.TX, "cannot switch from confirm to tx mode"),
]


@pytest.mark.parametrize(("mode", "selected", "text"), MODES)
def test_a_mode_is_selected_once(mode: ChannelMode, selected: ChannelMode, text: str) -> None:
    if not text:
        assert next_mode(mode, selected) is selected
        return
    with pytest.raises(ProtocolError) as error:
        next_mode(mode, selected)
    assert (error.value.reply_code, error.value.text.decode(), error.value.scope) == (406, text, Scope.CHANNEL)


# -- the record --------------------------------------------------------------------------------------------------------


def test_a_channel_starts_closed_idle_and_plain() -> None:
    channel = Channel(258)
    assert (channel.state, channel.mode, channel.content) == (ChannelState.CLOSED, ChannelMode.PLAIN, None)
    assert (channel.needs_inspection, channel.confirms.total, bool(channel.held)) == (False, 0, False)


@pytest.mark.parametrize("state", ChannelState)
def test_what_the_broker_sends_is_looked_at_where_it_is_discarded(state: ChannelState) -> None:
    channel = Channel(1)
    channel.state = state
    assert channel.needs_inspection == (state in DISCARDING)


@pytest.mark.parametrize(
    ("name", "value"), [("held_back", []), ("deferred", [b"frame"]), ("returned", b"frame"), ("swallowed", 1)]
)
def test_what_the_broker_sends_is_looked_at_where_it_is_not_simply_copied(name: str, value: object) -> None:
    channel = Channel(1)
    setattr(channel.output, name, value)
    assert channel.needs_inspection


def test_a_channel_is_interruptible_between_contents_of_the_broker() -> None:
    channel = Channel(1)
    channel.state = ChannelState.OPEN
    channel.content = ContentUnderWay(PendingPublish(b"", b"", b"", channel, False))
    assert channel.interruptible
    channel.content.remaining = 1
    assert not channel.interruptible
