"""Bytes and bodies: event batches, replay buffer, faults, metrics, request parsing, answers."""

import json
import os
import random
import re
from pathlib import Path

import msgspec
import pytest

from core.engines.emulated import api, pages
from core.engines.emulated.config import EngineConfig, from_arguments
from core.engines.emulated.events import (
    NO_BATCH,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventLog,
    encode_batch,
    encode_seq,
)
from core.engines.emulated.faults import FaultDice, Faults
from core.engines.emulated.http import HttpRequest
from core.engines.emulated.metrics import Histogram, Page
from core.engines.emulated.replies import FullReply, StreamReply
from core.engines.emulated.sequence import State
from core.engines.emulated.transfer import TransferFailed, decode_fingerprints, encode_fingerprints

SHARED = Path(os.environ.get("CONDUCTOR_SHARED", Path(__file__).resolve().parents[4] / "shared"))
CONFIG = EngineConfig(name="e", model="tiny", adapters=("adapter-a",), context_tokens_max=32_768)


def capture(name: str) -> str:
    path = SHARED / "captures" / "vllm" / name
    if not path.exists():
        pytest.skip(f"recorded answers are not there: {path}")
    return path.read_text()


def parse(body, *, chat=True, headers=None):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = HttpRequest(method="POST", body=data, headers=headers or {})
    return api.parse_generation(CONFIG, request, chat=chat)


def chat_body(**more):
    return {"model": "tiny", "messages": [{"role": "user", "content": "hello world"}], **more}


def refused(body, *, chat=True) -> dict:
    with pytest.raises(api.ApiError) as caught:
        parse(body, chat=chat)
    assert caught.value.body()["error"]["code"] == caught.value.status
    return caught.value.body()["error"]


class Recorder:
    """Stands where the connection stands and keeps what is written."""

    def __init__(self):
        self.data = b""
        self.broken = self.finished = False

    def send(self, data):
        self.data += data

    def finish(self, data=b""):
        self.data += data
        self.finished = True

    def abort(self):
        self.broken = True


def answer(generation, reply_type, **more):
    """Drive a reply through a whole generation, as the engine does."""
    recorder = Recorder()
    reply = reply_type(recorder, generation, block_size=32, created=7, **more)
    sequence = generation.sequence
    sequence.cached_tokens = 0
    for index in range(sequence.output_tokens_max):
        sequence.tokens.append(api.sample(sequence.text_seed, index))
        reply.token(sequence.tokens[-1])
        reply.flush()
    sequence.state = State.FINISHED
    if not recorder.broken:
        reply.end()
    return recorder


def stream_events(raw: bytes) -> list:
    """Decode a chunked SSE body; checks every chunk's length."""
    body = raw.partition(b"\r\n\r\n")[2]
    events = []
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        chunk, body = body[:length], body[length + 2 :]
        if length:
            assert chunk.endswith(b"\n\n")
            for event in chunk[:-2].split(b"\n\n"):
                assert event.startswith(b"data: ")
                text = event[6:].decode()
                events.append(text if text == "[DONE]" else json.loads(text))
    return events


def shape(value):
    """Key order and types of a JSON value, without its contents."""
    if isinstance(value, dict):
        return [(key, shape(item)) for key, item in value.items()]
    if isinstance(value, list):
        return [shape(item) for item in value[:1]]
    return type(value).__name__


def test_a_batch_is_an_array_of_maps_without_defaults():
    event = BlockStored([1], None, [5, 6], 2, None, "GPU", None, [None], 0, "full_attention")
    payload = encode_batch([AllBlocksCleared(), BlockRemoved([9], "GPU", 0), event], at=1.5)
    ts, events, rank = msgspec.msgpack.decode(payload)
    assert (ts, rank) == (1.5, 0)
    assert events[0] == {"type": "AllBlocksCleared"}
    removed = {"type": "BlockRemoved", "block_hashes": [9], "medium": "GPU", "group_idx": 0}
    assert events[1] == removed
    assert "session_id" not in events[2]
    assert events[2]["lora_id"] is None


def test_events_have_the_recorded_fields_in_their_order():
    message = json.loads(capture("events-basic.decoded.json"))["messages"][0]
    recorded = message["payload"][1][0]
    event = BlockStored([1], None, [5, 6], 2, None, "GPU", None, [None], 0, "full_attention")
    ours = msgspec.msgpack.decode(encode_batch([event], at=1.0))[1][0]
    assert list(ours) == list(recorded)


def test_the_log_numbers_from_zero_and_keeps_the_latest():
    log = EventLog(steps_max=3, bytes_max=1000)
    for index in range(5):
        assert log.append(b"x").seq == index
    assert [b.seq for b in log.since(0)] == [2, 3, 4]
    assert [b.seq for b in log.since(4)] == [4]
    assert list(log.since(99)) == []
    assert encode_seq(258) == b"\0\0\0\0\0\0\1\2"
    assert NO_BATCH == b"\xff" * 8


