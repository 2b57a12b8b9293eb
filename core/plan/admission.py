"""Admission: refuse a request now that every candidate would serve too late (F Alg. 1, 5).

A prediction is compared with limit = SLO * slack * share(class). The share makes lower classes
go first as load grows: a request n priorities below the highest class in flight keeps

    share = max(1 - priority_step * n * load, priority_share_min)

of its limit, so it is refused while a higher class still has room; at load 0, or with one
class, nobody loses anything. Retry-After is the time until the predicted queue, or the predicted
batch, has drained to the limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.tunables import Admission


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What the best candidate is predicted to do, in seconds."""

    ttft_s: float
    """Least TTFT over the candidates."""
    queue_s: float
    """Its queueing part: what waiting elsewhere would save."""
    tbt_now_s: float = 0.0
    """Least TBT over decode candidates with the batches of now."""
    tbt_then_s: float | None = None
    """The same with the batches predicted for the end of the prefill; None where not known."""
    tbt_floor_s: float = 0.0
    """TBT of that node with an empty batch."""
    decode_s: float = 1.0
    """How long a request of the batch decodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a request is refused, as the answer needs it."""

    code: str
    """predicted_ttft_slo or predicted_tbt_slo."""
    message: str
    predicted_s: float
    limit_s: float
    retry_after_s: float
    status: int = 429


def judge(
    f: Forecast,
    rules: Admission,
    *,
    ttft_slo_s: float,
    tbt_slo_s: float,
    load: float,
    priority: int = 0,
    top_priority: int = 0,
) -> Refusal | None:
    """None admits. TTFT is judged first; TBT by the batch of `early_rejection`'s moment.

    `load` is the fleet's mean load in 0..1; `top_priority` the highest class in flight.
    """
    if rules.mode == "off":
        return None
    share = class_share(priority, rules, top_priority=top_priority, load=load)
    ttft_limit = ttft_slo_s * rules.ttft_slack * share
    if f.ttft_s > ttft_limit:
        return _late_first_token(f, rules, ttft_limit)
    tbt_limit = tbt_slo_s * rules.tbt_slack * share
    tbt_s = judged_tbt_s(f, rules)
    if tbt_s > tbt_limit:
        return _slow_tokens(f, rules, tbt_s, tbt_limit)
    return None


def judged_tbt_s(f: Forecast, rules: Admission) -> float:
    """The TBT that admission looks at: then, under early rejection, where known; else now."""
    if rules.early_rejection and f.tbt_then_s is not None:
        return f.tbt_then_s
    return f.tbt_now_s


def class_share(priority: int, rules: Admission, *, top_priority: int, load: float) -> float:
    """Share of its limit that a priority class keeps, by the rule above."""
    below = max(top_priority - priority, 0)
    lost = rules.priority_step * below * min(max(load, 0.0), 1.0)
    return max(1.0 - lost, rules.priority_share_min)


def ttft_drain_s(ttft_s: float, limit_s: float, *, queue_s: float) -> float:
    """Seconds until the queue ahead has shrunk enough; at most the whole queue."""
    return min(max(ttft_s - limit_s, 0.0), max(queue_s, 0.0))


def tbt_drain_s(tbt_s: float, limit_s: float, *, floor_s: float, decode_s: float) -> float:
    """Seconds until enough of the batch has ended, its TBT falling evenly to `floor_s`."""
    span = tbt_s - floor_s
    if span <= 0:
        return 0.0
    return min(max(tbt_s - limit_s, 0.0) / span, 1.0) * decode_s


def _late_first_token(f: Forecast, rules: Admission, limit_s: float) -> Refusal:
    drain = ttft_drain_s(f.ttft_s, limit_s, queue_s=f.queue_s)
    text = f"predicted time to first token {f.ttft_s:.3g} s exceeds the limit of {limit_s:.3g} s"
    if f.ttft_s - f.queue_s > limit_s:
        text += " even without a queue"
    return Refusal(
        code="predicted_ttft_slo",
        message=text,
        predicted_s=f.ttft_s,
        limit_s=limit_s,
        retry_after_s=min(drain, rules.retry_after_max_s),
    )


def _slow_tokens(f: Forecast, rules: Admission, tbt_s: float, limit_s: float) -> Refusal:
    drain = tbt_drain_s(tbt_s, limit_s, floor_s=f.tbt_floor_s, decode_s=f.decode_s)
    text = (
        f"predicted time between tokens {tbt_s * 1e3:.3g} ms exceeds "
        f"the limit of {limit_s * 1e3:.3g} ms"
    )
    return Refusal(
        code="predicted_tbt_slo",
        message=text,
        predicted_s=tbt_s,
        limit_s=limit_s,
        retry_after_s=min(drain, rules.retry_after_max_s),
    )
