from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import ProtocolError, Scope
from proxy.relay.handshake.greeting import FRAME_MIN_BYTES, Tuning, TuningLimits, agree, offer

OURS = 131072


@pytest.mark.parametrize(
    ("broker", "offered"),
    [
        (TuningLimits(2047, 131072, 60), TuningLimits(2046, 131072, 60)),
        (TuningLimits(0, 0, 0), TuningLimits(65534, 131072, 0)),
        (TuningLimits(2, 4096, 1), TuningLimits(1, 4096, 1)),
        (TuningLimits(1, 4096, 1), TuningLimits(1, 4096, 1)),
        (TuningLimits(65535, 2**32 - 1, 65535), TuningLimits(65534, 131072, 65535)),
    ],
)
def test_the_offer_reserves_the_top_channel_and_limits_the_frame_size(
    broker: TuningLimits, offered: TuningLimits
) -> None:
    assert offer(broker, OURS) == offered


@pytest.mark.parametrize(
    ("broker", "answer", "agreed"),
    [
        (TuningLimits(2047, 131072, 60), TuningLimits(2046, 131072, 60), Tuning(2046, 2047, 131072, 131072, 60, 60)),
        (TuningLimits(2047, 131072, 60), TuningLimits(0, 0, 0), Tuning(2046, 2047, 131072, 131072, 0, 60)),
        (TuningLimits(2047, 131072, 0), TuningLimits(1, 4096, 580), Tuning(1, 2, 4096, 4096, 580, 580)),
        (TuningLimits(0, 0, 60), TuningLimits(0, 0, 5), Tuning(65534, 65535, 131072, 131072, 5, 5)),
        (TuningLimits(1, 0, 0), TuningLimits(0, 0, 0), Tuning(1, 1, 131072, 131072, 0, 0)),
    ],
)
def test_the_upstream_has_one_more_channel_and_each_side_its_heartbeat(
    broker: TuningLimits, answer: TuningLimits, agreed: Tuning
) -> None:
    assert agree(broker, offer(broker, OURS), answer) == agreed


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (TuningLimits(2047, 0, 0), "negotiated channel_max = 2047 is higher than the maximum allowed value (2046)"),
        (TuningLimits(0, 131073, 0), "negotiated frame_max = 131073 is higher than the maximum allowed value (131072)"),
        (TuningLimits(0, 4095, 0), "negotiated frame_max = 4095 is lower than the minimum allowed value (4096)"),
    ],
)
def test_a_tune_ok_outside_the_offer_is_a_530_with_the_text_of_rabbitmq(answer: TuningLimits, text: str) -> None:
    broker = TuningLimits(2047, 131072, 60)
    with pytest.raises(ProtocolError) as refused:
        agree(broker, offer(broker, OURS), answer)
    error = refused.value
    assert (error.reply_code, error.text.decode(), error.scope) == (530, text, Scope.CONNECTION)
    assert (error.class_id, error.method_id) == (10, 30)


_shorts = st.integers(0, 2**16 - 1) | st.sampled_from([0, 1, 2, 2047])
_sizes = st.just(0) | st.integers(FRAME_MIN_BYTES, 2**32 - 1)


@given(
    st.builds(TuningLimits, _shorts, _sizes, _shorts),
    st.builds(TuningLimits, _shorts, st.integers(0, 2**32 - 1), _shorts),
)
def test_what_is_agreed_is_within_both_offers(broker: TuningLimits, answer: TuningLimits) -> None:
    offered = offer(broker, OURS)
    assert 0 < offered.channel_max <= (broker.channel_max or 65535)
    try:
        tuning = agree(broker, offered, answer)
    except ProtocolError:
        assert answer.channel_max > offered.channel_max or not (
            FRAME_MIN_BYTES <= answer.frame_max_bytes <= offered.frame_max_bytes
        )
        return
    assert 0 < tuning.channel_max_producer <= tuning.channel_max_upstream <= (broker.channel_max or 65535)
    assert FRAME_MIN_BYTES <= tuning.frame_max_producer <= tuning.frame_max_upstream
    assert tuning.frame_max_upstream <= (broker.frame_max_bytes or OURS)
    assert tuning.heartbeat_upstream or not (answer.heartbeat_seconds or broker.heartbeat_seconds)