def test_the_log_is_bounded_in_bytes_and_can_forget():
    log = EventLog(steps_max=100, bytes_max=10)
    for _ in range(4):
        log.append(b"1234")
    assert [b.seq for b in log.since(0)] == [2, 3]
    log.append(b"1", keep=False)
    assert log.next_seq == 5
    assert [b.seq for b in log.since(0)] == [2, 3]


def test_faults_are_checked_by_name_and_bounds():
    faults = Faults().changed({"slow": 3, "lose_events": 2})
    assert (faults.slow, faults.lose_events) == (3, 2)
    wrong = {
        "nope": 1, "slow": 0, "error_rate": 1.5, "error_status": 200, "hang": "later",
        "kill": 1, "lose_events": -1, "drop_streams": 0.5, "lose_events_share": "x",
    }  # fmt: skip
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=f"faults.{name}"):
            faults.changed({name: value})
    with pytest.raises(ValueError, match="JSON object"):
        faults.changed([])


def test_counted_faults_run_down_and_shares_are_seeded():
    dice = FaultDice(Faults(lose_events=2, drop_streams=1), random.Random(1))
    assert [dice.lose_batch() for _ in range(4)] == [True, True, False, False]
    assert [dice.drop_stream() for _ in range(2)] == [True, False]
    rolls = [
        [FaultDice(Faults(error_rate=0.5), random.Random(9)).fail_request() for _ in range(3)]
        for _ in range(2)
    ]
    assert rolls[0] == rolls[1]
    assert not FaultDice(Faults(), random.Random(1)).fail_request()


def test_histogram_buckets_are_cumulative_and_labels_escaped():
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value)
    page = Page({"model_name": 'a"b'}, created_s=5.0)
    page.histogram("h", histogram)
    page.counter("c", [({}, 2)])
    lines = page.text().splitlines()
    assert 'h_bucket{le="0.1",model_name="a\\"b"} 2.0' in lines
    assert 'h_bucket{le="+Inf",model_name="a\\"b"} 4.0' in lines
    assert 'c_total{model_name="a\\"b"} 2.0' in lines
    assert 'c_created{model_name="a\\"b"} 5.0' in lines


def test_token_ids_and_text_are_accepted():
    ids = parse({"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 3}, chat=False)
    assert ids.sequence.tokens == [5, 6, 7]
    assert ids.sequence.output_tokens_max == 3
    text = parse({"model": "tiny", "prompt": "hello world"}, chat=False)
    assert text.sequence.output_tokens_max == 16
    assert parse({"prompt": [[5, 6, 7]]}, chat=False).sequence.tokens == [5, 6, 7]


def test_ids_headers_and_vllm_fields():
    body = chat_body(
        model="adapter-a",
        cache_salt="t",
        max_completion_tokens=9,
        vllm_xargs={"kv_cache_report_mode": "full", "session_id": "s2"},
    )
    one = parse(body, headers={"x-request-id": "abc"})
    assert one.id == "chatcmpl-abc"
    assert one.model == "adapter-a"
    assert one.sequence.adapter_id == 1
    assert one.sequence.salt == "t"
    assert one.sequence.session == "s2"
    assert one.sequence.report_hits
    assert one.sequence.output_tokens_max == 9


def test_text_follows_model_and_adapter_but_not_salt():
    seeds = [
        parse(chat_body(**more)).sequence.text_seed
        for more in ({}, {"cache_salt": "x"}, {"model": "adapter-a"})
    ]
    assert seeds[0] == seeds[1] != seeds[2]


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("err_unknown_model", chat_body(model="nope")),
        ("err_too_long", chat_body(messages=[{"role": "user", "content": "word " * 40_000}])),
        ("err_max_tokens_too_long", chat_body(max_tokens=40_000)),
        ("err_malformed_json", b'{"model": "tiny", "messages": ['),
        ("err_missing_messages", {"model": "tiny"}),
        ("err_bad_type", chat_body(temperature="hot")),
        ("err_bad_temperature", chat_body(temperature=-1)),
        ("err_empty_messages", chat_body(messages=[])),
    ],
)
def test_refusals_are_those_recorded(name, body):
    recorded = json.loads(capture("http/responses.json"))[name]["body"]["error"]
    ours = refused(body)
    assert (ours["type"], ours["code"]) == (recorded["type"], recorded["code"])
    assert ours["param"] == recorded["param"]


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": ["a", "b"]},
        {"prompt": [1, -2]},
        {"prompt": [1, 2**40]},
        {"prompt": [1, "x"]},
        {"prompt": []},
        {"prompt": "x", "n": 2},
        {"prompt": "x", "max_tokens": 0},
        {"prompt": "x", "max_tokens": "many"},
        {"prompt": "x", "kv_transfer_params": {"do_remote_prefill": True}},
        {"prompt": "x", "stream_options": True},
        {"prompt": "x", "kv_transfer_params": [1]},
        {"prompt": "x", "vllm_xargs": "full"},
        {"prompt": "x", "cache_salt": 5},
        {},
        [1],
    ],
)
def test_unusable_completions_are_refused(body):
    assert refused(body, chat=False)["code"] == 400


