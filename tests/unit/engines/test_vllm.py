"""vLLM adapter against recorded answers."""

import orjson
import pytest

from core.domain import EventEndpoints, NodeId, NodeSpec, OutcomeKind
from core.engines import Usage, adapter
from core.engines.vllm import VllmAdapter
from core.errors import EngineBroken
from tests.unit.engines.fixtures import body, responses, text

VLLM = VllmAdapter()
NODE = NodeSpec(id=NodeId("n"), url="http://10.0.0.9:8000")


def pages(**over: str) -> dict[str, str]:
    found = {
        "/v1/models": body("vllm", "models").decode(),
        "/version": body("vllm", "version").decode(),
        "/metrics": text("vllm-metrics-load.txt"),
        "/kv_event_sources": body("vllm", "kv_event_sources").decode(),
    }
    return {**found, **{k.replace("__", "/"): v for k, v in over.items()}}


def test_telemetry_of_a_loaded_engine():
    t = VLLM.parse_metrics(text("vllm-metrics-load.txt"))
    assert (t.running, t.waiting, t.block_size, t.kv_capacity_tokens) == (10, 30, 32, 65536)
    assert t.kv_usage == pytest.approx(0.532486565705911)
    assert (t.prompt_tokens_total, t.cached_tokens_total) == (74864.0, 12928.0)
    assert (t.preemptions_total, t.process_start_s) == (0.0, 1.79596193711e09)


def test_telemetry_of_one_rank_of_several():
    page = "".join(
        f'vllm:num_requests_running{{engine="{r}",model_name="m"}} {r + 1}\n'
        f'vllm:kv_cache_usage_perc{{engine="{r}",model_name="m"}} 0.{r + 1}\n'
        f'vllm:cache_config_info{{engine="{r}",block_size="16",num_gpu_blocks="100"}} 1\n'
        for r in range(3)
    )
    one, all_ = VLLM.parse_metrics(page, dp_rank=1), VLLM.parse_metrics(page)
    assert (one.running, one.kv_usage, one.kv_capacity_tokens) == (2, 0.2, 1600)
    assert (all_.running, all_.kv_capacity_tokens) == (6, 4800)
    assert all_.kv_usage == pytest.approx(0.2)


def test_an_empty_page_tells_nothing():
    t = VLLM.parse_metrics("")
    assert t.running is None and t.kv_usage is None and t.kv_capacity_tokens is None
    assert VLLM.epoch("") == ""


def test_epoch_differs_between_processes():
    one, other = text("vllm-metrics-idle.txt"), text("vllm-metrics-load.txt")
    assert VLLM.epoch(one) == VLLM.epoch(one) != ""
    assert VLLM.epoch("process_start_time_seconds 1.5\n") != VLLM.epoch(other)


def test_discovery_reads_models_cache_and_events():
    found = VLLM.discover(pages(), host="10.0.0.9")
    assert (found.version, found.models, found.context_tokens_max) == ("0.32.0", ("tiny",), 32768)
    assert (found.block_size, found.kv_capacity_tokens, found.dp_size) == (32, 65536, 1)
    # Recorded with the replay socket bound to loopback: of no use from another machine.
    assert found.events == {
        0: EventEndpoints(live="tcp://10.0.0.9:5601", replay=None, topic="kv@127.0.0.1:8101@tiny")
    }
    assert "replay" in found.notes[0]


def test_discovery_on_the_same_machine_keeps_the_loopback_replay():
    found = VLLM.discover(pages(), host="127.0.0.1")
    assert found.events[0].replay == "tcp://127.0.0.1:5602"
    assert found.notes == ()


def test_discovery_separates_adapters_from_models():
    models = orjson.dumps(responses("vllm")["models_lora"]["body"]).decode()
    found = VLLM.discover(pages(__v1__models=models), host="h")
    assert found.models == ("tiny",)
    assert found.adapters == {"adapter-a": "tiny"}


def test_discovery_says_when_the_publisher_connects_instead_of_binding():
    source = {
        "0": {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": "tcp://127.0.0.1:5631",
        }
    }
    found = VLLM.discover(pages(__kv_event_sources=orjson.dumps(source).decode()), host="h")
    assert found.events == {}
    assert "connect instead of bind" in found.notes[0]


def test_discovery_needs_a_model():
    for page in ("", "{}", '{"data": []}', '{"data": [{"id": 3}]}', "<html>"):
        with pytest.raises(EngineBroken, match="lists no model"):
            VLLM.discover({"/v1/models": page}, host="h")


def test_older_releases_answer_less_and_still_register():
    found = VLLM.discover({"/v1/models": pages()["/v1/models"]}, host="h")
    assert (found.block_size, found.kv_capacity_tokens, found.events) == (0, 0, {})


def test_prefill_leg_asks_for_one_unstreamed_token():
    client = {
        "model": "m",
        "messages": [],
        "max_tokens": 50,
        "min_tokens": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
    }
    assert VLLM.prefill_leg(client) == {
        "model": "m",
        "messages": [],
        "max_tokens": 1,
        "max_completion_tokens": 1,
        "stream": False,
        "temperature": 0,
        "kv_transfer_params": {"do_remote_decode": True},
    }
    assert client["max_tokens"] == 50, "the client's body must stay"
    assert "max_completion_tokens" not in VLLM.prefill_leg({"prompt": [1, 2]})


