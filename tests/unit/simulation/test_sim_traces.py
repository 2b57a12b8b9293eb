import errno
import gzip
import json

import pytest

from core.errors import BadRequest
from core.simulation import traces
from core.simulation.generator import Workload, generate
from core.simulation.sessions import think_seconds, with_sessions
from core.simulation.trace_stats import trace_statistics
from core.simulation.traces import TraceError, TraceRequest, read_trace, write_trace
from core.simulation.workload import prepare

GOOD = {"timestamp": 0, "input_length": 1000, "output_length": 10, "hash_ids": [1, 2]}


def write(path, rows):
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


def test_mooncake_times_are_milliseconds_and_blocks_512_tokens(tmp_path):
    path = write(tmp_path / "t.jsonl", [GOOD, {**GOOD, "timestamp": 2500}])
    trace = read_trace(path)
    assert trace.block_tokens == 512
    assert [r.arrival_s for r in trace.requests] == [0.0, 2.5]


def test_bailian_times_are_seconds_and_turns_form_sessions(tmp_path):
    row = {"chat_id": 1, "parent_chat_id": -1, "timestamp": 1.5, "input_length": 33,
           "output_length": 5, "type": "text", "turn": 1, "hash_ids": [7, 8, 9]}  # fmt: skip
    later = {**row, "chat_id": 2, "parent_chat_id": 1, "timestamp": 61.0, "turn": 2}
    trace = read_trace(write(tmp_path / "b.jsonl", [row, later]))
    assert trace.block_tokens == 16
    assert [r.arrival_s for r in trace.requests] == [1.5, 61.0]
    assert [(r.parent, r.session, r.turn) for r in trace.requests] == [(-1, "1", 1), (0, "1", 2)]
    assert think_seconds(trace, 1) == pytest.approx(59.5 - 5 * 0.03)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"timestamp": -1}, "timestamp"),
        ({"timestamp": "soon"}, "timestamp"),
        ({"input_length": 1.5}, "input_length"),
        ({"input_length": True}, "input_length"),
        ({"output_length": None}, "output_length"),
        ({"hash_ids": 3}, "hash_ids"),
        ({"hash_ids": [1, -2]}, "hash_ids"),
        ({"hash_ids": [1, 2, 3]}, "hash_ids"),
        ({"hash_ids": []}, "hash_ids"),
    ],
)
def test_malformed_line_names_file_line_and_field(tmp_path, change, field):
    path = write(tmp_path / "bad.jsonl", [GOOD, {**GOOD, **change}])
    with pytest.raises(TraceError) as error:
        read_trace(path)
    assert f"{path}:2: {field}:" in str(error.value)
    assert error.value.field == field


@pytest.mark.parametrize("text", ["{", "[]", "7"])
def test_a_line_that_is_no_object_is_named(tmp_path, text):
    path = write(tmp_path / "bad.jsonl", [GOOD, text])
    with pytest.raises(TraceError, match=r"bad\.jsonl:2: line: "):
        read_trace(path)


def test_skip_bad_counts_what_it_leaves_out(tmp_path):
    rows = [GOOD, "{", {**GOOD, "timestamp": -1}, {**GOOD, "timestamp": 5}, {**GOOD, "hash_ids": 1}]
    trace = read_trace(write(tmp_path / "bad.jsonl", rows), skip_bad=True)
    assert len(trace.requests) == 2
    assert trace.skipped == 3
    assert trace.skip_reasons == {"hash_ids": 1, "line": 1, "timestamp": 1}


def test_missing_file_is_an_error_of_the_trace(tmp_path):
    with pytest.raises(TraceError, match="cannot read the trace"):
        read_trace(tmp_path / "none.jsonl")


def test_requests_are_sorted_and_parents_follow(tmp_path):
    first = {**GOOD, "timestamp": 9, "session": "a"}
    second = {**GOOD, "timestamp": 3, "session": "b"}
    third = {**GOOD, "timestamp": 20, "session": "a", "parent": 0}
    trace = read_trace(write(tmp_path / "t.jsonl", [first, second, third]))
    assert [r.session for r in trace.requests] == ["b", "a", "a"]
    assert [r.parent for r in trace.requests] == [-1, -1, 1]


