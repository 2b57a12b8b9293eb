"""vLLM: nested errors, NIXL two-step prefill/decode, `engine` label per data-parallel rank.

Observed on 0.32.0; event sources and some counters exist only in newer releases, so each has a
fallback. Our emulated engine speaks this wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.domain import EngineKind, EventEndpoints, Telemetry
from core.engines.base import (
    RANKS_MAX,
    Discovery,
    EngineAdapter,
    Flow,
    as_count,
    connectable,
    models_of,
    parse_object,
)
from core.engines.metrics import MetricsPage, MetricsReader, whole
from core.errors import EngineBroken

_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_PROMPT = "vllm:prompt_tokens_total"
_CACHED = ("vllm:prompt_tokens_cached_total", "vllm:prefix_cache_hits_total")
_PREEMPTIONS = "vllm:num_preemptions_total"
_CONFIG = "vllm:cache_config_info"
_STARTED = "process_start_time_seconds"
_READER = MetricsReader(
    (_RUNNING, _WAITING, *_USAGE, _PROMPT, *_CACHED, _PREEMPTIONS, _CONFIG, _STARTED)
)

_ONE_PROMPT_ONLY = ("n", "best_of")
_PREFILL_DROPS = frozenset({"stream", "stream_options", "min_tokens"})


class VllmAdapter(EngineAdapter):
    """vLLM's OpenAI server."""

    kind = EngineKind.VLLM
    flow = Flow.TWO_STEP
    discovery_paths = ("/v1/models", "/version", "/metrics", "/kv_event_sources")

    # ---- prefill/decode over NIXL ---------------------------------------------------------

    def can_disaggregate(self, body: Mapping[str, Any]) -> bool:
        """One prompt with one answer; prompt log-probabilities need the prompt where it decodes."""
        if any(body.get(name) not in (None, 1) for name in _ONE_PROMPT_ONLY):
            return False
        if body.get("echo") or body.get("prompt_logprobs") is not None:
            return False
        prompt = body.get("prompt")
        several = isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)
        return not several

    def prefill_leg(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The client's request for one token, unstreamed, whose blocks stay for the decoder."""
        leg = {k: v for k, v in body.items() if k not in _PREFILL_DROPS}
        leg["max_tokens"] = 1
        if "messages" in body:
            leg["max_completion_tokens"] = 1
        leg["stream"] = False
        leg["kv_transfer_params"] = {"do_remote_decode": True}
        return leg

    def decode_leg(
        self, body: Mapping[str, Any], prefill_response: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The client's request with the prefill answer's transfer parameters, unchanged.

        Parameters used twice read whatever is in those blocks by then and still answer 200, so a
        retry has to prefill again.
        """
        params = prefill_response.get("kv_transfer_params")
        if not isinstance(params, Mapping) or not params.get("do_remote_prefill"):
            raise EngineBroken(
                "the prefill answer has no kv_transfer_params with do_remote_prefill: "
                "is the engine started with a KV connector?",
                field="kv_transfer_params",
            )
        return {**body, "kv_transfer_params": dict(params)}

    def is_busy(self, status: int, body: bytes) -> bool:
        """503 of a queue limit; a dead engine's 503 says so in another type."""
        if status == 429:
            return True
        error = parse_object(body).get("error") if status == 503 else None
        return isinstance(error, Mapping) and error.get("type") == "Service Unavailable"

    # ---- telemetry ------------------------------------------------------------------------

    def parse_metrics(self, text: str, *, dp_rank: int | None = None) -> Telemetry:
        """One reading; KV usage is of blocks held by live requests only, cached ones are free."""
        page, rank = _READER.read(text), _rank_label(dp_rank)
        return Telemetry(
            running=whole(page.total(_RUNNING, rank)),
            waiting=whole(page.total(_WAITING, rank)),
            kv_usage=page.mean(_USAGE, rank),
            kv_capacity_tokens=_capacity(page, dp_rank) or None,
            block_size=_config_count(page, "block_size") or None,
            process_start_s=page.total(_STARTED),
            prompt_tokens_total=page.total(_PROMPT, rank),
            cached_tokens_total=page.total(_CACHED, rank),
            preemptions_total=page.total(_PREEMPTIONS, rank),
        )

    def epoch(self, metrics_text: str) -> str:
        """The process's start time, to the clock tick."""
        started = _READER.read(metrics_text).total(_STARTED)
        return "" if started is None else repr(started)

    # ---- discovery ------------------------------------------------------------------------

    def discover(self, pages: Mapping[str, str], *, host: str) -> Discovery:
        """Models and adapters, cache configuration, event sources."""
        listed = models_of(pages.get("/v1/models", ""))
        metrics = pages.get("/metrics", "")
        page = _READER.read(metrics)
        events, notes = _event_sources(pages.get("/kv_event_sources", ""), host=host)
        if page.label(_CONFIG, "enable_prefix_caching") == "False":
            notes += ("prefix caching is off: start the engine with --enable-prefix-caching",)
        return Discovery(
            version=str(parse_object(pages.get("/version", "")).get("version", "")),
            models=tuple(m["id"] for m in listed if not m.get("parent")),
            adapters={m["id"]: str(m["parent"]) for m in listed if m.get("parent")},
            context_tokens_max=max(as_count(m.get("max_model_len")) or 0 for m in listed),
            kv_capacity_tokens=_capacity(page, 0),
            block_size=_config_count(page, "block_size"),
            kv_dtype=page.label(_CONFIG, "cache_dtype") or "",
            dp_size=min(max(len(events), len(page.values(_RUNNING)), 1), RANKS_MAX),
            events=events,
            epoch=self.epoch(metrics),
            notes=notes,
        )


def _rank_label(dp_rank: int | None) -> dict[str, str]:
    return {} if dp_rank is None else {"engine": str(dp_rank)}


def _config_count(page: MetricsPage, label: str, dp_rank: int | None = None) -> int:
    """A number in the cache configuration's labels, 0 where absent or "None"."""
    text = page.label(_CONFIG, label, _rank_label(dp_rank)) or ""
    return int(text) if text.isdecimal() else 0


def _capacity(page: MetricsPage, dp_rank: int | None) -> int:
    """KV capacity in tokens; releases without the total tell blocks and their size."""
    told = _config_count(page, "kv_cache_size_tokens", dp_rank)
    blocks = _config_count(page, "num_gpu_blocks", dp_rank)
    each = told or blocks * _config_count(page, "block_size", dp_rank)
    ranks = len(page.values(_CONFIG)) if dp_rank is None else 1
    return each * max(ranks, 1)


def _event_sources(text: str, *, host: str) -> tuple[dict[int, EventEndpoints], tuple[str, ...]]:
    """Addresses by data-parallel rank, and what is wrong with those that cannot be used."""
    events: dict[int, EventEndpoints] = {}
    notes: list[str] = []
    for rank, source in parse_object(text).items():
        if not rank.isdecimal() or int(rank[:6]) >= RANKS_MAX or not isinstance(source, dict):
            continue
        if not source.get("enable_kv_cache_events") or source.get("publisher") != "zmq":
            continue
        endpoint = str(source.get("endpoint") or "")
        if not _binds(endpoint):
            notes.append(
                f"rank {rank} publishes to {endpoint!r}, which makes vLLM connect instead of bind: "
                "use tcp://*:PORT"
            )
            continue
        live = connectable(endpoint, host=host)
        if live is None:
            notes.append(f"rank {rank} publishes on {endpoint!r}, which cannot be reached")
            continue
        replay = connectable(str(source.get("replay_endpoint") or ""), host=host)
        if replay is None:
            notes.append(f"rank {rank} has no reachable replay endpoint: history cannot be read")
        topic = str(source.get("topic") or "")
        events[int(rank)] = EventEndpoints(live=live, replay=replay, topic=topic)
    return events, tuple(notes)


def _binds(endpoint: str) -> bool:
    """vLLM's publisher binds only where the address holds a wildcard or is a local transport."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))
