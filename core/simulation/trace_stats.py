"""What a trace holds: lengths, rates, and how much of it could be reused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from core.simulation.traces import Trace

QUANTILES = (("p50", 0.50), ("p90", 0.90), ("p99", 0.99))


def trace_statistics(trace: Trace) -> dict[str, Any]:
    """Lengths in tokens, rates in requests/s, reuse shares in 0..1; keys in a fixed order.

    `infinite_reuse_ratio`: share of all prompt tokens found in one cache that forgets nothing,
    counting contiguous leading blocks only, in order of arrival, a partly filled last block
    counted by its tokens. `whole_block_reuse_ratio` counts whole blocks only, as engines do.
    """
    prompts = np.array([r.prompt_tokens for r in trace.requests], dtype=float)
    outputs = np.array([r.output_tokens for r in trace.requests], dtype=float)
    any_block, whole, distinct = infinite_reuse(trace)
    total = float(prompts.sum())
    return {
        "name": trace.name,
        "requests": len(trace.requests),
        "skipped": trace.skipped,
        "skip_reasons": trace.skip_reasons,
        "block_tokens": trace.block_tokens,
        "duration_s": round(trace.duration_s, 3),
        "requests_per_s": _per_s(trace),
        "prompt_tokens": summary(prompts),
        "output_tokens": summary(outputs),
        "prompt_tokens_total": int(total),
        "output_tokens_total": int(outputs.sum()),
        "distinct_blocks": distinct,
        "infinite_reuse_ratio": round(any_block / total, 6) if total else 0.0,
        "whole_block_reuse_ratio": round(whole / total, 6) if total else 0.0,
        **_sessions(trace),
        "burstiness": burstiness(trace),
        "top_prefix_share": _top_prefix_share(trace),
    }


def summary(values: np.ndarray, *, digits: int = 3) -> dict[str, float]:
    """Mean, quantiles and maximum of an array, rounded to `digits`; zeros when empty."""
    if not len(values):
        return {"mean": 0.0, **{name: 0.0 for name, _ in QUANTILES}, "max": 0.0}
    row = {"mean": float(values.mean())}
    row |= {name: float(np.quantile(values, q)) for name, q in QUANTILES}
    row["max"] = float(values.max())
    return {name: round(value, digits) for name, value in row.items()}


def infinite_reuse(trace: Trace) -> tuple[int, int, int]:
    """Reused tokens counting partial blocks, counting whole blocks only, and distinct blocks."""
    seen: set[int] = set()
    any_block = whole = 0
    size = trace.block_tokens
    for r in trace.requests:
        depth = 0
        for block in r.hash_ids:
            if block not in seen:
                break
            depth += 1
        any_block += min(depth * size, r.prompt_tokens)
        whole += min(depth, r.prompt_tokens // size) * size
        seen.update(r.hash_ids)
    return any_block, whole, len(seen)


def burstiness(trace: Trace) -> float:
    """Index of dispersion of arrivals per 10 s window: 1 for Poisson, above for bursts."""
    if len(trace.requests) < 2 or trace.duration_s <= 0:
        return 0.0
    first = trace.requests[0].arrival_s
    windows = max(int(trace.duration_s // 10), 1)
    counts = np.zeros(windows)
    for r in trace.requests:
        counts[min(int((r.arrival_s - first) // 10), windows - 1)] += 1
    return round(float(counts.var() / counts.mean()), 3)


def _per_s(trace: Trace) -> float:
    return round(len(trace.requests) / trace.duration_s, 4) if trace.duration_s > 0 else 0.0


def _sessions(trace: Trace) -> dict[str, Any]:
    sessions = Counter(r.session for r in trace.requests if r.session)
    turns = list(sessions.values())
    tenants = Counter(r.tenant for r in trace.requests if r.tenant)
    kinds = Counter(r.kind for r in trace.requests if r.kind)
    return {
        "sessions": len(turns),
        "turns_per_session_mean": round(float(np.mean(turns)), 3) if turns else 0.0,
        "tenants": len(tenants),
        "largest_tenant_share": _share(tenants, len(trace.requests)),
        "kinds": dict(sorted(kinds.items())),
    }


def _share(counts: Counter[str], total: int) -> float:
    return round(max(counts.values()) / total, 4) if counts else 0.0


def _top_prefix_share(trace: Trace) -> float:
    """Share of requests that start with the most common first block."""
    firsts = Counter(r.hash_ids[0] for r in trace.requests if r.hash_ids)
    return round(max(firsts.values()) / len(trace.requests), 4) if firsts else 0.0
