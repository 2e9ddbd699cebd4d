"""Short runs of the fuzzers, and defects that they must find."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from pamqp import commands

from tests import client, pieces
from tests.client import split
from tests.fuzz import wire
from tests.fuzz.__main__ import main, own_loop, table
from tests.fuzz.mutation import mutated
from tests.fuzz.output import Defect, Output
from tests.fuzz.targets import TARGETS, Target
from tests.relay.wire import publish

#: A time that is never reached.
NEVER = float("inf")


def test_mutated_frames_do_not_disturb_a_relay() -> None:
    counts, defects = wire.run(1, 3000, NEVER, time.monotonic)
    assert defects == []
    assert counts["mutated frames"] >= 3000
    assert counts["ended refusing"]
    assert counts["ended closing"]
    assert counts["ended handshake open"]
    assert counts["ended handshake closed"]


def test_a_defect_of_the_relay_is_reported_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    take = wire.Conversation._pass

    def failing(conversation: wire.Conversation, side: str, data: bytes) -> None:
        take(conversation, side, data)
        if side == "broker" and len(data) > 100:
            raise IndexError("some defect")

    monkeypatch.setattr(wire.Conversation, "_pass", failing)
    _, defects = wire.run(1, 5000, NEVER, time.monotonic)
    assert defects
    assert defects[0].startswith("seed ")
    assert "IndexError('some defect') at test_fuzz.py" in defects[0]
    assert "input from the broker: b" in defects[0]


def test_a_binding_that_a_conversation_created_is_no_defect() -> None:
    conversation = wire.Conversation(random.Random(2), wire.seeds())  # of its rules, a bind adds a destination
    conversation._pass("producer", client.exchange_bind(1, b"e", b"xo", b""))
    conversation._pass("broker", client.method(1, commands.Exchange.BindOk()) * 2)
    assert conversation._canary() != conversation._before
    conversation.check_others()


@pytest.mark.parametrize("output", [b"\x05\x00\x01\x00\x00\x00\x00\xce", b"\x01\x00\x01\x00\x00\x00\x00\xcd"])
def test_output_that_is_not_a_frame_is_a_defect(output: bytes) -> None:
    with pytest.raises(Defect):
        Output("producer").add(output)


def test_output_may_be_cut_anywhere() -> None:
    output = Output("broker")
    for byte in publish():
        output.add(bytes((byte,)))


def test_mutations_change_frames_and_often_keep_the_framing() -> None:
    frames = [frame.raw for frame in split(publish())]
    results = [mutated(frames, random.Random(seed))[0] for seed in range(300)]
    assert len(set(results)) > 200
    assert sum(is_framed(data) for data in results) > 100


def is_framed(data: bytes) -> bool:
    while len(data) >= 8 and len(data) >= (size := int.from_bytes(data[3:7], "big") + 8):
        if data[size - 1] != 0xCE:
            return False
        data = data[size:]
    return not data


@pytest.mark.parametrize("name", TARGETS)
def test_valid_inputs_of_a_target(name: str) -> None:
    for content in TARGETS[name].seeds:
        TARGETS[name].run(content)


def test_a_defect_of_a_target_is_reported_with_its_input() -> None:
    def run(data: bytes) -> None:
        assert data == b"valid"

    inputs, [defect] = own_loop(Target(run, (b"valid",)), 60, 1)
    assert inputs < 1000
    assert defect.startswith("input b'")


def test_a_run_adds_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.__main__.find_spec", lambda _: None)
    monkeypatch.setattr("tests.fuzz.__main__.TARGETS", {"codec": TARGETS["codec"]})
    file = tmp_path / "fuzz.json"
    assert main(["--frames", "200", "--seconds", "2", "--seed", "1", "--result", str(file)]) == 0
    found = pieces.read(file)
    assert [(piece["target"], piece["defects"]) for piece in found] == [("frames", 0), ("codec", 0)]
    assert all(piece["inputs"] for piece in found)
    assert "codec" in table(found)
