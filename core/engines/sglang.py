"""SGLang: flat errors, paired prefill/decode by room number, gauges from /v1/loads.

Observed on 0.5.23. Its metrics page comes from several processes and carries no process start
time, so the identity of a server is read from its recorded start-up durations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from core.domain import EngineKind, EventEndpoints, Role, Telemetry
from core.engines.base import (
    RANKS_MAX,
    Discovery,
    EngineAdapter,
    Flow,
    as_count,
    connectable,
    models_of,
    parse_object,
    shifted,
)
from core.engines.metrics import MetricsReader, whole

_RUNNING = "sglang:num_running_reqs"
_WAITING = "sglang:num_queue_reqs"
_USAGE = "sglang:token_usage"
_CAPACITY = "sglang:max_total_num_tokens"
_PAGE_SIZE = "sglang:page_size"
_PROMPT = "sglang:prompt_tokens_total"
_CACHED = "sglang:cached_tokens_total"
_RETRACTED = "sglang:num_retracted_reqs"
_STARTUP = "sglang:startup_time_seconds"
_STARTED = "process_start_time_seconds"
_READER = MetricsReader(
    (
        *(_RUNNING, _WAITING, _USAGE, _CAPACITY, _PAGE_SIZE, _PROMPT, _CACHED),
        *(_RETRACTED, _STARTUP, _STARTED),
    )
)
_SOURCE_PATHS = re.compile(r'\s*File \\?"[^"\\]+\\?", line \d+, in .*', re.DOTALL)


class SglangAdapter(EngineAdapter):
    """SGLang's OpenAI server."""

    kind = EngineKind.SGLANG
    flow = Flow.PAIRED
    load_path = "/v1/loads"
    discovery_paths = ("/v1/models", "/server_info", "/metrics")

    def can_disaggregate(self, body: Mapping[str, Any]) -> bool:
        """One prompt with one answer: batches would need one room for each item."""
        prompt = body.get("prompt")
        several = isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)
        return body.get("n") in (None, 1) and not several

    def paired_body(
        self, body: Mapping[str, Any], *, host: str, port: int, room: int
    ) -> dict[str, Any]:
        """The request with the prefill server's bootstrap address and a fresh 63-bit room."""
        if not 0 <= room < 1 << 63:
            raise ValueError(f"room must be a 63-bit number, not {room}")
        return {**body, "bootstrap_host": host, "bootstrap_port": port, "bootstrap_room": room}

    def is_busy(self, status: int, body: bytes) -> bool:
        """429, or a 503 answer from a server that is up: its queue is full."""
        return status == 429 or (status == 503 and b"queue" in body.lower())

    def error_message(self, body: bytes) -> str:
        """The message without the server's source paths that validation errors append."""
        return _SOURCE_PATHS.sub("", super().error_message(body))

    # ---- telemetry ------------------------------------------------------------------------

    def parse_metrics(self, text: str, *, dp_rank: int | None = None) -> Telemetry:
        """One reading; a gauge is missing from the page until it was set once."""
        page = _READER.read(text)
        rank = {} if dp_rank is None else {"dp_rank": str(dp_rank)}
        # Tensor- and pipeline-parallel ranks repeat the gauges of their scheduler.
        first = rank | {"tp_rank": "0", "pp_rank": "0"}
        return Telemetry(
            running=whole(page.total(_RUNNING, first)),
            waiting=whole(page.total(_WAITING, first)),
            kv_usage=page.mean(_USAGE, first),
            kv_capacity_tokens=whole(page.total(_CAPACITY, first)),
            block_size=whole(page.mean(_PAGE_SIZE, first)),
            process_start_s=page.total(_STARTED),
            prompt_tokens_total=page.total(_PROMPT),
            cached_tokens_total=page.total(_CACHED),
            preemptions_total=page.total(_RETRACTED, first),
        )

    def parse_load(self, body: bytes, *, dp_rank: int | None = None) -> Telemetry | None:
        """Live gauges of one rank or of all, with the uncached tokens that wait."""
        loads = parse_object(body).get("loads")
        rows = [
            row
            for row in (loads if isinstance(loads, list) else [])
            if isinstance(row, dict) and (dp_rank is None or row.get("dp_rank") == dp_rank)
        ]
        if not rows:
            return None
        usage = [float(r["token_usage"]) for r in rows if _is_number(r.get("token_usage"))]
        return Telemetry(
            running=_sum(rows, "num_running_reqs"),
            waiting=_sum(rows, "num_waiting_reqs"),
            waiting_tokens=_sum(rows, "num_waiting_uncached_tokens"),
            kv_usage=sum(usage) / len(usage) if usage else None,
            kv_capacity_tokens=_sum(rows, "max_total_num_tokens"),
        )

    def epoch(self, metrics_text: str) -> str:
        """Start-up durations, nanosecond-precise, of this server's one start."""
        page = _READER.read(metrics_text)
        started = page.total(_STARTED)
        if started is not None:
            return repr(started)
        durations = page.values(_STARTUP)
        return ",".join(repr(d) for d in sorted(durations))

    # ---- discovery ------------------------------------------------------------------------

    def discover(self, pages: Mapping[str, str], *, host: str) -> Discovery:
        """Models, page size, pool, role, bootstrap port and event descriptor."""
        listed = models_of(pages.get("/v1/models", ""))
        info = parse_object(pages.get("/server_info", ""))
        events, notes = _event_ranks(info.get("kv_events"), host=host)
        capacity = as_count(info.get("max_total_num_tokens")) or 0
        dp_size = min(as_count(info.get("dp_size")) or 1, RANKS_MAX)
        role = {"prefill": Role.PREFILL, "decode": Role.DECODE}.get(
            str(info.get("disaggregation_mode"))
        )
        if info.get("disable_radix_cache"):
            notes += ("the radix cache is off: start the server without --disable-radix-cache",)
        longest = max(as_count(m.get("max_model_len")) or 0 for m in listed)
        return Discovery(
            version=str(info.get("version", "")),
            models=tuple(m["id"] for m in listed if not m.get("parent")),
            adapters={m["id"]: str(m["parent"]) for m in listed if m.get("parent")},
            # Prompts longer than the pool are refused, a little below its size.
            context_tokens_max=min(x for x in (longest, capacity) if x) if longest else capacity,
            kv_capacity_tokens=capacity,
            block_size=as_count(info.get("page_size")) or 0,
            kv_dtype=str(info.get("kv_cache_dtype") or ""),
            batch_max=as_count(info.get("max_running_requests")) or 0,
            dp_size=dp_size,
            events=events,
            role=role,
            bootstrap_port=as_count(info.get("disaggregation_bootstrap_port")) if role else None,
            epoch=self.epoch(pages.get("/metrics", "")),
            notes=notes,
        )


