"""Framing loses nothing under any chunking; the observer reads what vLLM and SGLang sent."""

import itertools
import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.engines.registry import adapter
from core.engines.sglang import SglangAdapter
from core.engines.vllm import VllmAdapter
from core.gateway.sse import (
    EVENT_BYTES_MAX,
    GAPS_MAX,
    SseFramer,
    StreamObserver,
    error_event,
    event_data,
    tail_mean,
)

LINE_ENDS = ("\n", "\r\n", "\r")
lines = st.lists(
    st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=12), max_size=3
)
streams = st.lists(st.tuples(lines, st.sampled_from(LINE_ENDS)), max_size=8).map(
    lambda events: "".join(
        "".join(f"data: {line}{end}" for line in made) + end for made, end in events
    ).encode()
)


def chunked(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(places)]


def fed(framer: SseFramer, chunks: list[bytes]) -> list[bytes]:
    return [event for chunk in chunks for event in framer.feed(chunk)]


@given(streams, st.lists(st.integers(0, 10_000), max_size=20))
def test_any_chunking_gives_every_byte_once(data, cuts):
    framer = SseFramer()
    events = fed(framer, chunked(data, cuts))
    assert b"".join(events) + framer.rest == data


@given(streams, st.lists(st.integers(0, 10_000), max_size=20))
def test_any_chunking_gives_the_same_data(data, cuts):
    whole = [event_data(e) for e in fed(SseFramer(), [data])]
    pieces = [event_data(e) for e in fed(SseFramer(), chunked(data, cuts))]
    assert [d for d in pieces if d] == [d for d in whole if d]


def test_events_are_cut_at_blank_lines_only():
    framer = SseFramer()
    assert framer.feed(b"data: a\n") == []
    assert framer.feed(b"data: b\n\ndata: c") == [b"data: a\ndata: b\n\n"]
    assert event_data(b"data: a\ndata: b\n\n") == b"a\nb"
    assert framer.feed(b"\n\n") == [b"data: c\n\n"]
    assert framer.rest == b""


def test_crlf_is_one_line_end_even_when_split():
    framer = SseFramer()
    assert fed(framer, [b"data: a\r", b"\ndata: b\r\n", b"\r\n"]) == [b"data: a\r\ndata: b\r\n\r\n"]


def test_overlong_events_pass_in_pieces():
    framer = SseFramer()
    data = b"data: " + b"x" * (EVENT_BYTES_MAX + 10)
    assert b"".join(framer.feed(data)) == data
    assert framer.overlong
    assert framer.feed(b"more\n\n") == [b"more\n\n"]


@pytest.mark.parametrize("field", [b"data:x\n\n", b"data: x\n\n", b": note\ndata: x\nid: 1\n\n"])
def test_data_field_forms(field):
    assert event_data(field) == b"x"


def test_events_without_data_have_none():
    assert event_data(b": keep-alive\n\n") == b""


def chunk(**fields) -> bytes:
    base = {"id": "c", "choices": [{"index": 0, "delta": {"content": "t"}}]}
    return b"data: " + json.dumps({**base, **fields}, separators=(",", ":")).encode() + b"\n\n"


USAGE = chunk(choices=[], usage={"prompt_tokens": 9, "completion_tokens": 2})
DONE = b"data: [DONE]\n\n"


def observer(**more) -> StreamObserver:
    return StreamObserver(VllmAdapter().stream_error, **more)


def test_tokens_gaps_and_usage():
    o = observer()
    role = chunk(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])
    assert o.feed(role, 1.0) == role
    assert (o.first_event_s, o.first_token_s) == (1.0, None)
    for at in (2.0, 2.5, 4.0):
        assert o.feed(chunk(), at) == chunk()
    assert o.feed(USAGE + DONE, 4.0) == USAGE + DONE
    assert (o.first_token_s, o.tokens, o.done, o.error) == (2.0, 3, True, None)
    assert o.tbt_s() == 1.5
    assert o.tpot_s() == 1.0
    assert o.usage()["usage"]["prompt_tokens"] == 9


