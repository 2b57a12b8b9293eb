"""Frames of live and replayed messages, by release."""

import pytest

from core.engines.sockets import Message, parse_live, parse_replay
from core.errors import MalformedFrame

FIVE = (5).to_bytes(8, "big")


def test_live_message():
    assert parse_live([b"topic", FIVE, b"x"]) == Message(5, b"x")


@pytest.mark.parametrize("frames", [[], [b"", FIVE], [b"", b"5", b"x"], [b"", FIVE, b"x", b"y"]])
def test_damaged_live_message(frames):
    with pytest.raises(MalformedFrame):
        parse_live(frames)


def test_replay_answers_of_both_framings():
    assert parse_replay([b"", b"topic", FIVE, b"x"]) == Message(5, b"x")
    assert parse_replay([b"", FIVE, b"x"]) == Message(5, b"x")


def test_end_marks_of_both_framings():
    assert parse_replay([b"", b"", b"\xff" * 8, b""]) is None
    assert parse_replay([b"", b"\xff" * 8, b""]) is None


@pytest.mark.parametrize(
    "frames", [[b""], [b"x", FIVE, b"x"], [b"", b"", b"", FIVE, b"x"], [b"", b"\xff" * 4, b""]]
)
def test_damaged_replay_answers(frames):
    with pytest.raises(MalformedFrame):
        parse_replay(frames)