def _event_ranks(found: Any, *, host: str) -> tuple[dict[int, EventEndpoints], tuple[str, ...]]:
    """Addresses by rank out of the server's event descriptor: rank r is base port + r."""
    if not isinstance(found, dict) or found.get("publisher") != "zmq":
        return {}, ("the server publishes no KV events: start it with --kv-events-config",)
    bound, base = found.get("endpoint_host"), as_count(found.get("endpoint_port_base"))
    live = connectable(f"tcp://{bound}:{base}", host=host)
    if live is None:
        return {}, (f"events on {bound!r}:{base} cannot be reached",)
    replay_base = as_count(found.get("replay_endpoint_port_base"))
    replay = connectable(f"tcp://{bound}:{replay_base}", host=host)
    topic = str(found.get("topic") or "")
    ranks = range(min(as_count(found.get("dp_size")) or 1, RANKS_MAX))
    notes = () if replay else ("no replay endpoint: history cannot be read",)
    return {
        r: EventEndpoints(
            live=shifted(live, r), replay=shifted(replay, r) if replay else None, topic=topic
        )
        for r in ranks
    }, notes


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _sum(rows: list[dict[str, Any]], key: str) -> int | None:
    found = [row[key] for row in rows if as_count(row.get(key)) is not None]
    return sum(found) if found else None
