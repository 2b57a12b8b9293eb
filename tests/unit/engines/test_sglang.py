"""SGLang adapter against recorded answers."""

import orjson
import pytest

from core.domain import EventEndpoints, OutcomeKind, Role
from core.engines import Flow, Usage
from core.engines.sglang import SglangAdapter
from tests.unit.engines.fixtures import body, responses, text

SGLANG = SglangAdapter()


def pages(**info) -> dict[str, str]:
    server = {**responses("sglang")["server_info"]["body"], **info}
    return {
        "/v1/models": body("sglang", "models").decode(),
        "/server_info": orjson.dumps(server).decode(),
        "/metrics": text("sglang-metrics-load.txt"),
    }


def test_telemetry_of_a_loaded_server():
    t = SGLANG.parse_metrics(text("sglang-metrics-load.txt"))
    assert (t.running, t.waiting, t.block_size, t.kv_capacity_tokens) == (5, 11, 16, 4096)
    assert t.kv_usage == 0.76
    assert (t.prompt_tokens_total, t.cached_tokens_total) == (7388.0, 864.0)


def test_gauges_of_further_tensor_parallel_ranks_do_not_add():
    lines = "".join(f'sglang:num_running_reqs{{pp_rank="0",tp_rank="{r}"}} 5\n' for r in range(4))
    assert SGLANG.parse_metrics(lines).running == 5


def test_load_page_gives_waiting_tokens():
    t = SGLANG.parse_load(body("sglang", "v1/loads"))
    assert (t.running, t.waiting, t.waiting_tokens) == (0, 0, 0)
    assert (t.kv_usage, t.kv_capacity_tokens) == (0.0, 4096)


def test_load_page_by_rank_and_together():
    rows = [
        {
            "dp_rank": r,
            "num_running_reqs": r,
            "num_waiting_uncached_tokens": 10 * r,
            "token_usage": r / 4,
            "max_total_num_tokens": 100,
        }
        for r in range(3)
    ]
    page = orjson.dumps({"loads": rows})
    one, every = SGLANG.parse_load(page, dp_rank=2), SGLANG.parse_load(page)
    assert (one.running, one.waiting_tokens, one.kv_usage) == (2, 20, 0.5)
    assert (every.running, every.waiting_tokens, every.kv_usage) == (3, 30, 0.25)
    assert SGLANG.parse_load(page, dp_rank=9) is None
    assert SGLANG.parse_load(b"Not Found") is None


def test_epoch_is_of_one_start():
    page = text("sglang-metrics-load.txt")
    assert SGLANG.epoch(page) == SGLANG.epoch(page) != ""
    assert SGLANG.epoch(page.replace("3.4191849599997113", "3.4191849599997223")) != SGLANG.epoch(
        page
    )
    assert SGLANG.epoch("") == ""


def test_discovery_reads_models_pool_and_events():
    found = SGLANG.discover(pages(), host="10.0.0.9")
    assert (found.version, found.models) == ("0.5.23", ("tiny",))
    assert (found.block_size, found.kv_capacity_tokens) == (16, 4096)
    assert found.context_tokens_max == 4096, "longer prompts than the pool are refused"
    assert found.events == {
        0: EventEndpoints(
            live="tcp://10.0.0.9:5721", replay="tcp://10.0.0.9:5731", topic="kv-events"
        )
    }
    assert found.role is None and found.bootstrap_port is None and found.notes == ()


def test_discovery_of_ranks_counts_ports_up():
    descriptor = {**responses("sglang")["load_descriptor"], "dp_size": 3}
    found = SGLANG.discover(pages(kv_events=descriptor, dp_size=3), host="h")
    assert found.dp_size == 3
    assert [e.live for e in found.events.values()] == [
        "tcp://h:5901",
        "tcp://h:5902",
        "tcp://h:5903",
    ]


def test_discovery_of_a_prefill_server():
    found = SGLANG.discover(pages(disaggregation_mode="prefill"), host="h")
    assert (found.role, found.bootstrap_port) == (Role.PREFILL, 8998)


def test_discovery_without_events_says_so():
    found = SGLANG.discover(pages(kv_events=None, disable_radix_cache=True), host="h")
    assert found.events == {}
    assert "--kv-events-config" in found.notes[0] and "radix" in found.notes[1]


def test_paired_flow_meets_in_a_room():
    client = {"messages": []}
    assert SGLANG.flow is Flow.PAIRED
    assert SGLANG.paired_body(client, host="p1", port=8998, room=7) == {
        "messages": [],
        "bootstrap_host": "p1",
        "bootstrap_port": 8998,
        "bootstrap_room": 7,
    }
    with pytest.raises(ValueError, match="63-bit"):
        SGLANG.paired_body(client, host="p1", port=8998, room=1 << 63)
    assert SGLANG.can_disaggregate({"prompt": [1, 2]})
    assert not SGLANG.can_disaggregate({"prompt": ["a", "b"]})


def test_usage_and_classification_of_recorded_answers():
    assert SGLANG.usage(responses("sglang")["err_unknown_model"]["body"]) == Usage(
        prompt=18, completion=2, cached=16
    )
    long = body("sglang", "err_too_long")
    assert SGLANG.classify(400, long) is OutcomeKind.REFUSED
    assert SGLANG.error_message(long).startswith("The input (80014 tokens)")
    assert SGLANG.classify(500, b"") is OutcomeKind.ENGINE_ERROR
    assert SGLANG.classify(503, b'{"message":"The request queue is full."}') is OutcomeKind.REFUSED
    assert SGLANG.classify(503, b"") is OutcomeKind.ENGINE_ERROR


def test_source_paths_are_cut_from_messages():
    leaking = body("sglang", "err_malformed_json")
    assert b"http_server.py" in leaking
    message = SGLANG.error_message(leaking)
    assert "http_server.py" not in message and "JSON decode error" in message


def test_flat_errors_in_streams_are_seen():
    flat = b'{"object":"error","message":"aborted","code":500}'
    assert SGLANG.stream_error(flat) == "aborted"
    assert SGLANG.stream_error(b'{"error":{"message":"gone"}}') == "gone"
    assert SGLANG.stream_error(b'{"object":"chat.completion.chunk","choices":[]}') is None


def test_a_boastful_server_is_not_believed():
    descriptor = {**responses("sglang")["load_descriptor"], "dp_size": 10**9}
    found = SGLANG.discover(pages(kv_events=descriptor, dp_size=10**9), host="h")
    assert found.dp_size == len(found.events) == 1024