def test_gzip_round_trip(tmp_path):
    trace = read_trace(write(tmp_path / "t.jsonl", [GOOD, {**GOOD, "timestamp": 7}]))
    write_trace(trace, tmp_path / "t.jsonl.gz")
    assert read_trace(tmp_path / "t.jsonl.gz").requests == trace.requests


def test_a_disk_that_is_full_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "t.jsonl"
    path.write_text("the one before")

    def full(_trace):
        yield b"{}"
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(traces, "trace_lines", full)
    with pytest.raises(BadRequest, match="No space left"):
        write_trace(generate(Workload(requests=2)), path)
    assert [p.name for p in tmp_path.iterdir()] == ["t.jsonl"]
    assert path.read_text() == "the one before"


@pytest.mark.parametrize("damage", ["cut", "scrambled", "plain"])
def test_a_damaged_gzip_is_an_error_of_the_trace(tmp_path, damage):
    path = tmp_path / "t.jsonl.gz"
    write_trace(generate(Workload(requests=50)), path)
    whole = path.read_bytes()
    damaged = {
        "cut": whole[: len(whole) // 2],
        "scrambled": whole[:40] + bytes(200) + whole[240:],
        "plain": gzip.decompress(whole),
    }
    path.write_bytes(damaged[damage])
    with pytest.raises(TraceError, match="cannot read the trace") as caught:
        read_trace(path)
    assert caught.value.field == "trace"


def test_reuse_counts_contiguous_leading_blocks_only(tmp_path):
    rows = [
        {**GOOD, "input_length": 1536, "hash_ids": [1, 2, 3]},
        {**GOOD, "input_length": 1536, "hash_ids": [1, 9, 3]},  # 3 is seen, 9 is not
        {**GOOD, "input_length": 1100, "hash_ids": [1, 2, 8]},
    ]
    stats = trace_statistics(read_trace(write(tmp_path / "t.jsonl", rows)))
    assert stats["infinite_reuse_ratio"] == pytest.approx((512 + 1024) / (1536 + 1536 + 1100), 1e-5)


def test_a_partly_filled_block_counts_by_its_tokens_but_is_no_whole_block(tmp_path):
    stats = trace_statistics(read_trace(write(tmp_path / "t.jsonl", [GOOD, GOOD])))
    assert stats["infinite_reuse_ratio"] == 0.5
    assert stats["whole_block_reuse_ratio"] == pytest.approx(512 / 2000)


def test_sessions_are_inferred_from_prompts_that_continue(tmp_path):
    rows = [
        {**GOOD, "input_length": 1100, "hash_ids": [1, 2, 3]},
        {**GOOD, "timestamp": 1, "input_length": 1100, "hash_ids": [1, 5, 6]},
        {**GOOD, "timestamp": 60_000, "input_length": 2100, "hash_ids": [1, 2, 7, 8, 9]},
    ]
    linked = with_sessions(read_trace(write(tmp_path / "t.jsonl", rows)))
    assert [r.parent for r in linked.requests] == [-1, -1, 0]
    assert linked.requests[2].session == linked.requests[0].session
    assert linked.requests[2].turn == 2


def test_halves_cut_time_and_keep_parents_inside():
    requests = [
        TraceRequest(arrival_s=t, prompt_tokens=10, output_tokens=1, hash_ids=[0], parent=p)
        for t, p in ((0.0, -1), (4.0, 0), (6.0, 1), (10.0, 2))
    ]
    from core.simulation.traces import Trace

    first, second = Trace(name="t", block_tokens=512, requests=requests).halves()
    assert [r.parent for r in first.requests] == [-1, 0]
    assert [r.parent for r in second.requests] == [-1, 0]


def test_prepared_keys_cover_whole_blocks_only(tmp_path):
    workload = prepare(read_trace(write(tmp_path / "t.jsonl", [GOOD, GOOD])))
    assert [len(keys) for keys in workload.keys] == [1, 1]
    assert workload.keys[0] == workload.keys[1]