def test_decode_leg_carries_the_recorded_parameters_unchanged():
    answer = responses("vllm")["nixl_prefill"]["body"]
    client = {"model": "tiny", "messages": [], "max_tokens": 8, "stream": True}
    leg = VLLM.decode_leg(client, answer)
    assert leg == {**client, "kv_transfer_params": answer["kv_transfer_params"]}
    assert leg["kv_transfer_params"]["remote_port"] == 5701


@pytest.mark.parametrize(
    "answer",
    [{}, {"kv_transfer_params": None}, {"kv_transfer_params": {"do_remote_prefill": False}}],
)
def test_decode_leg_refuses_an_answer_without_parameters(answer):
    with pytest.raises(EngineBroken, match="kv_transfer_params"):
        VLLM.decode_leg({}, answer)


@pytest.mark.parametrize(
    ("request_body", "possible"),
    [
        ({"messages": []}, True),
        ({"prompt": "text", "n": 1}, True),
        ({"prompt": [1, 2, 3]}, True),
        ({"prompt": ["a", "b"]}, False),
        ({"prompt": [[1], [2]]}, False),
        ({"messages": [], "n": 2}, False),
        ({"prompt": "x", "best_of": 3}, False),
        ({"prompt": "x", "echo": True}, False),
        ({"prompt": "x", "prompt_logprobs": 0}, False),
    ],
)
def test_which_requests_can_be_split(request_body, possible):
    assert VLLM.can_disaggregate(request_body) is possible


def test_usage_of_recorded_answers():
    assert VLLM.usage(responses("vllm")["chat_ok"]["body"]) == Usage(
        prompt=18, completion=4, cached=0
    )
    assert VLLM.usage({"usage": {"prompt_tokens": 5, "prompt_tokens_details": None}}) == Usage(
        prompt=5
    )
    assert VLLM.usage({"usage": None}) == VLLM.usage({}) == Usage()
    assert VLLM.usage({"usage": {"prompt_tokens": -1, "completion_tokens": True}}) == Usage()


@pytest.mark.parametrize(
    ("case", "kind", "retry"),
    [
        ("chat_ok", OutcomeKind.OK, False),
        ("err_unknown_model", OutcomeKind.REFUSED, False),
        ("err_too_long", OutcomeKind.REFUSED, False),
        ("err_queue_full", OutcomeKind.REFUSED, True),
        ("nixl_unreachable", OutcomeKind.ENGINE_ERROR, True),
    ],
)
def test_classification_of_recorded_answers(case, kind, retry):
    status = responses("vllm")[case]["status"]
    assert VLLM.classify(status, body("vllm", case)) is kind
    assert VLLM.is_retryable(status, body("vllm", case)) is retry


def test_a_dead_engines_503_is_the_nodes_fault():
    assert VLLM.classify(503, b"") is OutcomeKind.ENGINE_ERROR
    assert VLLM.classify(504, b"") is OutcomeKind.TIMEOUT


def test_error_messages_nested_flat_and_none():
    assert VLLM.error_message(body("vllm", "err_unknown_model")).startswith("The model `nope`")
    assert VLLM.error_message(body("vllm", "err_404")) == "Not Found"
    assert VLLM.error_message(b"<html>") == ""
    assert len(VLLM.error_message(orjson.dumps({"error": {"message": "x" * 999}}))) == 256


def test_stream_error_sees_the_object_before_done():
    died = b'{"error": {"message": "EngineCore encountered an issue.", "code": 500}}'
    assert VLLM.stream_error(died) == "EngineCore encountered an issue."
    assert VLLM.stream_error(b'{"choices":[{"delta":{"content":"\\"error\\""}}]}') is None
    assert VLLM.stream_error(b'{"choices":[{"delta":{}}],"error":null}') is None
    assert VLLM.stream_error(b"[DONE]") is None


def test_body_is_passed_as_it_is_unless_it_reaches_inside():
    client = {"model": "m", "prompt": "x"}
    assert VLLM.forward_body(client, NODE) is client
    hostile = {**client, "kv_transfer_params": {"remote_block_ids": [[0]]}, "bootstrap_room": 1}
    assert VLLM.forward_body(hostile, NODE) == client
    assert VLLM.forward_body({**client, "cache_salt": "theirs"}, NODE, cache_salt="ours") == {
        **client,
        "cache_salt": "ours",
    }


def test_headers_name_the_request_and_the_rank():
    ranked = NodeSpec(id=NodeId("n"), url="http://h", dp_rank=3)
    assert VLLM.forward_headers(NODE) == {}
    assert VLLM.forward_headers(ranked, request_id="r1") == {
        "x-request-id": "r1",
        "x-data-parallel-rank": "3",
    }


def test_tokens_of_a_recorded_answer():
    assert VLLM.parse_tokens(body("vllm", "tokenize_chat"))[:3] == (1, 3, 373)
    assert VLLM.parse_tokens(b'{"tokens": ["a"]}') is None
    assert VLLM.parse_tokens(b"[]") is None
    assert VLLM.tokenize_body("m", "x") == {"model": "m", "prompt": "x"}
    assert VLLM.tokenize_body("m", [{"role": "user"}])["add_generation_prompt"] is True


def test_the_emulated_engine_speaks_the_same_wire():
    assert isinstance(adapter("emulated"), VllmAdapter)