def test_only_the_usage_event_is_left_out_when_we_asked_for_it():
    o = observer(strip_usage=True)
    assert o.feed(chunk() + USAGE + DONE, 1.0) == chunk() + DONE
    assert o.usage()["usage"]["completion_tokens"] == 2
    assert o.stripped == 1


def test_null_usage_is_no_usage_and_stays():
    o = observer(strip_usage=True)
    data = chunk(usage=None)
    assert o.feed(data, 1.0) == data
    assert o.usage() is None


def test_continuous_usage_keeps_the_last_one():
    o = observer()
    for n in (1, 2, 3):
        o.feed(chunk(usage={"completion_tokens": n}), float(n))
    assert o.usage()["usage"]["completion_tokens"] == 3
    assert o.tokens == 3


def test_partial_events_wait_and_are_not_lost():
    o = observer()
    whole = chunk()
    assert o.feed(whole[:20], 1.0) == b""
    assert o.first_event_s is None
    assert o.feed(whole[20:] + b"data: hal", 2.0) == whole
    assert o.first_token_s == 2.0
    assert o.flush() == b"data: hal"


def test_a_dying_engine_is_not_taken_for_success():
    error = {"message": "EngineCore encountered an issue.", "code": 500, "type": "x"}
    o = observer()
    o.feed(chunk(), 1.0)
    o.feed(b"data: " + json.dumps({"error": error}).encode() + b"\n\n" + DONE, 2.0)
    assert o.done
    assert o.error == "EngineCore encountered an issue."
    assert o.tokens == 1


def test_text_about_errors_is_a_token():
    o = observer()
    o.feed(chunk(choices=[{"index": 0, "delta": {"content": '"error"'}}]), 1.0)
    assert (o.error, o.tokens) == (None, 1)


def test_sglang_flat_errors():
    o = StreamObserver(SglangAdapter().stream_error)
    o.feed(b'data: {"object":"error","message":"boom","error":{"message":"boom"}}\n\n', 1.0)
    assert o.error == "boom"


def test_gaps_are_bounded():
    o = observer()
    o.feed(chunk(), 0.0)
    o.gaps.extend([1.0] * (GAPS_MAX - 5))
    o.gap_count, o.gap_sum_s = len(o.gaps), float(len(o.gaps))
    for n in range(1, 11):
        o.feed(chunk(), float(n))
    assert len(o.gaps) == GAPS_MAX
    assert o.gap_count == GAPS_MAX + 5
    assert o.tpot_s() == 1.0


def test_tail_mean_is_of_the_longest_tenth():
    from array import array

    assert tail_mean(array("d")) is None
    assert tail_mean(array("d", [3.0])) == 3.0
    assert tail_mean(array("d", [1.0] * 18 + [5.0, 7.0])) == 6.0


def test_error_event_is_one_event():
    assert SseFramer().feed(error_event(b'{"error":{}}')) == [b'data: {"error":{}}\n\n']


def captures() -> Path:
    found = os.environ.get("CONDUCTOR_SHARED")
    root = Path(found) if found else Path(__file__).resolve().parents[4] / "shared"
    if not (root / "captures").is_dir():
        pytest.skip("captures of real engines are absent: set CONDUCTOR_SHARED")
    return root / "captures"


def dechunked(text: bytes) -> bytes:
    body = text.split(b"\r\n\r\n", 1)[-1] if b"\r\n\r\n" in text else text.split(b"\n\n", 1)[-1]
    events = [e for e in body.replace(b"\r\n", b"\n").split(b"\n") if e.startswith(b"data:")]
    return b"".join(e + b"\n\n" for e in events)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_recorded_streams(engine):
    folder = captures() / engine / "http"
    for path in sorted(folder.glob("stream-*.txt")):
        data = dechunked(path.read_bytes())
        if not data:
            continue
        o = StreamObserver(adapter(engine).stream_error)
        rng = random.Random(path.name)
        out = b""
        for n, piece in enumerate(chunked(data, [rng.randrange(10_000) for _ in range(30)])):
            out += o.feed(piece, float(n))
        assert out + o.flush() == data
        assert o.done and o.error is None, path
        assert o.tokens > 0
        if "usage" in path.name and "no-usage" not in path.name:
            usage = adapter(engine).usage(o.usage())
            assert usage.prompt and usage.completion