@pytest.mark.parametrize("content", [5, ["text"], {"type": "text"}])
def test_unusable_message_contents_are_refused(content):
    error = refused({"messages": [{"role": "user", "content": content}]})
    assert error["param"] == "body.messages.0.content"


def test_stream_chunks_have_the_recorded_shape():
    for name, chat, options in (
        ("stream-completions.txt", False, {"include_usage": True}),
        ("stream-include-usage.txt", True, {"include_usage": True}),
        ("stream-no-usage.txt", True, None),
        ("stream-continuous-usage.txt", True, {"include_usage": True, "continuous_usage_stats": 1}),
    ):
        recorded = [
            json.loads(line) for line in re.findall(r"data: (\{.*\})", capture(f"http/{name}"))
        ]
        body = chat_body() if chat else {"model": "tiny", "prompt": "hello world"}
        body |= {"stream": True, "stream_options": options}
        body["max_tokens"] = 6 if chat else 4
        ours = stream_events(answer(parse(body, chat=chat), StreamReply).data)
        assert ours.pop() == "[DONE]"
        assert [shape(e) for e in ours] == [shape(e) for e in recorded], name


def test_whole_answers_have_the_recorded_shape():
    recorded = json.loads(capture("http/responses.json"))
    for name, chat, body in (
        ("chat_ok", True, chat_body(max_tokens=4)),
        ("chat_return_token_ids", True, chat_body(max_tokens=4, return_token_ids=True)),
        ("completion_token_ids_prompt", False, {"prompt": list(range(8)), "max_tokens": 4}),
    ):
        raw = answer(parse(body, chat=chat), FullReply).data
        ours = json.loads(raw.partition(b"\r\n\r\n")[2])
        assert shape(ours) == shape(recorded[name]["body"]), name


def test_stream_and_whole_answer_carry_the_same_text():
    body = chat_body(max_tokens=9, return_token_ids=True)
    whole = json.loads(answer(parse(body), FullReply).data.partition(b"\r\n\r\n")[2])
    for ids in (True, False):
        events = stream_events(
            answer(parse(body | {"stream": True, "return_token_ids": ids}), StreamReply).data
        )
        text = "".join(e["choices"][0]["delta"]["content"] for e in events[:-1])
        assert text == whole["choices"][0]["message"]["content"]
        if ids:
            got = [t for e in events[1:-1] for t in e["choices"][0]["token_ids"]]
            assert got == whole["choices"][0]["token_ids"]
            assert events[0]["prompt_token_ids"] == whole["prompt_token_ids"]


def test_a_failing_stream_ends_with_the_recorded_bytes():
    recorded = json.loads(capture("http/sigterm-in-flight.json"))["tail"]
    recorder = Recorder()
    generation = parse(chat_body(stream=True))
    reply = StreamReply(recorder, generation, block_size=32, created=7)
    message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    reply.fail(api.internal_error(message))
    tail = recorder.data.partition(b"\r\n\r\n")[2].decode()
    assert recorded.endswith(tail)
    assert recorder.finished


def test_a_dropped_stream_breaks_off_after_the_asked_tokens():
    generation = parse(chat_body(stream=True, max_tokens=9))
    recorder = answer(generation, StreamReply, drop_after=3)
    assert recorder.broken
    assert not recorder.finished
    assert b"[DONE]" not in recorder.data


def test_fingerprints_travel_as_eight_bytes_each():
    values = [0, 1, 2**64 - 1]
    assert decode_fingerprints(encode_fingerprints(values), 3) == values
    with pytest.raises(TransferFailed, match="24 bytes instead of 16"):
        decode_fingerprints(encode_fingerprints(values), 2)


def test_the_command_line_becomes_settings(tmp_path):
    line = "--name p1 --model m --adapter a --adapter b --role prefill --block-size 16"
    line += " --kv-tokens 1600 --profile instant --events-port off --tokenizer-dir"
    faults = ["--faults", '{"slow": 2}']
    config, folder = from_arguments([*line.split(), str(tmp_path), *faults])
    assert config.adapters == ("a", "b")
    assert (config.blocks, config.context_max) == (100, 99 * 16)
    assert config.faults.slow == 2
    assert config.events_port is None
    assert folder == tmp_path


@pytest.mark.parametrize(
    "extra", [["--faults", '{"x": 1}'], ["--block-size", "0"], ["--time-scale", "0"]]
)
def test_wrong_settings_are_refused(extra, capsys):
    with pytest.raises(SystemExit):
        from_arguments(["--name", "p1", "--model", "m", *extra])
    assert extra[0] in capsys.readouterr().err


def test_event_sources_are_empty_without_events():
    class Silent:
        publisher = None

    assert pages.event_sources(Silent()) == {}
