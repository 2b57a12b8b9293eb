"""What an engine tells about itself: models, metrics, state, event sources."""

from __future__ import annotations

from typing import Any

from core.engines.emulated.engine import Engine
from core.engines.emulated.metrics import Page, process_samples


def models(engine: Engine) -> dict[str, Any]:
    """The `/v1/models` list: the base model, then its adapters."""
    config = engine.config
    cards = [_card(engine, config.model, parent=None, length=config.context_max)]
    cards += [_card(engine, name, parent=config.model, length=None) for name in config.adapters]
    return {"object": "list", "data": cards}


def _card(engine: Engine, name: str, *, parent: str | None, length: int | None) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": int(engine.started_s),
        "owned_by": "vllm",
        "root": name,
        "parent": parent,
        "max_model_len": length,
        "permission": [],
    }


def event_sources(engine: Engine) -> dict[str, Any]:
    """Rank -> event settings. The host is a wildcard, as vLLM reports it: clients fill it in."""
    publisher = engine.publisher
    if publisher is None:
        return {}
    replay = publisher.replay_port
    return {
        "0": {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{publisher.live_port}",
            "replay_endpoint": None if replay is None else f"tcp://*:{replay}",
            "buffer_steps": engine.config.buffer_steps,
            "hwm": 100_000,
            "max_queue_size": 100_000,
            "topic": engine.topic,
        }
    }


def metrics(engine: Engine) -> str:
    """The `/metrics` page."""
    page = Page({"engine": "0", "model_name": engine.config.model}, created_s=engine.started_s)
    page.plain("process_start_time_seconds", "gauge", engine.started_s)
    for name, kind, value in process_samples():
        page.plain(name, kind, value)
    _gauges(page, engine)
    _counters(page, engine)
    _cache_config(page, engine)
    for name, histogram in engine.latencies.by_name():
        page.histogram(name, histogram)
    return page.text()


def _gauges(page: Page, engine: Engine) -> None:
    scheduler = engine.scheduler
    capacity, deferred = len(scheduler.waiting), len(scheduler.loading)
    page.gauge("vllm:num_requests_running", [({}, len(scheduler.running))])
    page.gauge("vllm:num_requests_waiting", [({}, capacity + deferred)])
    page.gauge(
        "vllm:num_requests_waiting_by_reason",
        [({"reason": "capacity"}, capacity), ({"reason": "deferred"}, deferred)],
    )
    page.gauge("vllm:kv_cache_usage_perc", [({}, scheduler.pool.usage)])
    states = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
    page.gauge(
        "vllm:engine_sleep_state", [({"sleep_state": s}, value) for s, value in states.items()]
    )
    if engine.config.adapters:
        _adapters(page, engine)


def _adapters(page: Page, engine: Engine) -> None:
    scheduler = engine.scheduler
    running = sorted({s.adapter for s in scheduler.running if s.adapter})
    waiting = sorted({s.adapter for s in scheduler.waiting if s.adapter})
    labels = {
        "max_lora": str(len(engine.config.adapters)),
        "running_lora_adapters": ",".join(running),
        "waiting_lora_adapters": ",".join(waiting),
    }
    page.gauge("vllm:lora_requests_info", [(labels, engine.started_s)])


def _counters(page: Page, engine: Engine) -> None:
    c = engine.scheduler.counters
    page.counter("vllm:prefix_cache_queries", [({}, c.queries)])
    page.counter("vllm:prefix_cache_hits", [({}, c.hits)])
    page.counter("vllm:external_prefix_cache_queries", [({}, c.external_queries)])
    page.counter("vllm:external_prefix_cache_hits", [({}, c.external_hits)])
    page.counter("vllm:num_preemptions", [({}, c.preemptions)])
    page.counter("vllm:prompt_tokens", [({}, c.computed + c.hits + c.external_hits)])
    sources = {
        "local_compute": c.computed,
        "local_cache_hit": c.hits,
        "external_kv_transfer": c.external_hits,
    }
    page.counter("vllm:prompt_tokens_by_source", [({"source": s}, v) for s, v in sources.items()])
    tiers = {"device": c.hits, "p2p": c.external_hits}
    tiers |= dict.fromkeys(("host", "disk", "external_unspecified"), 0)
    page.counter(
        "vllm:prompt_tokens_cached_by_source", [({"source": s}, v) for s, v in tiers.items()]
    )
    page.counter("vllm:generation_tokens", [({}, c.generated)])
    reasons = {**c.finished, "repetition": 0}
    page.counter("vllm:request_success", [({"finished_reason": r}, v) for r, v in reasons.items()])
    page.counter(
        "vllm:admission_rejections", [({"reason": "max_num_queued_reqs"}, engine.rejected)]
    )
    page.counter("vllm:nixl_num_kv_expired_reqs", [({}, engine.scheduler.holds.expired)])
    page.counter("vllm:nixl_num_notifications_after_expiry", [({}, engine.scheduler.holds.late)])


def _cache_config(page: Page, engine: Engine) -> None:
    config = engine.config
    labels = {
        "block_size": str(config.block_size),
        "num_gpu_blocks": str(config.blocks),
        "kv_cache_size_tokens": str(config.blocks * config.block_size),
        "prefix_caching_hash_algo": "xxh3_64",
        "enable_prefix_caching": "True",
    }
    page.gauge("vllm:cache_config_info", [(labels, 1)])


def state(engine: Engine) -> dict[str, Any]:
    """Cache, queue, events and faults, for tests and curious people."""
    scheduler, pool = engine.scheduler, engine.scheduler.pool
    publisher = engine.publisher
    return {
        "name": engine.config.name,
        "role": engine.config.role,
        "engine_id": engine.engine_id,
        "running": len(scheduler.running),
        "waiting": len(scheduler.waiting),
        "loading": len(scheduler.loading),
        "holds": scheduler.holds.names(),
        "blocks": {
            "total": pool.blocks,
            "free": pool.free_blocks,
            "used": pool.used_blocks,
            "cached": pool.cached_blocks,
        },
        "events": {
            "next_seq": engine.events.next_seq,
            "lost": engine.lost_batches,
            "unpublished": len(pool.pending),
            "live_port": publisher.live_port if publisher else None,
            "replay_port": publisher.replay_port if publisher else None,
        },
        "steps": scheduler.counters.steps,
        "computed_tokens": scheduler.counters.computed,
        "faults": engine.dice.faults.as_dict(),
    }
