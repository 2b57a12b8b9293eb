"""Adapters never trust an answer: whatever an engine says, nothing but our own errors comes out."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.domain import EventEndpoints, OutcomeKind
from core.engines import Discovery, EngineAdapter, adapters
from core.engines.base import connectable
from core.errors import EngineBroken

ALL = [pytest.param(a, id=kind) for kind, a in adapters().items()]
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "data",
                    "id",
                    "parent",
                    "max_model_len",
                    "loads",
                    "usage",
                    "error",
                    "message",
                    "tokens",
                    "prompt_tokens_details",
                    "cached_tokens",
                    "0",
                    "²",
                    "endpoint",
                    "publisher",
                    "enable_kv_cache_events",
                    "kv_events",
                    "endpoint_host",
                    "endpoint_port_base",
                    "dp_size",
                    "page_size",
                    "kv_transfer_params",
                    "do_remote_prefill",
                    "object",
                    "detail",
                ]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=12,
)
pages = st.text(max_size=40) | values.map(lambda v: orjson.dumps(v).decode())


@pytest.mark.parametrize("adapter", ALL)
@given(page=pages, status=st.integers(100, 599))
def test_answers_of_any_shape_are_read(adapter: EngineAdapter, page: str, status: int):
    body = page.encode("utf-8", "replace")
    assert isinstance(adapter.classify(status, body), OutcomeKind)
    assert isinstance(adapter.is_retryable(status, body), bool)
    assert len(adapter.error_message(body)) <= 256
    adapter.stream_error(body)
    adapter.parse_tokens(body)
    adapter.parse_load(body)
    adapter.parse_metrics(page)
    adapter.epoch(page)


@pytest.mark.parametrize("adapter", ALL)
@given(answer=st.dictionaries(st.sampled_from(["usage", "kv_transfer_params"]), values))
def test_usage_and_transfer_parameters_of_any_shape(adapter: EngineAdapter, answer: dict[str, Any]):
    usage = adapter.usage(answer)
    assert all(n is None or n >= 0 for n in (usage.prompt, usage.completion, usage.cached))
    if adapter.flow == "two_step":
        try:
            leg = adapter.decode_leg({"model": "m"}, answer)
        except EngineBroken:
            return
        assert leg["kv_transfer_params"]["do_remote_prefill"]


@pytest.mark.parametrize("adapter", ALL)
@given(data=st.data())
def test_discovery_gives_usable_figures_or_says_what_is_wrong(adapter: EngineAdapter, data):
    asked = {path: data.draw(pages) for path in adapter.discovery_paths}
    if data.draw(st.booleans()):
        asked["/v1/models"] = '{"data": [{"id": "m", "max_model_len": null}]}'
    try:
        found = adapter.discover(asked, host="10.0.0.1")
    except EngineBroken:
        return
    assert isinstance(found, Discovery) and (found.models or found.adapters)
    assert min(found.block_size, found.kv_capacity_tokens, found.context_tokens_max) >= 0
    assert all(isinstance(e, EventEndpoints) for e in found.events.values())


@given(st.text(max_size=30), st.sampled_from(["h", "127.0.0.1", "fe80::1"]))
def test_only_tcp_with_a_port_is_ever_connected_to(endpoint: str, host: str):
    found = connectable(endpoint, host=host)
    if found is not None:
        assert found.startswith("tcp://")
        assert 0 < int(found.rpartition(":")[2]) < 65536
